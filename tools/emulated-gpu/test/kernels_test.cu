// Kernels on emulated GPUs, against the host's arithmetic.
#include "cuda.hpp"

#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_pipeline.h>

#include <bit>
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <regex>

namespace groups = cooperative_groups;

namespace {

using u32 = std::uint32_t;
using u64 = std::uint64_t;
using s32 = std::int32_t;
using s64 = std::int64_t;

template <class T>
struct Buffer : Array<T> {
  explicit Buffer(const std::vector<T>& values) : Array<T>(values) {}
  explicit Buffer(std::size_t count) : Array<T>(std::vector<T>(count)) {}
  T* data = *this;
};

template <class R, class T, class F>
__global__ void apply(const T* in, R* out, int n, F f) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = f(in[3 * i], in[3 * i + 1], in[3 * i + 2]);
}

// Random bits, and the values where something may go wrong.
template <class T>
std::vector<T> numbers(std::size_t count) {
  std::vector<T> all(3 * count);
  u64 x = 88172645463325252;
  for (T& one : all) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    const u64 edges[] = {
        0, 1, ~u64{0}, u64{1} << 31, u64{1} << 63, 0x7fffffff, 0x3f8000003f800000, 0x7ff0000000000000, 0x00800000, 33};
    u64 bits = x % 7 == 0 ? edges[x / 7 % std::size(edges)] : x % 5 == 0 ? x >> (x & 63) : x * 0x9e3779b97f4a7c15;
    if constexpr (std::is_same_v<T, float>)
      one = x % 3 ? static_cast<float>(static_cast<s32>(bits)) * 1e-7f : std::bit_cast<float>(static_cast<u32>(bits));
    else if constexpr (std::is_same_v<T, double>)
      one = x % 3 ? static_cast<double>(static_cast<s64>(bits)) * 1e-15 : std::bit_cast<double>(bits);
    else
      one = static_cast<T>(bits);
  }
  return all;
}
template <class R>
bool same(R a, R b) {
  if constexpr (std::is_floating_point_v<R>)
    if (a != a && b != b) return true;
  return std::memcmp(&a, &b, sizeof a) == 0;
}
// `device` and `host` are the same function of three values.
template <class T, class R, class D, class H>
void compare(const char* name, D device, H host) {
  constexpr int count = 1500;
  const std::vector<T> in = numbers<T>(count);
  Buffer<T> from(in);
  Buffer<R> to(count);
  apply<R><<<12, 128>>>(from.data, to.data, count, device);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess) << name << ": " << cudaGetErrorString(cudaGetLastError());
  const std::vector<R> got = to.get();
  for (int i = 0; i < count; ++i) {
    const T a = in[3 * i], b = in[3 * i + 1], c = in[3 * i + 2];
    const R wanted = host(a, b, c);
    ASSERT_TRUE(same(got[i], wanted)) << name << "(" << +a << ", " << +b << ", " << +c << ") = " << +got[i] << ", not "
                                      << +wanted;
  }
}
template <class T, class R, class F>
void compare_same(const char* name, F f) {
  compare<T, R>(name, f, f);
}

__global__ void angles(const double* in, double* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  out[3 * i] = sin(in[i]), out[3 * i + 1] = cos(in[i]), out[3 * i + 2] = tan(in[i]);
}

// An instruction on 32-bit values, d = op a, b, c, and the same on the host
#define COMPARE_32(T, constraint, text, host)                                        \
  compare<T, T>(                                                                     \
      text,                                                                          \
      [] __device__(T a, T b, T c) {                                                 \
        T d;                                                                         \
        asm(text : "=" constraint(d) : constraint(a), constraint(b), constraint(c)); \
        return d;                                                                    \
      },                                                                             \
      [](T a, T b, T c) -> T {                                                       \
        (void)a, (void)b, (void)c;                                                   \
        return host;                                                                 \
      })

u32 permuted(u32 a, u32 b, u32 c) {
  u32 r = 0;
  for (int n = 0; n < 4; ++n) {
    const u32 s = c >> 4 * n & 15, byte = static_cast<u32>((u64{b} << 32 | a) >> 8 * (s & 7)) & 255;
    r |= (s & 8 ? (byte & 128 ? 255u : 0u) : byte) << 8 * n;
  }
  return r;
}
s32 field(s32 a, u32 position, u32 length) {  // bfe.s32
  position &= 255, length &= 255;
  if (length == 0) return 0;
  s32 r = 0;
  for (u32 n = 0; n < 32; ++n) {
    const u32 from = n < length ? position + n : position + length - 1;
    r |= static_cast<s32>(static_cast<u32>(a) >> std::min(from, 31u) & 1) << n;
  }
  return r;
}
template <class Part>
u32 dot(u32 a, u32 b, u32 c, Part part) {
  for (int n = 0; n < 4; ++n) c += part(a, n) * part(b, n);
  return c;
}
void compare_integers() {
  COMPARE_32(u32, "r", "mul.hi.u32 %0, %1, %2;", static_cast<u32>(u64{a} * b >> 32));
  COMPARE_32(s32, "r", "mul.hi.s32 %0, %1, %2;", static_cast<s32>(s64{a} * b >> 32));
  COMPARE_32(s32, "r", "mad.hi.s32 %0, %1, %2, %3;",
             static_cast<s32>(static_cast<u32>(s64{a} * b >> 32) + static_cast<u32>(c)));
  COMPARE_32(s32, "r", "div.s32 %0, %1, %2;", b == 0 ? -1 : static_cast<s32>(s64{a} / b));
  COMPARE_32(u32, "r", "rem.u32 %0, %1, %2;", b == 0 ? a : a % b);
  COMPARE_32(u32, "r", "shl.b32 %0, %1, %2;", b > 31 ? 0 : a << b);
  COMPARE_32(s32, "r", "shr.s32 %0, %1, %2;", a >> std::min<u32>(static_cast<u32>(b), 31));
  COMPARE_32(u32, "r", "shf.l.wrap.b32 %0, %1, %2, %3;", static_cast<u32>((u64{b} << 32 | a) << (c & 31) >> 32));
  COMPARE_32(u32, "r", "shf.r.clamp.b32 %0, %1, %2, %3;", c > 31 ? b : static_cast<u32>((u64{b} << 32 | a) >> c));
  COMPARE_32(s32, "r", "bfe.s32 %0, %1, %2, %3;", field(a, static_cast<u32>(b), static_cast<u32>(c)));
  COMPARE_32(u32, "r", "bfi.b32 %0, %1, %2, 5, 9;", (b & ~(0x1ffu << 5)) | (a & 0x1ff) << 5);
  COMPARE_32(u32, "r", "lop3.b32 %0, %1, %2, %3, 0x5a;", (a ^ c));
  COMPARE_32(u32, "r", "lop3.b32 %0, %1, %2, %3, 0xe8;", (a & b) | (a & c) | (b & c));
  COMPARE_32(u32, "r", "prmt.b32 %0, %1, %2, %3;", permuted(a, b, c));
  COMPARE_32(u32, "r",
             "{ .reg .b32 n; and.b32 n, %1, 1; table: .branchtargets even, odd; brx.idx n, table;"
             "  even: mov.b32 %0, %2; bra end; odd: mov.b32 %0, %3; end: }",
             a & 1 ? c : b);
  COMPARE_32(u32, "r", "bmsk.clamp.b32 %0, %1, %2;",
             static_cast<u32>(u64{b > 31 ? ~0u : (1u << b) - 1} << std::min(a, 32u)));
  COMPARE_32(u32, "r", "bmsk.wrap.b32 %0, %1, %2;", ((1u << (b & 31)) - 1) << (a & 31));
  COMPARE_32(u32, "r", "popc.b32 %0, %1;", static_cast<u32>(std::popcount(a)));
  COMPARE_32(u32, "r", "clz.b32 %0, %1;", static_cast<u32>(std::countl_zero(a)));
  COMPARE_32(u32, "r", "bfind.u32 %0, %1;", a ? 31 - static_cast<u32>(std::countl_zero(a)) : ~0u);
  COMPARE_32(u32, "r", "brev.b32 %0, %1;", [](u32 v) {
    u32 r = 0;
    for (int n = 0; n < 32; ++n) r |= (v >> n & 1) << (31 - n);
    return r;
  }(a));
  COMPARE_32(u32, "r", "bfind.shiftamt.u32 %0, %1;", a ? static_cast<u32>(std::countl_zero(a)) : ~0u);
  COMPARE_32(u32, "r", "sad.u32 %0, %1, %2, %3;", (a > b ? a - b : b - a) + c);
  COMPARE_32(s32, "r", "sad.s32 %0, %1, %2, %3;", static_cast<s32>(std::abs(s64{a} - b) + c));
  COMPARE_32(u32, "r", "dp4a.u32.u32 %0, %1, %2, %3;", dot(a, b, c, [](u32 v, int n) { return v >> 8 * n & 255; }));
  COMPARE_32(u32, "r", "dp4a.s32.s32 %0, %1, %2, %3;",
             dot(a, b, c, [](u32 v, int n) { return static_cast<u32>(static_cast<signed char>(v >> 8 * n)); }));
  COMPARE_32(s32, "r", "dp2a.hi.s32.u32 %0, %1, %2, %3;",
             static_cast<s32>(c + static_cast<short>(a) * (b >> 16 & 255) + (a >> 16) * (b >> 24 & 255)));
  COMPARE_32(u32, "r", "{ .reg.b32 t; mad.lo.cc.u32 t, %1, %2, %3; madc.hi.u32 %0, %1, %2, %3; }",
             static_cast<u32>((u64{a} * b + c) >> 32) + c);
  COMPARE_32(u64, "l", "{ .reg.b64 t; add.cc.u64 t, %1, %2; addc.u64 %0, %3, %1; }", c + a + (a + b < a));
  COMPARE_32(u64, "l", "{ .reg.b64 t; sub.cc.u64 t, %1, %2; subc.u64 %0, %3, %1; }", c - a - (a < b));
  COMPARE_32(u32, "r", "{ .reg.b32 t; sub.cc.u32 t, %1, %2; addc.u32 %0, %3, 0; }", c + (a >= b));
  COMPARE_32(s64, "l", "mul.hi.s64 %0, %1, %2;", static_cast<s64>(static_cast<__int128>(a) * b >> 64));
  COMPARE_32(u64, "l", "div.u64 %0, %1, %2;", b == 0 ? ~u64{0} : a / b);
  COMPARE_32(s64, "l", "abs.s64 %0, %1;", a < 0 ? static_cast<s64>(0 - static_cast<u64>(a)) : a);
}

template <class F>
auto rounded(int mode, F f) {
  std::fesetround(mode);
  const auto value = f();
  std::fesetround(FE_TONEAREST);
  return value;
}
#define COMPARE_IN_MODE(T, constraint, text, mode, expression) \
  COMPARE_32(T, constraint, text, rounded(mode, [&] {          \
               volatile T x = a, y = b, z = c;                 \
               (void)z, (void)y;                               \
               return T{expression};                           \
             }))
#define COMPARE_ROUNDED(T, constraint, before, after, expression)               \
  COMPARE_IN_MODE(T, constraint, before "rn" after, FE_TONEAREST, expression);  \
  COMPARE_IN_MODE(T, constraint, before "rz" after, FE_TOWARDZERO, expression); \
  COMPARE_IN_MODE(T, constraint, before "rm" after, FE_DOWNWARD, expression);   \
  COMPARE_IN_MODE(T, constraint, before "rp" after, FE_UPWARD, expression)
void compare_floats() {
  COMPARE_ROUNDED(float, "f", "add.", ".f32 %0, %1, %2;", x + y);
  COMPARE_ROUNDED(float, "f", "mul.", ".f32 %0, %1, %2;", x* y);
  COMPARE_ROUNDED(float, "f", "div.", ".f32 %0, %1, %2;", x / y);
  COMPARE_ROUNDED(float, "f", "fma.", ".f32 %0, %1, %2, %3;", std::fma(x, y, z));
  COMPARE_ROUNDED(float, "f", "sqrt.", ".f32 %0, %1;", std::sqrt(x));
  COMPARE_ROUNDED(double, "d", "add.", ".f64 %0, %1, %2;", x + y);
  COMPARE_ROUNDED(double, "d", "div.", ".f64 %0, %1, %2;", x / y);
  COMPARE_ROUNDED(double, "d", "fma.", ".f64 %0, %1, %2, %3;", std::fma(x, y, z));
  COMPARE_32(float, "f", "min.f32 %0, %1, %2;", a != a ? b : b != b ? a : a < b || (a == b && std::signbit(a)) ? a : b);
  COMPARE_32(float, "f", "abs.f32 %0, %1;", std::fabs(a));
  COMPARE_32(float, "f", "copysign.f32 %0, %1, %2;", std::copysign(b, a));
  COMPARE_32(float, "f", "add.sat.f32 %0, %1, %2;", a + b > 0 ? std::min(a + b, 1.0f) : 0.0f);
  COMPARE_32(float, "f", "mul.ftz.f32 %0, %1, %2;", [&] {
    const auto flush = [](float v) {
      return std::fabs(v) < std::numeric_limits<float>::min() ? std::copysign(0.0f, v) : v;
    };
    return flush(flush(a) * flush(b));
  }());
  compare<float, u32>(
      "the NaN", [] __device__(float a, float b, float) { return __float_as_uint(__int_as_float(0x7fc12345) + a * b); },
      [](float, float, float) { return 0x7fffffffu; });
}

template <class T>
T saturated(double v) {
  if (v != v) return 0;
  if (v <= static_cast<double>(std::numeric_limits<T>::min())) return std::numeric_limits<T>::min();
  return v >= static_cast<double>(std::numeric_limits<T>::max()) ? std::numeric_limits<T>::max() : static_cast<T>(v);
}
// A function of the device, and the same on the host
#define COMPARE_CALL(T, R, call, host) \
  compare<T, R>(                       \
      #call, [] __device__(T a, T, T) { return call; }, [](T a, T, T) -> R { return host; })
template <class To, class From>
To toward(int mode, From from) {
  return rounded(mode, [&] {
    volatile From x = from;
    return static_cast<To>(x);
  });
}
template <class To, class From>
To not_below(From from) {
  const To v = static_cast<To>(from);
  return static_cast<long double>(v) < static_cast<long double>(from) ? std::nextafter(v, static_cast<To>(HUGE_VAL))
                                                                      : v;
}
void compare_conversions() {
  COMPARE_CALL(float, s32, __float2int_rn(a), saturated<s32>(std::nearbyint(a)));
  COMPARE_CALL(float, s32, __float2int_rd(a), saturated<s32>(std::floor(a)));
  COMPARE_CALL(float, u32, __float2uint_rz(a), saturated<u32>(std::trunc(a)));
  COMPARE_CALL(s64, float, __ll2float_rz(a), toward<float>(FE_TOWARDZERO, a));
  COMPARE_CALL(u64, float, __ull2float_ru(a), not_below<float>(a));
  COMPARE_CALL(u64, double, __ull2double_ru(a), not_below<double>(a));
  COMPARE_CALL(double, float, __double2float_rd(a), toward<float>(FE_DOWNWARD, a));
  COMPARE_32(s32, "r", "{.reg .b16 t; cvt.sat.u8.s32 t, %1; cvt.u32.u16 %0, t;}", std::clamp(a, 0, 255));
  COMPARE_32(s32, "r", "{.reg .b16 t; cvt.u16.u32 t, %1; cvt.s32.s8 %0, t;}", static_cast<signed char>(a));
}

// Conversions and arithmetic of the small floats: the headers of CUDA have them for the host, too.
__host__ __device__ u32 bits_of(__half h) { return __half_as_ushort(h); }
__host__ __device__ u32 bits_of(__nv_bfloat16 b) { return __bfloat16_as_ushort(b); }
void compare_small_floats() {
  compare_same<float, u32>("f32 to f16 and bf16", [] __host__ __device__(float a, float, float) {
    return bits_of(__float2half_rn(a)) << 16 | bits_of(__float2bfloat16_rn(a));
  });
  compare_same<float, u32>("f32 to f16, rounded up and to zero", [] __host__ __device__(float a, float, float) {
    return bits_of(__float2half_ru(a)) << 16 | bits_of(__float2half_rz(a));
  });
  compare_same<double, u32>("f64 to f16",
                            [] __host__ __device__(double a, double, double) { return bits_of(__double2half(a)); });
  compare_same<u32, float>("f16 to f32", [] __host__ __device__(u32 a, u32, u32) {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(a)));
  });
  compare<u32, u32>(
      "sums of f16x2",
      [] __device__(u32 a, u32 b, u32) {
        u32 d;
        asm("add.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a & 0x7bff7bff), "r"(b & 0xfbfffbff));
        return d;
      },
      [](u32 a, u32 b, u32) {
        const auto sum = [&](int shift) {
          const auto value = [&](u32 v) {
            return __half2float(__ushort_as_half(static_cast<unsigned short>(v >> shift)));
          };
          return bits_of(__float2half_rn(value(a & 0x7bff7bff) + value(b & 0xfbfffbff)));
        };
        return sum(16) << 16 | sum(0);
      });
  compare<float, u32>(
      "fma.rn.bf16, rounded once",
      [] __device__(float a, float b, float c) {
        return bits_of(__hfma(__float2bfloat16(a), __float2bfloat16(b), __float2bfloat16(c)));
      },
      [](float a, float b, float c) {
        const auto value = [](float v) { return static_cast<double>(__bfloat162float(__float2bfloat16(v))); };
        std::fesetround(FE_TOWARDZERO);  // the sum rounded to odd, which may be rounded once more
        std::feclearexcept(FE_INEXACT);
        const volatile double product = value(a) * value(b);
        const volatile double sum = product + value(c);
        const bool odd = std::fetestexcept(FE_INEXACT) && std::isfinite(sum);
        std::fesetround(FE_TONEAREST);
        return bits_of(__double2bfloat16(std::bit_cast<double>(std::bit_cast<u64>(double{sum}) | u64{odd})));
      });
}

}  // namespace

// CUDA's functions are off by at most 2 units in the last place. Large angles need products of 128 bits.
TEST(Kernels, AngleFunctionsOfAnyDouble) {
  std::vector<double> in;
  for (double x = 1e-3; x < 1e300; x *= -7.3) in.push_back(x);
  Buffer<double> from(in), to(3 * in.size());
  const auto count = static_cast<int>(in.size());
  angles<<<(count + 63) / 64, 64>>>(from.data, to.data, count);
  const std::vector<double> got = to.get();
  for (std::size_t i = 0; i < in.size(); ++i) {
    const double wanted[] = {std::sin(in[i]), std::cos(in[i]), std::tan(in[i])};
    for (std::size_t f = 0; f < 3; ++f) EXPECT_NEAR(got[3 * i + f], wanted[f], 7e-16 * std::abs(wanted[f])) << in[i];
  }
}
TEST(Kernels, CalculateWithIntegersAsTheHost) { compare_integers(); }
TEST(Kernels, RoundFloatsAsTheHost) { compare_floats(); }
TEST(Kernels, ConvertAsTheHost) { compare_conversions(); }
TEST(Kernels, CalculateWithSmallFloatsAsTheHost) { compare_small_floats(); }

// Lanes

__global__ void between_lanes(u32* out) {
  const u32 l = threadIdx.x, v = l * 3;
  u32* results = out + l;
  results[0] = __shfl_sync(~0u, v, l + 5);
  results[32] = __shfl_xor_sync(~0u, v, 7);
  results[64] = __shfl_down_sync(~0u, v, 4, 8);
  results[96] = __shfl_up_sync(~0u, v, 3, 16);
  results[128] = __ballot_sync(~0u, l % 3 == 0);
  results[160] = __match_any_sync(~0u, l / 5);
  int all = 0;
  results[192] = __match_all_sync(~0u, l / 32, &all) + all;
  results[224] = __reduce_add_sync(~0u, l) + __reduce_max_sync(~0u, l ^ 5);
  if (l & 1)
    results[256] = __shfl_sync(0xaaaaaaaa, v, 3) + groups::coalesced_threads().size();  // a part of the warp
  else
    results[256] = __any_sync(0x55555555, l == 4) + 2 * __all_sync(0x55555555, l < 30);
  const auto tile = groups::tiled_partition<8>(groups::this_thread_block());
  results[288] = groups::reduce(tile, l, groups::plus<u32>());
}
TEST(Kernels, ExchangeValuesBetweenLanes) {
  Buffer<u32> out(320);
  between_lanes<<<1, 32>>>(out.data);
  const std::vector<u32> got = out.get();
  u32 third = 0, most = 0;
  for (u32 l = 0; l < 32; ++l) third |= u32{l % 3 == 0} << l, most = std::max(most, l ^ 5);
  for (u32 l = 0; l < 32; ++l) {
    EXPECT_EQ(got[l], (l + 5) % 32 * 3);
    EXPECT_EQ(got[32 + l], (l ^ 7) * 3);
    EXPECT_EQ(got[64 + l], (l % 8 + 4 < 8 ? l + 4 : l) * 3);
    EXPECT_EQ(got[96 + l], (l % 16 >= 3 ? l - 3 : l) * 3);
    EXPECT_EQ(got[128 + l], third);
    EXPECT_EQ(got[160 + l], (l / 5 == 6 ? 3u : 31u) << l / 5 * 5);
    EXPECT_EQ(got[192 + l], ~0u + 1);
    EXPECT_EQ(got[224 + l], 496 + most);
    EXPECT_EQ(got[256 + l], l & 1 ? 9u + 16 : 1u);
    EXPECT_EQ(got[288 + l], l / 8 * 64 + 28);
  }
}

__global__ void collatz(int* out) {
  int steps = 0;
  for (unsigned long long x = threadIdx.x + 1; x != 1; ++steps) x = x & 1 ? 3 * x + 1 : x / 2;
  out[threadIdx.x] = steps;
}
__device__ __noinline__ int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }
struct Shape {
  __device__ virtual int area(int x) const { return x; }
};
struct Square : Shape {
  __device__ int area(int x) const override { return x * x; }
};
__device__ __noinline__ int low_byte(int* word, int value) { return (*word = (*word & ~255) | value) & 255; }
__device__ int twice(int x) { return 2 * x; }
__device__ int thrice(int x) { return 3 * x; }
__global__ void calls(int* out, int choose) {
  const int t = threadIdx.x;
  alignas(Square) char memory[sizeof(Square)];
  const Shape* shape = t % 2 ? new (memory) Shape : new (memory) Square;
  __shared__ int words[96];
  int word;  // not set
  int (*const function)(int) = (t + choose) % 3 ? twice : thrice;
  out[t] = fibonacci(t % 11) * 10000 + shape->area(t) + function(t) + low_byte(t % 2 ? &word : &(words[t] = 0), t) - t;
}
TEST(Kernels, DivergeAndCall) {
  Buffer<int> steps(300), out(96);
  collatz<<<1, 300>>>(steps.data);
  calls<<<1, 96>>>(out.data, 1);
  const std::vector<int> got = steps.get(), called = out.get();
  for (int t = 0; t < 300; ++t) {
    int wanted = 0;
    for (u64 x = static_cast<u64>(t) + 1; x != 1; ++wanted) x = x & 1 ? 3 * x + 1 : x / 2;
    EXPECT_EQ(got[t], wanted);
  }
  const std::function<int(int)> f = [&](int n) { return n < 2 ? n : f(n - 1) + f(n - 2); };
  for (int t = 0; t < 96; ++t)
    EXPECT_EQ(called[t], f(t % 11) * 10000 + (t % 2 ? t : t * t) + ((t + 1) % 3 ? 2 : 3) * t);
}

// Blocks

__global__ void barriers(int* out) {
  extern __shared__ int values[];
  const int t = threadIdx.x;
  values[t] = t;
  __syncthreads();
  for (int d = blockDim.x / 2; d > 0; d /= 2) {
    if (t < d) values[t] += values[t + d];
    __syncthreads();
  }
  int sum = values[0];
  sum = sum * 10 + __syncthreads_count(t % 3 == 0) * 4 + __syncthreads_or(t == 5) * 2 + __syncthreads_and(t < 99);
  __shared__ int handed;
  if (t < 32) {  // the first warp produces, the others wait at barrier 1
    if (t == 0) handed = 7;
    __threadfence_block();
    asm volatile("bar.arrive 1, 128;" ::: "memory");
  } else {
    asm volatile("bar.sync 1, 128;" ::: "memory");
    sum += handed;
  }
  if (t == 100) return;
  __syncthreads();  // without those that left
  out[t] = sum;
}
__global__ void lock_and_count(int* lock, int* counter) {
  for (int n = 0; n < 3; ++n)
    for (bool done = false; !done;)
      if (atomicCAS(lock, 0, 1) == 0) {
        *static_cast<volatile int*>(counter) = *static_cast<volatile int*>(counter) + 1;
        __threadfence();
        atomicExch(lock, 0);
        done = true;
      }
}
__global__ void wait_for_the_next_block(volatile int* flags, int* out) {
  if (blockIdx.x + 1 < gridDim.x)
    while (flags[blockIdx.x + 1] == 0) {
    }
  __threadfence();
  out[blockIdx.x] = blockIdx.x + 1 < gridDim.x ? out[blockIdx.x + 1] + 1 : 1;
  __threadfence();
  flags[blockIdx.x] = 1;
}
__global__ void grid_sum(int* values, int* out) {
  const auto grid = groups::this_grid();
  values[blockIdx.x] = blockIdx.x + 1;
  grid.sync();
  int sum = 0;
  for (unsigned b = 0; b < gridDim.x; ++b) sum += values[b];
  out[blockIdx.x] = sum;
}
TEST(Kernels, WaitAtBarriersAndForEachOther) {
  Buffer<int> out(128), lock(1), counter(1), flags(10), chain(10), values(6), sums(6);
  barriers<<<1, 128, 128 * sizeof(int)>>>(out.data);
  lock_and_count<<<2, 40>>>(lock.data, counter.data);
  wait_for_the_next_block<<<10, 1>>>(flags.data, chain.data);
  void* arguments[] = {&values.data, &sums.data};
  ASSERT_OK(cudaLaunchCooperativeKernel(reinterpret_cast<void*>(grid_sum), 6, 1, arguments, 0, nullptr));
  const std::vector<int> got = out.get();
  for (int t = 0; t < 128; ++t) EXPECT_EQ(got[t], t == 100 ? 0 : 8128 * 10 + 43 * 4 + 2 + (t < 32 ? 0 : 7)) << t;
  EXPECT_EQ(counter.get()[0], 240);
  EXPECT_EQ(chain.get()[0], 10);
  EXPECT_EQ(sums.get(), std::vector<int>(6, 21));
}

__global__ void others_wait(unsigned who, volatile int* flag, int* out) {
  if (threadIdx.x == who) *flag = 7;
  while (threadIdx.x != who && *flag == 0) {
  }
  out[threadIdx.x] = *flag;
}
__global__ void lock_from(unsigned first, int* lock, int* counter) {
  if (threadIdx.x < first) return;
  while (atomicCAS(lock, 0, 1) != 0) {
  }
  *static_cast<volatile int*>(counter) = *static_cast<volatile int*>(counter) + 1;
  __threadfence();
  atomicExch(lock, 0);
}
TEST(Kernels, EveryLaneMakesProgress) {
  for (unsigned lane = 0; lane < 32; ++lane) {
    Buffer<int> flag(1), out(32), lock(1), counter(1);
    others_wait<<<1, 32>>>(lane, flag.data, out.data);
    lock_from<<<1, 32>>>(lane, lock.data, counter.data);
    EXPECT_EQ(out.get(), std::vector<int>(32, 7)) << lane;
    EXPECT_EQ(counter.get()[0], 32 - lane);
  }
}

// Memory

struct Large {
  int values[30];
};
__constant__ float coefficients[4] = {1, 2, 3, 4};
__device__ int counter = 5;
__device__ int* const address_of_counter = &counter;
__global__ void spaces(Large large, short small, const float4* in, float4* out, int* ints, unsigned char* bytes) {
  const int t = threadIdx.x;
  __shared__ float shared[32];
  float local[8];
  for (int n = 0; n < 8; ++n) local[(n + t) % 8] = n;
  shared[t] = in[t].x;
  __syncwarp();
  const float* generic = t % 2 ? shared : local;
  out[t] = make_float4(in[t].w, shared[31 - t], coefficients[t % 4], generic[t % 8]);
  ints[t] = large.values[t % 30] + small + *address_of_counter + (__isShared(generic) ? 1000 : 0);
  bytes[t] = bytes[t] + 200;
}
__global__ void atomics(int* i, u32* u, unsigned long long* l, float* f, double* d) {
  __shared__ int local;
  if (threadIdx.x == 0) local = 0;
  __syncthreads();
  atomicAdd(i, 2), atomicSub(i + 1, 1), atomicMin(i + 2, -static_cast<int>(threadIdx.x)), atomicMax(i + 3, threadIdx.x);
  atomicAnd(u, ~(1u << threadIdx.x % 32)), atomicOr(u + 1, 1u << threadIdx.x % 32), atomicXor(u + 2, threadIdx.x),
      atomicInc(u + 3, 10), atomicDec(u + 4, 10);
  atomicMax(l, 1ull << threadIdx.x % 60), atomicAdd(l + 1, 1ull << 40), atomicAdd(f, 0.5f), atomicAdd(d, 0.25);
  atomicAdd(&local, 1);
  __syncthreads();
  if (threadIdx.x == 0) atomicCAS_block(i + 4, 0, local);
}
TEST(Kernels, UseAllSpacesOfMemory) {
  std::vector<float4> in(32);
  Large large;
  std::iota(large.values, large.values + 30, 100);
  for (int n = 0; n < 32; ++n) in[n] = make_float4(n, 0, 0, n + 0.5f);
  Buffer<float4> from(in), to(32);
  Buffer<int> ints(32);
  Buffer<unsigned char> bytes(std::vector<unsigned char>(32, 100));
  const float other[] = {5, 6, 7, 8};
  ASSERT_OK(cudaMemcpyToSymbolAsync(coefficients, other, sizeof other, 0, cudaMemcpyHostToDevice, nullptr));
  int* address = nullptr;
  ASSERT_OK(cudaGetSymbolAddress(reinterpret_cast<void**>(&address), counter));
  const int nine = 9;
  ASSERT_OK(cudaMemcpy(address, &nine, sizeof nine, cudaMemcpyHostToDevice));
  spaces<<<1, 32>>>(large, -3, from.data, to.data, ints.data, bytes.data);
  const std::vector<float4> got = to.get();
  const std::vector<int> sums = ints.get();
  for (int t = 0; t < 32; ++t) {
    EXPECT_EQ(got[t].x, t + 0.5f);
    EXPECT_EQ(got[t].y, 31 - t);
    EXPECT_EQ(got[t].z, 5 + t % 4);
    EXPECT_EQ(got[t].w, t % 2 ? t % 8 : 0) << t;
    EXPECT_EQ(sums[t], 100 + t % 30 - 3 + 9 + t % 2 * 1000);
  }
  EXPECT_EQ(bytes.get(), std::vector<unsigned char>(32, 44));
  int back = 0;
  ASSERT_OK(cudaMemcpyFromSymbol(&back, counter, sizeof back));
  EXPECT_EQ(back, 9);
  EXPECT_EQ(cudaMemcpyToSymbol(counter, other, sizeof other), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetSymbolAddress(reinterpret_cast<void**>(&address), "no symbol"), cudaErrorInvalidSymbol);
}
TEST(Kernels, CountWithAtomics) {
  Buffer<int> i(5);
  Buffer<u32> u(std::vector<u32>{~0u, 0, 0, 0, 3});
  Buffer<unsigned long long> l(2);
  Buffer<float> f(1);
  Buffer<double> d(1);
  atomics<<<2, 100>>>(i.data, u.data, l.data, f.data, d.data);
  EXPECT_EQ(i.get(), (std::vector<int>{400, -200, -99, 99, 100}));
  EXPECT_EQ(u.get(), (std::vector<u32>{0, ~0u, 0, 200 % 11, 3 + 11 * 19 - 200 > 10 ? 1u : 3u + 11 * 19 - 200}));
  EXPECT_EQ(l.get(), (std::vector<unsigned long long>{1ull << 59, 200ull << 40}));
  EXPECT_EQ(f.get()[0], 100);
  EXPECT_EQ(d.get()[0], 50);
}

// The runtime around kernels

__global__ void add(int* p, int n) { atomicAdd(p, n); }
__host__ __device__ __noinline__ unsigned deep(unsigned n) { return n == 0 ? 1 : deep(n - 1) * 3 + n; }
__global__ void calls_deep(unsigned n, int* p) { *p = static_cast<int>(deep(n)); }
__global__ void __launch_bounds__(64) bounded(int* p) { p[threadIdx.x] = 1; }
__global__ void dynamic(int* p) {
  extern __shared__ char bytes[];
  bytes[60000] = 3;
  *p = bytes[60000];
}
TEST(Launches, AreTasksOfStreamsAndGraphs) {
  Buffer<int> sum(1);
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  ASSERT_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  ASSERT_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int n = 1; n <= 3; ++n) add<<<1, n, 0, stream>>>(sum.data, 10);
  ASSERT_OK(cudaStreamEndCapture(stream, &graph));
  ASSERT_OK(cudaGraphInstantiate(&executable, graph, 0));
  EXPECT_EQ(sum.get()[0], 0);
  ASSERT_OK(cudaGraphLaunch(executable, stream));
  ASSERT_OK(cudaGraphLaunch(executable, stream));
  ASSERT_OK(cudaStreamSynchronize(stream));
  EXPECT_EQ(sum.get()[0], 120);
  ASSERT_OK(cudaGraphExecDestroy(executable));
  ASSERT_OK(cudaGraphDestroy(graph));
  ASSERT_OK(cudaStreamDestroy(stream));
}
TEST(Launches, KeepTheLimits) {
  Buffer<int> p(64);
  const auto launched = [](auto&& launch) {
    launch();
    return cudaGetLastError();
  };
  EXPECT_EQ(launched([&] { add<<<1, 1025>>>(p.data, 1); }), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launched([&] { add<<<1, dim3(1, 1, 65)>>>(p.data, 1); }), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launched([&] { add<<<0, 1>>>(p.data, 1); }), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launched([&] { add<<<dim3(1, 65536), 1>>>(p.data, 1); }), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launched([&] { bounded<<<1, 65>>>(p.data); }), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launched([&] { dynamic<<<1, 1, 60001>>>(p.data); }), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFuncSetAttribute(dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, 300000), cudaErrorInvalidValue);
  cudaGetLastError();
  ASSERT_OK(cudaFuncSetAttribute(dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, 60001));
  EXPECT_EQ(launched([&] { dynamic<<<1, 1, 60001>>>(p.data); }), cudaSuccess);
  EXPECT_EQ(p.get()[0], 3);
  cudaFuncAttributes attributes;
  ASSERT_OK(cudaFuncGetAttributes(&attributes, bounded));
  EXPECT_EQ(attributes.maxThreadsPerBlock, 64);
  int blocks = 0;
  ASSERT_OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, dynamic, 1024, 0));
  EXPECT_EQ(blocks, 2);
  ASSERT_OK(cudaDeviceSetLimit(cudaLimitStackSize, 512 << 10));
  calls_deep<<<1, 1>>>(10000, p.data);
  EXPECT_EQ(p.get()[0], static_cast<int>(deep(10000)));
  EXPECT_EQ(cudaDeviceSetLimit(cudaLimitStackSize, 1 << 20), cudaErrorInvalidValue);
  void* arguments[] = {&p.data, &blocks};
  EXPECT_EQ(cudaLaunchCooperativeKernel(reinterpret_cast<void*>(add), 100000, 1024, arguments, 0, nullptr),
            cudaErrorCooperativeLaunchTooLarge);
  cudaGetLastError();
}
__global__ void prints(int n) {
  printf("%d of %d: %5.2f %s %llx %c%%\n", threadIdx.x, n, n / 3.0, "text", 0x123456789abcull, 'x');
}
TEST(Launches, Print) {
  testing::internal::CaptureStdout();
  prints<<<1, 2>>>(5);
  ASSERT_OK(cudaDeviceSynchronize());
  EXPECT_EQ(testing::internal::GetCapturedStdout(),
            "0 of 5:  1.67 text 123456789abc x%\n1 of 5:  1.67 text 123456789abc x%\n");
}
__global__ void not_emulated(bool comes, int* done) {
  if (comes) {
    __shared__ u64 barrier;
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(static_cast<u32>(__cvta_generic_to_shared(&barrier))));
    free(malloc(16));
  }
  *done = 1;
}
// The launch fails if the kernel comes to the instruction, and later launches do not.
TEST(Launches, WhatIsNotEmulatedFailsWhenItIsReached) {
  Buffer<int> done(1);
  not_emulated<<<1, 1>>>(false, done.data);
  EXPECT_EQ(done.get(), std::vector{1});
  testing::internal::CaptureStderr();
  for (int n = 0; n < 2; ++n) {
    not_emulated<<<1, 1>>>(true, done.data);
    EXPECT_EQ(cudaGetLastError(), cudaErrorNotSupported);
  }
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorNotSupported) << "for programs that do not look at launches";
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(cudaGetLastError(), cudaErrorNotSupported);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(std::regex_match(
      said, std::regex("emulated-gpu: kernel not_emulated\\(bool, int\\*\\), block \\(0,0,0\\), thread \\(0,0,0\\): "
                       "cuda::barrier in shared memory is not emulated: mbarrier.init.*kernels_test.cu:[0-9]+\\)\n")))
      << said << "must be one line";
  EXPECT_EQ(done.get(), std::vector{1});
}
__global__ void copies_in_a_library(const int* in, int* out) {
  __shared__ alignas(16) int s[4];
  __pipeline_memcpy_async(s, in, 16);
  *out = s[3];
}
TEST(Launches, TheMessageNamesTheFunctionThatTheProgramCalls) {
  Buffer<int> in(4), out(1);
  testing::internal::CaptureStderr();
  copies_in_a_library<<<1, 1>>>(in.data, out.data);
  EXPECT_EQ(cudaGetLastError(), cudaErrorNotSupported);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorNotSupported);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(
      std::regex_search(said, std::regex("asynchronous copies .* are not emulated: cp.async.*pipeline.*:[0-9]+ in "
                                         "__pipeline_memcpy_async, called at .*kernels_test.cu:[0-9]+\\)\n")))
      << said;
}
__global__ void uses_half(__half2* pair) {
  const __half2 one = hexp(__half(0)) > __half(0) ? __half2half2(__half(1)) : __half2half2(__half(7));
  atomicAdd(pair, __hmul2(one, __heq2(one, one)));
}
TEST(Launches, AtomicsAndComparisonsOfHalf) {
  Buffer<__half2> sum(1);
  uses_half<<<2, 64>>>(sum.data);
  EXPECT_EQ(__low2float(sum.get()[0]), 128);
  EXPECT_EQ(__high2float(sum.get()[0]), 128);
}
__global__ void words(u32 a, u32 b, u32* o) { o[0] = __vabsdiffu4(a, b), o[1] = __vsadu4(a, b); }
namespace cub {
__global__ void sort_a_part(int* out, int count) {
  __shared__ int tile[32];
  if (threadIdx.x < count) tile[threadIdx.x] = threadIdx.x;
  const int value = static_cast<volatile int*>(tile)[threadIdx.x];
  if (threadIdx.x < count) out[threadIdx.x] = value;
}
}  // namespace cub
TEST(Launches, ALibraryMayLoadSharedMemoryThatIsNotSetIfItDoesNotUseIt) {
  Buffer<int> out(2);
  cub::sort_a_part<<<1, 32>>>(out.data, 2);
  EXPECT_EQ(out.get(), (std::vector{0, 1}));
}
TEST(Launches, SmallFunctionsOfWords) {
  Buffer<u32> out(2);
  words<<<1, 1>>>(0x01f0ff03u, 0x05f00280u, out.data);
  EXPECT_EQ(out.get(), (std::vector{0x0400fd7du, 0x4u + 0xfdu + 0x7du}));
}
