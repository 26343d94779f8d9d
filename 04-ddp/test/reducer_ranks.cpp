// reducer_ranks: the reducer and broadcast_parameters among real ranks, checked element by element, and faults of one
// rank's. Exit status: 0 all right, 1 something was wrong.
#include "ddp/reducer.hpp"
#include "train_step.hpp"

#include <multinode/device.hpp>
#include <multinode/program.hpp>
#include <multinode/program_options.hpp>

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

// Elements in the memory that the communicator takes: a GPU's, or the host's.
#ifdef MULTINODE_HAVE_NCCL
// What PerceptronGpu's does with a kernel, by way of the host.
template <class T>
class MemoryByCopies : public ddp::GradientMemory<T> {
 public:
  static std::vector<T> read(std::span<const T> there) {
    std::vector<T> here(there.size());
    multinode::check(cudaMemcpy(here.data(), there.data(), there.size_bytes(), cudaMemcpyDeviceToHost));
    return here;
  }
  static void write(std::span<T> there, const std::vector<T>& here) {
    multinode::check(cudaMemcpy(there.data(), here.data(), there.size_bytes(), cudaMemcpyHostToDevice));
  }
  void scale(std::span<T> elements, T factor) override {
    std::vector<T> here = read(elements);
    for (T& element : here) element *= factor;
    write(elements, here);
  }
};
#endif

template <class T>
class Elements {
 public:
  Elements(const multinode::Communicator& communicator, std::size_t count)
      : on_gpu_(communicator.backend() == multinode::Backend::nccl), here_(on_gpu_ ? 0 : count) {
#ifdef MULTINODE_HAVE_NCCL
    if (on_gpu_) there_ = std::make_unique<multinode::DeviceBuffer<T>>(count);
#endif
  }
  std::span<T> span() {
#ifdef MULTINODE_HAVE_NCCL
    if (on_gpu_) return there_->span();
#endif
    return here_;
  }
  std::vector<T> read(std::span<const T> part) const {
#ifdef MULTINODE_HAVE_NCCL
    if (on_gpu_) return MemoryByCopies<T>::read(part);
#endif
    return {part.begin(), part.end()};
  }
  void write(std::span<T> part, const std::vector<T>& values) const {
#ifdef MULTINODE_HAVE_NCCL
    if (on_gpu_) return MemoryByCopies<T>::write(part, values);
#endif
    std::ranges::copy(values, part.begin());
  }
  std::unique_ptr<ddp::GradientMemory<T>> memory() const {
#ifdef MULTINODE_HAVE_NCCL
    if (on_gpu_) return std::make_unique<MemoryByCopies<T>>();
#endif
    return nullptr;
  }

 private:
  bool on_gpu_;
  std::vector<T> here_;
#ifdef MULTINODE_HAVE_NCCL
  std::unique_ptr<multinode::DeviceBuffer<T>> there_;
#endif
};

template <class T>
class Model {
 public:
  explicit Model(const multinode::Communicator& communicator) : communicator_(communicator) {
    add("first weights", {30, 10});
    add("first bias", {10});
    add("nothing", {0, 10});
    add("second weights", {70, 100});
    add("second bias", {100});
  }
  std::vector<ddp::NamedBlock> parameters() { return blocks_; }
  std::size_t size() const { return size_; }
  Elements<T>& data(std::size_t i) { return *data_[i]; }

 private:
  void add(const std::string& name, const std::vector<std::size_t>& shape) {
    const std::size_t count = std::accumulate(shape.begin(), shape.end(), std::size_t{1}, std::multiplies<>());
    data_.push_back(std::make_unique<Elements<T>>(communicator_, count));
    blocks_.push_back({name, shape, data_.back()->span()});
    const bool on_gpu = communicator_.backend() == multinode::Backend::nccl;
    size_ += ddp::padded(count, sizeof(T), on_gpu ? ddp::device_alignment : 1);
  }
  const multinode::Communicator& communicator_;
  std::vector<std::unique_ptr<Elements<T>>> data_;
  std::vector<ddp::NamedBlock> blocks_;
  std::size_t size_ = 0;
};

class Checks {
 public:
  Checks(multinode::World& world, multinode::Communicator& communicator, Fault fault)
      : world_(world), communicator_(communicator), fault_(std::move(fault)) {}

  template <class T>
  void broadcast() {
    Model<T> model(communicator_);
    std::vector<ddp::NamedBlock> parameters = model.parameters();
    if (world_.rank() == world_.size() - 1) {
      if (fault_.name == "shape") std::swap(parameters[3].shape[0], parameters[3].shape[1]);
      if (fault_.name == "name") parameters[1].name = "bias";
      if (fault_.name == "type") parameters[4].block.type = multinode::DataType::int32;
      if (fault_.name == "missing") parameters.pop_back();
    }
    const auto values = [](std::size_t of_rank, std::size_t i, std::size_t count) {
      std::vector<T> all(count);
      for (std::size_t j = 0; j < count; ++j) all[j] = value<T>(of_rank, 0, 0, i, j);
      return all;
    };
    for (std::size_t i = 0; i < parameters.size(); ++i)
      model.data(i).write(model.data(i).span(), values(rank(), i, parameters[i].block.count));
    ddp::broadcast_parameters(world_, communicator_, parameters);
    communicator_.synchronize();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const std::vector<T> expected = values(0, i, parameters[i].block.count);
      const std::vector<T> found = model.data(i).read(model.data(i).span());
      for (std::size_t j = 0; j < found.size(); ++j) expect(found[j] == expected[j], "broadcast");
    }
  }

  // Exact sums in four steps; then numbers that are rounded, of which all ranks must have the same bits.
  template <class T>
  void reduce(const Case& c) {
    Model<T> model(communicator_);
    const auto parameters = model.parameters();
    Elements<T> storage(communicator_, model.size());
    ddp::Reducer<T> reducer(communicator_, parameters, storage.span(), c.options, storage.memory());
    std::vector<std::span<T>> gradients(parameters.size());
    storage.write(storage.span(), std::vector<T>(model.size()));
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      gradients[i] = reducer.gradient(i);
      if (communicator_.backend() == multinode::Backend::nccl)
        expect(reinterpret_cast<std::uintptr_t>(gradients[i].data()) % ddp::device_alignment == 0, "alignment");
    }
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
          std::vector<T> own(gradients[i].size());
          if (reducer.adds()) own = storage.read(gradients[i]);
          for (std::size_t j = 0; j < own.size(); ++j)
            own[j] += exact ? value<T>(rank(), step, pass, i, j) : normal(random);
          if (world_.rank() == fault_.nan && step == 2 && i == 3) own[5] = T(NAN);
          storage.write(gradients[i], own);
          if (world_.rank() == fault_.asleep && step == 1 && i == 0)
            std::this_thread::sleep_for(std::chrono::milliseconds(fault_.nap));
          reducer.mark_ready(i);
        }
        reducer.wait();
      }
      communicator_.synchronize();
      if (!exact) break;
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        std::vector<T> sums(gradients[i].size());
        for (std::size_t r = 0; r < ranks(); ++r)
          for (std::size_t pass = 0; pass < c.passes; ++pass)
            for (std::size_t j = 0; j < sums.size(); ++j) sums[j] += value<T>(r, step, pass, i, j);
        const std::vector<T> found = storage.read(gradients[i]);
        for (std::size_t j = 0; j < sums.size(); ++j)
          expect(found[j] == sums[j] * (T(1) / T(divisor)),
                 c.name + ", step " + std::to_string(step) + ", parameter " + std::to_string(i));
      }
    }
    const std::vector<T> all = storage.read(storage.span());
    const auto hashes = world_.gather("gradients", std::to_string(hash_of(std::span<const T>(all))));
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
  multinode::Backend backend = multinode::parse_backend(common.backend);
  if (backend == multinode::Backend::automatic) backend = multinode::choose_cpu_backend(world);
  const auto communicator = multinode::make_communicator(world, backend);
  Checks checks(world, *communicator, fault);
  checks.broadcast<float>();
  checks.broadcast<double>();
  constexpr std::size_t first = 40, later = 1000;  // bytes: five parameters in several buckets
  const std::vector<Case> cases{
      {"as it is", {first, later}},
      {"serial", {.first_bucket_bytes = first, .bucket_bytes = later, .overlap = false}},
      {"one bucket", {}},
      {"passes", {first, later}, 3},
      {"float16",
       {.first_bucket_bytes = first, .bucket_bytes = later, .wrap = ddp::compressed(ddp::Compression::float16)}},
      {"bfloat16",
       {.first_bucket_bytes = first, .bucket_bytes = later, .wrap = ddp::compressed(ddp::Compression::bfloat16)}}};
  for (const Case& c : cases) {
    if (backend == multinode::Backend::nccl && c.options.wrap) continue;
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
