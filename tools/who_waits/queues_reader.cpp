// who_waits_queues PID: prints the message queues of a process, packed. See queues.hpp.
//
// It is a separate program because it runs code of the process's MPI on lists that may change meanwhile. That code may
// crash. If it does not end within some seconds, the program is killed.
#include "message_queue_access.hpp"
#include "queues.hpp"

#include <multinode/base/text.hpp>

#include <dlfcn.h>
#include <dwarf.h>
#include <elfutils/libdw.h>
#include <elfutils/libdwfl.h>
#include <fmt/format.h>
#include <grp.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iostream>
#include <stdexcept>
#include <string_view>

namespace who_waits {

struct Type {
  Dwarf_Die die;
};

struct Target {
  explicit Target(pid_t process) : pid(process), dwfl(dwfl_begin(&files), &dwfl_end) {
    if (!dwfl || dwfl_linux_proc_report(dwfl.get(), pid) != 0)
      throw std::runtime_error("its memory map cannot be read");
    dwfl_report_end(dwfl.get(), nullptr, nullptr);
    const auto look = [](Dwfl_Module* module, void** user, const char* name, Dwarf_Addr, void* target) {
      Target& self = *static_cast<Target*>(*user = target);
      const std::string_view path = name;
      if (path.find("/libmpi") != path.npos) self.has_mpi = true;
      Address found;  // in the program if MPI is linked statically
      const bool may_be = path.find("/libmpi") != path.npos || path == self.program;
      if (!self.mpi && may_be && symbol_of(module, "MPIR_dll_name", &found)) self.mpi = module;
      return static_cast<int>(DWARF_CB_OK);
    };
    dwfl_getmodules(dwfl.get(), look, this, 0);
  }

  static bool symbol_of(Dwfl_Module* module, std::string_view wanted, Address* address) {
    for (int i = 0, count = dwfl_module_getsymtab(module); i < count; ++i) {
      GElf_Sym symbol;
      GElf_Addr at;
      GElf_Word section;
      const char* const name = dwfl_module_getsym_info(module, i, &symbol, &at, &section, nullptr, nullptr);
      if (!name || name != wanted || symbol.st_shndx == SHN_UNDEF) continue;
      if (address) *address = at;
      return true;
    }
    return false;
  }

  bool read(Address from, void* to, std::size_t size) const {
    const iovec here{to, size}, there{reinterpret_cast<void*>(from), size};
    return ::process_vm_readv(pid, &here, 1, &there, 1, 0) == static_cast<ssize_t>(size);
  }
  std::string text_at(Address from) const {
    std::string text;
    for (char c; text.size() < 4096 && read(from + text.size(), &c, 1) && c;) text += c;
    return text;
  }

  // The type is complete in the unit of the function that the library has asked for before, or in another one.
  Type* type(const char* name) {
    Dwarf_Addr bias;
    if (unit && find_in(*unit, name)) return &types.back();
    for (Dwarf_Die* one = nullptr; (one = dwfl_module_nextcu(mpi, one, &bias));)
      if (find_in(*one, name)) return &types.back();
    if (missing.empty()) missing = name;
    return nullptr;
  }
  bool find_in(Dwarf_Die& one, std::string_view name) {
    Dwarf_Die die;
    if (dwarf_child(&one, &die) != 0) return false;
    do {
      const int tag = dwarf_tag(&die);
      const char* const called = dwarf_diename(&die);
      Dwarf_Die type;
      if ((tag == DW_TAG_typedef || tag == DW_TAG_structure_type || tag == DW_TAG_union_type) && called &&
          called == name && dwarf_peel_type(&die, &type) == 0 && !dwarf_hasattr(&type, DW_AT_declaration)) {
        types.push_back({type});
        return true;
      }
    } while (dwarf_siblingof(&die, &die) == 0);
    return false;
  }
  static int offset(Dwarf_Die* type, std::string_view field) {
    Dwarf_Die die, inner;
    if (dwarf_child(type, &die) != 0) return -1;
    do {
      Dwarf_Attribute attribute;
      Dwarf_Word at = 0;
      if (dwarf_tag(&die) != DW_TAG_member) continue;
      if (dwarf_attr(&die, DW_AT_data_member_location, &attribute)) dwarf_formudata(&attribute, &at);
      if (const char* const name = dwarf_diename(&die)) {
        if (name == field) return static_cast<int>(at);
      } else if (dwarf_attr(&die, DW_AT_type, &attribute) && dwarf_formref_die(&attribute, &inner)) {
        if (const int further = offset(&inner, field); further >= 0) return static_cast<int>(at) + further;
      }
    } while (dwarf_siblingof(&die, &die) == 0);
    return -1;
  }

  const Dwfl_Callbacks files{dwfl_linux_proc_find_elf, dwfl_standard_find_debuginfo, dwfl_offline_section_address,
                             nullptr};
  const pid_t pid;
  const std::string program = std::filesystem::read_symlink(fmt::format("/proc/{}/exe", pid));
  const std::unique_ptr<Dwfl, decltype(&dwfl_end)> dwfl;
  bool has_mpi = false;
  Dwfl_Module* mpi = nullptr;  // that has the name of the library
  Dwarf_Die* unit = nullptr;
  std::deque<Type> types;
  std::string missing;  // the first type that was not found
  void *image_info = nullptr, *process_info = nullptr;
};

namespace {

const BasicCallbacks basic{[](std::size_t size) { return std::malloc(size); },
                           [](void* memory) { std::free(memory); },
                           [](const char*) {},
                           [](int) { return "an error"; },
                           [](Target* target, void* info) { target->image_info = info; },
                           [](Target* target) { return target->image_info; },
                           [](Target* target, void* info) { target->process_info = info; },
                           [](Target* target) { return target->process_info; }};
const ImageCallbacks image{[](Target*, TypeSizes* sizes) { *sizes = {}; },
                           [](Target* target, char* name, int, Address* address) {
                             Address at;
                             Dwarf_Addr bias;
                             if (!Target::symbol_of(target->mpi, name, &at)) return bad;
                             target->unit = dwfl_module_addrdie(target->mpi, at, &bias);
                             if (address) *address = at;
                             return good;
                           },
                           [](Target* target, char* name, Address* address) {
                             return Target::symbol_of(target->mpi, name, address) ? good : bad;
                           },
                           [](Target* target, char* name, int) { return target->type(name); },
                           [](Type* type, char* field) { return Target::offset(&type->die, field); },
                           [](Type* type) {
                             Dwarf_Word size = 0;
                             dwarf_aggregate_size(&type->die, &size);
                             return static_cast<int>(size);
                           }};
const ProcessCallbacks process{
    [](Target*) { return -1; }, [](Target* target) { return target; },
    [](Target* target, Address from, int size, void* to) {
      return size >= 0 && target->read(from, to, static_cast<std::size_t>(size)) ? good : bad;
    },
    [](Target*, const void* from, void* to, int size) { std::memcpy(to, from, static_cast<std::size_t>(size)); }};

class Library {
 public:
  explicit Library(const Target& target) {
    std::vector<std::string> files;
    Address at = 0;
    if (Target::symbol_of(target.mpi, "mpimsgq_dll_locations", &at) && target.read(at, &at, sizeof at) && at)
      for (Address one = 0; files.size() < 8 && target.read(at, &one, sizeof one) && one; at += sizeof at)
        files.push_back(target.text_at(one));
    if (Target::symbol_of(target.mpi, "MPIR_dll_name", &at)) files.push_back(target.text_at(at));
    if (files.empty() || files.back().empty())
      throw std::runtime_error("its memory cannot be read (see /proc/sys/kernel/yama/ptrace_scope)");
    for (const std::string& file : files)
      if ((library_ = ::dlopen(file.c_str(), RTLD_NOW))) return;
    throw std::runtime_error(fmt::format("{}, the library of its MPI for debuggers, cannot be loaded: install it ({})",
                                         files.back(), ::dlerror()));
  }
  template <class... A>
  int operator()(const char* name, A... arguments) const {
    const auto function = reinterpret_cast<int (*)(A...)>(::dlsym(library_, name));
    return function ? function(arguments...) : bad;
  }

 private:
  void* library_ = nullptr;
};

// Open MPI's library takes a request for complete if a call waits for it. Then its texts tell, and status 1 (matched).
bool is_over(const Operation& one) {
  const std::string_view what = one.texts[0];
  if (!what.starts_with("Send: ") && !what.starts_with("Receive: ")) return one.status != 0;
  return one.status == 1 || std::string_view(one.texts[1]) == "Data transfer completed";
}

// The process says which library to load: its code gets no rights that the process has not.
void become_user_of(pid_t pid) {
  const std::string its = fmt::format("/proc/{}/", pid);
  std::error_code error;
  for (const char* const name : {"ns/mnt", "ns/user", "root"})
    if (std::filesystem::read_symlink(its + name, error) !=
        std::filesystem::read_symlink(std::string("/proc/self/") + name, error))
      throw std::runtime_error("it is in a container: start who_waits there, too");
  struct stat status {};
  const bool known = ::stat(its.c_str(), &status) == 0;
  const uid_t user = status.st_uid;
  const gid_t group = status.st_gid;
  if (known && user == ::geteuid()) return;
  if (!known || ::setgroups(0, nullptr) != 0 || ::setresgid(group, group, group) != 0 ||
      ::setresuid(user, user, user) != 0)
    throw std::runtime_error("it is another user's");
}

Queues read_queues(pid_t pid) {
  become_user_of(pid);
  Target target(pid);
  if (!target.mpi && target.has_mpi)
    throw std::runtime_error("its MPI has no library for debuggers: build MPICH with --enable-debuginfo");
  if (!target.mpi) return {};
  const Library library(target);
  const auto check = [&](const char* name, int result) {
    if (!target.missing.empty())
      throw std::runtime_error(
          fmt::format("the debug information of its MPI is stripped ('{}' is missing): install the debug package, or "
                      "an MPI that is not stripped",
                      target.missing));
    if (result != good) throw std::runtime_error(fmt::format("{} of its MPI's library for debuggers failed", name));
  };
  char* message = nullptr;
  check("mqs_version_compatibility", library("mqs_version_compatibility") == version ? good : bad);
  library("mqs_setup_basic_callbacks", &basic);
  check("mqs_setup_image", library("mqs_setup_image", &target, &image));
  check("mqs_image_has_queues", library("mqs_image_has_queues", &target, &message));
  check("mqs_setup_process", library("mqs_setup_process", &target, &process));
  check("mqs_process_has_queues", library("mqs_process_has_queues", &target, &message));
  check("mqs_update_communicator_list", library("mqs_update_communicator_list", &target));
  Queues queues;
  constexpr std::size_t most = 1000;  // communicators, and messages of each
  for (int next = library("mqs_setup_communicator_iterator", &target);
       next == good && queues.communicators.size() < most; next = library("mqs_next_communicator", &target)) {
    Communicator found{};
    if (library("mqs_get_communicator", &target, &found) != good || found.size < 1 || found.size > 1 << 20) continue;
    QueuedCommunicator one{.name = std::string(found.name, ::strnlen(found.name, sizeof found.name)),
                           .rank = static_cast<std::int32_t>(found.rank),
                           .size = static_cast<std::int32_t>(found.size),
                           .members = std::vector<std::int32_t>(static_cast<std::size_t>(found.size))};
    if (library("mqs_get_comm_group", &target, one.members.data()) != good || std::ranges::count(one.members, -1) > 0)
      one.members.clear();
    for (const Queue queue : {Queue::sends, Queue::receives, Queue::unexpected}) {
      Operation operation{};
      if (library("mqs_setup_operation_iterator", &target, static_cast<int>(queue)) != good) continue;
      while (one.messages.size() < most && library("mqs_next_operation", &target, &operation) == good) {
        if (is_over(operation) && queue != Queue::unexpected) continue;
        one.messages.push_back({queue, static_cast<std::int32_t>(operation.rank),
                                operation.any_tag ? -1 : static_cast<std::int32_t>(operation.tag)});
      }
    }
    queues.communicators.push_back(std::move(one));
  }
  return queues;
}

}  // namespace
}  // namespace who_waits

int main(int argc, char** argv) {
  const auto pid = multinode::number_of<pid_t>(argc == 2 ? argv[1] : "");
  if (!pid) return 2;
  const rlimit memory{rlim_t{4} << 30, rlim_t{4} << 30};
  ::setrlimit(RLIMIT_AS, &memory);
  ::unsetenv("DEBUGINFOD_URLS");  // it would wait for the network
  ::alarm(5);
  who_waits::Queues queues;
  try {
    queues = who_waits::read_queues(*pid);
  } catch (const std::exception& e) {
    queues.problem = e.what();
  }
  std::cout << who_waits::packed(queues) << std::flush;
}
