// secret.hpp: the user's secret, from which runs whose processes get no token from their launcher derive one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <multinode/launch/launch.hpp>

#include <string>

namespace multinode {

// Either is empty.
struct Secret {
  std::string bytes;
  std::string lacking;  // why there is none
};

// The text of MULTINODE_SECRET, else the contents of the file, which is made if it does not exist: for the user only
// (mode 0600), complete as soon as it is visible, and once even if the processes of all nodes make it at the same time.
// There is no secret if MULTINODE_SECRET is "none", or if the default file cannot be made. Throws UsageError for a
// secret that is too short, for a file that another user owns or may read or write, and if a file that the user named
// cannot be used.
Secret read_secret(const SecretSource& source);

// Why an open file is not one that only this user can read and write; "" if it is.
std::string why_not_private(int fd);

// The token of the run `name`: without a secret, the name itself, which others can guess.
std::string token_for(const Secret& secret, const std::string& name);

// One line for the user: what a stranger can do, and how to get a secret.
std::string warning_without_secret(const Secret& secret);

}  // namespace multinode
