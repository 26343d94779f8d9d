// Arbitrary bytes for the parsers on both sides of the TcpStore: they may throw only Violation, what they parse must
// encode to the same bytes, and memory must not grow beyond the bytes received.
#include <multinode/store_protocol.hpp>

#include <cstdint>
#include <cstdlib>

using namespace multinode::protocol;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::size_t step = 1 + data[0];  // the stream arrives in pieces of this size
  std::string_view left(reinterpret_cast<const char*>(data) + 1, size - 1);
  FrameReader reader;
  std::size_t came = 0;
  try {
    while (!left.empty()) {
      const auto piece = left.substr(0, step);
      left.remove_prefix(piece.size());
      reader.append(piece);
      came += piece.size();
      while (const auto frame = reader.next()) {
        try {
          const auto answer = parse_answer(*frame);
          if (encode(answer.status, answer.body).substr(4) != *frame) std::abort();
        } catch (const Violation&) {
        }
        const auto request = parse_request(*frame);
        if (encode(request).substr(4) != *frame) std::abort();
      }
      if (reader.capacity() > 2 * came + 64) std::abort();
    }
  } catch (const Violation&) {
  }
  return 0;
}
