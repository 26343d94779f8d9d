// hmac.hpp: SHA-256 (FIPS 180-4) and HMAC-SHA-256 (RFC 2104), with which a store and its clients prove to each other
// that they know the secret of a run.
//
// Our own 60 lines, tested with the vectors of FIPS 180-4 and RFC 4231, not OpenSSL or libsodium: every program of the
// package would need the library at run time, in every image of a cluster, for one function. AF_ALG, the kernel's, is
// missing in many containers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace multinode {

// 32 bytes.
std::string sha256(std::string_view message);
std::string hmac_sha256(std::string_view key, std::string_view message);

std::string to_hex(std::string_view bytes);

// Takes the same time wherever the two differ.
bool equal_in_constant_time(std::string_view a, std::string_view b);

// From the kernel's random generator.
std::string random_bytes(std::size_t count);

}  // namespace multinode
