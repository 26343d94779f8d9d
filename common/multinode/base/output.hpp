// output.hpp: the end of a program that prints: was all of it written?
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace multinode {

// Flushes standard output and returns the exit status `status`. If that is exit_right and some output is lost, such as
// on a full disk, prints a line on stderr and returns exit_wrong. A reader that has closed its pipe is no error.
int flush_output(const std::string& program, int status);

}  // namespace multinode
