// unpack.hpp: a sysfs tree as text, made into a folder.
//
//   include NAME                           the lines of another tree
//   gpu PLACE NUMA_NODE                    a GPU; PLACE is its path below /sys/devices, of the addresses above it
//   card PLACE NUMA_NODE DEVICE LINK_LAYER NET_DEVICE SLOTS RATE
//                                          an RDMA card with one active port, an empty GID table and an interface
//   addresses DEVICE NET_DEVICE INDEX ADDRESS...
//                                          in its GID table from INDEX on: each address twice, RoCE v1 and v2
//   G PATH INDEX ADDRESS TYPE NET_DEVICE   a slot of the table of the port at PATH; TYPE is v1, v2 or ib, or ! for an
//                                          error
//   Z PATH COUNT                           COUNT empty slots of it
//   D PATH                                 a folder
//   F MODE PATH = CONTENTS                 a file; \n, \t, \\ and \xNN in its contents
//   L PATH -> TARGET                       a symbolic link
//   E MODE PATH ! ERROR                    a file that cannot be read: here a link to a folder, which stops root too
//   X PATH                                 nothing: removes what is there
//   # COMMENT
//
// Folders above a path are made as needed. A line replaces what those before it have made.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>

namespace rdma {

using Address = std::array<std::uint8_t, 16>;
std::string sysfs_gid(const Address& address);  // all eight groups of four digits

// Adds what the lines say to the tree in `folder`, which exists. NAME is one of trees/NAME.txt, or one from a real
// soft-RoCE device: "s1-plain" to "s8-netns-shared". Throws std::runtime_error for a line that is none of the above.
void unpack(const std::string& lines, const std::filesystem::path& folder);

}  // namespace rdma
