// Instructions between the lanes of a warp, special registers, moves.
#include <algorithm>
#include <thread>

#include "handlers.hpp"

namespace emulated_gpu::ptx {
namespace {

// The lanes of the mask have met: the scheduler waits for the members.

// immediate: 0 up, 1 down, 2 butterfly, 3 index
void shuffle(Warp& w, const Instruction& i, u32 mask) {
  u32* const d = w.row<u32>(i.d);
  const u32 *b = w.row<u32>(i.s[1]), *c = w.row<u32>(i.s[2]);
  u32 value[warp_size], valid = 0;
  std::memcpy(value, w.row<u32>(i.s[0]), sizeof value);
  for_lanes(~mask, [&](int l) { value[l] = fresh_word; });  // not those that it had
  for (const int l : Lanes{mask}) {
    const int amount = b[l] & 31, clamp = c[l] & 31, segment = c[l] >> 8 & 31;
    const int last = (l & segment) | (clamp & ~segment);
    const int from = i.immediate == 0   ? l - amount
                     : i.immediate == 1 ? l + amount
                     : i.immediate == 2 ? l ^ amount
                                        : (l & segment) | (amount & ~segment);
    const bool good = i.immediate == 0 ? from >= last : from <= last;
    d[l] = value[good ? from : l];
    valid |= u32{good} << l;
    // The scheduler waits for the others that the mask names.
    if (w.context->checker && good && !(mask >> from & 1) && i.s[3] && w.row<u32>(i.s[3])[l] >> from & 1)
      w.context->surroundings->note(place_of(w, l) + ": the value of lane " + std::to_string(from) +
                                    " is undefined, because that thread has ended: " + text_of(*w.context, i));
  }
  set_predicate(w, i.d2, mask, valid);
}

// immediate: 0 all, 1 any, 2 uniform, 3 ballot; 4: the source is negated
void vote(Warp& w, const Instruction& i, u32 mask) {
  const u32 value = predicate(w, i.s[0], i.immediate & 4) & mask;
  const bool all = value == mask, any = value != 0;
  const bool results[] = {all, any, all || !any};
  if ((i.immediate & 3) < 3) return set_predicate(w, i.d, mask, results[i.immediate & 3] ? all_lanes : 0);
  u32* const d = w.row<u32>(i.d);
  for_lanes(mask, [&](int l) { d[l] = value; });
}
template <class T>
void match_any(Warp& w, const Instruction& i, u32 mask) {
  u32* const d = w.row<u32>(i.d);
  T value[warp_size];
  std::memcpy(value, w.row<T>(i.s[0]), sizeof value);
  for_lanes(mask, [&](int l) {
    u32 same = 0;
    for (int k = 0; k < warp_size; ++k) same |= u32{value[k] == value[l]} << k;
    d[l] = same & mask;
  });
}
template <class T>
void match_all(Warp& w, const Instruction& i, u32 mask) {
  u32* const d = w.row<u32>(i.d);
  const T *a = w.row<T>(i.s[0]), first = a[std::countr_zero(mask)];
  bool same = true;
  for (const int l : Lanes{mask}) same = same && a[l] == first;
  for_lanes(mask, [&](int l) { d[l] = same ? mask : 0; });
  set_predicate(w, i.d2, mask, same ? all_lanes : 0);
}
template <class T, class F>
void reduce(Warp& w, const Instruction& i, u32 mask) {
  T* const d = w.row<T>(i.d);
  const T* a = w.row<T>(i.s[0]);
  T value = a[std::countr_zero(mask)];
  for (const int l : Lanes{mask & (mask - 1)}) value = F{}(value, a[l]);
  for_lanes(mask, [&](int l) { d[l] = value; });
}
Handler redux_handler(const Statement& s, Type type) {
  using Least = decltype([](auto a, auto b) { return std::min(a, b); });
  using Most = decltype([](auto a, auto b) { return std::max(a, b); });
  if (size_of(type) != 4 || type == Type::f32) return nullptr;
  if (s.is("add")) return reduce<u32, decltype([](u32 a, u32 b) { return a + b; })>;
  if (s.is("and")) return reduce<u32, decltype([](u32 a, u32 b) { return a & b; })>;
  if (s.is("or")) return reduce<u32, decltype([](u32 a, u32 b) { return a | b; })>;
  if (s.is("xor")) return reduce<u32, decltype([](u32 a, u32 b) { return a ^ b; })>;
  if (s.is("min")) return type == Type::s32 ? reduce<s32, Least> : reduce<u32, Least>;
  if (s.is("max")) return type == Type::s32 ? reduce<s32, Most> : reduce<u32, Most>;
  return nullptr;
}
void active_mask(Warp& w, const Instruction& i, u32 mask) {
  u32* const d = w.row<u32>(i.d);
  for_lanes(mask, [&](int l) { d[l] = mask; });
}

// Special registers
struct SpecialRegister {
  std::string_view names;  // of one in three dimensions: without ".x"
  bool same;               // for all lanes
  u64 (*value)(const Warp&, int lane, int dimension);
};
template <u64 value>
u64 fixed(const Warp&, int, int) {
  return value;
}
template <int shift>
u64 clock_of(const Warp&, int, int) {
  return static_cast<u64>(std::chrono::system_clock::now().time_since_epoch() / std::chrono::nanoseconds(1)) >> shift;
}
constexpr SpecialRegister specials[] = {
    {" %tid ", false, [](const Warp& w, int l, int n) { return u64{w.thread[n][l]}; }},
    {" %ntid ", true, [](const Warp& w, int, int n) { return u64{w.context->launch->block[n]}; }},
    {" %ctaid %clusterid ", true, [](const Warp& w, int, int n) { return u64{w.context->block[n]}; }},
    {" %nctaid %nclusterid ", true, [](const Warp& w, int, int n) { return u64{w.context->launch->grid[n]}; }},
    {" %laneid ", false, [](const Warp&, int l, int) { return static_cast<u64>(l); }},
    {" %warpid ", true, [](const Warp& w, int, int) { return u64{w.number}; }},
    {" %nwarpid ", true,
     [](const Warp& w, int, int) {
       const unsigned* size = w.context->launch->block;
       return (u64{size[0]} * size[1] * size[2] + 31) / 32;
     }},
    {" %smid %cluster_ctaid %cluster_ctarank %is_explicit_cluster ", true, fixed<0>},
    {" %nsmid %gridid %cluster_nctaid %cluster_nctarank ", true, fixed<1>},
    {" %lanemask_eq ", false, [](const Warp&, int l, int) { return u64{1} << l; }},
    {" %lanemask_lt ", false, [](const Warp&, int l, int) { return (u64{1} << l) - 1; }},
    {" %lanemask_le ", false, [](const Warp&, int l, int) { return (u64{2} << l) - 1; }},
    {" %lanemask_gt ", false, [](const Warp&, int l, int) { return ~((u64{2} << l) - 1); }},
    {" %lanemask_ge ", false, [](const Warp&, int l, int) { return ~((u64{1} << l) - 1); }},
    {" %clock %clock64 %globaltimer %globaltimer_lo ", true, clock_of<0>},
    {" %clock_hi %globaltimer_hi ", true, clock_of<32>},
    {" %dynamic_smem_size ", true, [](const Warp& w, int, int) { return u64{w.context->launch->shared}; }},
    {" %total_smem_size ", true, [](const Warp& w, int, int) { return u64{w.context->shared_size}; }},
    {" %reserved_smem_offset_begin %reserved_smem_offset_0 %reserved_smem_offset_1 ", true, fixed<0>},
    {" %reserved_smem_offset_end %reserved_smem_offset_cap ", true, fixed<reserved_shared>},
    // grid.sync() finds its workspace with these.
    {" %envreg1 ", true, [](const Warp& w, int, int) { return w.context->workspace >> 32; }},
    {" %envreg2 ", true, [](const Warp& w, int, int) { return w.context->workspace; }}};

// immediate: the number among `specials`, offset: the dimension
template <class T>
void move_special(Warp& w, const Instruction& i, u32 mask) {
  T* const d = w.row<T>(i.d);
  const SpecialRegister& s = specials[i.immediate];
  const int n = static_cast<int>(i.offset);
  if (s.same) return for_lanes(mask, [&, value = static_cast<T>(s.value(w, 0, n))](int l) { d[l] = value; });
  for_lanes(mask, [&](int l) { d[l] = static_cast<T>(s.value(w, l, n)); });
}

template <class Whole, class Part>
void pack(Warp& w, const Instruction& i, u32 mask) {
  const std::vector<Row>& rows = i.extra->rows;
  Whole* const d = w.row<Whole>(i.d);
  for_lanes(mask, [&](int l) {
    Whole value = 0;
    for (std::size_t n = 0; n < rows.size(); ++n)
      value = static_cast<Whole>(value | static_cast<Whole>(w.row<Part>(rows[n])[l]) << (8 * sizeof(Part) * n));
    d[l] = value;
  });
}
template <class Whole, class Part>
void unpack(Warp& w, const Instruction& i, u32 mask) {
  const std::vector<Row>& rows = i.extra->rows;
  const Whole* a = w.row<Whole>(i.s[0]);
  for_lanes(mask, [&](int l) {
    const Whole value = a[l];  // which may be in one of the rows
    for (std::size_t n = 0; n < rows.size(); ++n)
      if (rows[n]) w.row<Part>(rows[n])[l] = static_cast<Part>(value >> (8 * sizeof(Part) * n));
  });
}

}  // namespace

Handler warp_handler(const Statement& s, Type type, Instruction& i) {
  const std::string_view op = s.op[0];
  const bool wide = size_of(type) == 8;
  if (op == "shfl") {
    i.immediate = s.is("up") ? 0 : s.is("down") ? 1 : s.is("bfly") ? 2 : 3;
    return shuffle;
  }
  if (op == "vote") {
    i.immediate = (s.is("all") ? 0u : s.is("any") ? 1u : s.is("uni") ? 2u : 3u) | (s.operands[1].negated ? 4u : 0u);
    return vote;
  }
  if (op == "match")
    return s.is("any") ? (wide ? match_any<u64> : match_any<u32>) : (wide ? match_all<u64> : match_all<u32>);
  if (op == "redux") return redux_handler(s, type);
  if (op == "activemask") return active_mask;
  return nullptr;
}

std::optional<std::pair<u64, s64>> special_register(std::string_view name) {
  s64 dimension = 0;
  if (name.size() > 2 && name[name.size() - 2] == '.') {
    dimension = name.back() - 'x';
    name.remove_suffix(2);
  }
  const auto* const found = std::ranges::find_if(specials, [&](const auto& one) { return has(one.names, name); });
  if (found == std::end(specials)) return std::nullopt;
  return std::pair(static_cast<u64>(found - specials), dimension);
}
Handler special_handler(unsigned bytes) {
  return bytes == 2 ? move_special<u16> : bytes == 4 ? move_special<u32> : move_special<u64>;
}

Handler move_handler(unsigned bytes) {
  using F = decltype([](auto a) { return a; });
  if (bytes == 16) return each<F, u128, u128>;
  return with_bytes(bytes, []<class T>(T) -> Handler { return each<F, T, T>; });
}
Handler pack_handler(bool packs, unsigned whole, unsigned part) {
  const auto pick = [&]<class W, class P>(W, P) -> Handler { return packs ? pack<W, P> : unpack<W, P>; };
  if (whole == 4) return part == 2 ? pick(u32{}, u16{}) : nullptr;
  if (whole == 8) return part == 4 ? pick(u64{}, u32{}) : part == 2 ? pick(u64{}, u16{}) : nullptr;
  if (whole == 16) return part == 8 ? pick(u128{}, u64{}) : part == 4 ? pick(u128{}, u32{}) : nullptr;
  return nullptr;
}

void no_effect(Warp&, const Instruction&, u32) {}
void yield(Warp&, const Instruction&, u32) { std::this_thread::yield(); }
void trap(Warp& w, const Instruction& i, u32 mask) { fail(Fault::trap, w, std::countr_zero(mask), i, "trap"); }

}  // namespace emulated_gpu::ptx
