#!/usr/bin/env python3
"""Compares random kernels on an emulated GPU with the same functions compiled by the host's compiler.

usage: random_kernels_test.py WITH_GPUS FOLDER [KERNELS] [SEED]

Each function mixes integers of 32 and 64 bits, float and double in branches, loops and switches, with local, shared and
global memory. Each thread has its own values, the warps are full and not, and the results must be the same bits.
Exit status: 0 all are the same, 1 a kernel differs, 77 without nvcc.
"""
import pathlib
import random
import shutil
import subprocess
import sys

with_gpus, folder, kernels, seed = *sys.argv[1:3], *map(int, (sys.argv[3:] + ["40", "1"])[:2])
dice = random.Random(seed)
INTEGERS, FLOATS = ["a", "b", "c", "d"], ["x", "y"]  # unsigned, int, unsigned long long, long long; float, double
TYPES = dict(a="u32", b="s32", c="u64", d="s64", x="float", y="double")
UNSIGNED = dict(a="u32", b="u32", c="u64", d="u64")


def integer(depth):
    if depth == 0 or dice.random() < 0.2:
        return dice.choice(INTEGERS + ["t", str(dice.randrange(100)), f"{dice.getrandbits(32)}u", "in[(u32)a % 64]", "in[t]",
                                       "in[7]", "own[(u32)b % 8]", "mine[(u32)a % 4 * 96]", "(u32)(x > y)", "i"])
    one, two, bits = integer(depth - 1), integer(depth - 1), dice.choice(["u32", "u64"])
    return dice.choice([
        f"(({bits}){one} {dice.choice('+-*&|^')} ({bits}){two})", f"(({bits}){one} << ({two} & 31))", f"(({bits}){one} >> ({two} & 31))",
        f"(({bits}){one} {dice.choice('/%')} (({bits}){two} | 1))", f"({condition(depth - 1)} ? ({bits}){one} : ({bits}){two})",
        f"(u32)(s16){one}", f"(u32)(u8){one}", f"((s32){one} >> ({two} & 31))", f"~({bits}){one}"])


def real(depth):
    if depth == 0 or dice.random() < 0.2:
        return dice.choice(FLOATS + ["1.5f", "0.1", "(float)t", "(float)(s32)a", "(double)c", "(float)b"])
    one, two = real(depth - 1), real(depth - 1)
    return dice.choice([f"({one} {dice.choice('+-*/')} {two})", f"fabs((double){one})", f"sqrt((double){one})", f"sqrtf((float){one})",
                        f"fma((double){one}, (double){two}, y)", f"({condition(depth - 1)} ? (double){one} : (double){two})"])


def condition(depth):
    sort = dice.choice([integer, integer, real])
    cast = dice.choice(["(u32)", "(s32)", "(u64)"]) if sort is integer else ""
    return f"({cast}{sort(depth)} {dice.choice(['<', '<=', '>', '>=', '==', '!='])} {cast}{sort(depth)})"


def statement(depth):
    kind = dice.randrange(10 if depth else 6)
    if kind < 3:
        name = dice.choice(INTEGERS)
        return f"{name} = ({TYPES[name]})({UNSIGNED[name]}){integer(3)};"
    if kind == 3:
        name = dice.choice(FLOATS)
        return f"{name} = ({TYPES[name]}){real(3)};"
    if kind < 5:
        return f"{dice.choice(['own[(u32)c % 8]', 'mine[(u32)d % 4 * 96]'])} = (u32){integer(2)};"
    if kind == 5:  # by all threads that come here
        flags.append(len(flags))
        return f"flags[{flags[-1]}] = {flags[-1] + 1};"
    inner = " ".join(statement(depth - 1) for _ in range(dice.randrange(1, 4)))
    if kind < 8:
        return f"if ({condition(2)}) {{ {inner} }} else {{ {statement(depth - 1)} }}"
    if kind == 8:
        return f"for (int i = 0; i < (int)(({integer(1)}) % 5u); ++i) {{ {inner} if ({condition(1)}) break; }}"
    cases = " ".join(f"case {n}: {statement(depth - 1)} {dice.choice(['', 'break;'])}" for n in range(5))
    return f"switch ((u32)({integer(1)}) % 6u) {{ {cases} default: {inner} }}"


PRELUDE = """#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>
using u8 = unsigned char; using s16 = short; using u32 = unsigned; using s32 = int; using u64 = unsigned long long; using s64 = long long;
constexpr int threads = 96, count = 96 + 77;
template <class T> __host__ __device__ u64 bits(T value) {
  u64 all = 0;
  if (value != value) return 1;
  memcpy(&all, &value, sizeof value);
  return all;
}
"""
MAIN = """
using Kernel = void (*)(const u32*, u64*, u32*);
using Function = u64 (*)(u32, const u32*, u32*, u32*);
int main() {
  const std::pair<Kernel, Function> all[] = {TABLE};
  std::vector<u32> in(count), host_flags(FLAGS), flags(FLAGS);
  for (int i = 0; i < count; ++i) in[i] = i % 5 == 0 ? i : 2654435761u * i;
  std::vector<u64> out(count);
  u32 *d_in, *d_flags; u64* d_out;
  cudaMalloc(&d_in, 4 * count), cudaMalloc(&d_flags, 4 * FLAGS), cudaMalloc(&d_out, 8 * count);
  cudaMemcpy(d_in, in.data(), 4 * count, cudaMemcpyHostToDevice);
  int different = 0, number = 0;
  for (const auto& [kernel, function] : all) {
    cudaMemset(d_flags, 0, 4 * FLAGS);
    kernel<<<2, threads>>>(d_in, d_out, d_flags);
    cudaMemcpy(out.data(), d_out, 8 * count, cudaMemcpyDeviceToHost);
    const cudaError_t code = cudaMemcpy(flags.data(), d_flags, 4 * FLAGS, cudaMemcpyDeviceToHost);
    host_flags.assign(FLAGS, 0);
    int thread = -1;
    for (int t = 0; t < count; ++t) {
      u32 mine[4 * 96] = {};
      if (function(t, in.data(), mine, host_flags.data()) != out[t] && thread < 0) thread = t;
    }
    if (code || thread >= 0 || flags != host_flags) std::printf("kernel %d differs, thread %d: %s\\n", number, thread, cudaGetErrorString(code)), ++different;
    ++number;
  }
  std::printf("%d kernels, %d different\\n", number, different);
  return different > 0;
}
"""
flags, source = [], PRELUDE
for k in range(kernels):
    body = "\n  ".join(statement(3) for _ in range(6))
    source += f"""
__host__ __device__ u64 f{k}(u32 t, const u32* in, u32* mine, u32* flags) {{
  u32 a = in[t], own[8]; s32 b = (s32)(t - 40); u64 c = (u64)in[t] * in[(t + 1) % count]; s64 d = -(s64)t; float x = 1.0f / t; double y = t * 0.3; int i = 0;
  for (int n = 0; n < 8; ++n) own[n] = in[(t + n) % count];
  {body}
  u64 sum = a ^ (u64)b * 3 ^ c * 5 ^ (u64)d * 7 ^ bits(x) * 11 ^ bits(y) * 13;
  for (int n = 0; n < 8; ++n) sum = sum * 31 + own[n];
  for (int n = 0; n < 4; ++n) sum = sum * 31 + mine[n * 96];
  return sum;
}}
__global__ void k{k}(const u32* in, u64* out, u32* flags) {{
  __shared__ u32 shared[4 * threads];
  for (int n = 0; n < 4; ++n) shared[n * threads + threadIdx.x] = 0;
  const u32 t = blockIdx.x * threads + threadIdx.x;
  if (t < count) out[t] = f{k}(t, in, shared + threadIdx.x, flags);
}}
"""
table = ", ".join(f"{{k{k}, f{k}}}" for k in range(kernels))
source += MAIN.replace("TABLE", table).replace("FLAGS", str(len(flags) + 1))
if not shutil.which("nvcc"):
    sys.exit(77)
file = pathlib.Path(folder) / f"random_kernels_{seed}.cu"
file.write_text(source, encoding="utf-8")
program = str(file.with_suffix(""))
subprocess.run(["nvcc", "-arch=sm_90", "-cudart", "shared", "-fmad=false", "-std=c++17", "-w", "-Xcompiler", "-ffp-contract=off",
                str(file), "-o", program], check=True)
sys.exit(subprocess.run([with_gpus, "1", program]).returncode)
