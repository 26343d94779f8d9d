// A stand-in for Pyxis, the Slurm plug-in that runs a step's tasks in a container: for tests of job scripts, where
// there is neither Pyxis nor Enroot. It takes Pyxis's options and refuses the values that Pyxis refuses. It unpacks no
// image: its "container" has the folders of IMAGE.root, a folder beside the image's file, this machine's system folders
// for those that are not there, and what --container-mounts names. So a script that forgets to mount what it needs, or
// starts a program that is not in the image, fails here. Build: g++ -std=c++20 -shared -fPIC; use: a line "required
// FILE.so" in plugstack.conf.
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

extern "C" {
#include <slurm/spank.h>  // it declares what Slurm calls as C++

extern const char plugin_name[], plugin_type[];
extern const unsigned int plugin_version, spank_plugin_version;
SPANK_PLUGIN(pyxis_stand_in, 1)
}

namespace {

namespace fs = std::filesystem;

struct Mount {
  std::string source, target, flags;
};

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

std::vector<Mount> parse_mounts(const std::string& text) {
  std::vector<Mount> mounts;
  for (const std::string& entry : split(text, ',')) {
    std::vector<std::string> parts = split(entry, ':');
    if (parts.size() == 1) parts.push_back(parts[0]);
    if (parts.size() == 2) parts.emplace_back();
    if (parts.size() != 3 || !parts[0].starts_with('/') || !parts[1].starts_with('/'))
      throw std::runtime_error("--container-mounts: '" + entry + "' is not SOURCE:TARGET[:FLAGS], both from / on");
    mounts.push_back({parts[0], parts[1], parts[2]});
  }
  return mounts;
}

// Slurm's callbacks carry no pointer of ours: what was asked for has to be in one place of the process.
std::map<std::string, std::string>& asked() {
  static std::map<std::string, std::string> options;
  return options;
}

// What is asked for under a name, and by a switch: its value.
struct Option {
  const char *name, *key, *value;
};
constexpr std::array options{
    Option{"container-image", "image", nullptr},
    Option{"container-mounts", "mounts", nullptr},
    Option{"container-workdir", "workdir", nullptr},
    Option{"container-name", "name", nullptr},
    Option{"container-save", "save", nullptr},
    Option{"container-env", "env", nullptr},
    Option{"container-mount-home", "mount-home", "yes"},
    Option{"no-container-mount-home", "mount-home", "no"},
    Option{"container-remap-root", "remap-root", "yes"},
    Option{"no-container-remap-root", "remap-root", "no"},
    Option{"container-entrypoint", "entrypoint", "yes"},
    Option{"no-container-entrypoint", "entrypoint", "no"},
    Option{"container-entrypoint-log", "entrypoint-log", "yes"},
    Option{"container-writable", "writable", "yes"},
    Option{"container-readonly", "writable", "no"},
};

void take(const std::string& option, const std::string& value) {
  if (value.empty()) throw std::runtime_error("--container-" + option + ": a value is missing");
  if (option == "mounts") parse_mounts(value);
  if (option == "name") {
    const auto parts = split(value, ':');
    if (parts.size() > 2 || parts[0].empty() ||
        (parts.size() == 2 && parts[1] != "auto" && parts[1] != "create" && parts[1] != "exec" &&
         parts[1] != "no_exec"))
      throw std::runtime_error("--container-name: '" + value + "' is not NAME[:auto|create|exec|no_exec]");
  }
  if (option == "save" && value.back() == '/') throw std::runtime_error("--container-save: a folder, not a file");
  const auto [known, first] = asked().emplace(option, value);
  if (!first && known->second != value)
    throw std::runtime_error("--container-" + option + ": '" + known->second + "' and '" + value + "' contradict");
}

int said(const std::exception& error) {
  slurm_error("pyxis stand-in: %s", error.what());
  return -1;
}

int take_option(int index, const char* text, int) {
  try {
    const Option& option = options.at(static_cast<std::size_t>(index));
    take(option.key, option.value != nullptr ? option.value : text != nullptr ? text : "");
    return 0;
  } catch (const std::exception& error) {
    return said(error);
  }
}

void check(int result, const std::string& what) {
  if (result != 0) throw std::runtime_error(what + ": " + std::strerror(errno));
}

void bind(const fs::path& source, const fs::path& target, const std::string& flags = "") {
  if (!fs::exists(source)) throw std::runtime_error("--container-mounts: nothing at " + source.string());
  if (fs::is_directory(source)) {
    fs::create_directories(target);
  } else {
    fs::create_directories(target.parent_path());
    std::ofstream{target};
  }
  check(mount(source.c_str(), target.c_str(), nullptr, MS_BIND | MS_REC, nullptr), "mount " + source.string());
  for (const std::string& flag : split(flags, '+'))
    if (flag == "ro")
      check(mount(nullptr, target.c_str(), nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY, nullptr), "read-only " + flag);
}

std::string variable(spank_t spank, const char* name) {
  std::array<char, 4096> text{};
  return spank_getenv(spank, name, text.data(), text.size()) == ESPANK_SUCCESS ? text.data() : "";
}

// The calling task's own view: /mnt becomes the root of a file system in memory that has only what a container has.
void enter_container(spank_t spank) {
  const auto& want = asked();
  const std::string& image = want.at("image");
  if (image.starts_with('/') || image.starts_with('.')) {
    std::string magic(4, ' ');
    std::ifstream(image).read(magic.data(), 4);
    if (magic != "hsqs") throw std::runtime_error("--container-image: " + image + " is no squashfs file on this node");
  }
  const fs::path root = "/mnt";
  check(unshare(CLONE_NEWNS), "unshare");
  check(mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr), "mount /");
  check(mount("none", root.c_str(), "tmpfs", 0, "mode=755"), "mount tmpfs");
  for (const char* name : {"bin", "sbin", "lib", "lib64", "usr", "etc", "opt", "var", "run", "dev", "proc", "sys"}) {
    fs::path here = fs::path(image + ".root") / name;
    if (!fs::exists(here)) here = fs::path("/") / name;
    if (fs::is_symlink(here))
      fs::copy_symlink(here, root / name);
    else if (fs::exists(here))
      bind(here, root / name);
  }
  fs::create_directory(root / "tmp");
  fs::permissions(root / "tmp", fs::perms::all | fs::perms::sticky_bit);
  // Enroot's hook for PMIx mounts this as well.
  if (const std::string pmix = variable(spank, "PMIX_SERVER_TMPDIR"); !pmix.empty()) bind(pmix, root / pmix.substr(1));
  if (const auto home = want.find("mount-home"); home != want.end() && home->second == "yes")
    bind(variable(spank, "HOME"), root / variable(spank, "HOME").substr(1));
  if (const auto mounts = want.find("mounts"); mounts != want.end())
    for (const Mount& entry : parse_mounts(mounts->second))
      bind(entry.source, root / entry.target.substr(1), entry.flags);
  if (const auto writable = want.find("writable"); writable != want.end() && writable->second == "no")
    check(mount(nullptr, root.c_str(), nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY, nullptr), "--container-readonly");
  check(chroot(root.c_str()), "chroot");
  const auto workdir = want.find("workdir");
  const std::string folder = workdir == want.end() ? "/" : workdir->second;
  check(chdir(folder.c_str()), "--container-workdir " + folder);
}

}  // namespace

extern "C" int slurm_spank_init(spank_t spank, int, char**) {
  std::string usage = "as Pyxis", value = "VALUE";
  for (std::size_t i = 0; i < options.size(); ++i) {
    std::string name = options[i].name;
    const bool with_value = options[i].value == nullptr;
    spank_option option{name.data(), with_value ? value.data() : nullptr, usage.data(), with_value, static_cast<int>(i),
                        take_option};
    if (spank_option_register(spank, &option) != ESPANK_SUCCESS) return -1;
  }
  return 0;
}

extern "C" int slurm_spank_init_post_opt(spank_t, int, char**) {
  if (asked().empty() || asked().contains("image")) return 0;
  slurm_error("pyxis stand-in: --container-%s without --container-image", asked().begin()->first.c_str());
  return -1;
}

extern "C" int slurm_spank_local_user_init(spank_t, int, char**) {
  if (asked().contains("image"))
    slurm_info(
        "pyxis stand-in: no image is unpacked: the container is the folder beside it, this system and what is mounted");
  return 0;
}

extern "C" int slurm_spank_task_init(spank_t spank, int, char**) {  // as the user: the tests' is root
  if (!asked().contains("image")) return 0;
  try {
    enter_container(spank);
    return 0;
  } catch (const std::exception& error) {
    return said(error);
  }
}
