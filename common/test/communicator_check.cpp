// Checks every operation, type and reduction of a communicator element by element against exact arithmetic. Exit
// status: 0 all correct; 1 an error.
#include <multinode/base/check.hpp>
#include <multinode/base/program_options.hpp>
#include <multinode/communicator/communicator_backends.hpp>
#include <multinode/store/tcp_store.hpp>
#include <multinode/world/program.hpp>

#ifdef MULTINODE_HAVE_MPI
#include <multinode/communicator/mpi.hpp>
#endif

#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <random>
#include <set>
#include <thread>
#include <vector>

using namespace multinode;

namespace {

std::uint64_t mix(std::uint64_t x) {  // the finalizer of splitmix64
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// The value of `rank` at `index`, with as many bits as the type can represent exactly.
template <class T>
T pattern(int rank, std::size_t index) {
  const std::uint64_t bits = mix((static_cast<std::uint64_t>(rank + 1) << 40) + index);
  if constexpr (std::is_integral_v<T>) return static_cast<T>(bits);
  if constexpr (std::is_same_v<T, double>) return static_cast<double>(bits >> 11);
  if constexpr (std::is_same_v<T, float>) return static_cast<float>(bits >> 40);
  return static_cast<T>(static_cast<float>(bits >> (std::is_same_v<T, half> ? 53 : 56)));
}

// Small integers, so that every partial result, in any order, is exact in every type. They repeat with a period that
// does not divide any block, segment or part.
template <class T>
class Case {
 public:
  Case(Reduction reduction, int ranks, int me) : reduction_(reduction), ranks_(ranks), input_(period), result_(period) {
    for (std::int64_t i = 0; i < period; ++i) {
      input_[static_cast<std::size_t>(i)] = converted(value(me, i));
      result_[static_cast<std::size_t>(i)] = converted(expected(i));
    }
  }
  T input(std::size_t index) const { return input_[index % period]; }
  T result(std::size_t index) const { return result_[index % period]; }

 private:
  static constexpr std::int64_t period = 2003;
  static constexpr bool is_signed = !std::is_unsigned_v<T>;

  static T converted(std::int64_t value) {
    if constexpr (std::is_integral_v<T> || std::is_same_v<T, double>) return static_cast<T>(value);
    return static_cast<T>(static_cast<float>(value));
  }

  std::int64_t value(int rank, std::int64_t i) const {
    switch (reduction_) {
      case Reduction::sum:
        return (i * 7 + rank * 13) % 11 - (is_signed ? 5 : 0);
      case Reduction::product: {
        constexpr std::int64_t factors[] = {1, 2, -1, 3, 1, -2, 1, 5};  // each of 8 ranks has another one
        const std::int64_t factor = factors[(i * 5 + rank * 3) % 8];
        return is_signed ? factor : std::abs(factor);
      }
      case Reduction::min:
      case Reduction::max:
        return (i * 31 + rank * 17) % 101 - (is_signed ? 50 : 0);
      case Reduction::average: {  // the mean, plus numbers with sum 0; for integers also a remainder that is dropped
        const std::int64_t rest = std::is_integral_v<T> && rank == 0 ? i % ranks_ : 0;
        return mean(i) + 2 * rank - (ranks_ - 1) + (mean(i) < 0 ? -rest : rest);
      }
    }
    return 0;
  }

  std::int64_t expected(std::int64_t i) const {
    if (reduction_ == Reduction::average) return mean(i);
    std::int64_t result = value(0, i);
    for (int r = 1; r < ranks_; ++r) {
      const std::int64_t v = value(r, i);
      if (reduction_ == Reduction::sum) result += v;
      if (reduction_ == Reduction::product) result *= v;
      if (reduction_ == Reduction::min) result = std::min(result, v);
      if (reduction_ == Reduction::max) result = std::max(result, v);
    }
    return result;
  }

  // The sum of 8 ranks fits int8.
  std::int64_t mean(std::int64_t i) const { return is_signed && i % 2 ? -(i % 7) - 8 : i % 7 + 8; }

  Reduction reduction_;
  int ranks_;
  std::vector<T> input_, result_;
};

class Checker {
 public:
  Checker(World& world, Communicator& communicator, int corrupt)
      : world_(world), c_(communicator), corrupt_(corrupt == world.rank()) {}

  void everything() {
    for (const std::size_t count : {0, 1, 7, 1000, 65537})
      for (const DataType type : data_types)
        with_type(type, [&]<class T>(T) {
          reduce<T>(count, reductions);
          broadcast<T>(count);
        });
    reduce<float>(std::size_t{4} << 20, std::array{Reduction::sum});
    same_bits<float>();
    same_bits<double>();
    same_bits<half>();
    same_bits<bfloat16>();
    beside_started_operations(5);
    refusals();
    c_.barrier();
  }

  // The World's collectives while the communicator's thread works.
  void beside_started_operations(int rounds) {
    std::vector<float> data(100);
    for (int round = 1; round <= rounds; ++round) {
      std::ranges::fill(data, static_cast<float>(c_.rank() + round));
      std::vector<Work> started;
      for (int i = 0; i < 200; ++i) started.push_back(c_.start_all_reduce(std::span(data), Reduction::max));
      for (int i = 0; i < 3; ++i) world_.barrier("a barrier of the World beside started operations");
      for (Work& one : started) one.wait();
      operations_ += started.size();
      check("all_reduce beside the World", std::span(data), [&](std::size_t) { return float(c_.size() - 1 + round); });
    }
  }

  int report() const {
    std::int64_t wrong = 0;
    std::uint64_t operations = 0, elements = 0;
    for (const std::string& text :
         world_.gather("what was checked",
                       std::to_string(operations_) + " " + std::to_string(elements_) + " " + std::to_string(wrong_))) {
      std::istringstream in(text);
      std::int64_t w = 0;
      std::uint64_t o = 0, e = 0;
      in >> o >> e >> w;
      operations += o, elements += e, wrong += w;
    }
    if (world_.rank() == 0)
      std::cout << name_of(c_.backend()) << ", " << c_.size() << " ranks: " << operations << " operations, " << elements
                << " elements checked, " << wrong << " wrong\n";
    return wrong ? exit_wrong : exit_right;
  }

 private:
  // Each reduction blocking. Then all of them started, and waited for out of order.
  template <class T>
  void reduce(std::size_t count, std::span<const Reduction> kinds) {
    std::vector<Case<T>> cases;
    for (const Reduction kind : kinds) cases.emplace_back(kind, c_.size(), c_.rank());
    std::vector<std::vector<T>> blocks(kinds.size(), std::vector<T>(count));
    for (const bool start : {false, true}) {
      const std::size_t salt = next_salt();
      std::vector<Work> works;
      for (std::size_t k = 0; k < kinds.size(); ++k) {
        for (std::size_t i = 0; i < count; ++i) blocks[k][i] = cases[k].input(i + salt);
        if (start)
          works.push_back(c_.start_all_reduce(std::span(blocks[k]), kinds[k]));
        else
          c_.all_reduce(std::span(blocks[k]), kinds[k]);
      }
      for (std::size_t k = 0; k < works.size(); k += 2) works[k].wait();
      c_.barrier();  // a blocking call waits for the queued ones
      for (std::size_t k = 0; k < kinds.size(); ++k)
        check("all_reduce " + std::string(name_of(kinds[k])), std::span(blocks[k]),
              [&](std::size_t i) { return cases[k].result(i + salt); });
      for (std::size_t k = works.size() / 2 * 2; k-- > 0;) works[k].wait();
      operations_ += kinds.size();
    }
  }

  template <class T>
  void broadcast(std::size_t count) {
    for (int root = 0; root < c_.size(); root += std::max(1, c_.size() - 1)) {
      const std::size_t salt = next_salt();
      const auto right = [&](std::size_t i) { return pattern<T>(root, i + salt); };
      std::vector<T> data(count, T(77));
      for (std::size_t i = 0; i < count && c_.rank() == root; ++i) data[i] = right(i);
      c_.broadcast(std::span(data), root);
      check("broadcast", std::span(data), right);
      ++operations_;
    }
  }

  // All ranks get the same bits, also for sums that round, signed zeros and NaNs.
  template <class T>
  void same_bits() {
    std::mt19937 random(static_cast<unsigned>(c_.rank() + 1));
    std::normal_distribution<float> normal;
    for (const Reduction reduction : reductions)
      for (const std::size_t count : {1, 7, 1000, 5000, 20011}) {
        std::vector<T> data(count);
        for (T& x : data) x = static_cast<T>(normal(random));
        for (std::size_t i = 0; i < count; i += 5) data[i] = static_cast<T>(random() % 2 ? 0.0f : -0.0f);
        if (count > 10) data[random() % count] = static_cast<T>(NAN);
        c_.all_reduce(std::span(data), reduction);
        std::uint64_t hash = count;
        std::uint64_t bits = 0;
        for (const T x : data) {
          std::memcpy(&bits, &x, sizeof x);
          hash = mix(hash + bits);
        }
        for (const std::string& other : world_.gather("bits", std::to_string(hash)))
          if (other != std::to_string(hash))
            complain("bits of all_reduce " + std::string(name_of(reduction)), data_type_of<T>(), count, 0);
        ++operations_;
        elements_ += count;
      }
  }

  void refusals() {
    std::vector<float> data(10);
    const std::span<float> block(data);
    const auto refused = [&](const char* what, auto&& call) {
      ++operations_;
      try {
        call();
      } catch (const std::logic_error& e) {
        if (std::string_view(e.what()).starts_with(what)) return;
      }
      std::cerr << "rank " << c_.rank() << ": " << what << " accepted an invalid argument\n";
      ++wrong_;
    };
    refused("broadcast", [&] { c_.broadcast(block, c_.size()); });
    refused("broadcast", [&] { c_.broadcast(block, -1); });
    { const Work dropped = c_.start_all_reduce(std::span<float>(), Reduction::sum, "dropped"); }
    refused("Communicator::start_all_reduce(), 'dropped'", [&] { c_.barrier(); });
  }

  template <class T, class Function>
  void check(const std::string& what, std::span<T> data, Function&& expected) {
    if (corrupt_ && !data.empty() && corrupted_.insert(what.substr(0, what.find(' '))).second) {
      reinterpret_cast<unsigned char*>(&data.back())[0] ^= 1;
    }
    for (std::size_t i = 0; i < data.size(); ++i) {
      const T right = expected(i);
      if (std::memcmp(&data[i], &right, sizeof(T)) != 0) complain(what, data_type_of<T>(), data.size(), i);
    }
    elements_ += data.size();
  }

  void complain(const std::string& what, DataType type, std::size_t count, std::size_t index) {
    if (++wrong_ <= 10)
      std::cerr << "rank " + std::to_string(c_.rank()) + ": " + what + " of " + std::to_string(count) + " " +
                       std::string(name_of(type)) + ": element " + std::to_string(index) + " is wrong\n";
  }

  std::size_t next_salt() { return ++salt_ * 1009; }  // so that data of an earlier operation is detected

  World& world_;
  Communicator& c_;
  bool corrupt_;
  std::set<std::string> corrupted_;
  std::size_t salt_ = 0;
  std::uint64_t operations_ = 0, elements_ = 0, wrong_ = 0;
};

#ifdef MULTINODE_HAVE_MPI
// MPI_Finalize begins with deleting the attributes of MPI_COMM_SELF.
void stop_in_finalize() {
  int key = MPI_KEYVAL_INVALID;
  check(MPI_Comm_create_keyval(
      MPI_COMM_NULL_COPY_FN, [](MPI_Comm, int, void*, void*) { return raise(SIGSTOP); }, &key, nullptr));
  check(MPI_Comm_set_attr(MPI_COMM_SELF, key, nullptr));
}
#endif

}  // namespace

int main(int argc, char** argv) {
  int corrupt = -1, leave = -1, freeze = -1, late = -1, beside = 0;
  std::string until;
  CommonOptions common;
  namespace po = boost::program_options;
  po::options_description options("communicator_check");
  options.add_options()("corrupt", po::value(&corrupt), "change one element of each kind of result on this rank")(
      "leave", po::value(&leave), "this rank throws during an operation that no other rank joins")(
      "freeze", po::value(&freeze), "mpi: this rank stops in MPI_Finalize")(
      "late", po::value(&late), "nccl: this rank sleeps while the others synchronise a CUDA stream")(
      "beside", po::value(&beside),
      "only use the World beside started operations, and then compute for this many seconds")(
      "until", po::value(&until), "only reduce, until this file exists");
  return run({"communicator_check", options, common, [&] { parse_backend(common.backend); }}, argc, argv,
             [&](World& world) {
               std::vector<float> data(100);  // outlives the operations in progress
               const auto communicator = make_communicator(world, parse_backend(common.backend));
#ifdef MULTINODE_HAVE_MPI
               if (freeze == world.rank()) stop_in_finalize();
#endif
               if (freeze >= 0) return 0;
#ifdef MULTINODE_HAVE_CUDA
               if (late >= 0) {
                 Block on_gpu(nullptr, 100, DataType::float32);
                 if (cudaMalloc(&on_gpu.data, on_gpu.bytes()) != cudaSuccess) throw std::runtime_error("cudaMalloc");
                 communicator->all_reduce(on_gpu);
                 if (late == world.rank()) std::this_thread::sleep_for(std::chrono::hours(1));
                 communicator->all_reduce(on_gpu);
                 if (world.rank() == 0) std::cout << "waiting" << std::endl;
                 return cudaStreamSynchronize(nullptr) == cudaSuccess ? 0 : 1;
               }
#endif
               if (!until.empty()) {
                 if (world.rank() == 0) std::cout << "started" << std::endl;
                 for (float end = 0; end == 0;) {
                   data[0] = std::filesystem::exists(until) ? 1 : 0;
                   communicator->all_reduce(std::span(data), Reduction::max);
                   end = data[0];
                 }
                 return 0;
               }
               if (leave == world.rank()) {
                 Work joined = communicator->start_all_reduce(std::span(data));
                 const Work alone =
                     communicator->start_all_reduce(std::span(data), Reduction::sum, "all_reduce of one rank alone");
                 world.store().set("leave", "both are queued");
                 joined.wait();  // the communicator's thread is now inside the operation that no other rank joins
                 throw std::runtime_error("asked to leave");
               }
               if (leave >= 0) {
                 world.store().get("leave", world.timeout());
                 communicator->all_reduce(std::span(data));
                 world.barrier("the end that one rank never comes to");
               }
               Checker checker(world, *communicator, corrupt);
               if (beside > 0) {
                 checker.beside_started_operations(500);
                 std::this_thread::sleep_for(std::chrono::seconds(beside));
                 return checker.report();
               }
               checker.everything();
               return checker.report();
             });
}
