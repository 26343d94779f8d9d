// SPDX-License-Identifier: Apache-2.0
#include <multinode/base/check.hpp>
#include <multinode/base/files.hpp>
#include <multinode/base/json.hpp>
#include <multinode/base/options.hpp>
#include <multinode/base/output.hpp>
#include <multinode/base/text.hpp>
#include <multinode/net/address.hpp>
#include <multinode/net/socket.hpp>
#include <multinode/process/process_tree.hpp>
#include <multinode/store/rendezvous_file.hpp>
#include <multinode/store/secret.hpp>
#include <multinode/store/tcp_store.hpp>
#include <multinode/store/torch_store.hpp>
#include <multinode/world/libraries.hpp>
#include <multinode/world/world.hpp>

#include <fmt/format.h>
#include <gnu/libc-version.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <iostream>
#include <map>
#include <mutex>
#include <span>
#include <thread>

namespace multinode {

namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;
const Libraries* registered_libraries = nullptr;
constexpr std::size_t longest_piece = 256 << 10;  // bytes of a gathered text in one value of the store

bool all_on_this_node(const Launch& launch) {
  if (launch.node_count) return launch.node_count->value == 1;
  return launch.world_size.value == 1 || (launch.local_size && launch.local_size->value == launch.world_size.value);
}

// A server that all ranks can reach, on loopback if all are on this node, and where the other ranks find it.
std::pair<std::unique_ptr<TcpStoreServer>, StorePlace> serve_anywhere(const Launch& launch,
                                                                      const std::string& token = random_token()) {
  std::string address = all_on_this_node(launch) ? "" : own_address();
  if (address.empty()) address = loopback_address();  // without a network address there are no other hosts
  auto server = std::make_unique<TcpStoreServer>(address, 0, TcpStoreServer::Entry{token, true});
  const std::uint16_t port = server->port();
  return {std::move(server), StorePlace{{address, port}, token}};
}

// The ranks of this run that are on this host and that a signal has stopped: "rank 1 (pid 12)", with commas.
std::string stopped_ranks(const Launch& launch) {
  std::vector<std::string> stopped;
  for (const std::string& name : names_in("/proc")) try {
      const auto pid = parse_decimal<pid_t>(name);
      if (!pid || process_state(*pid).state != 'T') continue;
      const Launch other = read_launch(environment_of(*pid));
      if (other.world_size.value > 1 && attempt_name(other) == attempt_name(launch))
        stopped.push_back("rank " + std::to_string(other.rank.value) + " (pid " + name + ")");
    } catch (const UsageError&) {
    }
  return join(stopped, ", ");
}

// Ends the process unless the result is destroyed before `limit` and, for MPI takes seconds to start on a busy machine,
// 15 s more: MPI_Init may not return, and there is no store yet that knows which rank is late.
std::jthread mpi_deadline(std::chrono::milliseconds limit, const std::string& who, const Launch& launch) {
  return std::jthread([limit, who, launch](const std::stop_token& stop) {
    std::mutex mutex;
    std::unique_lock lock(mutex);
    std::condition_variable_any wake;
    std::string stopped;
    for (const auto wait : {limit, std::chrono::milliseconds(15s)}) {
      for (Deadline deadline(wait); !deadline.passed();)
        if (wake.wait_for(lock, stop, deadline.left(), [&] { return stop.stop_requested(); })) return;
      if (!(stopped = stopped_ranks(launch)).empty()) break;
    }
    const std::string did_not = who + " (host " + host_name() + "): MPI did not connect the ranks within ";
    std::cerr << (stopped.empty() ? did_not + to_text(limit + 15s) +
                                        ": is a rank of another host stopped? Else check the firewall and the network "
                                        "interface (btl_tcp_if_include)\n"
                                  : did_not + to_text(limit) + ": a signal has stopped " + stopped + "\n")
              << std::flush;
    _exit(exit_wrong);
  });
}

// The first 8 bytes of the build ID that the linker put into this program, in hexadecimal; "" if it put none.
std::string build_id() {
  std::string id;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* out) {
        for (const auto& header : std::span(info->dlpi_phdr, info->dlpi_phnum)) {
          if (header.p_type != PT_NOTE) continue;
          // NOLINTNEXTLINE(performance-no-int-to-ptr): the loader gives the address as a number
          const auto* const segment = reinterpret_cast<const char*>(info->dlpi_addr + header.p_vaddr);
          const std::string_view notes(segment, header.p_memsz), type_and_owner("\x03\0\0\0GNU", 8);
          if (const std::size_t at = notes.find(type_and_owner); at != notes.npos)
            for (const char byte : notes.substr(at + type_and_owner.size(), 8))
              *static_cast<std::string*>(out) += fmt::format("{:02x}", static_cast<unsigned char>(byte));
        }
        return 1;  // the first object is the program itself
      },
      &id);
  return id;
}

}  // namespace

bool register_libraries(const Libraries& these) noexcept {
  registered_libraries = &these;
  return true;
}

const Libraries& libraries() {
  static const Libraries none;
  return registered_libraries ? *registered_libraries : none;
}

std::vector<std::pair<std::string, std::string>> versions() {
  std::vector<std::pair<std::string, std::string>> list = libraries().versions();
  list.emplace(list.begin(), "program", version() + " build " + build_id());
  list.emplace_back("libc", gnu_get_libc_version());
  return list;
}

// Members are destroyed in reverse order: the watchdog says goodbye first, then the server ends.
struct World::Implementation {
  std::unique_ptr<TcpStoreServer> server;
  StorePlace place;
  std::string server_text;
  protocol::Hello hello;
  std::unique_ptr<TcpStore> store;
  std::unique_ptr<Watchdog> watchdog;
  std::uint64_t gathers = 0;
  std::map<int, std::string> hosts;  // by rank: all on rank 0, those that were asked for on the others
  int node_rank = 0, node_count = 1, local_size = 1;

  using Tell = std::function<void(const StorePlace&)>;
  using Ask = std::function<StorePlace(std::chrono::milliseconds left)>;
  void meet(const std::string& program, const Launch& launch, const Options& options);
  void meet_through(const Launch& launch, const Options& options, const std::string& token, const Tell& tell,
                    const Ask& ask);
  void require_agreement(World& world);
  void give(const std::string& key, std::string_view text, int readers);
  std::string take(const std::string& key, std::chrono::milliseconds limit);
};

// Rank 0 serves a store and publishes its place. The others may get the place of an earlier run: they ask again.
void World::Implementation::meet_through(const Launch& launch, const Options& options, const std::string& token,
                                         const Tell& tell, const Ask& ask) {
  if (launch.rank.value == 0) {
    std::tie(server, place) = serve_anywhere(launch, token);
    return tell(place);
  }
  milliseconds left = options.timeout;
  for (auto longest = 1000ms;; longest += 1000ms) {
    const auto start = Deadline::Clock::now();
    place = ask(std::max(left, 1ms));
    hello.token = place.token;
    try {
      store = std::make_unique<TcpStore>(place, options.timeout, hello, std::clamp(left, 1ms, longest));
      return;
    } catch (const RankTaken&) {
      throw;
    } catch (const std::runtime_error&) {
      if (left <= 1ms) throw;
      std::this_thread::sleep_for(10ms);
    }
    // A longer time is one in which this process was stopped.
    left -= std::min(std::chrono::duration_cast<milliseconds>(Deadline::Clock::now() - start), longest + 1s);
  }
}

void World::Implementation::meet(const std::string& program, const Launch& launch, const Options& options) {
  const bool first = launch.rank.value == 0;
  server_text = "rank 0, which serves the store";
  // Where no launcher hands over a token, the user's secret and what the launcher gave to all processes, such as a job
  // id, make one.
  const auto token_of_job = [&] {
    const Secret secret = read_secret(launch.secret_source);
    if (first && secret.bytes.empty()) say(program, warning_without_secret(secret));
    return token_for(secret, "job " + attempt_name(launch));
  };
  if (options.rendezvous.starts_with("tcp:")) {
    place = {parse_endpoint(options.rendezvous.substr(4), "--rendezvous"), token_of_job()};
    if (first) server = serve_at(place, true);
  } else if (options.rendezvous.starts_with("file:")) {
    const std::filesystem::path file = options.rendezvous.substr(5);
    meet_through(
        launch, options, random_token(),
        [&](const StorePlace& served) { write_place(file, attempt_name(launch), served); },
        [&](std::chrono::milliseconds left) { return read_place(file, attempt_name(launch), left); });
  } else if (!options.rendezvous.empty()) {
    throw UsageError("--rendezvous must be tcp:HOST:PORT or file:PATH, not '" + options.rendezvous + "'");
  } else if (launch.launcher_store) {
    place = launch.launcher_store->value;
    server_text = std::string(launch.launcher == "mnrun" ? "mnrun's agent" : "the head of the cluster") +
                  ", which serves the store";
  } else if (launch.agent_store) {
    TorchStore agent({launch.master_address.value, launch.master_port.value}, options.timeout);
    const std::string key = "multinode/" + attempt_name(launch) + "/store";
    // Everybody can read and change torchrun's store: the token does not go there, and a false place is found out.
    const std::string token = token_of_job();
    meet_through(
        launch, options, token, [&](const StorePlace& served) { agent.set(key, to_string(served)); },
        [&](std::chrono::milliseconds left) {
          return StorePlace{parse_endpoint(agent.get(key, left), "rank 0's store"), token};
        });
  } else if (launch.world_size.value == 1) {
    std::tie(server, place) = serve_anywhere(launch);
  } else if (launch.under_mpi && libraries().has_mpi()) {
    const std::jthread deadline =
        mpi_deadline(options.timeout, program + ": rank " + std::to_string(launch.rank.value), launch);
    if (first) std::tie(server, place) = serve_anywhere(launch);
    place = parse_store_place(libraries().broadcast_over_mpi(launch, with_token(place)), "rank 0's store");
  } else if (!launch.master_address.value.empty() && launch.master_port.value) {
    place = {{launch.master_address.value, launch.master_port.value}, token_of_job()};
    if (first) server = serve_at(place, true);
  } else {
    const std::string reason = !launch.under_mpi ? "no meeting place: "
                               : registered_libraries
                                   ? "the ranks cannot meet over MPI, which this build lacks: "
                                   : "the ranks cannot meet over MPI: include multinode/communicator.hpp, or ";
    throw UsageError(reason +
                     "set MASTER_ADDR and MASTER_PORT, or give tcp:HOST:PORT or file:PATH as "
                     "World::Options::rendezvous (--rendezvous of a program with multinode::run)");
  }
  if (store) return;
  hello.token = place.token;
  try {
    store = std::make_unique<TcpStore>(server ? server->endpoint() : place, options.timeout, hello);
  } catch (const StoreTimeout& e) {
    throw StoreTimeout("rank " + std::to_string(hello.rank) + " cannot reach " + server_text + " at " +
                       to_string(place) + ": " + e.what());
  }
}

World::World(std::string program, Launch launch, Options options)
    : program_(std::move(program)),
      launch_(std::move(launch)),
      options_(std::move(options)),
      implementation_(std::make_unique<Implementation>()) {
  Implementation& impl = *implementation_;
  std::signal(SIGPIPE, SIG_IGN);  // Gloo writes to closed connections without MSG_NOSIGNAL
  const std::string where = "host " + host_name() + ", pid " + std::to_string(getpid());
  const std::string who = "rank " + std::to_string(rank());
  impl.hello = {.attempt = "run/" + attempt_name(launch_),
                .rank = rank(),
                .world_size = size(),
                .timeout_ms = static_cast<std::uint32_t>(std::min<std::int64_t>(options_.timeout.count(), UINT32_MAX)),
                .where = where,
                .node = launch_.node_rank ? std::to_string(launch_.node_rank->value) : host_name()};
  // Without a run id, two runs at one port may take each other's ranks.
  const std::string two_runs =
      launch_.run_id.empty() ? "; give two runs a port or a run id each (TORCHELASTIC_RUN_ID)" : "";
  try {
    impl.meet(program_, launch_, options_);
  } catch (const StoreRefused& e) {
    throw UsageError(who + (launch_.rank.variable.empty() ? "" : " (" + launch_.rank.variable + ")") + ": " + e.what() +
                     (dynamic_cast<const RankTaken*>(&e) ? two_runs : ""));
  } catch (const std::system_error& e) {
    if (e.code().value() != EADDRINUSE) throw;
    throw UsageError(e.what() + two_runs);
  }
  impl.watchdog = std::make_unique<Watchdog>(
      *impl.store,
      Watchdog::Identity{program_, who + " (" + where + ")", impl.server_text + " at " + to_string(impl.place) + ",",
                         impl.server.get(), rank() == 1 || local_rank() == 0},
      options_.timeout);
  try {
    impl.require_agreement(*this);
  } catch (const UsageError& e) {
    impl.watchdog->fail(e.what(), exit_usage);
  } catch (const std::exception& e) {
    impl.watchdog->fail(e.what(), exit_wrong);
  }
}

World::World(std::string program) : World(std::move(program), read_launch(), Options{}) {}

World::~World() {
  Implementation& impl = *implementation_;
  if (std::uncaught_exceptions() > 0) impl.watchdog->fail("ended early because of an exception", exit_wrong);
  impl.watchdog.reset();
  impl.store.reset();
  if (impl.server) impl.server->wait_for_disconnects(options_.timeout);
}

// Checks that all ranks agree on what must be the same, and numbers the nodes. All of it happens on rank 0.
void World::Implementation::require_agreement(World& world) {
  nlohmann::json same = {{"world size", std::to_string(world.size())}, {"program name", world.program_}};
  if (world.options_.same_versions)
    for (const auto& [name, version] : versions()) same[name] = version;
  const Launch& launch = world.launch_;
  const std::string node = launch.node_rank ? "node " + std::to_string(launch.node_rank->value) : host_name();
  const nlohmann::json about_me = {{"host", host_name()}, {"node", node}, {"same", same}};
  const auto node_key = [](int rank) { return "node of rank " + std::to_string(rank); };
  const auto host_key = [](int rank) { return "host of rank " + std::to_string(rank); };
  store->set(host_key(world.rank()), host_name());
  std::string node_text;

  const std::string count =
      world.combine_on_rank_0("first meeting", json_text(about_me), [&](const std::vector<std::string>& texts) {
        std::map<std::string, int> numbers;                                    // of nodes, by first appearance
        std::vector<int> nodes, sizes;                                         // of each rank, of each node
        std::map<std::string, std::map<std::string, std::vector<int>>> ranks;  // by name and version
        for (const std::string& text : texts) {
          const nlohmann::json about = parse_json(text);
          const int rank = static_cast<int>(nodes.size());
          hosts[rank] = about.at("host");
          nodes.push_back(numbers.emplace(about.at("node"), static_cast<int>(numbers.size())).first->second);
          sizes.resize(numbers.size());
          ++sizes[static_cast<std::size_t>(nodes.back())];
          for (const auto& [name, value] : same.items())
            ranks[name][about.at("same").value(name, "absent")].push_back(rank);
        }
        for (auto& [name, of] : ranks) {
          if (of.size() == 1) continue;
          const std::string right = same[name];
          of.erase(right);
          const auto& [other, others] =
              *std::ranges::min_element(of, {}, [](const auto& one) { return one.second[0]; });
          throw UsageError("the ranks differ: " + name + " is " + right + " on rank 0 (" + hosts[0] + "), but " +
                           other + " on " + rank_list(others) + " (" + hosts[others[0]] + ")");
        }
        for (int rank = 0; rank < world.size(); ++rank) {
          const auto number = static_cast<std::size_t>(nodes[static_cast<std::size_t>(rank)]);
          const std::string text = std::to_string(number) + " " + std::to_string(sizes[number]);
          if (rank == 0)
            node_text = text;
          else
            store->set_for_readers(node_key(rank), text, 1);
        }
        return std::to_string(numbers.size());
      });
  if (node_text.empty()) node_text = store->get(node_key(world.rank()), world.timeout());
  node_count = number_of<int>(count).value();
  node_rank = number_of<int>(node_text.substr(0, node_text.find(' '))).value();
  local_size = number_of<int>(node_text.substr(node_text.find(' ') + 1)).value();
  if (launch.local_size && launch.local_size->value != local_size)
    throw UsageError(launch.local_size->variable + "=" + std::to_string(launch.local_size->value) + ", but " +
                     std::to_string(local_size) + " ranks joined from " + node);
}

// A text of any length, in pieces that the store deletes when they have been read.
void World::Implementation::give(const std::string& key, std::string_view text, int readers) {
  if (readers == 0) return;
  for (std::size_t at = 0, piece = 0;; ++piece) {
    const auto part = text.substr(at, longest_piece);
    at += part.size();
    store->set_for_readers(key + "/" + std::to_string(piece), std::string(at < text.size() ? "+" : ".").append(part),
                           static_cast<std::uint32_t>(readers));
    if (at == text.size()) return;
  }
}

std::string World::Implementation::take(const std::string& key, std::chrono::milliseconds limit) {
  std::string text;
  for (std::size_t piece = 0;; ++piece) {
    const std::string part = store->get(key + "/" + std::to_string(piece), limit);
    text.append(part, 1);
    if (!part.starts_with('+')) return text;
  }
}

std::string World::combine_on_rank_0(const char* name, const std::string& value, const Combine& combine) {
  const Watchdog::Operation inside = watchdog().enter_world(name);
  Implementation& impl = *implementation_;
  const std::string key = "gather/" + std::to_string(impl.gathers) + "/";
  // Each text is sent with its name, so that no rank takes a text of another call. (Not in the first meeting: there
  // another version of this may take part.)
  const std::string after = impl.gathers++ > 0 ? std::string(1, '\0') + name : "";
  // The watchdog, which can name the late rank, ends the process before this limit.
  const std::chrono::milliseconds limit = options_.timeout + 15s;
  if (rank() == 0) {
    std::vector<std::string> all{value};
    for (int r = 1; r < size(); ++r) {
      std::string& text = all.emplace_back(impl.take(key + std::to_string(r), limit));
      if (!text.ends_with(after))
        throw std::logic_error(
            fmt::format("World: rank 0 is in '{}', but rank {} in '{}': all ranks make the same calls", name, r,
                        text.substr(text.rfind('\0') + 1)));
      text.resize(text.size() - after.size());
    }
    const std::string text = combine(std::move(all));
    impl.give(key + "combined", text, size() - 1);
    return text;
  }
  impl.give(key + std::to_string(rank()), value + after, 1);
  return impl.take(key + "combined", limit);
}

std::vector<std::string> World::gather_on_rank_0(const char* name, const std::string& value) {
  std::vector<std::string> all;
  combine_on_rank_0(name, value, [&](std::vector<std::string> values) {
    all = std::move(values);
    return "";
  });
  return all;
}

std::vector<std::string> World::gather(const char* name, const std::string& value) {
  return from_msgpack(
      combine_on_rank_0(name, value, [](const std::vector<std::string>& values) { return to_msgpack(values); }));
}

int World::node_rank() const { return implementation_->node_rank; }
int World::node_count() const { return implementation_->node_count; }
int World::local_size() const { return implementation_->local_size; }
const std::string& World::host(int rank) const {
  auto& hosts = implementation_->hosts;
  if (const auto known = hosts.find(rank); known != hosts.end()) return known->second;
  return hosts[rank] = rank == this->rank()
                           ? host_name()
                           : implementation_->store->get("host of rank " + std::to_string(rank), timeout());
}
TcpStore& World::store() { return *implementation_->store; }
Watchdog& World::watchdog() { return *implementation_->watchdog; }

}  // namespace multinode
