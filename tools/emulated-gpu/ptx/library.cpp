// Functions of the device library that nvcc's code calls, and messages about faults.
#include <cstdio>

#include "interpreter.hpp"

namespace emulated_gpu::ptx {
namespace {

// The text of a printf. The arguments lie one after the other, each aligned to its size.
std::string formatted(const DeviceMemory& device, const char* format, const u8* arguments) {
  std::string out;
  const u8* at = arguments;
  const auto take = [&]<class T>(T value) {
    at += (sizeof(T) - static_cast<std::size_t>(at - arguments) % sizeof(T)) % sizeof(T);
    std::memcpy(&value, at, sizeof value);
    at += sizeof value;
    return value;
  };
  const auto put = [&](const std::string& conversion, auto value) {
    const int size = std::snprintf(nullptr, 0, conversion.c_str(), value);
    std::string text(static_cast<std::size_t>(std::max(size, 0)) + 1, '\0');
    std::snprintf(text.data(), text.size(), conversion.c_str(), value);
    out.append(text, 0, text.size() - 1);
  };
  for (const char* c = format; *c; ++c) {
    if (*c != '%') {
      out += *c;
      continue;
    }
    std::string conversion = "%";
    bool wide = false;
    for (++c; *c && !std::strchr("diouxXcsfFeEgGaAp%", *c); ++c) {
      if (*c == '*') conversion += std::to_string(take(s32{}));
      else if (std::strchr("lzjt", *c)) wide = true;
      else if (*c != 'h') conversion += *c;
    }
    if (!*c) break;
    if (*c == '%') out += '%';
    else if (*c == 's') put(conversion + 's', reinterpret_cast<const char*>(device.view(take(u64{}))));
    else if (*c == 'p') put(conversion + 'p', reinterpret_cast<const void*>(take(u64{})));
    else if (std::strchr("fFeEgGaA", *c)) put(conversion + *c, take(double{}));
    else if (wide) put(conversion + "ll" + *c, static_cast<long long>(take(s64{})));
    else put(conversion + *c, take(s32{}));
  }
  return out;
}

}  // namespace

std::string text_of(const Context& context, const Instruction& i) {
  std::string text;
  if (!i.source) return "the end of the kernel";
  for (const char c : i.source->text) {
    const bool space = std::isspace(static_cast<unsigned char>(c));
    if (!space || (!text.empty() && text.back() != ' ')) text += space ? ' ' : c;
  }
  if (!text.empty() && text.back() == ';') text.pop_back();
  const std::string place = context.kernel->program->module.place(i.source->location);
  return place.empty() ? text : text + " (" + place + ")";
}
std::string triple(u32 x, u32 y, u32 z) {
  return "(" + std::to_string(x) + "," + std::to_string(y) + "," + std::to_string(z) + ")";
}
std::string triple(u32 number, const unsigned (&size)[3]) {
  return triple(number % size[0], number / size[0] % size[1], number / size[0] / size[1]);
}
std::string thread_text(const Warp& w, int lane) {
  return "thread " + triple(w.thread[0][lane], w.thread[1][lane], w.thread[2][lane]);
}
std::string place_of(const Warp& w, int lane) {
  const Context& c = *w.context;
  return "kernel " + c.kernel->attributes.title + ", block " + triple(c.block[0], c.block[1], c.block[2]) + ", " +
         thread_text(w, lane);
}
void not_emulated(Warp& w, const Instruction& i, u32 mask) {
  fail(Fault::not_emulated, w, std::countr_zero(mask), i, i.extra->callee);
}
void fail(Fault::Kind kind, const Warp& w, int lane, const Instruction& i, const std::string& what) {
  throw Fault{kind, place_of(w, lane) + ": " + what + ": " + text_of(*w.context, i)};
}

bool is_device_function(std::string_view name) { return name == "vprintf" || name == "__assertfail"; }

void device_function(Warp& w, const Instruction& i, u32 mask) {
  const Extra& call = *i.extra;
  for (const int l : Lanes{mask}) {
    const auto argument = [&](std::size_t n) {
      u64 value = 0;
      std::memcpy(&value, reinterpret_cast<const u8*>(w.local[l] + call.arguments.at(n).offset),
                  std::min<std::size_t>(8, call.arguments[n].size));
      return value;
    };
    const DeviceMemory& device = w.context->surroundings->device_memory;
    const auto text = [&](std::size_t n) { return reinterpret_cast<const char*>(device.view(argument(n))); };
    if (call.callee == "vprintf") {
      w.context->output += formatted(device, text(0), reinterpret_cast<const u8*>(device.view(argument(1))));
      if (!call.results.empty()) std::memset(reinterpret_cast<u8*>(w.local[l] + call.results[0].offset), 0, 4);
    } else {
      throw Fault{Fault::assertion, place_of(w, l) + ": " + text(1) + ":" +
                                        std::to_string(static_cast<u32>(argument(2))) + ": " + text(3) +
                                        ": Assertion `" + text(0) + "` failed."};
    }
  }
}

}  // namespace emulated_gpu::ptx
