// local_cluster.hpp: a cluster whose head and nodes are all on this host, for tests of whole programs.
#pragma once

#include <testing/program_test.hpp>
#include <testing/temporary_folder.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

using multinode::testing::ends;
using multinode::testing::is_running;
using multinode::testing::TemporaryFolder;
using multinode::testing::text_of;

// A test with a head, whose own node has no slots.
class ClusterTest : public testing::Test {
 protected:
  using Process = multinode::testing::Process;
  using Result = multinode::testing::Result;

  // With `own_jobs` the job folder has what job() writes, else the programs of this build.
  explicit ClusterTest(bool own_jobs = true)
      : own_jobs_(own_jobs), head_(start({"--head", "--port", "0", "--num-cpus", "0", "--num-gpus", "0"}, {})) {}

  Process& head() const { return *head_; }
  std::unique_ptr<Process> start_node(int cpus, int gpus = 0,
                                      const std::map<std::string, std::string>& environment = {}) const {
    return start({"--address", address(), "--num-cpus", std::to_string(cpus), "--num-gpus", std::to_string(gpus)},
                 environment);
  }
  std::string address() const {
    std::string line = text_of(state() / "address");
    line.pop_back();
    return line;
  }
  std::filesystem::path state() const { return folder_ / "state"; }
  std::filesystem::path jobs() const { return folder_ / "jobs"; }

  // A shell script as a job.
  void job(const std::string& name, const std::string& script) const {
    folder_.write("jobs/" + name, "#!/bin/sh\n" + script);
    std::filesystem::permissions(jobs() / name, std::filesystem::perms::owner_all);
  }
  std::vector<std::string> command(const std::string& name, const std::vector<std::string>& words = {}) const {
    std::vector<std::string> all = {PATH_cluster, name};
    all.insert(all.end(), words.begin(), words.end());
    all.insert(std::find(all.begin(), all.end(), "--"), {"--state", state().string()});
    return all;
  }
  Result run(const std::string& name, const std::vector<std::string>& words = {}) const {
    return multinode::testing::run(command(name, words));
  }

 private:
  std::unique_ptr<Process> start(std::vector<std::string> options,
                                 const std::map<std::string, std::string>& environment) const {
    std::filesystem::create_directory(jobs());
    if (own_jobs_) options.insert(options.end(), {"--jobs", jobs()});
    auto process = std::make_unique<Process>(command("start", options), environment);
    if (!process->wait_for("joined the head"))
      throw std::runtime_error("no head or node: " + process->wait(std::chrono::seconds(1)).all());
    return process;
  }

  const TemporaryFolder folder_;
  const bool own_jobs_;
  const std::unique_ptr<Process> head_;
};
