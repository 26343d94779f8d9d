// local_cluster.hpp: a cluster whose head and nodes are all on this host, for tests of whole programs.
#pragma once

#include <test/support/program_test.hpp>
#include <test/support/temporary_folder.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <stdexcept>

using multinode::testing::ends;
using multinode::testing::is_running;
using multinode::testing::TemporaryFolder;

// A test with a head, whose own node has no CPUs.
class ClusterTest : public testing::Test {
 protected:
  using Process = multinode::testing::Process;
  using Result = multinode::testing::Result;
  using Words = std::vector<std::string>;

  ClusterTest() : head_(start({"--head", "--port", "0", "--num-cpus", "0"})) {}

  Process& head() const { return *head_; }
  std::unique_ptr<Process> start_node(int cpus) const { return start({"--num-cpus", std::to_string(cpus)}); }
  std::filesystem::path state() const { return folder_ / "state"; }

  Words command(const std::string& name, const Words& words = {}) const {
    Words all = {PATH_cluster, name};
    all.insert(all.end(), words.begin(), words.end());
    all.insert(std::find(all.begin(), all.end(), "--"), {"--state", state().string()});
    return all;
  }
  Result run(const std::string& name, const Words& words = {}) const {
    return multinode::testing::run(command(name, words));
  }
  // `cluster run OPTIONS -- sh -c SCRIPT`
  Words script(Words options, const std::string& text) const {
    options.insert(options.end(), {"--", "sh", "-c", text});
    return command("run", options);
  }
  Result result_of(const Words& options, const std::string& text) const {
    return multinode::testing::run(script(options, text));
  }

  const TemporaryFolder folder_;

 private:
  std::unique_ptr<Process> start(const Words& options) const {
    auto process = std::make_unique<Process>(command("start", options));
    if (!process->wait_for("joined the head"))
      throw std::runtime_error("no head or node: " + process->wait(std::chrono::seconds(1)).all());
    return process;
  }

  const std::unique_ptr<Process> head_;
};
