// reducer_ranks: the reducer and broadcast_parameters among real ranks, checked element by element, and faults of one
// rank's. Exit status: 0 all right, 1 something was wrong.
#include "ddp/reducer.hpp"
#include "train_step.hpp"

#include <multinode/program.hpp>

#include <algorithm>
#include <iostream>
#include <numeric>
#include <random>
#include <set>
#include <thread>

namespace {

constexpr int no_rank = -1;

// Small whole numbers: every sum of them is exact, also in bfloat16.
template <class T>
T value(std::size_t rank, std::size_t step, std::size_t pass, std::size_t i, std::size_t j) {
  return static_cast<T>(static_cast<int>((rank + 3 * step + 5 * pass + 7 * i + 11 * j) % 13) - 6);
}

struct Fault {
  std::string name;  // of what differs in the last rank's model
  int nan = no_rank, asleep = no_rank;
  int nap = 0;  // milliseconds
};

struct Case {
  std::string name;
  ddp::ReducerOptions options;
  std::size_t passes = 1;
};

template <class T>
class Model {
 public:
  Model() {
    add("first weights", {30, 10});
    add("first bias", {10});
    add("nothing", {0, 10});
    add("second weights", {70, 100});
    add("second bias", {100});
  }
  std::vector<ddp::NamedBlock> parameters() { return blocks_; }
  std::size_t size() const { return size_; }

 private:
  void add(const std::string& name, const std::vector<std::size_t>& shape) {
    const std::size_t count = std::accumulate(shape.begin(), shape.end(), std::size_t{1}, std::multiplies<>());
    data_.emplace_back(count);
    blocks_.push_back({name, shape, std::span<T>(data_.back())});
    size_ += count;
  }
  std::vector<std::vector<T>> data_;
  std::vector<ddp::NamedBlock> blocks_;
  std::size_t size_ = 0;
};

class Checks {
 public:
  Checks(multinode::World& world, multinode::Communicator& communicator, Fault fault)
      : world_(world), communicator_(communicator), fault_(std::move(fault)) {}

  template <class T>
  void broadcast() {
    Model<T> model;
    std::vector<ddp::NamedBlock> parameters = model.parameters();
    if (world_.rank() == world_.size() - 1) {
      if (fault_.name == "shape") std::swap(parameters[3].shape[0], parameters[3].shape[1]);
      if (fault_.name == "name") parameters[1].name = "bias";
      if (fault_.name == "type") parameters[4].block.type = multinode::DataType::int32;
      if (fault_.name == "missing") parameters.pop_back();
    }
    for (std::size_t i = 0; i < parameters.size(); ++i)
      for (std::size_t j = 0; j < parameters[i].block.count; ++j)
        static_cast<T*>(parameters[i].block.data)[j] = value<T>(rank(), 0, 0, i, j);
    ddp::broadcast_parameters(world_, communicator_, parameters);
    for (std::size_t i = 0; i < parameters.size(); ++i)
      for (std::size_t j = 0; j < parameters[i].block.count; ++j)
        expect(static_cast<T*>(parameters[i].block.data)[j] == value<T>(0, 0, 0, i, j), "broadcast");
  }

  // Exact sums in four steps; then numbers that are rounded, of which all ranks must have the same bits.
  template <class T>
  void reduce(const Case& c) {
    const auto parameters = Model<T>().parameters();
    std::vector<T> storage(Model<T>().size());
    ddp::Reducer<T> reducer(world_, communicator_, parameters, storage, c.options);
    std::vector<std::span<T>> gradients(parameters.size());
    int laid_out = 0;
    const auto lay_out = [&] {
      for (std::size_t i = 0; i < gradients.size(); ++i) gradients[i] = reducer.gradient(i);
      ++laid_out;
    };
    lay_out();
    reducer.set_relocated(lay_out);
    std::mt19937 random(static_cast<unsigned>(world_.rank()));
    std::normal_distribution<T> normal;
    const std::size_t divisor = 24;
    for (std::size_t step = 0; step < 5; ++step) {
      const bool exact = step < 4;
      for (std::size_t pass = 0; pass < c.passes; ++pass) {
        if (pass + 1 < c.passes)
          reducer.accumulate();
        else
          reducer.begin(divisor);
        // Not the planned order; on other ranks than rank 0 any order.
        std::vector<std::size_t> order{3, 4, 2, 0, 1};
        if (world_.rank() && fault_.asleep == no_rank) std::shuffle(order.begin(), order.end(), random);
        for (const std::size_t i : order) {
          if (c.options.unused_parameters && !uses(rank(), step, i)) continue;
          for (std::size_t j = 0; j < gradients[i].size(); ++j)
            gradients[i][j] =
                (reducer.adds() ? gradients[i][j] : 0) + (exact ? value<T>(rank(), step, pass, i, j) : normal(random));
          if (world_.rank() == fault_.nan && step == 2 && i == 3) gradients[i][5] = T(NAN);
          if (world_.rank() == fault_.asleep && step == 1 && i == 0)
            std::this_thread::sleep_for(std::chrono::milliseconds(fault_.nap));
          reducer.mark_ready(i);
        }
        reducer.wait();
      }
      if (!exact) break;
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        bool used = false;
        std::vector<T> sums(gradients[i].size());
        for (std::size_t r = 0; r < ranks(); ++r) {
          if (c.options.unused_parameters && !uses(r, step, i)) continue;
          used = true;
          for (std::size_t pass = 0; pass < c.passes; ++pass)
            for (std::size_t j = 0; j < sums.size(); ++j) sums[j] += value<T>(r, step, pass, i, j);
        }
        expect(reducer.used(i) == used, c.name + ", used, step " + std::to_string(step));
        for (std::size_t j = 0; j < sums.size(); ++j)
          expect(gradients[i][j] == sums[j] * (T(1) / T(divisor)),
                 c.name + ", step " + std::to_string(step) + ", parameter " + std::to_string(i));
      }
    }
    expect(laid_out == (c.options.rebuild && ranks() > 1 ? 2 : 1), c.name + ", rebuilt");
    const auto hashes = world_.gather("gradients", std::to_string(hash_of(std::span<const T>(storage))));
    expect(std::set(hashes.begin(), hashes.end()).size() == 1, c.name + ", the same bits");
  }

  int report() const {
    std::size_t all = 0, wrong = 0;
    for (const std::string& text : world_.gather("checks", std::to_string(checks_) + " " + std::to_string(wrong_))) {
      std::istringstream in(text);
      std::size_t a = 0, w = 0;
      in >> a >> w;
      all += a, wrong += w;
    }
    if (world_.rank() == 0)
      std::cout << name_of(communicator_.backend()) << ", " << ranks() << " ranks: " << all << " checks, " << wrong
                << " wrong\n";
    return wrong ? multinode::exit_wrong : multinode::exit_right;
  }

 private:
  std::size_t rank() const { return static_cast<std::size_t>(world_.rank()); }
  std::size_t ranks() const { return static_cast<std::size_t>(world_.size()); }
  // No rank has parameter 1 in odd steps, one rank alone has parameter 4 in even ones.
  bool uses(std::size_t rank, std::size_t step, std::size_t i) const {
    if (i == 1) return step % 2 == 0;
    return i != 4 || step % 2 == 1 || rank == step % ranks();
  }
  void expect(bool right, const std::string& what) {
    ++checks_;
    if (!right && ++wrong_ <= 10) std::cerr << "rank " + std::to_string(rank()) + ": " + what + ": wrong\n";
  }

  multinode::World& world_;
  multinode::Communicator& communicator_;
  Fault fault_;
  std::size_t checks_ = 0, wrong_ = 0;
};

int run(multinode::World& world, const multinode::CommonOptions& common, const Fault& fault) {
  const auto communicator = multinode::make_cpu_communicator(world, multinode::parse_backend(common.backend));
  Checks checks(world, *communicator, fault);
  checks.broadcast<float>();
  checks.broadcast<double>();
  constexpr std::size_t first = 40, later = 1000;  // bytes: five parameters in several buckets
  const std::vector<Case> cases{
      {"as it is", {first, later}},
      {"not rebuilt", {.first_bucket_bytes = first, .bucket_bytes = later, .rebuild = false}},
      {"serial", {.first_bucket_bytes = first, .bucket_bytes = later, .overlap = false}},
      {"one bucket", {}},
      {"unused", {.first_bucket_bytes = first, .bucket_bytes = later, .unused_parameters = true}},
      {"passes", {first, later}, 3},
      {"unused passes", {.first_bucket_bytes = first, .bucket_bytes = later, .unused_parameters = true}, 2},
      {"float16", {.first_bucket_bytes = first, .bucket_bytes = later, .compression = ddp::Compression::float16}},
      {"bfloat16", {.first_bucket_bytes = first, .bucket_bytes = later, .compression = ddp::Compression::bfloat16}}};
  for (const Case& c : cases) {
    checks.reduce<float>(c);
    if (fault.asleep != no_rank) break;  // once is enough
    checks.reduce<double>(c);
  }
  return checks.report();
}

}  // namespace

int main(int argc, char** argv) {
  multinode::CommonOptions common;
  Fault fault;
  namespace po = boost::program_options;
  po::options_description known("Options of reducer_ranks");
  known.add_options()("differs", po::value(&fault.name), "in the last rank's model: shape, name, type or missing")(
      "nan", po::value(&fault.nan), "this rank computes a NaN")(
      "asleep", po::value(&fault.asleep), "this rank sleeps in a backward pass ...")("nap", po::value(&fault.nap),
                                                                                     "... for so many milliseconds");
  return multinode::run({"reducer_ranks", known, common, [] {}}, argc, argv,
                        [&](multinode::World& world) { return run(world, common, fault); });
}
