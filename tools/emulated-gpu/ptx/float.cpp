// Floating-point arithmetic, and comparisons of all types.
#include "floats.hpp"

#include "handlers.hpp"

namespace emulated_gpu::ptx {
namespace {

// O on f32 with its modifiers.
template <class O, bool ftz, bool sat>
constexpr auto single = [](auto... s) -> float {
  float v = static_cast<float>(O{}((ftz ? flushed(s) : s)...));
  if (ftz) v = flushed(v);
  if (sat) v = clamped(v);
  return canonical(v);
};
// O on 16-bit floats, computed as float: that is correctly rounded for + - * / and sqrt.
enum class Limit { none, saturated, positive };  // positive: .relu
template <class O, class T, Limit limit>
struct Small {
  static T finished(float v) {
    return T::of(limit == Limit::saturated ? clamped(v) : limit == Limit::positive && v <= 0 ? 0.0f : v);
  }
  T operator()(T a) const { return finished(static_cast<float>(O{}(static_cast<float>(a)))); }
  T operator()(T a, T b) const { return finished(O{}(static_cast<float>(a), static_cast<float>(b))); }
  T operator()(T a, T b, T c) const { return finished(fused(a, b, c)); }
};
template <class O, class T>
constexpr auto pair_with = [](auto... s) -> u32 { return pair_of(O{}(part<T>(s, 0)...), O{}(part<T>(s, 1)...)); };

template <int sources, class O>
Handler singles(const Statement& s) {
  const auto pick = [&]<class F>(F) { return with_rounding<each_of_type<F, float, sources>()>(s); };
  if (s.is("ftz")) return s.is("sat") ? pick(single<O, true, true>) : pick(single<O, true, false>);
  return s.is("sat") ? pick(single<O, false, true>) : pick(single<O, false, false>);
}
template <int sources, class O, class T>
Handler smalls(const Statement& s, bool pair) {
  const auto pick = [&]<class F>(F) {
    return pair ? each_of_type<decltype(pair_with<F, T>), u32, sources>() : each_of_type<F, T, sources>();
  };
  if (s.is("ftz") || (sources != 3 && s.is("relu"))) return nullptr;
  if constexpr (sources == 3)
    if (s.is("relu")) return pick(Small<O, T, Limit::positive>{});
  return s.is("sat") ? pick(Small<O, T, Limit::saturated>{}) : pick(Small<O, T, Limit::none>{});
}
// O on any floating-point type.
template <int sources, class O>
Handler floats(const Statement& s, Type type, O) {
  switch (type) {
    case Type::f32: return singles<sources, O>(s);
    case Type::f64: return with_rounding<each_of_type<O, double, sources>()>(s);
    case Type::f16: return smalls<sources, O, half>(s, false);
    case Type::bf16: return smalls<sources, O, bfloat>(s, false);
    case Type::f16x2: return smalls<sources, O, half>(s, true);
    case Type::bf16x2: return smalls<sources, O, bfloat>(s, true);
    default: return nullptr;
  }
}
// O of one value, without rounding modes.
template <class O>
Handler approximate(const Statement& s, Type type, O) {
  if (type == Type::f32)
    return s.is("ftz") ? each<decltype(single<O, true, false>), float, float>
                       : each<decltype(single<O, false, false>), float, float>;
  if (type == Type::f16) return smalls<1, O, half>(s, false);
  return type == Type::f16x2 ? smalls<1, O, half>(s, true) : nullptr;
}

template <bool keep_nan, bool largest>
constexpr auto extreme_of = []<class T>(T a, T b) -> T {
  if (keep_nan && (a != a || b != b)) return std::numeric_limits<T>::quiet_NaN();
  if (a != a || b != b) return a != a ? b : a;
  return (a == b ? std::signbit(a) != largest : (a < b) != largest) ? a : b;
};
template <bool largest>
Handler extreme(const Statement& s, Type type) {
  return s.is("NaN") ? floats<2>(s, type, extreme_of<true, largest>) : floats<2>(s, type, extreme_of<false, largest>);
}
// rcp.approx.ftz.f64 and rsqrt.approx.ftz.f64 give the upper word of the result.
template <bool root>
constexpr auto upper = [](double a) -> double {
  if (std::fabs(a) < std::numeric_limits<double>::min()) a = std::copysign(0.0, a);
  const double v = root ? 1 / std::sqrt(a) : 1 / a;
  return std::bit_cast<double>(std::bit_cast<u64>(v) & 0xffffffff00000000u);
};
// neg and abs keep a NaN's bits.
template <bool absolute, bool pair>
constexpr auto with_sign = []<class W>(W a) -> W {
  const W signs = static_cast<W>(pair ? 0x80008000u : W{1} << (8 * sizeof(W) - 1));
  return static_cast<W>(absolute ? a & ~signs : a ^ signs);
};
template <bool absolute>
Handler sign_handler(const Statement& s, Type type) {
  if (s.is("ftz")) return floats<1>(s, type, [](auto a) { return absolute ? std::fabs(a) : -a; });
  if (type == Type::f16x2 || type == Type::bf16x2) return bits<1>(type, with_sign<absolute, true>);
  return bits<1>(type, with_sign<absolute, false>);
}

// Comparisons
enum class Relation { eq, ne, lt, le, gt, ge, equ, neu, ltu, leu, gtu, geu, num, nan };
template <Relation r, class T>
bool compare(T a, T b) {
  const bool unordered = a != a || b != b;
  if constexpr (r == Relation::eq) return a == b;
  if constexpr (r == Relation::ne) return a != b && !unordered;
  if constexpr (r == Relation::lt) return a < b;
  if constexpr (r == Relation::le) return a <= b;
  if constexpr (r == Relation::gt) return a > b;
  if constexpr (r == Relation::ge) return a >= b;
  if constexpr (r == Relation::num) return !unordered;
  if constexpr (r == Relation::nan) return unordered;
  if constexpr (r >= Relation::equ && r <= Relation::geu)
    return unordered || compare<static_cast<Relation>(static_cast<int>(r) - 6), T>(a, b);
}
template <Relation r, class T, bool ftz>
u32 compared(const Warp& w, const Instruction& i, u32 mask) {
  const T *a = w.row<T>(i.s[0]), *b = w.row<T>(i.s[1]);
  const auto one = [&](int l) -> u32 {
    if constexpr (ftz) return compare<r, T>(flushed(a[l]), flushed(b[l]));
    else if constexpr (sizeof(T) == 2 && !std::is_integral_v<T>) return compare<r, float>(a[l], b[l]);
    else return compare<r, T>(a[l], b[l]);
  };
  u32 value = 0;
  for_lanes(mask, [&](int l) { value |= one(l) << l; });
  return value;
}
// immediate: 0, or how predicate s[2] is combined: 1 and, 2 or, 3 xor; 4: it is negated. offset: what set gives for
// true, target: the bytes of its result
u32 combined(const Warp& w, const Instruction& i, u32 value) {
  if (!(i.immediate & 3)) return value;
  const u32 other = predicate(w, i.s[2], i.immediate & 4);
  return (i.immediate & 3) == 1 ? value & other : (i.immediate & 3) == 2 ? value | other : value ^ other;
}
template <Relation r, class T, bool ftz>
void set_predicates(Warp& w, const Instruction& i, u32 mask) {
  const u32 value = compared<r, T, ftz>(w, i, mask);
  const u32 first = combined(w, i, value), second = i.d2 ? combined(w, i, ~value) : 0;
  set_predicate(w, i.d, mask, first);
  set_predicate(w, i.d2, mask, second);
}
template <Relation r, class T, bool ftz>
void set_words(Warp& w, const Instruction& i, u32 mask) {
  const u32 value = combined(w, i, compared<r, T, ftz>(w, i, mask));
  const auto put = [&]<class D>(D* d) {
    for_lanes(mask, [&](int l) { d[l] = static_cast<D>(value >> l & 1 ? i.offset : 0); });
  };
  if (i.target == 2) put(w.row<u16>(i.d));
  else put(w.row<u32>(i.d));
}
template <Relation r, class T, bool ftz = false>
Handler one_comparison(bool words) {
  return words ? set_words<r, T, ftz> : set_predicates<r, T, ftz>;
}
template <Relation r>
Handler comparison_of(Type type, bool words, bool ftz) {
  constexpr bool of_floats = r >= Relation::equ;
  if constexpr (!of_floats)
    if (const Handler found = of_integer(type, [&]<class T>(T) { return one_comparison<r, T>(words); })) return found;
  switch (type) {
    case Type::f32: return ftz ? one_comparison<r, float, true>(words) : one_comparison<r, float>(words);
    case Type::f64: return one_comparison<r, double>(words);
    case Type::f16: return one_comparison<r, half>(words);
    case Type::bf16: return one_comparison<r, bfloat>(words);
    default: return nullptr;
  }
}
// Two comparisons at once: setp.lt.f16x2 p|q, set.lt.f16x2.f16x2
template <Relation r, class T, bool words>
void set_pair(Warp& w, const Instruction& i, u32 mask) {
  const u32 *a = w.row<u32>(i.s[0]), *b = w.row<u32>(i.s[1]);
  u32 low = 0, high = 0;
  for (const int l : Lanes{mask}) {
    low |= u32{compare<r, float>(part<T>(a[l], 0), part<T>(b[l], 0))} << l;
    high |= u32{compare<r, float>(part<T>(a[l], 1), part<T>(b[l], 1))} << l;
  }
  low = combined(w, i, low), high = combined(w, i, high);
  if (words) {
    u32* const d = w.row<u32>(i.d);
    const u32 one = static_cast<u16>(i.offset);
    for_lanes(mask, [&](int l) { d[l] = (low >> l & 1 ? one : 0) | (high >> l & 1 ? one << 16 : 0); });
    return;
  }
  set_predicate(w, i.d, mask, low);
  set_predicate(w, i.d2, mask, high);
}
Handler find_comparison(std::string_view name, Type type, bool words, bool ftz) {
  static constexpr std::string_view names[] = {"eq",  "ne",  "lt",  "le",  "gt",  "ge",  "equ",
                                               "neu", "ltu", "leu", "gtu", "geu", "num", "nan"};
  Handler found = nullptr;
  const auto look = [&]<Relation one>() {
    if (names[static_cast<int>(one)] != name) return;
    if (type == Type::f16x2) found = words ? set_pair<one, half, true> : set_pair<one, half, false>;
    else if (type == Type::bf16x2) found = words ? set_pair<one, bfloat, true> : set_pair<one, bfloat, false>;
    else found = comparison_of<one>(type, words, ftz);
  };
  [&]<int... n>(std::integer_sequence<int, n...>) { (look.template operator()<static_cast<Relation>(n)>(), ...); }
  (std::make_integer_sequence<int, std::size(names)>());
  return found;
}

}  // namespace

Handler float_handler(const Statement& s, Type type) {
  const std::string_view op = s.op[0];
  if (op == "add") return floats<2>(s, type, [](auto a, auto b) { return a + b; });
  if (op == "sub") return floats<2>(s, type, [](auto a, auto b) { return a - b; });
  if (op == "mul") return floats<2>(s, type, [](auto a, auto b) { return a * b; });
  if (op == "div") return floats<2>(s, type, [](auto a, auto b) { return a / b; });
  if (op == "fma" || op == "mad") return floats<3>(s, type, [](auto a, auto b, auto c) { return std::fma(a, b, c); });
  if (op == "sqrt") return floats<1>(s, type, [](auto a) { return std::sqrt(a); });
  if (op == "rcp" && s.is("approx") && type == Type::f64) return each<decltype(upper<false>), double, double>;
  if (op == "rsqrt" && type == Type::f64)
    return s.is("ftz") ? each<decltype(upper<true>), double, double>
                       : each<decltype([](double a) { return 1 / std::sqrt(a); }), double, double>;
  if (op == "rcp") return floats<1>(s, type, [](auto a) { return 1 / a; });
  // These are more accurate than a GPU's.
  if (op == "rsqrt") return approximate(s, type, [](double a) { return 1 / std::sqrt(a); });
  if (op == "sin") return approximate(s, type, [](double a) { return std::sin(a); });
  if (op == "cos") return approximate(s, type, [](double a) { return std::cos(a); });
  if (op == "lg2") return approximate(s, type, [](double a) { return std::log2(a); });
  if (op == "ex2") return approximate(s, type, [](double a) { return std::exp2(a); });
  if (op == "tanh") return approximate(s, type, [](double a) { return std::tanh(a); });
  if (op == "neg") return sign_handler<false>(s, type);
  if (op == "abs") return sign_handler<true>(s, type);
  if (op == "copysign")  // the sign of a, the rest of b
    return type == Type::f32 ? each<decltype([](float a, float b) { return std::copysign(b, a); }), float, float, float>
           : type == Type::f64
               ? each<decltype([](double a, double b) { return std::copysign(b, a); }), double, double, double>
               : nullptr;
  if (op == "min") return extreme<false>(s, type);
  if (op == "max") return extreme<true>(s, type);
  return nullptr;
}

Handler comparison_handler(const Statement& s, Type type) {
  if (s.is("ftz") && type != Type::f32) return nullptr;
  std::string name(s.op[1]);
  if (type == Type::u16 || type == Type::u32 || type == Type::u64) {
    static const std::map<std::string_view, const char*> same{{"lo", "lt"}, {"ls", "le"}, {"hi", "gt"}, {"hs", "ge"}};
    if (const auto found = same.find(name); found != same.end()) name = found->second;
  }
  return find_comparison(name, type, s.op[0] == "set", s.is("ftz"));
}

}  // namespace emulated_gpu::ptx
