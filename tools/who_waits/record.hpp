// record.hpp: what the preloaded library writes about a process, and who_waits reads: one piece of shared memory for
// each process, with fixed sizes, written without locks and without a clock.
//
// Shared memory and not messages: a process that hangs sends nothing, and a message would disturb the program's
// outside.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace who_waits {

// The calls that are recorded: the number of each is its place in this list. region: a part of the program that it
// names by MPI_Pcontrol or NVTX, for --timeline.
enum class Kind : std::uint32_t {
  none,
  region,
#define CALL(name, parameters) name,
#define GPU_CALL CALL
#include "calls.inc"
  count
};
// The form of an MPI call with MPI_Count, such as MPI_Send_c, has this bit for its wrapper; recorded it is MPI_Send.
constexpr Kind large(Kind kind) { return static_cast<Kind>(static_cast<std::uint32_t>(kind) | 1u << 31); }
constexpr Kind base(Kind kind) { return static_cast<Kind>(static_cast<std::uint32_t>(kind) & ~(1u << 31)); }
// receive: also a probe; busy: a collective on a file or window, in which a rank may still make progress; wait_all and
// wait_any: for requests; device: CUDA's waits.
enum class Role : std::uint32_t { other, send, receive, both, collective, busy, wait_all, wait_any, device };
// The function wrapped() in mpi_calls.cpp or nccl_calls.cpp that records a call and makes it.
// clang-format off
enum class Wrapper { none, everyone, session, message, waiting, collective, create, join, form, ordered, single,
                     spawn, name, attribute, initialize, split, asking };
// clang-format on

// What calls.inc says of a call. The numbers are places of arguments, from 0; -1: none, or it may differ by rank.
struct CallFields {
  const char* name = "nothing";
  Role role = Role::other;
  Wrapper wrapper = Wrapper::none;
  int communicator = -1;       // of a message, which has peer and tag before it, or of what makes a new one
  int root = -1, count = -1;   // of a collective (of a gather or scatter: not at its root); the type is behind it
  int object = -1, peer = -1;  // the window, file or communicator that the call uses, and a rank there
  bool polls = false;          // a loop of such calls may wait for what another rank writes into the window
};
inline constexpr auto calls = [] {
  std::array<CallFields, static_cast<std::size_t>(Kind::count) + 1> all{};
  CallFields fields;
#define FIELDS(...) fields = {__VA_ARGS__};
#define CALL(called, parameters) fields.name = #called, all[static_cast<std::size_t>(Kind::called)] = fields;
#define GPU_CALL CALL
#include "calls.inc"
  all.back().name = "an unknown call";
  return all;
}();
constexpr const auto& fields_of(Kind kind) { return calls[std::size_t(std::min(base(kind), Kind::count))]; }
constexpr const char* name_of(Kind kind) { return fields_of(kind).name; }
constexpr Role role_of(Kind kind) { return fields_of(kind).role; }

// Ranks of peers are those in the program's MPI_COMM_WORLD, or in NCCL's communicator.
constexpr std::int32_t any = -1, no_rank = -2, unknown = -3;
constexpr std::uint64_t unknown_size = ~std::uint64_t{0};  // of a message in a queue of MPI

// The arguments of a call. The tag of a call of NCCL or CUDA is a hash of its stream, or any. `bytes` are those that a
// collective must have the same on all ranks, or a message's size.
struct Call {
  Kind kind = Kind::none;
  std::int32_t peer = no_rank, tag = any, root = no_rank;
  // Of Role::both. receive_tag of NCCL's collectives: their order in the process, the same for those of a group; of a
  // call that may poll a window: which place it reads, or 0 if it reads none.
  std::int32_t receive_peer = no_rank, receive_tag = any;
  std::uint64_t communicator = 0, sequence = 0, bytes = 0;
  // For --timeline, in the program alone: what all of its ranks call this collective or message, 0 for none; and
  // whether the others wait for this rank there, and this rank for the others.
  std::uint64_t meeting = 0;
  std::uint32_t gives = true, waits = true;  // as wide as this, so that a Call is words without padding
  // What a call that receives, alone or with a send, wants.
  std::int32_t from() const { return role_of(kind) == Role::both ? receive_peer : peer; }
  std::int32_t wanted_tag() const { return role_of(kind) == Role::both ? receive_tag : tag; }
};

// A Call that one thread writes and another process reads, without what is for --timeline.
class SharedCall {
 public:
  void store(const Call& call) {
    const auto words = std::bit_cast<Words>(call);
    for (std::size_t i = 0; i < words_.size(); ++i) words_[i].store(words[i], std::memory_order_relaxed);
  }
  Call load() const {
    Words words{};
    for (std::size_t i = 0; i < words_.size(); ++i) words[i] = words_[i].load(std::memory_order_relaxed);
    return std::bit_cast<Call>(words);
  }

 private:
  using Words = std::array<std::uint64_t, sizeof(Call) / 8>;
  std::array<std::atomic<std::uint64_t>, offsetof(Call, meeting) / 8> words_{};
};

// One thread of the process. `turn` is odd while the thread is inside `call`, and grows by one at its start and its
// end. Its upper half grows likewise, but only for a call that polls a window again.
constexpr std::uint64_t turn_of_poll = std::uint64_t{1} << 32;
struct ThreadRecord {
  std::atomic<std::int32_t> thread{0};
  std::atomic<std::uint64_t> turn{0};
  SharedCall call;
  std::atomic<std::uintptr_t> site{0};  // the address after the call, in the program
  static constexpr std::size_t most_waits = 512;
  std::atomic<std::uint32_t> waits{0};  // number of requests that the call waits for; the first ones are in `requests`
  std::array<std::atomic<std::uint16_t>, most_waits> requests{};
  std::atomic<std::int64_t> entered{0};  // for --timeline: when, and the call's place
  std::atomic<std::uint16_t> place{0};
  struct Region {
    std::atomic<std::int64_t> entered{0};
    std::atomic<std::uint16_t> place{0};
  };
  std::array<Region, 64> regions{};          // those that have begun and not ended
  std::atomic<std::uint32_t> in_regions{0};  // number of them
};

// A started operation without its wait. `turn` grows at its start and its end; odd: it is under way.
struct RequestRecord {
  std::atomic<std::uint64_t> turn{0};
  SharedCall call;
};

// What collectives are counted of. A persistent collective counts its starts.
enum class Sort : std::uint8_t { communicator, nccl, spawned, window, file };

// The collectives of a communicator. Ranks in the same communicator give it the same id.
struct CommunicatorRecord {
  std::atomic<std::uint64_t> id{0};
  std::atomic<std::int32_t> size{0}, rank{0};  // of an intercommunicator: the size of both sides
  std::atomic<std::int32_t> side{-1};          // of an intercommunicator: 0 or 1, the same on all ranks
  std::atomic<Sort> sort{Sort::communicator};
  std::atomic<bool> freed{false};             // kept until its place is needed, because others may wait for it
  std::atomic<std::uint64_t> collectives{0};  // number of calls that were started
  std::atomic<std::uint32_t> made{0};         // it is so manieth of the process
  std::atomic<std::uintptr_t> site{0};        // of a window or file: the address after the call that made it
  std::array<std::atomic<char>, 32> name{};   // that the program gave
  static constexpr std::size_t past = 128;
  std::array<SharedCall, past> history{};  // call n is at n % past
};

// What a call has for each peer: the bytes that a collective such as MPI_Alltoallv expects from and sends to it, or who
// is to call MPI_Comm_create_group. Of the last such call of the process.
struct PiecesRecord {
  std::atomic<std::uint64_t> communicator{0}, sequence{0};
  std::atomic<std::uint32_t> from{0}, to{0};             // numbers of pieces; those from a peer come first
  std::array<std::atomic<std::uint64_t>, 512> pieces{};  // peer << 40 | bytes
};

// Messages with one peer, tag and communicator.
struct TrafficRecord {
  std::atomic<std::uint64_t> communicator{0};  // 0: free
  std::atomic<std::uint64_t> peer_and_tag{0};
  std::atomic<std::uint64_t> sent{0}, received{0}, by_any{0};  // by_any: of those received, by receives from any rank
};

// What --timeline and --time add: the time in calls, by the place that makes them and their size, and when this rank
// was in which call, once for each message or collective that it met there. If they are too many, the long ones are
// kept, and a sample of the others; or the last ones.
struct Place {
  Kind kind = Kind::none;
  std::uint64_t bytes = 0, site = 0;  // the address, later that in `object`
  std::array<char, 104> object{};     // the file of the program or library; of a region: its name
  std::uint64_t calls = 0, nanoseconds = 0;
};
struct Meeting {
  std::uint64_t number = 0;           // of the message or collective; one that no other rank has if it is not known
  std::int64_t enter = 0, leave = 0;  // CLOCK_MONOTONIC, ns
  std::int64_t outside = 0;           // ns outside of calls since this rank last met the same others
  std::uint64_t bytes = 0;            // of the message
  std::int32_t peer = no_rank, tag = any;  // of the message; no_rank: there is none
  std::uint16_t place = 0;
  std::uint8_t thread = 0;                           // its number in Record::threads
  bool gives = false, waits = false, sends = false;  // others wait for this rank; it waits for them; it sends a message
  // level_of() the time in the call, or, if others wait for this rank, since it last met them: they wait no longer.
  std::uint8_t level = 0;
  std::uint8_t communicator = 0;  // CommunicatorRecord::made; 0: none, or it was made later than fits
};
constexpr std::uint8_t level_of(std::int64_t ns) {
  return static_cast<std::uint8_t>(std::bit_width(static_cast<std::uint64_t>(std::max<std::int64_t>(0, ns))));
}
// Which meetings are kept: all from some level on, and of the others those whose number is a multiple of 2^shift, the
// same ones on all ranks.
struct Sample {
  std::uint32_t shift = 0, level = 0;
  bool has(const Meeting& one) const {
    return one.level >= level || one.number % (std::uint64_t{1} << std::min(shift, 63u)) == 0;
  }
  // For about half of them: the long ones are at most a quarter of what there is.
  void thin(std::span<const Meeting> all) {
    std::array<std::size_t, 65> of_level{};
    for (const Meeting& one : all) ++of_level[one.level];
    ++shift;
    std::uint32_t from = 65;
    for (std::size_t longer = 0; from > level && (longer += of_level[from - 1]) <= all.size() / 4;) --from;
    level = from;
  }
};
struct Times {
  Times() {}                        // NOLINT: memory of `meetings` that is not used must not be touched
  std::array<Place, 512> places{};  // a hash table; Kind::none: free
  static constexpr std::size_t most = 65536;
  union {
    std::array<Meeting, most> meetings;
  };
  std::atomic<std::uint64_t> used{0};  // of `meetings`; with `last_ones`, all that there have been
  Sample sample{};
  std::atomic<std::uint32_t> thinned{0};      // odd while the sample changes
  std::atomic<std::uint32_t> odd_regions{0};  // calls to begin or end a region that were not possible
  bool last_ones = false;
  std::int64_t from = INT64_MIN, to = INT64_MAX;  // ns after the first call: what to keep
};

struct Record {
  static constexpr std::uint64_t right_magic = 0x77686f2077616974;  // also changes with the layout: sizeof is compared
  std::uint64_t magic = right_magic, size = sizeof(Record);
  std::atomic<std::int32_t> pid{0};                   // of the process that records: the first that made a call
  std::atomic<std::int32_t> rank{-1}, world_size{0};  // as MPI says; -1: MPI has not started
  std::atomic<bool> finalized{false};
  // There were more threads, requests, communicators or peers than fit, or a call has failed: it counted what did not
  // happen, or not all of it.
  std::atomic<bool> incomplete{false};
  SharedCall failed;                       // the last call that returned an error
  std::atomic<bool> unknown_calls{false};  // messages went by calls that are not recorded
  // Functions of the program that MPI may call inside MPI_Finalize and others: attributes' callbacks, error handlers.
  std::atomic<bool> callbacks{false};
  std::atomic<bool> of_many_threads{false};     // MPI_THREAD_SERIALIZED or MPI_THREAD_MULTIPLE
  std::atomic<std::int32_t> unseen_threads{0};  // of the program, which have made no recorded call
  std::atomic<std::uint64_t> polls{0};          // tests and probes that found nothing, which are not progress
  std::atomic<std::uint64_t> other_polls{0};    // those that asked for something else than the one before
  SharedCall polled;                            // what the last one asked for
  std::array<ThreadRecord, 16> threads;
  std::array<CommunicatorRecord, 128> communicators;
  std::array<RequestRecord, 1024> requests;
  std::array<TrafficRecord, 2048> traffic;
  std::array<TrafficRecord, 512> other_tags;  // once that is full: of all further tags of a peer, with the tag any
  PiecesRecord pieces;
  std::atomic<bool> timed{false};  // --timeline or --time
  Times times;
};

// A communicator whose creation was not seen has this bit: ranks may give different ids to the same one.
constexpr std::uint64_t uncertain_id = std::uint64_t{1} << 63;
constexpr std::uint64_t world_id = 1, start_id = 2, end_id = 3;  // MPI_COMM_WORLD; all that call MPI_Init, MPI_Finalize
constexpr std::uint64_t start_meeting = std::uint64_t{1} << 61, end_meeting = std::uint64_t{1} << 62;  // always kept
constexpr std::uint64_t self_id = 4;     // with its rank: MPI_COMM_SELF
constexpr std::uint64_t leaders_id = 5;  // what the leaders of MPI_Intercomm_create exchange
// Tags of a window: MPI_Win_post counts as messages to its group, which MPI_Win_start receives. MPI_Win_complete is
// counted for MPI_Win_wait.
constexpr std::int32_t post_tag = -2, complete_tag = -3;

constexpr char record_variable[] = "WHO_WAITS_RECORD";  // its path

}  // namespace who_waits
