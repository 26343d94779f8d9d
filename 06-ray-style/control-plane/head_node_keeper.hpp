// head_node_keeper.hpp: the processes of a cluster: a head, a node on each host, and a keeper above each process of a
// job.
#pragma once

#include <multinode/base/signals.hpp>
#include <multinode/base/text.hpp>
#include <multinode/launch/endpoint.hpp>

#include <iostream>
#include <string>

namespace cluster {

// Serves the store in which nodes and clients meet, as `place` says (port 0: any free one), and decides what runs
// where. Calls `ready` with the place when it listens. Returns after 'cluster stop' or a signal, and at most 10 s for
// the nodes to end.
void run_head(multinode::StorePlace place, const multinode::Signals& signals,
              const std::function<void(const multinode::StorePlace&)>& ready);

// Joins the head, starts the processes of jobs as it says, and reports how they end. Returns when the head or a signal
// ends the node. Throws StoreTimeout or StoreLost if the head does not answer or is gone. No process of a job is left
// then.
void run_node(const multinode::StorePlace& head, int cpus, const multinode::Signals& signals);

// `cluster keep PROGRAM [ARGUMENT...]`: runs the program in the folder PWD, and sends its output to `cluster run`.
// Descriptor 0 is a pipe from the node, with times of 8 bytes each: nanoseconds of the steady clock until which the
// program may run. At that time, or when the node closes the pipe or dies, the keeper kills the program and all that it
// started, in whatever session.
int keep(int argc, const char* const* argv);

inline void log(const std::string& line) { std::cerr << multinode::one_line(line) + "\n" << std::flush; }

}  // namespace cluster
