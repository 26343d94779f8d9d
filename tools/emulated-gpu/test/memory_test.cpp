// The memory of emulated GPUs: what the host and other streams can see of it and when, and the kinds of memory.
#include "cuda.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

namespace memory_test {

class Memory : public CudaTest {
 protected:
  // What another stream sees now.
  std::string seen(const char* memory, std::size_t bytes) const {
    void* pinned = nullptr;
    EXPECT_OK(cudaMallocHost(&pinned, bytes));
    EXPECT_OK(cudaMemcpyAsync(pinned, memory, bytes, cudaMemcpyDeviceToHost, stream_));
    EXPECT_OK(cudaStreamSynchronize(stream_));
    std::string text(static_cast<char*>(pinned), bytes);
    EXPECT_OK(cudaFreeHost(pinned));
    return text;
  }
  const cudaStream_t stream_ = new_stream();
};
using MemoryDeathTest = Memory;

TEST_F(MemoryDeathTest, TheHostCannotTouchDeviceMemory) {
  volatile char* const memory = allocate(100);
  EXPECT_DEATH(memory[99] = 1,
               "the host accessed device memory at 0x.*: byte 99 of an allocation of 100 bytes on device 0");
  EXPECT_DEATH((void)memory[100], "memory that is not allocated");
  const volatile char* const none = nullptr;
  EXPECT_EXIT((void)*none, testing::KilledBySignal(SIGSEGV), "^$") << "an access that has nothing to do with GPUs";
}

TEST_F(Memory, AllocationsHaveRoomBetweenThemAndFreedAddressesComeBackLast) {
  const char* const first = allocate(1);
  const char* const second = allocate(1);
  EXPECT_GE(std::abs(second - first), 256);
  expect_refused(cudaMemset(const_cast<char*>(first) + 1, 0, 1), cudaErrorInvalidValue, "is not device memory");
  std::vector<const char*> pages;
  for (int i = 0; i < 3; ++i) pages.push_back(allocate(4096));
  std::ranges::sort(pages);
  for (std::size_t i = 1; i < pages.size(); ++i) EXPECT_GE(pages[i] - pages[i - 1], 4096 + 256);
  EXPECT_OK(cudaFree(const_cast<char*>(second)));
  std::erase(memory_, second);
  for (int i = 0; i < 100; ++i) EXPECT_NE(allocate(1), second);
  char host = 0;
  expect_refused(cudaMemcpy(&host, second, 1, cudaMemcpyDeviceToHost), cudaErrorInvalidValue, "is not device memory");
  expect_refused(cudaMemcpy(const_cast<char*>(second), &host, 1, cudaMemcpyDefault), cudaErrorInvalidValue,
                 "device memory that was freed or never allocated");
}

TEST_F(Memory, LargeBuffersArePoisonedToTheLastByteAndAreWritable) {
  const std::size_t bytes = (std::size_t{20} << 20) + 3;
  char* const memory = allocate(bytes);
  std::vector<char> host(bytes);
  EXPECT_OK(cudaMemset(memory + bytes / 2, 0, 1));
  EXPECT_OK(cudaMemcpy(host.data(), memory, bytes, cudaMemcpyDeviceToHost));
  for (std::size_t i = 4; i < bytes; ++i) ASSERT_TRUE(i == bytes / 2 || host[i] == host[i % 4]) << i;
  EXPECT_NE(host[0], host[1]) << "data may have a run of one byte";
  EXPECT_EQ(host[bytes / 2], 0);
}

TEST_F(Memory, OtherStreamsSeeACopyFromPageableMemoryLate) {
  char* const memory = allocate(2);
  std::string early;
  for (int attempt = 0; attempt < 1000 && early != "zz"; ++attempt) {  // on a busy machine the copy may be first
    EXPECT_OK(cudaMemset(memory, 'z', 2));
    std::string text = "ab";
    EXPECT_OK(cudaMemcpy(memory, text.data(), 2, cudaMemcpyHostToDevice));
    text = "xx";  // allowed: it is staged
    early = seen(memory, 2);
  }
  EXPECT_EQ(early, "zz");
  EXPECT_OK(cudaStreamSynchronize(nullptr));
  EXPECT_EQ(seen(memory, 2), "ab");
  void* pinned = nullptr;
  ASSERT_OK(cudaMallocHost(&pinned, 2));
  std::memcpy(pinned, "cd", 2);
  EXPECT_OK(cudaMemcpy(memory, pinned, 2, cudaMemcpyHostToDevice));
  EXPECT_EQ(seen(memory, 2), "cd");
  EXPECT_OK(cudaFreeHost(pinned));
}

// Without the stop the process would see the memory of another allocation, or nothing.
TEST_F(MemoryDeathTest, AnotherStreamUsesMemoryThatWasFreedInStreamOrder) {
  const auto child = [&] {
    void* memory = nullptr;
    cudaMallocAsync(&memory, 4, nullptr);
    cudaStreamSynchronize(nullptr);
    cudaLaunchHostFunc(
        stream_, [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(100)); }, nullptr);
    cudaMemsetAsync(memory, 0, 4, stream_);
    cudaFreeAsync(memory, nullptr);
    cudaDeviceSynchronize();
  };
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";  // GTEST_FLAG_SET is of 1.12, Ubuntu 22.04 has 1.11
  EXPECT_DEATH(child(), "work of a stream used device memory at 0x[0-9a-f]+ after cudaFreeAsync had freed it");
}

TEST_F(Memory, RowsOfTwoPitches) {
  void* memory = nullptr;
  std::size_t pitch = 0;
  ASSERT_OK(cudaMallocPitch(&memory, &pitch, 3, 2));
  memory_.push_back(static_cast<char*>(memory));
  EXPECT_GE(pitch, 3);
  EXPECT_OK(cudaMemset(memory, 'z', pitch * 2));
  EXPECT_OK(cudaMemcpy2D(memory, pitch, "ab.cd.", 3, 2, 2, cudaMemcpyHostToDevice));
  std::string back = "........";
  EXPECT_OK(cudaMemcpy2D(back.data(), 4, memory, pitch, 3, 2, cudaMemcpyDeviceToHost));
  EXPECT_EQ(back, "abz.cdz.");
  expect_refused(cudaMemcpy2D(back.data(), 4, memory, pitch, 3, 3, cudaMemcpyDeviceToHost), cudaErrorInvalidValue,
                 "extends beyond its allocation");
  expect_refused(cudaMemcpy2D(back.data(), 2, memory, pitch, 3, 2, cudaMemcpyDeviceToHost), cudaErrorInvalidPitchValue,
                 "rows of 3 bytes do not fit into a pitch of 2");
}

TEST_F(Memory, ManagedPinnedAndRegisteredMemoryIsTheHosts) {
  void *managed = nullptr, *pinned = nullptr;
  ASSERT_OK(cudaMallocManaged(&managed, 4, cudaMemAttachGlobal));
  ASSERT_OK(cudaHostAlloc(&pinned, 4, cudaHostAllocMapped));
  std::vector<char> bytes(64);
  EXPECT_OK(cudaHostRegister(bytes.data(), bytes.size(), cudaHostRegisterDefault));
  expect_refused(cudaHostRegister(bytes.data() + 1, 1, 0), cudaErrorHostMemoryAlreadyRegistered, "already registered");
  EXPECT_OK(cudaMemcpy(managed, "abc", 4, cudaMemcpyHostToDevice));
  EXPECT_STREQ(static_cast<char*>(managed), "abc") << "it is never late";
  EXPECT_OK(cudaMemset(pinned, 'y', 4)) << "pinned memory is a device's, too";
  EXPECT_EQ(static_cast<char*>(pinned)[3], 'y');
  EXPECT_OK(cudaMemset(managed, 'x', 2));
  EXPECT_OK(cudaMemcpy(pinned, managed, 4, cudaMemcpyHostToDevice));
  EXPECT_STREQ(static_cast<char*>(pinned), "xxc");
  EXPECT_OK(cudaHostUnregister(bytes.data()));
  expect_refused(cudaHostUnregister(bytes.data()), cudaErrorHostMemoryNotRegistered, "was not registered");
  expect_refused(cudaFree(pinned), cudaErrorInvalidValue, "not allocated by the matching function");
  EXPECT_OK(cudaFreeHost(pinned));
  EXPECT_OK(cudaFree(managed));
  ASSERT_OK(cudaMallocManaged(&managed, std::size_t{17} << 30)) << "more than the device has; none of it is used";
  EXPECT_OK(cudaFree(managed));
}

TEST_F(Memory, PeersHaveCudasRules) {
  int can = -1;
  EXPECT_OK(cudaDeviceCanAccessPeer(&can, 0, 1));
  EXPECT_EQ(can, 1);
  EXPECT_OK(cudaDeviceCanAccessPeer(&can, 1, 1));
  EXPECT_EQ(can, 0);
  expect_refused(cudaDeviceEnablePeerAccess(0, 0), cudaErrorInvalidDevice, "not its own peer");
  EXPECT_OK(cudaDeviceEnablePeerAccess(1, 0));
  expect_refused(cudaDeviceEnablePeerAccess(1, 0), cudaErrorPeerAccessAlreadyEnabled, "already has access");
  EXPECT_OK(cudaDeviceDisablePeerAccess(1));
}

TEST_F(Memory, FreeInStreamOrderHappensWhenTheStreamComesToIt) {
  void* memory = nullptr;
  ASSERT_OK(cudaMallocAsync(&memory, 4, stream_));
  EXPECT_OK(cudaMemsetAsync(memory, 1, 4, stream_));
  EXPECT_OK(cudaFreeAsync(memory, stream_));
  EXPECT_OK(cudaStreamSynchronize(stream_));
  expect_refused(cudaFreeAsync(memory, stream_), cudaErrorInvalidValue, "was already freed");
}

TEST_F(Memory, AResetEndsTheDevicesMemoryAndStreams) {
  ASSERT_OK(cudaSetDevice(3));
  void* memory = nullptr;
  cudaStream_t stream{};
  ASSERT_OK(cudaMalloc(&memory, 4));
  ASSERT_OK(cudaStreamCreate(&stream));
  EXPECT_OK(cudaDeviceReset());
  expect_refused(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle, "destroyed or never created");
  expect_refused(cudaFree(memory), cudaErrorInvalidValue, "was already freed");
}

}  // namespace memory_test
