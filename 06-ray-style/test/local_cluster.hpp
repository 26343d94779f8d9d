// local_cluster.hpp: a cluster whose head and nodes are all on this host, for tests of whole programs.
#pragma once

#include <testing/program_test.hpp>
#include <testing/temporary_folder.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <sys/stat.h>

using multinode::testing::ends;
using multinode::testing::is_running;
using multinode::testing::TemporaryFolder;
using multinode::testing::text_of;

// A job: a shell script.
inline void write_script(const std::filesystem::path& file, const std::string& text) {
  std::ofstream(file) << "#!/bin/sh\n" << text << '\n';
  chmod(file.c_str(), 0755);
}

class LocalCluster {
 public:
  using Process = multinode::testing::Process;

  // The head's own node has no slots. `jobs`: the job folder; "": the program's own.
  explicit LocalCluster(std::string jobs = "")
      : jobs_(std::move(jobs)), head_(start({"--head", "--port", "0", "--num-cpus", "0", "--num-gpus", "0"}, {})) {}

  Process& head() const { return *head_; }
  std::unique_ptr<Process> start_node(int cpus, int gpus = 0,
                                      const std::map<std::string, std::string>& environment = {}) const {
    return start({"--address", address(), "--num-cpus", std::to_string(cpus), "--num-gpus", std::to_string(gpus)},
                 environment);
  }
  std::string address() const {
    std::ifstream file(state() / "address");
    std::string line;
    std::getline(file, line);
    return line;
  }
  std::filesystem::path state() const { return folder_ / "state"; }

  std::vector<std::string> command(const std::string& name, const std::vector<std::string>& words = {}) const {
    std::vector<std::string> all = {PATH_cluster, name};
    all.insert(all.end(), words.begin(), words.end());
    all.insert(std::find(all.begin(), all.end(), "--"), {"--state", state().string()});
    return all;
  }

 private:
  std::unique_ptr<Process> start(std::vector<std::string> options,
                                 const std::map<std::string, std::string>& environment) const {
    if (!jobs_.empty()) options.insert(options.end(), {"--jobs", jobs_});
    auto process = std::make_unique<Process>(command("start", options), environment);
    if (!process->wait_for("joined the head"))
      throw std::runtime_error("no head or node: " + process->wait(std::chrono::seconds(1)).all());
    return process;
  }

  const TemporaryFolder folder_;
  const std::string jobs_;
  const std::unique_ptr<Process> head_;
};
