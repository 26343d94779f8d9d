// message_queue_access.hpp: the interface "MPI message queue access" between a debugger and the library of an MPI, with
// the layout that the headers of Open MPI and MPICH have.
#pragma once

#include <cstddef>

namespace who_waits {

using Address = unsigned long;
using Word = long;
struct TypeSizes {  // Open MPI's has two more, which its library fills in
  int of_short = sizeof(short), of_int = sizeof(int), of_long = sizeof(long), of_long_long = sizeof(long long),
      of_pointer = sizeof(void*);
};
struct Communicator {
  Address id;
  Word rank, size;
  char name[64];
};
struct Operation {
  int status;  // 0: pending
  Word rank, world_rank;
  int any_tag;
  Word tag, length;
  int system_buffer;
  Address buffer;
  Word actual_rank, actual_world_rank, actual_tag, actual_length;
  char texts[5][64];
};
constexpr int good = 0, bad = 100, version = 2;
struct Target;  // the library gets it as an image and as a process
struct Type;
struct BasicCallbacks {
  void* (*allocate)(std::size_t);
  void (*free)(void*);
  void (*print)(const char*);
  const char* (*error)(int);
  void (*put_image)(Target*, void*);
  void* (*image)(Target*);
  void (*put_process)(Target*, void*);
  void* (*process)(Target*);
};
struct ImageCallbacks {
  void (*sizes)(Target*, TypeSizes*);
  int (*function)(Target*, char*, int, Address*);
  int (*symbol)(Target*, char*, Address*);
  Type* (*type)(Target*, char*, int);
  int (*offset)(Type*, char*);
  int (*size)(Type*);
};
struct ProcessCallbacks {
  int (*rank)(Target*);
  Target* (*image)(Target*);
  int (*fetch)(Target*, Address, int, void*);
  void (*to_host)(Target*, const void*, void*, int);
};

}  // namespace who_waits
