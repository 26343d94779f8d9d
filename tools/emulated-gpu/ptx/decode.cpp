// Decodes a kernel and the functions that it calls.
#include <algorithm>
#include <tuple>

#include "interpreter.hpp"

namespace emulated_gpu::ptx {
namespace {

constexpr std::string_view rounding = " rn rz rm rp ftz sat ",
                           spaces = " global shared shared::cta local param param::entry param::func const ",
                           memory_order = " volatile relaxed acquire release acq_rel weak mmio cta cluster gpu sys ";
// The instructions and their modifiers, in addition to types. What is not here is refused.
struct Known {
  std::string_view instructions;
  std::array<std::string_view, 3> modifiers;
};
constexpr Known known[] = {
    {" add sub addc subc ", {rounding, " cc "}},
    {" mul mad madc ", {rounding, " lo hi wide cc "}},
    {" fma ", {rounding, " relu "}},
    {" div rcp sqrt ", {rounding, " approx full "}},
    {" rsqrt sin cos lg2 ex2 tanh ", {" approx ftz "}},
    {" neg abs min max ", {" ftz NaN "}},
    {" sad dp4a copysign rem and or xor not popc clz brev bfe bfi shl shr lop3 prmt selp mov ", {}},
    {" bfind ", {" shiftamt "}},
    {" bmsk ", {" wrap clamp "}},
    {" dp2a ", {" lo hi "}},
    {" vabsdiff4 ", {" add "}},
    {" shf ", {" l r wrap clamp "}},
    {" setp set ", {" eq ne lt le gt ge lo ls hi hs equ neu ltu leu gtu geu num nan and or xor ftz "}},
    {" cvt ", {rounding, " rni rzi rmi rpi satfinite "}},
    {" cvta isspacep ", {spaces, " to "}},
    {" ld st ", {spaces, memory_order, " nc ca cg cs lu cv wb wt v2 v4 unified "}},
    {" atom red ", {spaces, memory_order, " add min max and or xor exch cas inc dec noftz "}},
    {" bra brx call ret exit trap nanosleep activemask ", {" uni idx "}},
    {" bar barrier ", {" cta warp sync arrive red popc and or aligned "}},
    {" shfl vote match redux ", {" sync up down bfly idx all any uni ballot add min max and or xor "}},
    {" membar fence ", {memory_order, " gl sc proxy alias async "}},
    {" prefetch prefetchu ", {" global local L1 L2 "}},
    {" griddepcontrol ", {" launch_dependents wait "}}};
bool knows(const Statement& s) {
  const auto* const found =
      std::ranges::find_if(known, [&](const auto& one) { return has(one.instructions, s.op[0]); });
  if (found == std::end(known)) return false;
  return std::all_of(s.op.begin() + 1, s.op.end(), [&](std::string_view modifier) {
    const bool of_caches = modifier.starts_with("L1::") || modifier.starts_with("L2::");
    return of_caches || type_of(modifier) != Type::none ||
           std::ranges::any_of(found->modifiers, [&](std::string_view list) { return has(list, modifier); });
  });
}

constexpr const char* not_known = "this instruction is not emulated";
// What programs call the instructions that are not emulated.
constexpr std::pair<std::string_view, std::string_view> families[] = {
    {" tex tld4 txq ", "textures are"},
    {" suld sust ", "surfaces are"},
    {" mma wmma wgmma ldmatrix stmatrix ", "products of matrices (nvcuda::wmma) are"},
    {" cp ", "asynchronous copies to shared memory (cuda::memcpy_async) are"},
    {" mbarrier ", "cuda::barrier in shared memory is"},
    {" cluster mapa ", "clusters of blocks are"}};

unsigned register_bytes(Type t) { return t == Type::pred ? 0 : std::max(2u, size_of(t)); }
bool is_shared(const Statement& s) { return s.is("shared") || s.is("shared::cta"); }

class Decoder {
 public:
  Decoder(Kernel& kernel, Program::Parts& program) : k_(kernel), program_(program) {}

  void decode(const Function& entry) {
    find_functions(entry);
    place_shared();
    for (std::size_t n = 0; n < k_.functions.size(); ++n) decode_function(n);
    for (Instruction& i : k_.code)
      if (i.flow == Flow::call) i.target = k_.functions[static_cast<std::size_t>(i.extra->function)].entry;
  }

 private:
  void add_function(std::string_view name) {
    const Function* f = k_.number_of.count(name) ? nullptr : program_.module.function(name);
    if (!f) return;
    k_.number_of[f->name] = static_cast<int>(k_.functions.size());
    k_.functions.push_back({f, 0, 0, 0});
  }
  void find_functions(const Function& entry) {
    add_function(entry.name);
    bool indirect = false;
    for (std::size_t n = 0; n < k_.functions.size(); ++n) {
      for (const Statement& s : k_.functions[n].function->statements)
        for (const Operand& o : s.operands) {
          const bool function =
              o.kind == Operand::name && (s.op[0] == "call" || s.op[0] == "mov") && program_.module.declares(o.text);
          if (function) add_function(o.text);
          if (function && s.op[0] == "mov") program_.address_of(o.text);
          indirect |= s.op[0] == "call" && o.kind == Operand::reg;
        }
      if (indirect && n + 1 == k_.functions.size())
        for (const std::string& name : program_.addressed) add_function(name);
    }
  }
  // Static shared variables of all functions, then the dynamic ones.
  void place_shared() {
    std::vector<const Variable*> dynamic;
    const auto place = [&](const Variable& v) {
      if (v.space != Space::shared || shared_.count(&v)) return;
      shared_[&v] = 0;
      if (v.external || v.size == 0) {
        dynamic.push_back(&v);
        return;
      }
      const auto aligned = [&](std::size_t size) { return (size + v.align - 1) / v.align * v.align; };
      k_.attributes.shared = aligned(k_.attributes.shared) + v.size;
      shared_[&v] = aligned(k_.shared);
      if (program_.gap) k_.shared_variables[shared_[&v]] = &v;
      k_.shared = shared_[&v] + v.size + program_.gap;
    };
    for (const Code& code : k_.functions) {
      for (const Variable& v : code.function->variables) place(v);
      for (const Statement& s : code.function->statements)
        for (const Operand& o : s.operands)
          if (o.variable) place(*o.variable);
    }
    for (const Variable* v : dynamic) shared_[v] = (k_.shared + 15) / 16 * 16;
  }

  void decode_function(std::size_t number);
  void statement(const Statement& s);
  void memory_statement(const Statement& s, Type type);
  void barrier_statement(const Statement& s);
  void call_statement(const Statement& s);
  void mov_statement(const Statement& s, Type type);
  void between_lanes(const Statement& s, Type type);
  void arithmetic(const Statement& s, Type type);

  [[noreturn]] static void unsupported() { throw Refusal(not_known); }
  Row constant(u64 bits, unsigned bytes);
  Row temporary(unsigned bytes) {
    const Row row{-1, static_cast<std::intptr_t>(temporaries_)};
    temporaries_ += std::size_t{warp_size} * bytes;
    most_temporaries_ = std::max(most_temporaries_, temporaries_);
    return row;
  }
  Row slot(int number) const { return {-1, static_cast<std::intptr_t>(slots_[static_cast<std::size_t>(number)])}; }
  Row in(const Statement& s, const Operand& o, Type type, unsigned bytes = 0);
  Row out(const Operand& o) {
    if (o.kind == Operand::sink) return temporary(16);
    if (o.kind != Operand::reg) unsupported();
    return slot(o.slot);
  }
  Row second(const Operand& o) const { return o.second >= 0 ? slot(o.second) : Row{}; }
  Row predicate_in(const Operand& o) {
    if (o.kind == Operand::constant) return constant(o.bits ? ~u64{0} : 0, 8);
    if (o.kind != Operand::reg) unsupported();
    return slot(o.slot);
  }
  static unsigned bytes_of(const Operand& o, Type type) {
    return register_bytes(o.kind == Operand::reg ? o.type : type);
  }
  void address(const Statement& s, const Operand& o, Instruction& i);
  Instruction& emit(const Statement& s) {
    Instruction& i = k_.code.emplace_back();
    i.source = &s;
    i.acquire = s.is("acquire") || s.is("acq_rel");
    i.release = s.is("release") || s.is("acq_rel");
    i.weak = !i.acquire && !i.release && !s.is("volatile") && !s.is("relaxed") && !s.is("mmio");
    return i;
  }
  // An instruction from these sources to the first operand.
  Instruction& put(const Statement& s, const std::array<Row, 4>& sources) {
    Instruction& i = emit(s);
    i.d = out(s.operands.at(0));
    i.d2 = second(s.operands[0]);
    i.s = sources;
    return i;
  }
  static void set(Instruction& i, Handler handler) {
    if (!handler) unsupported();
    i.run = handler;
  }
  Extra& extra(Instruction& i) { return *(i.extra = &k_.extras.emplace_back()); }

  Kernel& k_;
  Program::Parts& program_;
  std::map<const Variable*, std::size_t> shared_;
  std::map<std::pair<u64, unsigned>, Row> constants_;
  std::vector<std::size_t> slots_;  // where the function's registers are
  std::size_t number_ = 0, temporaries_ = 0, most_temporaries_ = 0;
};

Row Decoder::constant(u64 bits, unsigned bytes) {
  if (bytes > 8) unsupported();
  bytes = std::max(2u, bytes);
  const u64 kept = bytes == 8 ? bits : bits & ((u64{1} << 8 * bytes) - 1);
  const auto [place, fresh] = constants_.try_emplace({kept, bytes}, Row{});
  if (fresh) {
    u8* const row = k_.constants.emplace_back().bytes;
    for (unsigned l = 0; l < warp_size; ++l) std::memcpy(row + l * bytes, &kept, bytes);
    place->second = {0, reinterpret_cast<std::intptr_t>(row)};
  }
  return place->second;
}

// A source of this type, in registers of so many bytes.
Row Decoder::in(const Statement& s, const Operand& o, Type type, unsigned bytes) {
  if (!bytes) bytes = register_bytes(type);
  if (o.negated && type != Type::pred) unsupported();
  switch (o.kind) {
    case Operand::reg:
      if (register_bytes(o.type) != bytes || o.offset != 0) unsupported();
      return slot(o.slot);
    case Operand::constant: {
      u64 bits = o.bits;
      if (type == Type::f32 && o.type == Type::f64)
        bits = std::bit_cast<u32>(static_cast<float>(std::bit_cast<double>(bits)));
      if (type == Type::f64 && o.type == Type::f32)
        bits = std::bit_cast<u64>(static_cast<double>(std::bit_cast<float>(static_cast<u32>(bits))));
      return constant(bits, bytes);
    }
    case Operand::symbol: {
      const Variable& v = *o.variable;
      if (v.space == Space::shared) return constant(shared_.at(&v) + static_cast<u64>(o.offset), bytes);
      if (v.space == Space::global || v.space == Space::constant) {
        if (!v.memory) throw Refusal("nothing defines " + v.name);
        return constant(v.memory + static_cast<u64>(o.offset), bytes);
      }
      Instruction& i = emit(s);
      i.d = temporary(8);
      i.offset = static_cast<s64>(v.offset) + o.offset;
      i.run = v.of_kernel ? parameter_address : frame_address;
      return i.d;
    }
    case Operand::name: {
      if (o.text == "WARP_SZ") return constant(warp_size, bytes);
      if (const auto special = special_register(o.text)) {
        if (o.text.starts_with("%reserved")) k_.uses_reserved = true;
        Instruction& i = emit(s);
        i.d = temporary(bytes);
        std::tie(i.immediate, i.offset) = *special;
        i.run = special_handler(bytes);
        return i.d;
      }
      if (k_.number_of.count(o.text)) return constant(program_.address_of(o.text), bytes);
      throw Refusal("'" + std::string(o.text) + "' is unknown");
    }
    default: unsupported();
  }
}

void Decoder::address(const Statement& s, const Operand& o, Instruction& i) {
  if (o.kind != Operand::memory) unsupported();
  i.offset = o.offset;
  i.cache = k_.caches++;
  if (const Variable* v = o.variable) {
    if (v->space == Space::local || v->space == Space::param) {
      i.mode = v->of_kernel ? Mode::parameter : Mode::frame;
      i.offset += static_cast<s64>(v->offset);
    } else if (v->space == Space::shared) {
      i.mode = Mode::shared64;
      i.s[0] = constant(shared_.at(v), 8);
    } else {
      if (!v->memory) throw Refusal("nothing defines " + v->name);
      i.s[0] = constant(v->memory, 8);
      i.flow = Flow::global;
    }
    return;
  }
  const bool shared = is_shared(s), narrow = o.slot >= 0 && size_of(o.type) == 4;
  if (o.slot >= 0 && size_of(o.type) < 4) unsupported();
  i.s[0] = o.slot >= 0 ? slot(o.slot) : constant(0, 8);
  i.flow = shared || s.is("local") ? Flow::next : Flow::global;
  i.mode = shared ? (narrow ? Mode::shared32 : Mode::shared64) : s.is("local") ? Mode::local : Mode::generic;
  if (narrow && !shared) unsupported();
}

void Decoder::memory_statement(const Statement& s, Type type) {
  const auto& o = s.operands;
  const bool load = s.op[0] == "ld", is_store = s.op[0] == "st";
  if (load || is_store) {
    const Operand& value = o.at(load ? 0 : 1);
    unsigned bytes = register_bytes(type);
    std::vector<Row> rows;
    if (value.kind == Operand::vector) {
      for (const Operand& part : value.parts)
        if (part.kind == Operand::reg) bytes = bytes_of(part, type);
      for (const Operand& part : value.parts) rows.push_back(load ? out(part) : in(s, part, type, bytes));
      if (rows.size() * size_of(type) > 16 || (rows.size() & (rows.size() - 1))) unsupported();
    } else {
      bytes = bytes_of(value, type);
      rows.push_back(load ? out(value) : in(s, value, type, bytes));
    }
    Instruction& i = emit(s);
    address(s, o.at(load ? 1 : 0), i);
    extra(i).rows = rows;
    set(i, memory_handler(s, type, bytes));
    return;
  }
  const std::size_t at = s.op[0] == "atom" ? 1 : 0;
  if (s.is("cas") && type == Type::b128) unsupported();
  const Row b = in(s, o.at(at + 1), type), c = s.is("cas") ? in(s, o.at(at + 2), type) : Row{};
  Instruction& i = emit(s);
  address(s, o.at(at), i);
  if (at) i.d = out(o[0]);
  i.s[1] = b;
  i.s[2] = c;
  set(i, memory_handler(s, type, register_bytes(type)));
}

void Decoder::barrier_statement(const Statement& s) {
  const auto& o = s.operands;
  if (s.is("warp")) {
    const Row members = in(s, o.at(0), Type::u32);
    Instruction& i = emit(s);
    i.flow = Flow::warp_sync;
    i.s[3] = members;
    i.run = no_effect;
    return;
  }
  const bool red = s.is("red");
  std::size_t n = red ? 1 : 0;
  const Row id = in(s, o.at(n++), Type::u32);
  Row count, source;
  bool negated = false;
  if (o.size() > n + (red ? 1 : 0)) count = in(s, o[n++], Type::u32);
  if (red) {
    source = predicate_in(o.at(n));
    negated = o[n].negated;
  }
  Instruction& i = emit(s);
  i.flow = Flow::barrier;
  i.s = {id, count, source, {}};
  i.offset = negated;
  i.immediate = s.is("arrive") ? 1 : !red ? 0 : s.is("popc") ? 2 : s.is("and") ? 3 : 4;
  i.aligned = s.op[0] == "bar" || s.is("aligned");
  if (red) i.d = out(o[0]);
}

void Decoder::call_statement(const Statement& s) {
  const auto& o = s.operands;
  std::vector<Argument> results, arguments;
  const auto read = [](const Operand& list, std::vector<Argument>& to) {
    for (const Operand& part : list.parts) {
      if (part.kind != Operand::symbol) unsupported();
      to.push_back({part.variable->offset, part.variable->size});
    }
  };
  std::size_t n = 0;
  if (o.at(0).kind == Operand::vector) read(o[n++], results);
  const Operand& callee = o.at(n++);
  if (n < o.size() && o[n].kind == Operand::vector) read(o[n], arguments);
  Instruction& i = emit(s);
  Extra& e = extra(i);
  e.results = results;
  e.arguments = arguments;
  i.immediate = number_;
  if (callee.kind == Operand::reg) {
    i.flow = Flow::call_indirect;
    i.s[0] = slot(callee.slot);
  } else if (const auto found = k_.number_of.find(callee.text); found != k_.number_of.end()) {
    i.flow = Flow::call;
    e.function = found->second;
  } else if (is_device_function(callee.text)) {
    e.callee = callee.text;
    i.run = device_function;
  } else {
    throw Refusal(std::string(callee.text) + " in a kernel is not emulated");
  }
}

void Decoder::mov_statement(const Statement& s, Type type) {
  const auto& o = s.operands;
  const unsigned bytes = register_bytes(type);
  const bool packs = o.at(1).kind == Operand::vector, unpacks = o[0].kind == Operand::vector;
  if (packs || unpacks) {
    const auto& parts = o[packs ? 1 : 0].parts;
    const unsigned part = bytes / static_cast<unsigned>(parts.size());
    std::vector<Row> rows;
    for (const Operand& one : parts)
      rows.push_back(packs ? in(s, one, Type::none, part) : one.kind == Operand::sink ? Row{} : out(one));
    const Row whole = packs ? out(o[0]) : in(s, o[1], type);
    Instruction& i = emit(s);
    (packs ? i.d : i.s[0]) = whole;
    extra(i).rows = rows;
    set(i, pack_handler(packs, bytes, part));
    return;
  }
  set(put(s, {in(s, o[1], type)}), move_handler(bytes));
}

void Decoder::between_lanes(const Statement& s, Type type) {
  const auto& o = s.operands;
  const std::string_view op = s.op[0];
  std::array<Row, 4> sources{};
  const std::size_t values = op == "shfl" ? 3 : op == "activemask" ? 0 : 1;
  for (std::size_t n = 1; n <= values; ++n)
    sources[n - 1] = op == "vote" ? predicate_in(o.at(n)) : in(s, o.at(n), op == "match" ? type : Type::u32);
  if (op != "activemask") sources[3] = in(s, o.at(values + 1), Type::u32);  // none before .sync
  Instruction& i = put(s, sources);
  if (op != "activemask") i.flow = Flow::warp_sync;
  set(i, warp_handler(s, type, i));
}

// Instructions whose sources follow their destination.
void Decoder::arithmetic(const Statement& s, Type type) {
  const auto& o = s.operands;
  const std::string_view op = s.op[0];
  const bool fp = is_fp(type);
  if (type == Type::pred) {  // and, or, xor, not, mov
    const bool one_source = op == "not" || op == "mov";
    const Row a = predicate_in(o.at(1)), b = one_source ? a : predicate_in(o.at(2));
    Instruction& i = put(s, {a, b});
    i.immediate = (o[1].negated ? 1u : 0u) | (!one_source && o[2].negated ? 2u : 0u);
    // The results for the four pairs of bits, as lop3 has them
    i.offset = op == "and" ? 8 : op == "or" ? 14 : op == "xor" ? 6 : op == "not" ? 3 : op == "mov" ? 12 : 0;
    if (!i.offset) unsupported();
    i.run = [](Warp& w, const Instruction& one, u32 mask) {
      const u32 x = predicate(w, one.s[0], one.immediate & 1), y = predicate(w, one.s[1], one.immediate & 2);
      const auto part = [&](s64 bit, u32 pairs) { return one.offset & bit ? pairs : 0; };
      set_predicate(w, one.d, mask, part(1, ~x & ~y) | part(2, ~x & y) | part(4, x & ~y) | part(8, x & y));
    };
    return;
  }
  const std::size_t count = has(" not neg abs popc clz brev bfind sqrt rcp rsqrt sin cos lg2 ex2 tanh ", op) ? 1
                            : has(" fma mad madc sad dp4a dp2a vabsdiff4 bfe shf lop3 prmt ", op)            ? 3
                            : op == "bfi"                                                                    ? 4
                                                                                                             : 2;
  std::array<Row, 4> sources{};
  for (std::size_t n = 0; n < count; ++n) {
    Type source_type = type;
    if ((op == "shl" || op == "shr") && n == 1) source_type = Type::u32;
    if ((op == "bfe" && n > 0) || (op == "bfi" && n > 1)) source_type = Type::u32;
    const bool wide = s.is("wide") && n == 2;
    sources[n] = in(s, o.at(n + 1), source_type, wide ? 2 * size_of(type) : 0);
  }
  Instruction& i = put(s, sources);
  if (op == "lop3") {
    if (o.size() != 5 || o[4].kind != Operand::constant) unsupported();  // lop3.BoolOp
    i.immediate = o[4].bits;
  }
  set(i, fp ? float_handler(s, type) : integer_handler(s, type, i));
}

void Decoder::statement(const Statement& s) {
  const std::string_view op = s.op[0];
  for (const auto& [name, what] : families)
    if (has(name, op == "barrier" && s.is("cluster") ? "cluster" : op))
      throw Refusal(std::string(what) + " not emulated");
  if (!s.understood || !knows(s)) unsupported();
  const auto& o = s.operands;
  Type type = Type::none;
  for (std::size_t n = s.op.size(); n-- > 1 && type == Type::none;) type = type_of(s.op[n]);

  if (op == "mov" && type != Type::pred) return mov_statement(s, type);
  if (op == "ld" || op == "st" || op == "atom" || op == "red") return memory_statement(s, type);
  if (op == "bar" || op == "barrier") return barrier_statement(s);
  if (op == "call") return call_statement(s);
  if (op == "shfl" || op == "vote" || op == "match" || op == "redux" || op == "activemask")
    return between_lanes(s, type);
  if (op == "bra" || op == "ret" || op == "exit") {
    Instruction& i = emit(s);
    i.flow = op == "bra" ? Flow::branch : op == "ret" ? Flow::ret : Flow::exit;
    i.immediate = number_;
    return;
  }
  if (op == "brx") {
    const Row index = in(s, o.at(0), Type::u32);
    Instruction& i = emit(s);
    i.flow = Flow::branch_indexed;
    i.s[0] = index;
    extra(i);
    return;
  }
  if (op == "setp" || op == "set") {
    const Row a = in(s, o.at(1), type), b = in(s, o.at(2), type), c = o.size() > 3 ? predicate_in(o[3]) : Row{};
    Instruction& i = put(s, {a, b, c});
    if (c) i.immediate = (s.is("and") ? 1u : s.is("or") ? 2u : s.is("xor") ? 3u : 0u) | (o[3].negated ? 4u : 0u);
    if (op == "set") {
      const Type result = type_of(s.op[s.op.size() - 2]);
      i.target = size_of(result);
      if (i.target != 4 && i.target != 2) unsupported();
      const bool half = result == Type::f16 || result == Type::f16x2,
                 bfloat = result == Type::bf16 || result == Type::bf16x2;
      i.offset = result == Type::f32 ? 0x3f800000 : half ? 0x3c00 : bfloat ? 0x3f80 : -1;
    }
    set(i, comparison_handler(s, type));
    return;
  }
  if (op == "selp") {
    Instruction& i = put(s, {in(s, o.at(1), type), in(s, o.at(2), type), predicate_in(o.at(3))});
    i.immediate = o[3].negated;
    const auto choose = []<class T>(T) -> Handler {
      return [](Warp& w, const Instruction& instruction, u32 mask) {
        T* const d = w.row<T>(instruction.d);
        const T *x = w.row<T>(instruction.s[0]), *y = w.row<T>(instruction.s[1]);
        const u32 p = predicate(w, instruction.s[2], instruction.immediate);
        for_lanes(mask, [&](int l) { d[l] = p >> l & 1 ? x[l] : y[l]; });
      };
    };
    set(i, size_of(type) == 2 ? choose(u16{}) : size_of(type) == 4 ? choose(u32{}) : choose(u64{}));
    return;
  }
  if (op == "cvta") {
    if (is_shared(s) && size_of(type) != 8) unsupported();
    Instruction& i = put(s, {in(s, o.at(1), type)});
    i.immediate = s.is("to");
    return set(i, is_shared(s) ? cvta_of_shared : move_handler(size_of(type)));
  }
  if (op == "isspacep") {
    Instruction& i = put(s, {in(s, o.at(1), Type::u64)});
    if (!is_shared(s) && !s.is("local") && !s.is("global")) unsupported();
    i.immediate = static_cast<u64>(is_shared(s) ? Space::shared : s.is("local") ? Space::local : Space::global);
    i.run = isspacep;
    return;
  }
  if (op == "cvt") {
    const Type to = type_of(s.op[s.op.size() - 2]), from = type_of(s.op.back());
    const unsigned bytes = bytes_of(o.at(1), from);
    const Row a = in(s, o[1], from, bytes), b = o.size() > 2 ? in(s, o[2], from) : Row{};
    Instruction& i = put(s, {a, b});
    const bool pair = (to == Type::f16x2 || to == Type::bf16x2) && from == Type::f32;
    if (o.size() != (pair ? 3 : 2)) unsupported();
    set(i, conversion_handler(s, to, from, bytes_of(o[0], to), bytes, i));
    return;
  }
  if (op == "membar" || op == "fence") emit(s).run = fence;
  else if (op == "nanosleep") emit(s).run = yield;
  else if (op == "trap") emit(s).run = trap;
  else if (has(" prefetch prefetchu griddepcontrol ", op)) emit(s).run = no_effect;  // hints
  else arithmetic(s, type);
}

void Decoder::decode_function(std::size_t number) {
  const Function& f = *k_.functions[number].function;
  number_ = number;
  const auto label = [&](int scope, std::string_view name) -> std::size_t {
    for (; scope >= 0; scope = f.parent_scope[static_cast<std::size_t>(scope)])
      if (const auto found = f.labels.find({scope, name}); found != f.labels.end()) return found->second;
    throw Refusal("the PTX of " + f.name + " has no label " + std::string(name));
  };
  const auto targets = [&](const Statement& s) {
    std::vector<std::size_t> found;
    if (!s.understood) return found;
    if (s.op[0] == "bra") found.push_back(label(s.scope, s.operands.at(0).text));
    if (s.op[0] == "brx")
      for (const std::string_view name : f.branch_targets.at(s.operands.at(1).text))
        found.push_back(label(s.scope, name));
    return found;
  };
  slots_.clear();
  std::size_t begin_of_temporaries = 64;  // offset 0 means none
  for (const Type type : f.slots) {
    slots_.push_back(begin_of_temporaries);
    begin_of_temporaries += type == Type::pred ? 64 : std::size_t{warp_size} * register_bytes(type);
  }
  most_temporaries_ = begin_of_temporaries;

  const std::size_t entry = k_.code.size();
  std::vector<u32> starts;  // of the statements' instructions
  for (const Statement& s : f.statements) {
    const std::size_t before = k_.code.size();
    starts.push_back(static_cast<u32>(before));
    temporaries_ = begin_of_temporaries;
    const auto refuse = [&](const std::string& why) {
      k_.code.resize(before);
      Instruction& i = emit(s);
      i.run = not_emulated;
      extra(i).callee = why;
    };
    try {
      statement(s);
    } catch (const Refusal& refusal) {
      refuse(refusal.what());
    } catch (const std::out_of_range&) {
      refuse(not_known);
    }
    if (s.guard >= 0)
      for (std::size_t n = before; n < k_.code.size(); ++n) {
        k_.code[n].guard = static_cast<u32>(slot(s.guard).value);
        k_.code[n].guard_negated = s.guard_negated;
      }
  }
  starts.push_back(static_cast<u32>(k_.code.size()));
  Instruction& last = k_.code.emplace_back();
  last.flow = Flow::ret;
  last.immediate = number;
  for (std::size_t n = entry; n < k_.code.size(); ++n) {
    Instruction& i = k_.code[n];
    if (i.flow == Flow::branch) i.target = starts[targets(*i.source)[0]];
    if (i.flow == Flow::branch_indexed)
      for (const std::size_t target : targets(*i.source)) i.extra->targets.push_back(starts[target]);
  }
  k_.functions[number] = {&f, static_cast<u32>(entry), (most_temporaries_ + 63) / 64 * 64, f.frame};
}

}  // namespace

std::unique_ptr<Kernel> decode(Program::Parts& program, const Function& function) {
  auto kernel = std::make_unique<Kernel>();
  kernel->program = &program;
  kernel->function = &function;
  Decoder(*kernel, program).decode(function);
  Attributes& a = kernel->attributes;
  a.title = demangled(function.name);
  a.local = kernel->functions[0].frame;
  a.registers = kernel->functions[0].registers / (warp_size * 4);
  if (function.max_threads) a.max_threads = function.max_threads;
  a.complete = std::ranges::none_of(kernel->code, [](const Instruction& i) { return i.run == not_emulated; });
  a.parameter_bytes = function.param_bytes;
  for (const Variable* param : function.params) a.parameters.push_back({param->offset, param->size});
  return kernel;
}

const Attributes& attributes(const Kernel& kernel) { return kernel.attributes; }

u64 Program::Parts::address_of(std::string_view function) {
  const auto found = std::find(addressed.begin(), addressed.end(), function);
  const u64 index = static_cast<u64>(found - addressed.begin());
  if (found == addressed.end()) addressed.emplace_back(function);
  return function_addresses + 16 * index;
}
const std::string* Program::Parts::function_at(u64 address) const {
  const u64 index = (address - function_addresses) / 16;
  return address % 16 == 0 && index < addressed.size() ? &addressed[index] : nullptr;
}

Program::Program(std::string text, const std::function<Place(std::size_t)>& allocate, bool check)
    : parts_(std::make_unique<Parts>(std::move(text), check ? 256 : 0)) {
  Module& module = parts_->module;
  std::vector<std::pair<const Variable*, u8*>> variables;
  for (auto& [name, v] : module.variables()) {
    if ((v.space != Space::global && v.space != Space::constant) || v.external) continue;
    const Place place = allocate(v.size);
    v.memory = place.address;
    variables.push_back({&v, static_cast<u8*>(place.view)});
  }
  for (const auto& [v, view] : variables) {
    std::memset(view, 0, v->size);
    std::copy_n(v->init.begin(), std::min(v->init.size(), v->size), view);
    for (const Variable::Reference& r : v->references) {
      const Variable* other = module.variable(r.symbol);
      const u64 address = static_cast<u64>(r.offset) + (other ? other->memory : parts_->address_of(r.symbol));
      if (r.byte >= 0) view[r.at] = static_cast<u8>(address >> 8 * r.byte);
      else std::memcpy(view + r.at, &address, 8);
    }
  }
}
Program::~Program() = default;

const Kernel* Program::kernel(const std::string& name) {
  const std::lock_guard lock(parts_->mutex);
  std::unique_ptr<Kernel>& place = parts_->kernels[name];
  if (!place)
    if (const Function* function = parts_->module.function(name); function && function->entry)
      place = decode(*parts_, *function);
  return place.get();
}
Range Program::variable(const std::string& name) {
  const std::lock_guard lock(parts_->mutex);
  const Variable* v = parts_->module.variable(name);
  return v && v->memory ? Range{v->memory, v->memory + v->size} : Range{};
}

}  // namespace emulated_gpu::ptx
