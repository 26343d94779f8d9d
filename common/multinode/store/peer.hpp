// peer.hpp: whom an operation waits for, if not for one rank.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace multinode {

// Values of a peer that is not a rank.
enum NotOneRank : int {
  everyone = -1,  // in a collective
  nobody = -2,    // a wait for something other than a rank, such as a disk
};

}  // namespace multinode
