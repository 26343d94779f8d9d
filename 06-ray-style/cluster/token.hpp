// token.hpp: the secret that every call to a cluster carries.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include <grpcpp/client_context.h>
#include <grpcpp/server_context.h>

namespace cluster {

// 256 random bits, as 64 hexadecimal digits. Throws std::system_error.
std::string make_token();

// Writes the token to a new file of mode 0600, which takes the place of an older one. Throws UsageError, naming the
// file.
void write_token(const std::filesystem::path& file, std::string_view token);

// Throws UsageError, naming the file, where it is missing, belongs to another user, is open to others (mode & 077), or
// holds no token.
std::string read_token(const std::filesystem::path& file);

void add_token(grpc::ClientContext& call, const std::string& token);

// Takes as long wherever the tokens differ.
bool same_token(std::string_view given, std::string_view token);

// Whether the call carries the token.
bool has_token(const grpc::ServerContextBase& call, std::string_view token);

}  // namespace cluster
