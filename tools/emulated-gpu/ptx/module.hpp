// module.hpp: PTX text as variables and functions. A function's body is parsed when it is first needed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace emulated_gpu::ptx {

// .b8 to .b64 count as unsigned.
enum class Type { none, pred, u8, u16, u32, u64, s8, s16, s32, s64, f16, bf16, f16x2, bf16x2, f32, f64, b128 };
Type type_of(std::string_view name);  // "u32"; none if it is no type
unsigned size_of(Type type);
inline bool is_fp(Type t) { return t >= Type::f16 && t <= Type::f64; }
[[gnu::visibility("default")]] std::string demangled(const std::string& name);

enum class Space : std::uint8_t { generic, global, constant, shared, local, param };

// The program cannot be used: the text says why.
struct [[gnu::visibility("default")]] Refusal : std::runtime_error {
  using runtime_error::runtime_error;
};

struct Variable {
  std::string name;
  Space space = Space::global;
  std::size_t size = 0, align = 1;
  bool external = false, of_kernel = false;  // of_kernel: a kernel's parameter
  std::vector<std::uint8_t> init;
  struct Reference {  // an address in the initial value
    std::size_t at;
    std::string symbol;
    std::int64_t offset;
    int byte;  // only this byte of it; -1: all
  };
  std::vector<Reference> references;
  std::uintptr_t memory = 0;  // global, constant
  std::size_t offset = 0;     // shared, local, param: in their segment
};

struct Operand {
  enum Kind : std::uint8_t { none, reg, constant, symbol, memory, vector, name, sink } kind = none;
  bool negated = false;
  int slot = -1, second = -1;  // registers; second: of "%r1|%p1"
  Type type = Type::none;      // of a register or of a floating-point constant
  std::uint64_t bits = 0;      // of a constant
  const Variable* variable = nullptr;
  std::string_view text;  // of a name: a label, a function or a special register
  std::int64_t offset = 0;
  std::vector<Operand> parts;
};

struct Location {  // in the source, from .loc
  int file = 0, line = 0, column = 0;
  std::string_view function;         // if it was inlined, the label of its name in .debug_str
  const Location* caller = nullptr;  // where it was inlined
};

struct Statement {
  std::vector<std::string_view> op;  // "ld", "global", "u32"
  std::string_view text;
  std::vector<Operand> operands;
  int guard = -1;  // slot of the predicate
  bool guard_negated = false;
  int scope = 0;
  bool understood = true;  // else it has no operands here
  const Location* location = nullptr;

  bool is(std::string_view part) const { return std::find(op.begin(), op.end(), part) != op.end(); }
};

struct Function {
  std::string name;
  bool entry = false, parsed = false;
  std::string_view body;
  std::vector<Variable*> params, results;
  std::size_t param_bytes = 0;
  unsigned max_threads = 0;
  std::deque<Variable> variables;
  std::vector<Type> slots;  // the types of the registers
  std::vector<Statement> statements;
  std::deque<Location> locations;
  std::map<std::pair<int, std::string_view>, std::size_t> labels;            // scope, name: statement
  std::map<std::string_view, std::vector<std::string_view>> branch_targets;  // .branchtargets
  std::vector<int> parent_scope;
  std::size_t frame = 0;  // bytes of .local and .param variables of one thread
};

class Module {
 public:
  explicit Module(std::string all);
  Function* function(std::string_view name);  // parsed; null if it has no body
  Variable* variable(std::string_view name);
  std::unordered_map<std::string, Variable>& variables() { return variables_; }
  // "FILE:LINE", and for an inlined function its name and where the program calls it; "" if that is not known.
  std::string place(const Location* location) const;
  bool declares(std::string_view function) const { return functions_.count(std::string(function)) > 0; }

 private:
  void parse_body(Function& function);
  std::string text_;
  std::unordered_map<std::string, Function> functions_;
  std::unordered_map<std::string, Variable> variables_;
  std::map<int, std::string> files_;
  std::string_view names_;  // .debug_str
};

}  // namespace emulated_gpu::ptx
