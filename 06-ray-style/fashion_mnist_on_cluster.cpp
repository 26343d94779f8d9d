// fashion_mnist_on_cluster: the tutorial's training on a cluster: its network, with --num-workers processes that share
// each batch. Exit status: the training's; 1 where there is no cluster, 2 bad command line.
#include "cluster/submit.hpp"

#include <multinode/options.hpp>
#include <multinode/program_options.hpp>

#include <iostream>
#include <string>

int main(int argc, char** argv) {
  try {
    int num_workers = 4, max_failures = 0, epochs = 10, batch_size = 32;
    double learning_rate = 1e-3;
    std::string data, checkpoint, json;
    cluster::AccessOptions access;
    namespace po = boost::program_options;
    po::options_description known("fashion_mnist_on_cluster");
    known.add_options()                                                                                              //
        ("num-workers", po::value(&num_workers)->default_value(num_workers), "processes, each on a CPU of its own")  //
        ("epochs", po::value(&epochs)->default_value(epochs), "times that each image is learned from")               //
        ("batch-size", po::value(&batch_size)->default_value(batch_size),
         "images in a step, of all workers together")                                               //
        ("learning-rate", po::value(&learning_rate)->default_value(learning_rate), "at the start")  //
        ("data", po::value(&data)->value_name("DIR"),
         "folder with the images, on all nodes (default: fashion_mnist's)")  //
        ("checkpoint", po::value(&checkpoint)->value_name("DIR"),
         "a folder that all nodes see, to go on from after a failure")  //
        ("max-failures", po::value(&max_failures)->default_value(max_failures),
         "maximum number of restarts; -1: unlimited")  //
        ("json", po::value(&json), "file for all events, one JSON object per line");
    known.add(access.description());
    if (!multinode::parse_command_line(argc, argv, known, true)) return multinode::exit_right;
    multinode::require_range("--num-workers", num_workers, 1, 10'000);
    multinode::require_range("--max-failures", max_failures, -1, 1'000'000);

    cluster::Job job;
    job.set_program("fashion_mnist");
    job.set_num_workers(num_workers);
    job.set_cpus_per_worker(1);
    job.set_max_failures(max_failures);
    const auto argue = [&job](const std::string& option, const std::string& value) {
      if (value.empty()) return;
      job.add_arguments(option);
      job.add_arguments(value);
    };
    argue("--epochs", std::to_string(epochs));
    argue("--batch-size", std::to_string(batch_size));
    argue("--learning-rate", std::to_string(learning_rate));
    argue("--data", data);
    argue("--checkpoint", checkpoint);
    return cluster::run_job(access.read(), job, json);
  } catch (const multinode::UsageError& e) {
    std::cerr << std::string("fashion_mnist_on_cluster: ") + e.what() + "\n";
    return multinode::exit_usage;
  } catch (const std::exception& e) {
    std::cerr << std::string("fashion_mnist_on_cluster: ") + e.what() + "\n";
    return multinode::exit_wrong;
  }
}
