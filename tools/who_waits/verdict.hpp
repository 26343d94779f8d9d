// verdict.hpp: why the ranks of a program wait, from what each of them is doing. No clock and no process: tests give it
// any state.
//
// A rank is stuck only if that is certain: each way on depends on ranks that are stuck, too, or have ended. A rank that
// is outside of the recorded calls may still do anything, and so may all who wait for it. So a deadlock is proved by
// what remains when these have been taken away, and wildcards and unknown calls only make the proof rarer.
#pragma once

#include "record.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace who_waits {

struct Wait {  // a thread inside a call
  Call call;
  std::vector<Call> requests{};  // what a wait for requests waits for
  bool all_requests = true;      // false: there were more than fit
  double seconds = 0;            // since when
  std::uint64_t site = 0;        // where the program made it
  std::string place{};           // of the site: "solver.cpp:57"
  bool apart = false;            // its thread makes calls, but none in a communicator that the main thread waits in
  bool some = false;             // it is not known for which of `requests` it waits; for what, if there are none
  static void fields(auto& visit, auto& wait) {
    visit(wait.call, wait.requests, wait.all_requests, wait.seconds, wait.site, wait.place, wait.apart, wait.some);
  }
};

struct CommunicatorState {
  std::uint64_t id = 0, collectives = 0;
  std::int32_t size = 0, rank = 0;
  Sort sort = Sort::communicator;
  std::int32_t side = -1;       // of an intercommunicator: 0 or 1
  std::vector<Call> history{};  // the last collectives, the oldest first
  std::uint32_t made = 0;       // it is so manieth of the process
  std::string name{};           // that the program gave
  std::uint64_t site = 0;       // of a window or file: where the program made it
  std::string place{};          // of the site
  static void fields(auto& visit, auto& one) {
    visit(one.id, one.collectives, one.size, one.rank, one.sort, one.side, one.history, one.made, one.name, one.place);
  }
};

struct Traffic {
  std::uint64_t communicator = 0;
  std::int32_t peer = 0, tag = 0;
  std::uint64_t sent = 0, received = 0, by_any = 0;
};

struct RankState {
  int rank = 0;  // in MPI_COMM_WORLD if MPI has started, else the launcher's
  std::string host;
  int pid = 0;
  bool recorded = false;                           // it has made a call that is recorded
  bool finalized = false;                          // MPI_Finalize has returned
  std::optional<int> ended{};                      // exit status, 128 + signal
  char process = '?';                              // R, S, D ... as in /proc
  double quiet = 0;                                // seconds since its last progress
  bool other_thread = false;                       // a thread that makes such calls is outside of them
  bool others_apart = false;                       // the main thread waits, and all such threads are apart
  bool incomplete = false, unknown_calls = false;  // of its record
  bool callbacks = false;                          // MPI_Finalize and others may call the program
  bool many_tags = false;                          // from some tag on, the messages of a peer are counted together
  std::optional<Call> failed{};                    // the last call that returned an error
  std::vector<Wait> waits{};
  std::optional<Call> polled{};  // it tests for this again and again
  std::vector<Call> outstanding{};
  std::vector<CommunicatorState> communicators{};
  std::vector<Traffic> traffic{};
  std::string stack{};
  // What its last collective with pieces has for each peer; see PiecesRecord.
  std::uint64_t pieces_of = 0, pieces_sequence = 0;
  std::uint32_t pieces_from = 0;
  std::vector<std::uint64_t> pieces{};
  int world_size = 0;  // of MPI; 0: MPI has not started
  static void fields(auto& visit, auto& one) {
    visit(one.rank, one.host, one.pid, one.recorded, one.finalized, one.ended, one.process, one.quiet,
          one.other_thread);
    visit(one.incomplete, one.unknown_calls, one.waits, one.polled, one.outstanding, one.communicators, one.traffic);
    visit(one.callbacks, one.many_tags, one.failed, one.pieces_of, one.pieces_sequence, one.pieces_from, one.pieces);
    visit(one.stack, one.world_size, one.others_apart);
  }
};

struct Verdict {
  // "deadlock", "mismatch", "ended", "polling", "late", "threads", "error", "started", "separate", "part", "cannot
  // tell"
  std::string cause;
  bool certain = false;              // the program cannot continue
  bool main_threads = false;         // it is of explain_main_threads()
  std::vector<int> culprits{};       // ranks, in the order in which the lines name them
  std::set<int> stuck{};             // ranks on which that depends: certain if they have not moved since
  std::map<int, int> waits_for{};    // by rank that waits: a rank that it needs
  std::vector<std::string> lines{};  // the explanation, for people
};
Verdict explain(const std::vector<RankState>& ranks);
// Explains main threads that are stuck for at least `seconds` while the other threads of their ranks are apart. If it
// finds some, the verdict has main_threads. It is never certain, because another thread may help.
Verdict explain_main_threads(std::vector<RankState> ranks, double seconds);

// "63 ranks wait in MPI_Allreduce ... (ranks 0-11, 13-63)": the ranks in groups that do the same, at most `most` lines.
std::vector<std::string> groups(const std::vector<RankState>& ranks, std::size_t most = 16);

std::map<std::uint64_t, std::string> names_of(const std::vector<RankState>& ranks);  // of communicators, by their id

std::string size_of(std::uint64_t bytes);           // "4 MiB"
std::string rank_text(const std::set<int>& ranks);  // "ranks 0-11, 13-63"

}  // namespace who_waits
