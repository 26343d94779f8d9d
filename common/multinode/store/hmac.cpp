// SPDX-License-Identifier: Apache-2.0
#include <multinode/base/check.hpp>
#include <multinode/store/hmac.hpp>

#include <sys/random.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstdint>

namespace multinode {

namespace {

constexpr std::size_t block_bytes = 64;

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
constexpr std::array<std::uint32_t, 64> constants{
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

using State = std::array<std::uint32_t, 8>;

void add_block(State& state, std::string_view block) {
  std::array<std::uint32_t, 64> w{};
  for (std::size_t i = 0; i < block_bytes; ++i) w[i / 4] = w[i / 4] << 8 | static_cast<unsigned char>(block[i]);
  for (std::size_t i = 16; i < 64; ++i)
    w[i] = w[i - 16] + (std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ w[i - 15] >> 3) + w[i - 7] +
           (std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ w[i - 2] >> 10);
  auto [a, b, c, d, e, f, g, h] = state;
  for (std::size_t i = 0; i < 64; ++i) {
    const std::uint32_t first =
        h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) + ((e & f) ^ (~e & g)) + constants[i] + w[i];
    const std::uint32_t second =
        (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + first, d = c, c = b, b = a, a = first + second;
  }
  const State change{a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < state.size(); ++i) state[i] += change[i];
}

}  // namespace

std::string sha256(std::string_view message) {
  State state{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::string rest(message.substr(message.size() / block_bytes * block_bytes));
  rest += '\x80';
  rest.append((2 * block_bytes - 8 - rest.size()) % block_bytes, '\0');
  for (int shift = 56; shift >= 0; shift -= 8) rest += static_cast<char>(std::uint64_t{message.size()} * 8 >> shift);
  for (; message.size() >= block_bytes; message.remove_prefix(block_bytes))
    add_block(state, message.substr(0, block_bytes));
  for (std::size_t at = 0; at < rest.size(); at += block_bytes)
    add_block(state, std::string_view(rest).substr(at, block_bytes));
  std::string hash;
  for (const std::uint32_t word : state)
    for (int shift = 24; shift >= 0; shift -= 8) hash += static_cast<char>(word >> shift);
  return hash;
}

std::string hmac_sha256(std::string_view key, std::string_view message) {
  std::string padded = key.size() > block_bytes ? sha256(key) : std::string(key);
  padded.resize(block_bytes, '\0');
  std::string inner = padded, outer = padded;
  for (char& byte : inner) byte ^= 0x36;
  for (char& byte : outer) byte ^= 0x5c;
  return sha256(outer + sha256(inner.append(message)));
}

std::string to_hex(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes)
    for (const int shift : {4, 0}) text += "0123456789abcdef"[static_cast<unsigned char>(byte) >> shift & 15];
  return text;
}

bool equal_in_constant_time(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

std::string random_bytes(std::size_t count) {
  std::string bytes(count, '\0');
  for (std::size_t came = 0; came < count;) {
    const ssize_t got = ::getrandom(bytes.data() + came, count - came, 0);
    if (got < 0 && errno != EINTR) check_errno(-1, "getrandom");
    if (got > 0) came += static_cast<std::size_t>(got);
  }
  return bytes;
}

}  // namespace multinode
