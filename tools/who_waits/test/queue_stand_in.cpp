// A stand-in for an MPI, for queues_test.cpp: not MPI. As a program, LIBRARY FAULT, it is a rank that has messages in
// its queues; as a library (LIBRARY is defined), what an MPI has for debuggers: see message_queue_access.hpp.
// FAULT is `none`, `circle` (the list of messages has no end), `crash` (it has a bad pointer) or `user` (the rank has
// become the user `nobody`).
#include "../message_queue_access.hpp"

#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>

struct Message {
  int queue, peer, tag, bytes;
  Message* next;
};
struct Mpi {
  char name[64];
  struct {  // without a name, as MPIs have them
    long unused;
    Message* first;
  };
};

#ifdef LIBRARY
using namespace who_waits;
const BasicCallbacks* basic;
const ImageCallbacks* image;
const ProcessCallbacks* process;
int next_offset, first_offset, wanted;
Address all, at;

template <class T>
T fetch(Target* target, Address from) {
  T value{};
  process->fetch(target, from, sizeof value, &value);
  return value;
}
extern "C" {
int mqs_version_compatibility() { return version; }
void mqs_setup_basic_callbacks(const BasicCallbacks* callbacks) { basic = callbacks; }
int mqs_setup_image(Target*, const ImageCallbacks* callbacks) { return image = callbacks, good; }
int mqs_image_has_queues(Target* target, char**) {
  char function[] = "stand_in_types", mpi[] = "Mpi", message[] = "Message", first[] = "first", next[] = "next";
  image->function(target, function, 'c', nullptr);
  Type *const list = image->type(target, mpi, 'c'), *const item = image->type(target, message, 'c');
  if (!list || !item || image->size(item) != sizeof(Message)) return bad;
  first_offset = image->offset(list, first), next_offset = image->offset(item, next);
  return first_offset < 0 || next_offset < 0 ? bad : good;
}
int mqs_setup_process(Target*, const ProcessCallbacks* callbacks) { return process = callbacks, good; }
int mqs_process_has_queues(Target* target, char**) {
  char name[] = "stand_in_mpi";
  return image->symbol(target, name, &all);
}
int mqs_update_communicator_list(Target*) { return good; }
int mqs_setup_communicator_iterator(Target*) { return good; }
int mqs_next_communicator(Target*) { return bad; }
int mqs_get_communicator(Target* target, Communicator* found) {
  *found = {.id = 1, .rank = 0, .size = 2, .name = {}};
  const int result = process->fetch(target, all, sizeof found->name, found->name);
  if (!found->name[0]) std::snprintf(found->name, sizeof found->name, "as user %u", ::geteuid());
  return result;
}
int mqs_setup_operation_iterator(Target* target, int queue) {
  wanted = queue, at = fetch<Address>(target, all + static_cast<Address>(first_offset));
  return good;
}
int mqs_next_operation(Target* target, Operation* found) {
  while (at) {
    const auto one = fetch<Message>(target, at);
    if (one.queue < 0) return std::raise(SIGSEGV);  // as a library that trusts a list
    at = fetch<Address>(target, at + static_cast<Address>(next_offset));
    if (one.queue != wanted) continue;
    found->status = 2, found->rank = one.peer, found->tag = one.tag, found->any_tag = 0;
    std::strcpy(found->texts[0], "Receive: 0x10");  // as Open MPI, where a call waits for it, or it is over
    std::strcpy(found->texts[1], one.bytes ? "Data: 4 instances" : "Data transfer completed");
    return good;
  }
  return bad;
}
}
#else
extern "C" {
char MPIR_dll_name[4096];
Message messages[] = {
    {1, 1, 7, 4, messages + 1}, {2, 1, 6, 4, messages + 2}, {0, 1, 5, 99, messages + 3}, {0, 1, 4, 0, nullptr}};
Mpi stand_in_mpi{"MPI_COMM_WORLD", {0, messages}};
void stand_in_types() {}
}
int main(int, char** arguments) {
  std::strcpy(MPIR_dll_name, arguments[1]);
  if (!std::strcmp(arguments[2], "circle")) messages[3].next = messages + 3;
  if (!std::strcmp(arguments[2], "crash")) messages[3].queue = -1;
  if (!std::strcmp(arguments[2], "user")) {
    stand_in_mpi.name[0] = 0;
    if (::setgid(65534) || ::setuid(65534) || ::prctl(PR_SET_DUMPABLE, 1)) return 1;
  }
  std::puts("up"), std::fflush(stdout);
  for (;;) ::pause();
}
#endif
