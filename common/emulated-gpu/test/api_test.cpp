// All of NCCL's interface, for programs that are not ours: the functions and types that no program of this repository
// uses. Bits of 8-bit floats are written out, so that the test does not depend on the conversions that it tests.
#include "cuda.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace api_test {

const int four_devices = setenv("EMULATED_GPUS", "4", 1);

template <class T>
std::vector<T> from_device(const void* data, std::size_t count) {
  std::vector<T> values(count);
  cudaMemcpy(values.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost);
  return values;
}

// The communicators of one process, whose calls are made in groups by one thread.
class Clique {
 public:
  explicit Clique(int size, std::vector<int> devices = {}) : comms_(static_cast<std::size_t>(size)) {
    EXPECT_EQ(four_devices, 0);
    EXPECT_NCCL_OK(ncclCommInitAll(comms_.data(), size, devices.empty() ? nullptr : devices.data()));
  }
  ~Clique() {
    for (const ncclComm_t comm : comms_) EXPECT_NCCL_OK(ncclCommDestroy(comm));
  }
  Clique(const Clique&) = delete;
  Clique& operator=(const Clique&) = delete;

  ncclComm_t& operator[](std::size_t rank) { return comms_[rank]; }
  void in_group(const std::function<void(std::size_t rank, ncclComm_t comm)>& call) {
    ASSERT_NCCL_OK(ncclGroupStart());
    for (std::size_t rank = 0; rank < comms_.size(); ++rank) call(rank, comms_[rank]);
    EXPECT_NCCL_OK(ncclGroupEnd());
  }
  // The result of rank 0's all-reduce of inputs[rank].
  template <class T>
  std::vector<T> all_reduce(const std::vector<std::vector<T>>& inputs, ncclDataType_t type,
                            const std::function<ncclRedOp_t(std::size_t, ncclComm_t)>& op) {
    const std::size_t count = inputs[0].size();
    std::vector<void*> data(comms_.size());
    std::vector<ncclRedOp_t> ops;
    for (std::size_t rank = 0; rank < comms_.size(); ++rank) {
      cudaSetDevice(static_cast<int>(rank));
      cudaMalloc(&data[rank], count * sizeof(T));
      cudaMemcpy(data[rank], inputs[rank].data(), count * sizeof(T), cudaMemcpyHostToDevice);
      ops.push_back(op(rank, comms_[rank]));
    }
    in_group([&](std::size_t rank, ncclComm_t comm) {
      EXPECT_NCCL_OK(ncclAllReduce(data[rank], data[rank], count, type, ops[rank], comm, nullptr));
    });
    const std::vector<T> result = from_device<T>((cudaSetDevice(0), data[0]), count);
    for (std::size_t rank = 0; rank < comms_.size(); ++rank) {
      cudaSetDevice(static_cast<int>(rank));
      cudaDeviceSynchronize();
      cudaFree(data[rank]);
      if (ops[rank] >= ncclNumOps) {
        EXPECT_NCCL_OK(ncclRedOpDestroy(ops[rank], comms_[rank]));
      }
    }
    return result;
  }

 private:
  std::vector<ncclComm_t> comms_;
};

// x * factor + y * factor, by PreMulSum on two ranks.
template <class T>
T multiplied_sum(T x, T y, T factor, ncclDataType_t type, ncclScalarResidence_t residence) {
  Clique clique(2);
  std::vector<void*> scalars;
  const T result = clique.all_reduce<T>({{x}, {y}}, type, [&](std::size_t, ncclComm_t comm) {
    void* scalar = &factor;
    if (residence == ncclScalarDevice) {
      cudaMalloc(&scalars.emplace_back(), sizeof factor);
      cudaMemcpy(scalar = scalars.back(), &factor, sizeof factor, cudaMemcpyHostToDevice);
    }
    ncclRedOp_t op{};
    EXPECT_NCCL_OK(ncclRedOpCreatePreMulSum(&op, scalar, type, residence, comm));
    return op;
  })[0];
  for (void* scalar : scalars) cudaFree(scalar);
  return result;
}

TEST(NcclApi, PreMulSumMultipliesIntegersInTheirTypeAndWrapsAround) {
  constexpr auto big = (std::int64_t{1} << 53) + 1;  // no double
  for (const auto residence : {ncclScalarHostImmediate, ncclScalarDevice}) {
    EXPECT_EQ(multiplied_sum<std::int64_t>(big, 2, 3, ncclInt64, residence), 3 * big + 6);
    EXPECT_EQ(multiplied_sum<std::uint64_t>(5, 0, std::uint64_t{1} << 63, ncclUint64, residence),
              std::uint64_t{1} << 63);
    EXPECT_EQ(multiplied_sum<std::int32_t>(65536, 1, 65537, ncclInt32, residence), 65536 + 65537);
    EXPECT_EQ(multiplied_sum<std::int8_t>(100, 1, 3, ncclInt8, residence), 300 - 256 + 3);
    EXPECT_EQ(multiplied_sum<float>(1.5f, 2, 4, ncclFloat32, residence), 14);
  }
}

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 24, 0)
TEST(NcclApi, EightBitFloats) {
  using Bytes = std::vector<std::uint8_t>;
  const auto reduced = [](ncclDataType_t type, ncclRedOp_t op, const Bytes& x, const Bytes& y) {
    return Clique(2).all_reduce<std::uint8_t>({x, y}, type, [op](auto...) { return op; });
  };
  // e4m3: 1 = 38, 2 = 40, 16 = 58, 448 = 7e, the greatest; 16 + 1 is between 16 and 18. e5m2: 1 = 3c, 8 = 48, 57344 =
  // 7b.
  EXPECT_EQ(reduced(ncclFloat8e4m3, ncclSum, {0x38, 0x58, 0x7e, 0xb8}, {0x38, 0x38, 0x7e, 0x38}),
            (Bytes{0x40, 0x58, 0x7e, 0x00}));
  EXPECT_EQ(reduced(ncclFloat8e4m3, ncclProd, {0x40, 0x58}, {0x58, 0x40}), (Bytes{0x60, 0x60}));
  EXPECT_EQ(reduced(ncclFloat8e4m3, ncclMax, {0xb8, 0x38}, {0x38, 0x40}), (Bytes{0x38, 0x40}));
  EXPECT_EQ(reduced(ncclFloat8e4m3, ncclMin, {0xb8, 0x38}, {0x38, 0x40}), (Bytes{0xb8, 0x38}));
  EXPECT_EQ(reduced(ncclFloat8e4m3, ncclAvg, {0x38, 0x7e}, {0x40, 0x7e}), (Bytes{0x3c, 0x7e}));  // 1.5; no overflow
  EXPECT_EQ(reduced(ncclFloat8e5m2, ncclSum, {0x3c, 0x48, 0x7b}, {0x3c, 0x3c, 0x7b}), (Bytes{0x40, 0x48, 0x7b}));
  EXPECT_EQ(multiplied_sum<std::uint8_t>(0x38, 0x38, 0x40, ncclFloat8e4m3, ncclScalarDevice), 0x48);  // 4
}
#endif

TEST(NcclApi, TheOrderOfAReductionVariesFromCallToCall) {
  Clique clique(3);
  std::set<float> sums;  // in another order, 1 is lost: 2^24 + 1 is no float
  for (int call = 0; call < 20; ++call)
    sums.insert(
        clique.all_reduce<float>({{0x1p24f}, {1}, {-0x1p24f}}, ncclFloat32, [](auto...) { return ncclSum; })[0]);
  EXPECT_EQ(sums, (std::set<float>{0, 1}));
}

TEST(NcclApi, InitAllAndWhatACommunicatorSaysOfItself) {
  Clique clique(3, {3, 0, 2});
  const int devices[] = {3, 0, 2};
  std::vector<void*> data(3);
  for (std::size_t i = 0; i < 3; ++i) {
    int size = 0, rank = -1, device = -1;
    EXPECT_NCCL_OK(ncclCommCount(clique[i], &size));
    EXPECT_NCCL_OK(ncclCommUserRank(clique[i], &rank));
    EXPECT_NCCL_OK(ncclCommCuDevice(clique[i], &device));
    EXPECT_EQ((std::array{size, rank, device}), (std::array{3, static_cast<int>(i), devices[i]}));
    cudaSetDevice(devices[i]);
    cudaMalloc(&data[i], 4);
    cudaMemcpy(data[i], &devices[i], 4, cudaMemcpyHostToDevice);
  }
  clique.in_group(
      [&](std::size_t i, ncclComm_t comm) { EXPECT_NCCL_OK(ncclBcast(data[i], 1, ncclInt32, 2, comm, nullptr)); });
  for (std::size_t i = 0; i < 3; ++i) {
    cudaSetDevice(devices[i]);
    EXPECT_EQ(from_device<int>(data[i], 1)[0], 2);
    cudaFree(data[i]);
  }
  const int twice[] = {1, 1}, none[] = {4};
  EXPECT_EQ(ncclCommInitAll(&clique[0], 2, twice), ncclInvalidUsage);
  EXPECT_EQ(ncclCommInitAll(&clique[0], 1, none), ncclInvalidArgument);
  EXPECT_SAYS(ncclGetLastError(nullptr), "ncclCommInitAll: Invalid device 4 (there are 4)");
}

TEST(NcclApi, SplitOrdersByKeyAndLeavesOutNoColor) {
  Clique clique(4);
  const int colors[] = {7, 0, 7, NCCL_SPLIT_NOCOLOR}, keys[] = {5, 0, 1, 0};
  std::vector<ncclComm_t> parts(4, clique[0]);
  clique.in_group([&](std::size_t rank, ncclComm_t comm) {
    EXPECT_NCCL_OK(ncclCommSplit(comm, colors[rank], keys[rank], &parts[rank], nullptr));
  });
  std::vector<std::pair<int, int>> places;
  for (std::size_t rank = 0; rank < 3; ++rank) {
    places.emplace_back();
    EXPECT_NCCL_OK(ncclCommUserRank(parts[rank], &places.back().first));
    EXPECT_NCCL_OK(ncclCommCount(parts[rank], &places.back().second));
  }
  EXPECT_EQ(places, (std::vector<std::pair<int, int>>{{1, 2}, {0, 1}, {0, 2}}));
  EXPECT_EQ(parts[3], nullptr);
  for (std::size_t rank = 0; rank < 3; ++rank) EXPECT_NCCL_OK(ncclCommDestroy(parts[rank]));
  // Two splits of one communicator in a group are made in their order.
  ncclComm_t twice[4][2] = {};
  clique.in_group([&](std::size_t rank, ncclComm_t comm) {
    for (int i = 0; i < 2; ++i)
      EXPECT_NCCL_OK(ncclCommSplit(comm, i, i == 0 ? 0 : -static_cast<int>(rank), &twice[rank][i], nullptr));
  });
  for (int rank = 0; rank < 4; ++rank)
    for (int i = 0; i < 2; ++i) {
      int place = -1;
      EXPECT_NCCL_OK(ncclCommUserRank(twice[rank][i], &place));
      EXPECT_EQ(place, i == 0 ? rank : 3 - rank);
      EXPECT_NCCL_OK(ncclCommDestroy(twice[rank][i]));
    }
  EXPECT_EQ(ncclCommSplit(clique[0], -5, 0, &parts[0], nullptr), ncclInvalidArgument);
}

TEST(NcclApi, ConfigurationsAreChecked) {
  ncclUniqueId id{};
  ASSERT_NCCL_OK(ncclGetUniqueId(&id));
  cudaSetDevice(0);
  const auto code_of = [&](const std::function<void(ncclConfig_t&)>& change) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    change(config);
    ncclComm_t comm = nullptr;
    const ncclResult_t code = ncclCommInitRankConfig(&comm, 1, id, 0, &config);
    EXPECT_NCCL_OK(ncclCommDestroy(comm));
    return code;
  };
  EXPECT_EQ(code_of([](ncclConfig_t& c) { c.minCTAs = 4, c.maxCTAs = 2; }), ncclInvalidArgument);
  EXPECT_SAYS(ncclGetLastError(nullptr), "Invalid config minCTAs attribute value 4");
  EXPECT_EQ(code_of([](ncclConfig_t& c) { c.splitShare = 2; }), ncclInvalidArgument);
  EXPECT_EQ(code_of([](ncclConfig_t& c) { c.magic = 1; }), ncclInvalidArgument);
  EXPECT_EQ(code_of([](ncclConfig_t& c) { c = {}; }), ncclInvalidArgument);
  // A program that was compiled with an older header has a shorter structure.
  EXPECT_EQ(code_of([](ncclConfig_t& c) { c.size = 24, c.maxCTAs = 0; }), ncclSuccess);
}

TEST(NcclApi, EveryFunctionOfTheHeaderExistsAlsoUnderItsNameForProfilers) {
  int version = 0;
  const auto get_version = reinterpret_cast<ncclResult_t (*)(int*)>(dlsym(RTLD_DEFAULT, "pncclGetVersion"));
  ASSERT_NE(get_version, nullptr);
  EXPECT_NCCL_OK(get_version(&version));
  EXPECT_EQ(version, NCCL_VERSION_CODE);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 3)
  const auto device_interface = reinterpret_cast<ncclResult_t (*)()>(dlsym(RTLD_DEFAULT, "ncclDevCommCreate"));
  ASSERT_NE(device_interface, nullptr);
  EXPECT_EQ(device_interface(), ncclInvalidUsage);
  EXPECT_SAYS(ncclGetLastError(nullptr), "ncclDevCommCreate: emulated-gpu does not support this function");
#endif
}

}  // namespace api_test
