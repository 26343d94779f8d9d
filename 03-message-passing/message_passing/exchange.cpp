#include "exchange.hpp"

#include <multinode/base/program_options.hpp>
#include <multinode/world/report.hpp>

#include <nlohmann/json.hpp>

#include <iostream>
#include <thread>

namespace po = boost::program_options;
using namespace std::chrono_literals;

multinode::Program ExchangeOptions::program(const char* name) {
  po::options_description options(std::string(name) +
                                  ": rank 0 sends a message to every other rank, which checks it.\n\nOptions");
  options.add_options()("count",
                        po::value<std::string>()->default_value("1000")->notifier(
                            [this](const std::string& text) { count = multinode::parse_size(text, "--count"); }),
                        "number of elements (32-bit integers) in a message; 1M is 1048576")(
      "rounds", po::value(&rounds)->default_value(rounds), "number of times to send to every rank")(
      "mute", multinode::given(mute), "rank that does not receive, to show what the other ranks report")(
      "corrupt", multinode::given(corrupt), "rank that corrupts one received element, to show that the check can fail");
  auto validate = [this] {
    multinode::require_range("--count", count, std::size_t{1}, std::size_t{1} << 28);
    multinode::require_range("--rounds", rounds, 1, 1'000'000'000);
  };
  return {name, options, common, validate};
}

std::int32_t element(int peer, int round, std::size_t index) {
  // Weyl sequence: neighbours differ in many bits (the constant is 2^32 divided by the golden ratio).
  const auto mixed = static_cast<std::uint32_t>(index + 1) * 0x9E3779B9u;
  return static_cast<std::int32_t>(mixed ^ (static_cast<std::uint32_t>(peer) * 0x01000193u) ^
                                   (static_cast<std::uint32_t>(round) * 0x85EBCA6Bu));
}

void fill(std::span<std::int32_t> block, int peer, int round) {
  for (std::size_t i = 0; i < block.size(); ++i) block[i] = element(peer, round, i);
}

std::size_t count_wrong(std::span<const std::int32_t> block, int rank, int round) {
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < block.size(); ++i) {
    if (block[i] == element(rank, round, i)) continue;
    if (wrong++ == 0)
      std::cerr << "rank " + std::to_string(rank) + ": element " + std::to_string(i) + " is " +
                       std::to_string(block[i]) + ", not " + std::to_string(element(rank, round, i)) + "\n";
  }
  return wrong;
}

namespace {

// Every rank passes its own number of wrong elements and gets the exit status. Rank 0 prints the verdict.
int verdict(multinode::World& world, const ExchangeOptions& options, std::size_t wrong) {
  const std::size_t total = std::stoull(world.combine_on_rank_0("verdict", std::to_string(wrong), [](const auto& all) {
    std::size_t sum = 0;
    for (const std::string& text : all) sum += std::stoull(text);
    return std::to_string(sum);
  }));
  if (world.rank() == 0) {
    const std::size_t checked =
        options.count * static_cast<std::size_t>(options.rounds) * static_cast<std::size_t>(world.size() - 1);
    std::cout << (total == 0 ? "RIGHT: " : "WRONG: ") << total << " of " << checked << " elements wrong\n"
              << std::flush;
    multinode::JsonLines(options.common.json, true)
        .write({{"right", total == 0}, {"checked", checked}, {"wrong", total}});
  }
  return total == 0 ? multinode::exit_right : multinode::exit_wrong;
}

}  // namespace

void require_exchange(const multinode::World& world, const ExchangeOptions& options, std::string_view backend) {
  if (world.size() < 2)
    throw multinode::UsageError("needs 2 ranks or more: mpirun -n 2 ... or mnrun --standalone --nproc-per-node 2 ...");
  if (options.common.backend != "auto" && options.common.backend != backend)
    throw multinode::UsageError("--backend " + options.common.backend + ": this program shows " + std::string(backend) +
                                "; start message_passing_" + options.common.backend + " instead");
  for (const auto& [name, rank] : {std::pair("--mute", options.mute), std::pair("--corrupt", options.corrupt)})
    if (rank) multinode::require_range(name, *rank, 1, world.size() - 1);
  if (world.rank() == 0) multinode::JsonLines(options.common.json).write(multinode::fingerprint(world));
}

int exchange(multinode::World& world, const ExchangeOptions& options, std::span<std::int32_t> block,
             const std::function<void(int peer)>& send, const std::function<void()>& receive) {
  const int rank = world.rank();
  while (rank == options.mute) std::this_thread::sleep_for(1h);  // until the watchdog of another rank ends this process
  std::size_t wrong = 0;
  for (int round = 1; round <= options.rounds; ++round) {
    if (rank == 0) {
      if (options.rounds > 1) std::cout << "round " << round << " of " << options.rounds << std::endl;
      for (int peer = 1; peer < world.size(); ++peer) {
        fill(block, peer, round);
        send(peer);
        if (round == 1) std::cout << "Rank 0 sent data to Rank " << peer << std::endl;
      }
    } else {
      receive();
      if (rank == options.corrupt) block[block.size() / 2] ^= 1;
      wrong += count_wrong(block, rank, round);
      if (round == 1) std::cout << "Rank " << rank << " has received data from rank 0" << std::endl;
    }
  }
  return verdict(world, options, wrong);
}
