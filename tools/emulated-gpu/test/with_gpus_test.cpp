// with-gpus: what it sets, and what it says about programs that cannot work. EMULATED_GPU is the folder of the
// libraries.
#include <gtest/gtest.h>
#include <test/support/program_test.hpp>
#include <test/support/says.hpp>
#include <test/support/temporary_folder.hpp>

#include <cuda_runtime_api.h>
#include <nccl.h>

namespace with_gpus_test {

using namespace multinode::testing;

const std::string with_gpus = EMULATED_GPU "/with-gpus";
const std::string major = std::to_string(CUDART_VERSION / 1000);

std::vector<std::string> joined(std::vector<std::string> words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

class WithGpus : public ::testing::Test {
 protected:
  // Compiles a program, or a library, of this text.
  std::string built(const std::string& name, const std::string& text, const std::vector<std::string>& options = {}) {
    const std::string source = (folder_.path() / (name + ".cpp")).string(), made = (folder_.path() / name).string();
    std::ofstream(source) << text;
    EXPECT_EQ(run(joined({"c++", source, "-o", made, "-L" + folder_.path().string()}, options)).status, 0) << name;
    return made;
  }
  // A program that needs a CUDA runtime of this name.
  std::string linked_with(const std::string& soname, const std::vector<std::string>& options = {}) {
    built(soname, "extern \"C\" int cudaFree(void*) { return 0; }", {"-shared", "-fPIC", "-Wl,-soname," + soname});
    return built("needs_" + soname, "extern \"C\" int cudaFree(void*); int main() { return cudaFree(nullptr); }",
                 joined({"-l:" + soname}, options));
  }
  static void expect_refused(const std::vector<std::string>& words, const std::string& why) {
    const auto result = run(joined({with_gpus}, words));
    EXPECT_EQ(result.status, 2);
    EXPECT_SAYS(result.all(), why);
  }
  TemporaryFolder folder_;
};

TEST_F(WithGpus, SetsTheEnvironmentAndKeepsTheExitStatus) {
  const auto result = run({with_gpus, "--check", "04", "bash", "-c",
                           "echo $EMULATED_GPUS $EMULATED_GPU_CHECK ${LD_LIBRARY_PATH%%:*}; exit 7"});
  EXPECT_EQ(result.status, 7);
  EXPECT_SAYS(result.all(), "4 1 " EMULATED_GPU);
  EXPECT_EQ(run({with_gpus, "2", linked_with("libcudart.so." + major)}).status, 0) << "our runtime has cudaFree, too";
}

TEST_F(WithGpus, PrintsTheSeedThatItChooses) {
  const auto result = run({with_gpus, "--check", "1", "bash", "-c", "echo --seed $EMULATED_GPU_SEED"});
  EXPECT_SAYS(result.err, "with-gpus: --check with " + result.out);
  const auto given = run({with_gpus, "--check", "--seed", "0071", "1", "bash", "-c", "echo $EMULATED_GPU_SEED"});
  EXPECT_EQ(given.all(), "71\n");
}

TEST_F(WithGpus, GivesAMistakeItsExitStatus) {
  const std::string program =
      built("frees",
            "#include <cstdlib>\nextern \"C\" int cudaFree(void*);\n"
            "int main(int, char** v) { cudaFree((void*)std::atol(v[1])); return std::atoi(v[2]); }",
            {"-L" EMULATED_GPU, "-l:libcudart.so." + major});
  const auto status = [&](const std::string& address, const std::string& wanted) {
    return run({with_gpus, "--check", "--error-exitcode", "33", "1", program, address, wanted}).status;
  };
  EXPECT_EQ(status("8", "0"), 33);
  EXPECT_EQ(status("0", "0"), 0) << "there is no mistake";
  EXPECT_EQ(status("8", "5"), 5) << "that of the program";
  const auto result = run({with_gpus, "--check", "1", program, "8", "0"});
  EXPECT_EQ(result.status, 0) << "as under compute-sanitizer";
  EXPECT_SAYS(result.err,
              "cudaFree: 0x8 was already freed, or not allocated by the matching function: "
              "cudaErrorInvalidValue; the program did not look at this error");
}

TEST_F(WithGpus, RefusesAWrongCommandLine) {
  for (const std::vector<std::string>& words : {std::vector<std::string>{"65", "true"},
                                                {"x", "true"},
                                                {"2"},
                                                {},
                                                {"--chek", "2", "true"},
                                                {"--seed", "x", "2", "true"},
                                                {"--error-exitcode", "256", "2", "true"}})
    expect_refused(words, "see with-gpus --help");
  EXPECT_EQ(run({with_gpus, "--help"}).status, 0);
}

TEST_F(WithGpus, RecognisesAStaticRuntimeBehindALauncher) {
  const std::string runtime =
      "const char* a = \"libcuda.so.1\"; const char* b = \"cudaErrorInitializationError\"; int f() { return a == b; }";
  const std::string text = runtime + "int main() { return f(); }", own = built("own", text);
  expect_refused({"2", "env", "A=1", own},
                 own + " contains the CUDA runtime (nvcc's default): build it again with -cudart shared");
  expect_refused({"2", built("with_nccl", text,  // which needs the shared runtime
                             {"-Wl,--no-as-needed,-rpath-link," EMULATED_GPU, "-L" EMULATED_GPU, "-l:libnccl.so.2"})},
                 "contains the CUDA runtime (nvcc's default)");
  built("libthing.so", runtime, {"-shared", "-fPIC"});
  expect_refused({"2", built("user", "int f(); int main() { return f(); }",
                             {"-l:libthing.so", "-Wl,-rpath," + folder_.path().string()})},
                 "libthing.so, which contains the CUDA runtime");
  if (run({"bash", "-c", "type -P nvcc"}).status != 0) return;
  const std::string source = (folder_.path() / "real.cu").string(), real = (folder_.path() / "real").string();
  std::ofstream(source) << "int main() { return cudaFree(0); }";
  EXPECT_EQ(run({"nvcc", source, "-o", real}).status, 0);
  EXPECT_EQ(run({"strip", real}).status, 0);
  expect_refused({"2", real}, "contains the CUDA runtime");
  EXPECT_EQ(run({"nvcc", "-cudart", "shared", source, "-o", real}).status, 0);
  EXPECT_EQ(run({with_gpus, "1", real}).status, 0);
  std::ofstream(source) << "__global__ void k() {} int main() { k<<<1, 1>>>(); return cudaGetLastError(); }";
  EXPECT_EQ(run({"nvcc", "-cudart", "shared", "-gencode", "arch=compute_90,code=sm_90", source, "-o", real}).status, 0);
  const auto result = run({with_gpus, "1", real});
  EXPECT_EQ(result.status, cudaErrorNoKernelImageForDevice);
  EXPECT_SAYS(result.err, "the program has no PTX for compute capability 9.0 or less (machine code for sm_90)");
}

TEST_F(WithGpus, RefusesAnotherCudaAndAFixedPathAndTheDriver) {
  expect_refused({"2", linked_with("libcudart.so.7")},
                 "needs libcudart.so.7, and the emulated GPUs are of CUDA " + major);
  expect_refused(
      {"2", linked_with("libcudart.so." + major, {"-Wl,--disable-new-dtags,-rpath," + folder_.path().string()})},
      "whatever LD_LIBRARY_PATH says (DT_RPATH)");
  expect_refused({"2", linked_with("libcuda.so.1")},
                 "needs the CUDA driver's library (libcuda.so.1), which is not emulated");
  const std::string runtime = "libcudart.so." + major;
  built(runtime, "extern \"C\" int cudaMemcpy_ptds() { return 0; }", {"-shared", "-fPIC", "-Wl,-soname," + runtime});
  expect_refused(
      {"2", built("per_thread", "extern \"C\" int cudaMemcpy_ptds(); int main() { return cudaMemcpy_ptds(); }",
                  {"-l:" + runtime})},
      "calls cudaMemcpy_ptds, which is not emulated: build it again without --default-stream per-thread");
}

TEST_F(WithGpus, VisibleDevicesAreNumbersUpToTheFirstInvalidOne) {
  const std::string program = built("seen", R"(
#include <cstdio>
extern "C" int cudaGetDeviceCount(int*);
extern "C" int cudaDeviceGetPCIBusId(char*, int, int);
int main() {
  int count = 0;
  cudaGetDeviceCount(&count);
  char id[32];
  for (int i = 0; i < count; ++i) cudaDeviceGetPCIBusId(id, 32, i), std::printf("%c ", id[9]);
})",
                                    {"-L" EMULATED_GPU, "-l:libcudart.so." + major});
  const std::pair<std::string, std::string> cases[] = {{"3,1", "3 1 "}, {"0,4,1", "0 "}, {"0,0,1", "0 "}};
  for (const auto& [visible, seen] : cases)
    EXPECT_EQ(run({with_gpus, "4", program}, {{"CUDA_VISIBLE_DEVICES", visible}}).out, seen) << visible;
  EXPECT_SAYS(run({with_gpus, "4", program}, {{"CUDA_VISIBLE_DEVICES", "GPU-1a2b"}}).err, "selected by number only");
}

#if CUDART_VERSION == 13000 && NCCL_MAJOR == 2 && NCCL_MINOR == 28  // other versions have other functions
TEST_F(WithGpus, TheListOfWhatIsNotEmulatedIsThatOfTheLibraries) {
  const std::string script = R"(set -f
    list=$(grep -o '`[^`]*`' "$1" | tr -d '`')
    matched() { for pattern in $list; do [[ $1 != $pattern ]] || echo "$1 $pattern"; done; }
    exported() { nm -D --defined-only "$0/lib"{cudart.so.13,nccl.so.2} | sed -n "s/.* $1 \(\(cuda\|nccl\)[^@]*\).*/\1/p"; }
    for name in $(exported W); do [[ $(matched "$name") ]] || echo "not in the list: $name"; done
    for name in $(exported T); do matched "$name" | sed 's/^/in the list, but emulated: /'; done
    for pattern in $list; do
      for name in $(exported W); do [[ $name != $pattern ]] || continue 2; done
      echo "of no function: $pattern"
    done)";
  EXPECT_EQ(run({"bash", "-c", script, EMULATED_GPU, NOT_EMULATED}).all(), "");
}
#endif

}  // namespace with_gpus_test
