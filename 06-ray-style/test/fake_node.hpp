// fake_node.hpp: a node of a cluster that does as the test says; and what waits for events in tests.
#pragma once

#include "control-plane/cluster.grpc.pb.h"
#include "control-plane/outbox.hpp"
#include "control-plane/tls.hpp"

#include <testing/program_test.hpp>

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace cluster::testing {

// Messages in the order in which they came, from any thread.
template <class Message>
class Inbox {
 public:
  void put(const Message& message) {
    {
      const std::lock_guard lock(mutex_);
      messages_.push_back(message);
    }
    filled_.notify_all();
  }
  void close() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    filled_.notify_all();
  }
  // The next one for which `wanted` is true; those before it are dropped. Fails the test after `patience`, or when no
  // more can come.
  template <class Wanted>
  Message next(const Wanted& wanted) {
    const auto end = std::chrono::steady_clock::now() + multinode::testing::patience;
    std::unique_lock lock(mutex_);
    while (filled_.wait_until(lock, end, [&] { return closed_ || !messages_.empty(); }) && !messages_.empty()) {
      const Message message = std::move(messages_.front());
      messages_.pop_front();
      if (wanted(message)) return message;
    }
    ADD_FAILURE() << "the message did not come";
    return {};
  }
  bool wait_until_closed() {
    std::unique_lock lock(mutex_);
    return filled_.wait_for(lock, multinode::testing::patience, [&] { return closed_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable filled_;
  std::deque<Message> messages_;
  bool closed_ = false;
};

inline Hello hello_of(const std::string& host, int cpus, int gpus) {
  Hello hello;
  hello.set_version("3");
  hello.set_host(host);
  hello.set_pid(4711);
  hello.set_cpus(cpus);
  hello.set_gpus(gpus);
  return hello;
}
inline void name(Which& which, const Start& start, int rank) {
  which.set_job(start.job());
  which.set_attempt(start.attempt());
  which.set_rank(rank);
}

// What a node says of the processes of a start; say(message) sends it.
template <class Say>
void say_started(const Start& start, Say&& say) {
  for (int rank = start.first_rank(); rank < start.first_rank() + start.count(); ++rank) {
    FromNode message;
    name(*message.mutable_started()->mutable_which(), start, rank);
    message.mutable_started()->set_pid(1000 + rank);
    say(message);
  }
}
inline FromNode end_of(const Start& start, int rank, int status, const std::string& error = "") {
  FromNode message;
  name(*message.mutable_ended()->mutable_which(), start, rank);
  message.mutable_ended()->set_status(status);
  message.mutable_ended()->set_error(error);
  return message;
}
inline FromNode output_of(const Start& start, int rank, const std::string& text) {
  FromNode message;
  name(*message.mutable_output()->mutable_which(), start, rank);
  message.mutable_output()->set_text(text);
  return message;
}

class FakeNode {
 public:
  FakeNode(std::uint16_t port, const std::string& key, const std::string& host, int cpus, int gpus = 0)
      : stub_(Cluster::NewStub(make_channel({"127.0.0.1", port}, key))) {
    stream_ = stub_->Join(&call_);
    outbox_.emplace([this](const FromNode& message) { return stream_->Write(message); },
                    [] {
                      FromNode message;
                      message.mutable_beat();
                      return message;
                    });
    FromNode message;
    *message.mutable_hello() = hello_of(host, cpus, gpus);
    outbox_->put(message);
    reader_ = std::thread([this] {
      for (ToNode to_node; stream_->Read(&to_node);) inbox.put(to_node);
      inbox.close();
    });
    number = inbox.next([](const ToNode& m) { return m.has_welcome(); }).welcome().node();
  }
  ~FakeNode() {
    die();
    reader_.join();
  }
  FakeNode(const FakeNode&) = delete;
  FakeNode& operator=(const FakeNode&) = delete;

  Start start() {
    return inbox.next([](const ToNode& m) { return m.has_start(); }).start();
  }
  Stop stop() {
    return inbox.next([](const ToNode& m) { return m.has_stop(); }).stop();
  }

  void started(const Start& start) {
    say_started(start, [this](const FromNode& message) { outbox_->put(message); });
  }
  void all_ended(const Start& start, int status) {
    for (int rank = start.first_rank(); rank < start.first_rank() + start.count(); ++rank)
      outbox_->put(end_of(start, rank, status));
  }
  void output(const Start& start, int rank, const std::string& text) { outbox_->put(output_of(start, rank, text)); }
  // Ends its call as it should be, and waits for the end.
  void leave() {
    outbox_.reset();
    stream_->WritesDone();
    inbox.wait_until_closed();
  }
  void freeze() { outbox_.reset(); }  // says nothing more, not even heartbeats
  void die() {
    call_.TryCancel();
    outbox_.reset();
  }

  Inbox<ToNode> inbox;
  std::int64_t number = -1;

 private:
  std::unique_ptr<Cluster::Stub> stub_;
  grpc::ClientContext call_;
  std::unique_ptr<grpc::ClientReaderWriter<FromNode, ToNode>> stream_;
  std::optional<Outbox<FromNode>> outbox_;
  std::thread reader_;
};

}  // namespace cluster::testing
