#include <multinode/address.hpp>
#include <multinode/check.hpp>
#include <multinode/libraries.hpp>
#include <multinode/rendezvous_file.hpp>
#include <multinode/socket.hpp>
#include <multinode/text.hpp>
#include <multinode/torch_store.hpp>
#include <multinode/world.hpp>

#include <gnu/libc-version.h>
#include <link.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <iostream>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>
#include <system_error>
#include <thread>

// Defined by multinode::communicator, whose programs are linked with --undefined=multinode_communicator_libraries.
extern "C" [[gnu::weak]] const multinode::Libraries* multinode_communicator_libraries();

namespace multinode {

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr char loopback[] = "127.0.0.1";

bool all_on_this_node(const Launch& launch) {
  if (launch.node_count) return launch.node_count->value == 1;
  return launch.world_size.value == 1 || (launch.local_size && launch.local_size->value == launch.world_size.value);
}

// A server that all ranks can reach, on loopback if all are on this node, and its endpoint for the other ranks.
std::pair<std::unique_ptr<TcpStoreServer>, Endpoint> serve_anywhere(const Launch& launch) {
  std::string address = all_on_this_node(launch) ? loopback : detail::own_address();
  if (address.empty()) address = loopback;  // without a network address there are no other hosts
  auto server = std::make_unique<TcpStoreServer>(address);
  const Endpoint endpoint{address, server->port()};
  return {std::move(server), endpoint};
}

// A server at an agreed endpoint. If its address is not this machine's (a service in front of a pod), on all addresses.
std::unique_ptr<TcpStoreServer> serve_at(const Endpoint& endpoint) try {
  return std::make_unique<TcpStoreServer>(detail::listening_address(endpoint.host), endpoint.port);
} catch (const std::system_error& e) {
  if (e.code().value() != EADDRNOTAVAIL) throw;
  return std::make_unique<TcpStoreServer>("0.0.0.0", endpoint.port);
}

// Ends the process if MPI_Init does not return: there is no store yet that knows who is late.
class MpiDeadline {
 public:
  MpiDeadline(std::chrono::milliseconds limit, const std::string& who)
      : thread_([limit, who](const std::stop_token& stop) {
          std::mutex mutex;
          std::unique_lock lock(mutex);
          std::condition_variable_any wake;
          if (wake.wait_for(lock, stop, limit, [&] { return stop.stop_requested(); })) return;
          std::cerr << who + " (host " + host_name() + "): MPI did not connect the ranks within " +
                           detail::to_text(limit) +
                           ": check the firewall and the network interface (btl_tcp_if_include)\n"
                    << std::flush;
          _exit(exit_wrong);
        }) {}

 private:
  std::jthread thread_;
};

// The build ID that the linker put into this program, in hexadecimal; "" if it put none.
std::string build_id() {
  std::string id;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* out) {
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const ElfW(Phdr)& header = info->dlpi_phdr[i];
          if (header.p_type != PT_NOTE) continue;
          // NOLINTNEXTLINE(performance-no-int-to-ptr): the loader gives the address as a number
          const char* at = reinterpret_cast<const char*>(info->dlpi_addr + header.p_vaddr);
          const char* const end = at + header.p_memsz;
          while (at + sizeof(ElfW(Nhdr)) <= end) {
            const auto* note = reinterpret_cast<const ElfW(Nhdr)*>(at);
            const char* bytes = at + sizeof *note + ((note->n_namesz + 3) & ~3u);
            if (note->n_type == NT_GNU_BUILD_ID)
              for (std::size_t b = 0; b < std::min<std::size_t>(note->n_descsz, 8); ++b) {
                const char digits[] = "0123456789abcdef";
                const auto byte = static_cast<unsigned char>(bytes[b]);
                *static_cast<std::string*>(out) += {digits[byte / 16], digits[byte % 16]};
              }
            at = bytes + ((note->n_descsz + 3) & ~3u);
          }
        }
        return 1;  // the first object is the program itself
      },
      &id);
  return id;
}

}  // namespace

const Libraries& libraries() {
  static const Libraries none;
  return multinode_communicator_libraries ? *multinode_communicator_libraries() : none;
}

std::vector<std::pair<std::string, std::string>> versions() {
  std::vector<std::pair<std::string, std::string>> list = libraries().versions();
  list.emplace(list.begin(), "program", MULTINODE_VERSION " build " + build_id());
  list.emplace_back("libc", gnu_get_libc_version());
  return list;
}

// Members are destroyed in reverse order: the watchdog says goodbye first, then the server ends, MPI is last.
struct World::Implementation {
  std::unique_ptr<Libraries::Mpi> mpi;
  std::unique_ptr<TcpStoreServer> server;
  Endpoint endpoint;
  std::string server_text;
  std::string prefix = "run";  // of all keys
  std::unique_ptr<TcpStore> store;
  std::unique_ptr<Watchdog> watchdog;
  std::uint64_t gathers = 0;
  std::vector<std::string> hosts;
  std::vector<int> nodes;  // of each rank

  using Tell = std::function<void(const Endpoint&)>;
  using Ask = std::function<Endpoint(std::chrono::milliseconds left)>;
  void meet(const std::string& program, const Launch& launch, const Options& options);
  void meet_through(const Launch& launch, const Options& options, const Tell& tell, const Ask& ask);
  void prove_wiring(World& world);
};

// Rank 0 serves a store and publishes its endpoint. The others may get the endpoint of an earlier run: they ask again.
void World::Implementation::meet_through(const Launch& launch, const Options& options, const Tell& tell,
                                         const Ask& ask) {
  if (launch.rank.value == 0) {
    std::tie(server, endpoint) = serve_anywhere(launch);
    tell(endpoint);
    return;
  }
  const Clock::time_point deadline = Clock::now() + options.timeout;
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    endpoint = ask(std::max(left, 1ms));
    try {
      TcpStore probe(endpoint, std::clamp(left, 1ms, 1000ms));
      probe.goodbye();
      return;
    } catch (const std::runtime_error&) {
      if (left <= 1ms) throw;
      std::this_thread::sleep_for(10ms);
    }
  }
}

void World::Implementation::meet(const std::string& program, const Launch& launch, const Options& options) {
  const bool first = launch.rank.value == 0;
  server_text = "rank 0, which serves the store";
  if (options.rendezvous.starts_with("tcp:")) {
    endpoint = parse_endpoint(options.rendezvous.substr(4), "--rendezvous");
    if (first) server = serve_at(endpoint);
  } else if (options.rendezvous.starts_with("file:")) {
    const std::filesystem::path file = options.rendezvous.substr(5);
    meet_through(
        launch, options, [&](const Endpoint& its) { detail::write_endpoint(file, generation(launch), its); },
        [&](std::chrono::milliseconds left) { return detail::read_endpoint(file, generation(launch), left); });
  } else if (!options.rendezvous.empty()) {
    throw UsageError("--rendezvous must be tcp:HOST:PORT or file:PATH, not '" + options.rendezvous + "'");
  } else if (launch.launcher_store) {
    endpoint = launch.launcher_store->value;
    server_text = std::string(launch.launcher == "mnrun" ? "mnrun's agent" : "the head of the cluster") +
                  ", which serves the store";
    prefix = "run/" + generation(launch);
  } else if (launch.agent_store) {
    TorchStore agent({launch.master_address.value, launch.master_port.value}, options.timeout);
    const std::string key = "multinode/" + generation(launch) + "/store";
    meet_through(
        launch, options, [&](const Endpoint& its) { agent.set(key, to_string(its)); },
        [&](std::chrono::milliseconds left) { return parse_endpoint(agent.get(key, left), "rank 0's store"); });
  } else if (launch.world_size.value == 1) {
    std::tie(server, endpoint) = serve_anywhere(launch);
  } else if (launch.under_mpi && libraries().has_mpi()) {
    // Longer than other waits: MPI takes seconds to start on a busy machine.
    const MpiDeadline deadline(options.timeout + 15s, program + ": rank " + std::to_string(launch.rank.value));
    mpi = libraries().start_mpi();
    if (first) std::tie(server, endpoint) = serve_anywhere(launch);
    endpoint = parse_endpoint(mpi->broadcast(launch, to_string(endpoint)), "rank 0's store");
  } else if (!launch.master_address.value.empty() && launch.master_port.value) {
    endpoint = {launch.master_address.value, launch.master_port.value};
    if (first) server = serve_at(endpoint);
  } else {
    throw UsageError(
        std::string(launch.under_mpi ? "this build cannot use MPI for the rendezvous" : "no meeting place") +
        ": set MASTER_ADDR and MASTER_PORT, or give --rendezvous tcp:HOST:PORT");
  }
  try {
    store = std::make_unique<TcpStore>(endpoint, options.timeout, prefix);
  } catch (const StoreTimeout& e) {
    throw StoreTimeout("rank " + std::to_string(launch.rank.value) + " cannot reach " + server_text + " at " +
                       to_string(endpoint) + ": " + e.what());
  }
}

World::World(std::string program, Launch launch, Options options)
    : program_(std::move(program)),
      launch_(std::move(launch)),
      options_(std::move(options)),
      implementation_(std::make_unique<Implementation>()) {
  Implementation& impl = *implementation_;
  std::signal(SIGPIPE, SIG_IGN);  // Gloo writes to closed connections without MSG_NOSIGNAL
  impl.meet(program_, launch_, options_);

  Watchdog::Identity identity;
  identity.program = program_;
  identity.rank = rank();
  identity.world_size = size();
  identity.where = "host " + host_name() + ", pid " + std::to_string(getpid());
  identity.node = launch_.node_rank ? std::to_string(launch_.node_rank->value) : host_name();
  identity.server = impl.server_text + " at " + to_string(impl.endpoint) + ",";
  identity.serves = impl.server.get();
  identity.speaks_without_store = rank() == 1 || local_rank() == 0;
  impl.watchdog = std::make_unique<Watchdog>(impl.endpoint, impl.prefix, std::move(identity), options_.timeout);
  try {
    impl.prove_wiring(*this);
  } catch (const UsageError& e) {
    impl.watchdog->fail(e.what(), exit_usage);
  } catch (const std::runtime_error& e) {
    impl.watchdog->fail(e.what(), exit_wrong);
  }
}

World::~World() {
  Implementation& impl = *implementation_;
  if (std::uncaught_exceptions() > 0) impl.watchdog->fail("ended early because of an exception", exit_wrong);
  impl.watchdog.reset();
  try {
    impl.store->goodbye();
  } catch (const std::runtime_error&) {  // the store is already gone
  }
  impl.store.reset();
  if (impl.server) impl.server->linger(options_.timeout);
}

// Checks that every rank is present once, and that all agree on what must be the same.
void World::Implementation::prove_wiring(World& world) {
  nlohmann::json mine = {{"world size", std::to_string(world.size())}, {"program name", world.program_}};
  if (world.options_.same_versions)
    for (const auto& [name, version] : versions()) mine[name] = version;
  const Launch& launch = world.launch_;
  if (store->add("claims of rank " + std::to_string(world.rank()), 1) != 1)
    throw UsageError("two processes have rank " + std::to_string(world.rank()) + " (" +
                     (launch.rank.variable.empty() ? launch.launcher : launch.rank.variable) +
                     "): give each process its own rank");
  const std::string node = launch.node_rank ? "node " + std::to_string(launch.node_rank->value) : host_name();
  const nlohmann::json hello = {{"host", host_name()}, {"node", node}, {"same", mine}};

  std::map<std::string, int> numbers;                    // of nodes, by first appearance
  std::vector<std::map<std::string, std::string>> same;  // of each rank
  for (const std::string& text : world.gather("first meeting", hello.dump())) {
    const nlohmann::json its = nlohmann::json::parse(text);
    hosts.push_back(its.at("host"));
    nodes.push_back(numbers.emplace(its.at("node"), static_cast<int>(numbers.size())).first->second);
    same.push_back(its.at("same"));
  }
  for (const auto& [name, value] : same[0]) {
    std::vector<int> others;
    for (std::size_t r = 1; r < same.size(); ++r)
      if (same[r][name] != value) others.push_back(static_cast<int>(r));
    if (others.empty()) continue;
    const auto first = static_cast<std::size_t>(others[0]);
    const std::string& odd = same[first][name];
    throw UsageError("the ranks differ: " + name + " is " + value + " on rank 0 (" + hosts[0] + "), but " +
                     (odd.empty() ? "absent" : odd) + " on " + rank_list(others) + " (" + hosts[first] + ")");
  }
  if (launch.local_size && launch.local_size->value != world.local_size())
    throw UsageError(launch.local_size->variable + "=" + std::to_string(launch.local_size->value) + ", but " +
                     std::to_string(world.local_size()) + " ranks joined from " + node);
}

std::vector<std::string> World::gather(const char* name, const std::string& value) {
  const Watchdog::Operation inside = watchdog().enter(name);
  Store& store = *implementation_->store;
  const std::string key = "gather/" + std::to_string(implementation_->gathers++) + "/";
  // The watchdog, which can name the late rank, ends the process before this limit.
  const std::chrono::milliseconds limit = options_.timeout + 15s;

  std::vector<std::string> all(static_cast<std::size_t>(size()));
  if (rank() == 0) {
    all[0] = value;
    std::string joined;
    for (int r = 0; r < size(); ++r) {
      std::string& text = all[static_cast<std::size_t>(r)];
      if (r > 0) text = store.get(key + std::to_string(r), limit);
      joined += std::to_string(text.size()) + " " + text;
    }
    store.set(key + "all", joined);
    return all;
  }
  store.set(key + std::to_string(rank()), value);
  std::istringstream joined(store.get(key + "all", limit));
  for (std::string& text : all) {
    std::size_t length = 0;
    joined >> length;
    joined.get();
    text.resize(length);
    joined.read(text.data(), static_cast<std::streamsize>(length));
  }
  if (!joined) throw StoreLost("the values gathered for '" + std::string(name) + "' are corrupt");
  return all;
}

int World::node_rank() const { return implementation_->nodes[static_cast<std::size_t>(rank())]; }
int World::node_count() const {
  return 1 + *std::max_element(implementation_->nodes.begin(), implementation_->nodes.end());
}
int World::local_size() const {
  return static_cast<int>(std::count(implementation_->nodes.begin(), implementation_->nodes.end(), node_rank()));
}
const std::string& World::host(int rank) const { return implementation_->hosts.at(static_cast<std::size_t>(rank)); }
Store& World::store() { return *implementation_->store; }
Watchdog& World::watchdog() { return *implementation_->watchdog; }

}  // namespace multinode
