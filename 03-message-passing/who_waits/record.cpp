#include "record.hpp"

#include <algorithm>

namespace who_waits {

namespace {
constexpr struct {
  const char* name;
  Role role;
} calls[] = {{"nothing", Role::other},
#define X(name, role) {#name, Role::role},
#define Y(name, role) {#name, Role::role},
#include "calls.inc"
#undef X
#undef Y
             {"an unknown call", Role::other}};
}  // namespace

const char* name_of(Kind kind) { return calls[static_cast<std::size_t>(std::min(kind, Kind::count))].name; }
Role role_of(Kind kind) { return calls[static_cast<std::size_t>(std::min(kind, Kind::count))].role; }

}  // namespace who_waits
