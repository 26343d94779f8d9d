#include "module.hpp"

#include <cxxabi.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <cstring>

namespace emulated_gpu::ptx {

namespace {

struct NamedType {
  std::string_view name;
  Type type;
  unsigned size;
};
constexpr NamedType types[] = {{"pred", Type::pred, 1},     {"u8", Type::u8, 1},      {"u16", Type::u16, 2},
                               {"u32", Type::u32, 4},       {"u64", Type::u64, 8},    {"s8", Type::s8, 1},
                               {"s16", Type::s16, 2},       {"s32", Type::s32, 4},    {"s64", Type::s64, 8},
                               {"b8", Type::u8, 1},         {"b16", Type::u16, 2},    {"b32", Type::u32, 4},
                               {"b64", Type::u64, 8},       {"f16", Type::f16, 2},    {"bf16", Type::bf16, 2},
                               {"f32", Type::f32, 4},       {"f64", Type::f64, 8},    {"f16x2", Type::f16x2, 4},
                               {"bf16x2", Type::bf16x2, 4}, {"b128", Type::b128, 16}, {"", Type::none, 8}};

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '%'; }

// Tokens: words with dots and "::" inside ("ld.global.u32", ".param", "%tid.x"), strings, single characters.
class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) { next(); }
  std::string_view peek() const { return token_; }
  std::string_view take() {
    const std::string_view token = token_;
    next();
    return token;
  }
  bool accept(std::string_view token) {
    if (token_ != token) return false;
    next();
    return true;
  }
  void expect(std::string_view token) {
    if (!accept(token))
      throw Refusal("cannot parse the PTX: '" + std::string(token) + "' expected before '" +
                    std::string(text_.substr(start_, 40)) + "'");
  }
  bool done() const { return token_.empty(); }
  std::size_t position() const { return start_; }  // of the current token
  std::string_view text() const { return text_; }
  void skip_to(std::size_t position) {
    at_ = position;
    next();
  }
  void skip_line() { skip_to(std::min(text_.find('\n', start_), text_.size())); }
  void skip_statement() {
    while (!done() && !accept(";")) next();
  }
  // Goes to the next "{". Returns the text up to what follows the matching "}".
  std::string_view skip_braces() {
    while (!done() && peek() != "{") next();
    const std::size_t begin = start_;
    std::size_t at = start_;
    for (int depth = 0; at < text_.size(); ++at) {
      if (text_[at] == '"') at = std::min(text_.find('"', at + 1), text_.size());
      else if (text_[at] == '{') ++depth;
      else if (text_[at] == '}' && --depth == 0) break;
    }
    skip_to(std::min(at + 1, text_.size()));
    return text_.substr(begin, start_ - begin);
  }

 private:
  bool at(std::size_t position, char c) const { return position < text_.size() && text_[position] == c; }
  bool word_at(std::size_t position) const { return position < text_.size() && is_word(text_[position]); }
  void next() {
    for (;;) {
      while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
      if (at(at_, '/') && at(at_ + 1, '/')) at_ = std::min(text_.find('\n', at_), text_.size());
      else if (at(at_, '/') && at(at_ + 1, '*')) at_ = std::min(text_.find("*/", at_ + 2), text_.size() - 2) + 2;
      else break;
    }
    start_ = at_;
    if (at_ < text_.size()) {
      const bool string = text_[at_] == '"', word = word_at(at_) || (text_[at_] == '.' && word_at(at_ + 1));
      ++at_;
      if (string) at_ = std::min(text_.find('"', at_), text_.size() - 1) + 1;
      while (word) {
        if (word_at(at_)) ++at_;
        else if (at(at_, '.') && word_at(at_ + 1)) ++at_;
        else if (at(at_, ':') && at(at_ + 1, ':') && word_at(at_ + 2)) at_ += 2;
        else break;
      }
      if (text_.substr(start_, 5) == ".reg.") at_ = start_ + 4;  // written without a space before the type
    }
    token_ = text_.substr(start_, at_ - start_);
  }
  std::string_view text_, token_;
  std::size_t at_ = 0, start_ = 0;
};

bool starts_number(std::string_view token) {
  return !token.empty() && (std::isdigit(static_cast<unsigned char>(token[0])) || token == "-");
}

struct Number {
  std::uint64_t bits;
  Type type;  // f32 or f64 of a floating-point constant, else none
};
Number number(Lexer& in) {
  const bool minus = in.accept("-");
  std::string_view text = in.take();
  const char kind = text.size() > 2 && text[0] == '0' ? static_cast<char>(std::tolower(text[1])) : ' ';
  if (kind == 'f' || kind == 'd') {
    std::uint64_t bits = 0;
    std::from_chars(text.data() + 2, text.data() + text.size(), bits, 16);
    if (minus) bits ^= kind == 'f' ? std::uint64_t{1} << 31 : std::uint64_t{1} << 63;
    return {bits, kind == 'f' ? Type::f32 : Type::f64};
  }
  if (text.find('.') != std::string_view::npos) {
    const double value = std::strtod(std::string(text).c_str(), nullptr);
    return {std::bit_cast<std::uint64_t>(minus ? -value : value), Type::f64};
  }
  while (!text.empty() && (text.back() == 'U' || text.back() == 'u')) text.remove_suffix(1);
  int base = 10;
  if (kind == 'x' || kind == 'b') {
    base = kind == 'x' ? 16 : 2;
    text.remove_prefix(2);
  } else if (text.size() > 1 && text[0] == '0') {
    base = 8;
  }
  std::uint64_t value = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), value, base).ptr != text.data() + text.size())
    throw Refusal("cannot parse the PTX: '" + std::string(text) + "' is not a number");
  return {minus ? 0 - value : value, Type::none};
}

std::size_t align_up(std::size_t size, std::size_t align) { return (size + align - 1) / align * align; }

void append(Variable& variable, std::uint64_t bits, std::size_t bytes) {
  const std::size_t at = variable.init.size();
  variable.init.resize(at + bytes);
  std::memcpy(variable.init.data() + at, &bits, bytes);
}

// One initial value, or a list of them.
void read_initial(Lexer& in, Variable& variable, Type type) {
  const std::size_t bytes = size_of(type);
  if (in.accept("{")) {
    while (!in.accept("}")) {
      read_initial(in, variable, type);
      in.accept(",");
    }
    return;
  }
  int byte = -1;
  if (starts_number(in.peek())) {
    const Number value = number(in);
    if (!in.accept("(")) {
      std::uint64_t bits = value.bits;
      if (type == Type::f32 && value.type == Type::f64)
        bits = std::bit_cast<std::uint32_t>(static_cast<float>(std::bit_cast<double>(bits)));
      append(variable, bits, bytes);
      return;
    }
    byte = std::countr_zero(value.bits) / 8;  // 0xFF00(symbol): one byte of an address
  }
  const bool generic = in.accept("generic");
  if (generic) in.expect("(");
  Variable::Reference reference{variable.init.size(), std::string(in.take()), 0, byte};
  if (generic) in.expect(")");
  if (in.accept("+")) reference.offset = static_cast<std::int64_t>(number(in).bits);
  if (byte >= 0) in.expect(")");
  variable.references.push_back(std::move(reference));
  append(variable, 0, bytes);
}

bool space_of(std::string_view token, Space& space) {
  static const std::map<std::string_view, Space> spaces{{".global", Space::global},
                                                        {".const", Space::constant},
                                                        {".shared", Space::shared},
                                                        {".local", Space::local},
                                                        {".param", Space::param}};
  const auto found = spaces.find(token);
  if (found != spaces.end()) space = found->second;
  return found != spaces.end();
}

// A variable, from behind its space on: ".align 4 .b8 name[16] = {1, 2}".
Variable declare(Lexer& in, Space space) {
  Variable variable;
  variable.space = space;
  Type type = Type::u8;
  std::size_t lanes = 1;
  while (!in.peek().empty() && in.peek()[0] == '.') {
    const std::string_view token = in.take();
    if (token == ".align") {
      variable.align = number(in).bits;
    } else if (token == ".attribute") {
      while (!in.done() && !in.accept(")")) in.take();
    } else if (token == ".v2" || token == ".v4") {
      lanes = token == ".v2" ? 2 : 4;
    } else if (const Type known = type_of(token.substr(1)); known != Type::none) {
      type = known;
    }
  }
  variable.name = in.take();
  variable.size = size_of(type) * lanes;
  variable.align = std::max<std::size_t>(variable.align, size_of(type));
  bool open = false;
  while (in.accept("[")) {
    open = in.peek() == "]";
    if (!open) variable.size *= number(in).bits;
    in.expect("]");
  }
  if (in.accept("=")) read_initial(in, variable, type);
  if (open) variable.size = variable.init.size();
  return variable;
}

// The name at a label of .debug_str, without arguments and templates' arguments.
std::string function_name(std::string_view names, std::string_view label) {
  const std::size_t at = label.empty() ? std::string_view::npos : names.find(std::string(label) + ":");
  if (at == std::string_view::npos) return "";
  Lexer in(names.substr(at + label.size() + 1));
  std::string mangled, name;
  while (!in.done()) {
    if (in.accept(".b8") || in.accept(",")) continue;
    const auto byte = static_cast<char>(number(in).bits);
    if (!byte) break;
    mangled += byte;
  }
  int depth = 0;
  for (const char c : demangled(mangled)) {
    if (c == '(' && depth == 0) break;
    depth -= c == '>';
    if (depth == 0 && c == ' ') name.clear();  // the result's type
    else if (depth == 0 && c != '<' && c != '>') name += c;
    depth += c == '<';
  }
  if (name.starts_with("_INTERNAL_")) name.erase(0, name.find("::") + 2);  // of this file only
  return name;
}
// The folder that holds a library's headers, or the file's own folder.
std::string_view root_of(std::string_view file) {
  const std::size_t include = file.rfind("/include/");
  return file.substr(0, include == std::string_view::npos ? file.rfind('/') + 1 : include);
}

// The names of a body: "{" opens a scope.
struct Name {
  int slot = -1;
  const Variable* variable = nullptr;
};
struct Bundle {  // .reg .b32 %r<100>
  std::string_view prefix;
  Type type;
};
struct Scope {
  std::unordered_map<std::string_view, Name> names;
  std::vector<Bundle> bundles;
  int number;
};

class BodyParser {
 public:
  BodyParser(Module& module, Function& function) : module_(module), f_(function), in_(function.body) {}
  void parse();

 private:
  void open_scope() {
    f_.parent_scope.push_back(scopes_.empty() ? -1 : scopes_.back().number);
    scopes_.push_back({{}, {}, static_cast<int>(f_.parent_scope.size()) - 1});
  }
  int new_slot(Type type) {
    f_.slots.push_back(type);
    return static_cast<int>(f_.slots.size()) - 1;
  }
  void put_in_frame(Variable& variable) {
    f_.frame = align_up(f_.frame, std::max<std::size_t>(variable.align, 8));
    variable.offset = f_.frame;
    f_.frame += variable.size;
  }
  void declare_name(const Variable& variable) { scopes_.back().names[variable.name].variable = &variable; }
  Name find(std::string_view name);
  Operand operand();
  void registers();
  void variables(Space space);
  void statement(std::string_view first, std::size_t begin);
  void locate();

  Module& module_;
  Function& f_;
  Lexer in_;
  std::vector<Scope> scopes_;
  const Location* location_ = nullptr;
  std::map<std::array<int, 3>, const Location*> latest_;  // by file, line and column
};

Name BodyParser::find(std::string_view name) {
  for (std::size_t n = scopes_.size(); n-- > 0;) {
    Scope& scope = scopes_[n];
    if (const auto found = scope.names.find(name); found != scope.names.end()) return found->second;
    for (const Bundle& bundle : scope.bundles)
      if (name.size() > bundle.prefix.size() && name.substr(0, bundle.prefix.size()) == bundle.prefix &&
          name.find_first_not_of("0123456789", bundle.prefix.size()) == std::string_view::npos)
        return scope.names[name] = {new_slot(bundle.type), nullptr};
  }
  return {-1, module_.variable(name)};
}

Operand BodyParser::operand() {
  Operand o;
  if (in_.accept("!")) {
    o = operand();
    o.negated = true;
    return o;
  }
  if (in_.peek() == "{" || in_.peek() == "(") {
    in_.take();
    o.kind = Operand::vector;
    while (!in_.accept("}") && !in_.accept(")"))
      if (!in_.accept(",")) o.parts.push_back(operand());
    return o;
  }
  if (in_.accept("[")) {
    o = operand();
    in_.expect("]");
    if (o.kind == Operand::constant) o.offset = static_cast<std::int64_t>(o.bits);
    if (o.kind != Operand::reg && o.kind != Operand::symbol && o.kind != Operand::constant)
      throw Refusal("unknown name '" + std::string(o.text) + "'");
    o.kind = Operand::memory;
    return o;
  }
  if (starts_number(in_.peek())) {
    const Number value = number(in_);
    o.kind = Operand::constant;
    o.bits = value.bits;
    o.type = value.type;
    return o;
  }
  o.text = in_.take();
  if (o.text == "_") {
    o.kind = Operand::sink;
    if (in_.accept("|")) o.second = find(in_.take()).slot;
    return o;
  }
  const Name name = find(o.text);
  o.slot = name.slot;
  o.variable = name.variable;
  o.kind = name.slot >= 0 ? Operand::reg : name.variable ? Operand::symbol : Operand::name;
  if (o.kind == Operand::reg) {
    o.type = f_.slots[static_cast<std::size_t>(o.slot)];
    if (in_.accept("|")) o.second = find(in_.take()).slot;
  }
  if (in_.accept("+")) o.offset = static_cast<std::int64_t>(number(in_).bits);
  return o;
}

void BodyParser::registers() {
  Type type = Type::none;
  while (in_.peek().size() > 1 && in_.peek()[0] == '.') type = type_of(in_.take().substr(1));
  do {
    const std::string_view name = in_.take();
    if (in_.accept("<")) {
      number(in_);
      in_.expect(">");
      scopes_.back().bundles.push_back({name, type});
    } else {
      scopes_.back().names[name] = {new_slot(type), nullptr};
    }
  } while (in_.accept(","));
  in_.expect(";");
}

void BodyParser::variables(Space space) {
  do {
    Variable read = declare(in_, space);
    if (space == Space::global || space == Space::constant) {  // static in a function
      const std::string name = f_.name + "::" + read.name;
      declare_name(module_.variables().insert_or_assign(name, std::move(read)).first->second);
      continue;
    }
    Variable& variable = f_.variables.emplace_back(std::move(read));
    if (space != Space::shared) put_in_frame(variable);
    declare_name(variable);
  } while (in_.accept(","));
  in_.expect(";");
}

void BodyParser::statement(std::string_view token, std::size_t begin) {
  Statement s;
  s.scope = scopes_.back().number;
  s.location = location_;
  if (token == "@") {
    s.guard_negated = in_.accept("!");
    s.guard = find(in_.take()).slot;
    token = in_.take();
  }
  for (std::size_t from = 0, dot = 0; dot != std::string_view::npos; from = dot + 1) {
    dot = token.find('.', from);
    s.op.push_back(token.substr(from, dot - from));
  }
  try {
    while (in_.peek() != ";" && !in_.done())
      if (!in_.accept(",")) s.operands.push_back(operand());
  } catch (const Refusal&) {  // as the decoder will say
    s.operands.clear();
    s.understood = false;
    while (in_.peek() != ";" && !in_.done()) in_.take();
  }
  if (in_.done()) throw Refusal("cannot parse the PTX: " + f_.name + " has no end");
  s.text = f_.body.substr(begin, in_.position() - begin + 1);
  in_.take();
  f_.statements.push_back(std::move(s));
}

// FILE LINE COLUMN[, function_name LABEL, inlined_at FILE LINE COLUMN]
void BodyParser::locate() {
  const auto place = [&] {
    std::array<int, 3> numbers;
    for (int& one : numbers) one = static_cast<int>(number(in_).bits);
    return numbers;
  };
  const std::array<int, 3> here = place();
  Location& location = f_.locations.emplace_back(Location{here[0], here[1], here[2], {}, nullptr});
  if (location.line == 0 && location_) location.line = location_->line;
  if (in_.accept(",")) {
    in_.expect("function_name");
    location.function = in_.take();
    while (!in_.done() && !in_.accept("inlined_at")) in_.take();
    const std::array<int, 3> caller = place();
    const Location*& known = latest_[caller];
    if (!known) known = &f_.locations.emplace_back(Location{caller[0], caller[1], caller[2], {}, nullptr});
    location.caller = known;
  }
  location_ = latest_[here] = &location;
}

void BodyParser::parse() {
  open_scope();
  for (Variable* param : f_.params) {
    if (!f_.entry) put_in_frame(*param);
    declare_name(*param);
  }
  for (Variable* result : f_.results) {
    put_in_frame(*result);
    declare_name(*result);
  }
  in_.expect("{");
  for (int depth = 1; depth > 0;) {
    if (in_.done()) throw Refusal("cannot parse the PTX: " + f_.name + " has no end");
    const std::size_t begin = in_.position();
    const std::string_view token = in_.take();
    Space space{};
    if (token == "{") {
      ++depth;
      open_scope();
    } else if (token == "}") {
      --depth;
      scopes_.pop_back();
    } else if (token == ";") {
    } else if (token == ".loc") {
      locate();
    } else if (token == ".pragma") {
      in_.skip_statement();
    } else if (token == ".reg") {
      registers();
    } else if (space_of(token, space)) {
      variables(space);
    } else if (in_.accept(":")) {
      if (in_.peek() == ".callprototype" || in_.peek() == ".calltargets") {
        in_.skip_statement();
      } else if (in_.accept(".branchtargets")) {
        while (!in_.accept(";"))
          if (!in_.accept(",")) f_.branch_targets[token].push_back(in_.take());
      } else {
        f_.labels[{scopes_.back().number, token}] = f_.statements.size();
      }
    } else {
      statement(token, begin);
    }
  }
  f_.parsed = true;
}

}  // namespace

Type type_of(std::string_view name) {
  const auto* const found = std::ranges::find(types, name, &NamedType::name);
  return found == std::end(types) ? Type::none : found->type;
}
unsigned size_of(Type type) { return std::ranges::find(types, type, &NamedType::type)->size; }

std::string demangled(const std::string& name) {
  int status = 0;
  char* const text = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  std::string result = status == 0 ? text : name;
  std::free(text);
  return result;
}

std::string Module::place(const Location* location) const {
  const auto file = [&](const Location* l) {
    const auto found = files_.find(l->file);
    return found == files_.end() ? std::string() : found->second;
  };
  const auto text = [&](const Location* l) { return file(l) + ":" + std::to_string(l->line); };
  if (!location || location->line == 0 || file(location).empty()) return "";
  std::string result = text(location);
  // Calls inside a library are left out.
  const Location* called = location;
  for (const Location* l = location->caller; l; called = l, l = l->caller) {
    if (l->caller && root_of(file(l)) == root_of(file(location))) continue;
    const std::string name = function_name(names_, called->function);
    result += name.empty() ? ", called at " + text(l) : " in " + name + ", called at " + text(l);
  }
  return result;
}

Module::Module(std::string all) : text_(std::move(all)) {
  const std::string_view text = text_;
  Lexer in(text);
  bool external = false;
  while (!in.done()) {
    const std::string_view token = in.take();
    Space space{};
    if (token == ".file") {
      const int file = static_cast<int>(number(in).bits);
      std::string_view name = in.take();
      name.remove_prefix(1);
      name.remove_suffix(1);
      files_[file] = name;
      in.accept(",");
      while (starts_number(in.peek())) {  // time and size
        number(in);
        in.accept(",");
      }
    } else if (token == ".loc" || token == ".version" || token == ".target" || token == ".address_size") {
      in.skip_line();
    } else if (token == ".section") {
      const bool of_names = in.peek() == ".debug_str";
      if (const std::string_view contents = in.skip_braces(); of_names) names_ = contents;
    } else if (token == ".extern") {
      external = true;
    } else if (token == ".pragma") {
      in.skip_statement();
    } else if (token == ".visible" || token == ".weak" || token == ".common" || token == ";") {
    } else if (token == ".entry" || token == ".func") {
      Function function;
      function.entry = token == ".entry";
      const auto read_list = [&](std::vector<Variable*>& list) {
        while (!in.done() && !in.accept(")")) {
          if (in.accept(",")) continue;
          in.take();  // .param or .reg
          list.push_back(&function.variables.emplace_back(declare(in, Space::param)));
        }
      };
      if (in.accept("(")) read_list(function.results);
      function.name = in.take();
      if (in.accept("(")) read_list(function.params);
      for (Variable* param : function.params) {
        function.param_bytes = align_up(function.param_bytes, param->align);
        param->of_kernel = function.entry;
        if (function.entry) param->offset = function.param_bytes;
        function.param_bytes += param->size;
      }
      while (in.peek() != "{" && in.peek() != ";") {
        if (in.done()) throw Refusal("cannot parse the PTX: " + function.name + " has no end");
        const std::string_view directive = in.take();
        if (directive != ".maxntid" && directive != ".reqntid") continue;
        function.max_threads = static_cast<unsigned>(number(in).bits);
        while (in.accept(",")) function.max_threads *= static_cast<unsigned>(number(in).bits);
      }
      if (!in.accept(";")) function.body = in.skip_braces();
      Function& known = functions_[function.name];
      if (known.body.empty()) known = std::move(function);
      external = false;
    } else if (space_of(token, space)) {
      do {
        Variable variable = declare(in, space);
        variable.external = external;
        const auto [known, fresh] = variables_.try_emplace(variable.name);
        if (fresh || known->second.external) known->second = std::move(variable);
      } while (in.accept(","));
      in.expect(";");
      external = false;
    } else {
      throw Refusal("cannot parse the PTX: unknown directive '" + std::string(token) + "'");
    }
  }
}

Variable* Module::variable(std::string_view name) {
  const auto found = variables_.find(std::string(name));
  return found == variables_.end() ? nullptr : &found->second;
}

Function* Module::function(std::string_view name) {
  const auto found = functions_.find(std::string(name));
  if (found == functions_.end() || found->second.body.empty()) return nullptr;
  if (!found->second.parsed) parse_body(found->second);
  return &found->second;
}

void Module::parse_body(Function& function) { BodyParser(*this, function).parse(); }

}  // namespace emulated_gpu::ptx
