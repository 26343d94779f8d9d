// A stand-in for Pyxis, the Slurm plug-in that runs a step's tasks in a container: for tests of job scripts, where
// there is neither Pyxis nor Enroot. It takes those of Pyxis's options that the job scripts use. It unpacks no
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
  std::string source, target;
};

struct Asked {
  std::string image;
  std::vector<Mount> mounts;
};

// Slurm's callbacks carry no pointer of ours: what was asked for has to be in one place of the process.
Asked& asked() {
  static Asked options;
  return options;
}

int take_image(int, const char* text, int) {
  asked().image = text;
  return 0;
}

int take_mounts(int, const char* text, int) {
  std::istringstream entries(text);
  for (std::string entry; std::getline(entries, entry, ',');) {
    const std::size_t colon = entry.find(':');
    const Mount mount{entry.substr(0, colon), entry.substr(colon == std::string::npos ? 0 : colon + 1)};
    if (!mount.source.starts_with('/') || !mount.target.starts_with('/') ||
        mount.target.find(':') != std::string::npos) {
      slurm_error("pyxis stand-in: --container-mounts: '%s' is not SOURCE:TARGET, both from / on", entry.c_str());
      return -1;
    }
    asked().mounts.push_back(mount);
  }
  return 0;
}

int take_nothing(int, const char*, int) { return 0; }

void check(int result, const std::string& what) {
  if (result != 0) throw std::runtime_error(what + ": " + std::strerror(errno));
}

void bind(const fs::path& source, const fs::path& target) {
  if (!fs::exists(source)) throw std::runtime_error("--container-mounts: nothing at " + source.string());
  if (fs::is_directory(source)) {
    fs::create_directories(target);
  } else {
    fs::create_directories(target.parent_path());
    std::ofstream{target};
  }
  check(mount(source.c_str(), target.c_str(), nullptr, MS_BIND | MS_REC, nullptr), "mount " + source.string());
}

// The calling task's own view: /mnt becomes the root of a file system in memory that has only what a container has.
void enter_container(spank_t spank) {
  const std::string& image = asked().image;
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
  std::array<char, 4096> pmix{};  // Enroot's hook for PMIx mounts this as well
  if (spank_getenv(spank, "PMIX_SERVER_TMPDIR", pmix.data(), pmix.size()) == ESPANK_SUCCESS)
    bind(pmix.data(), root / (pmix.data() + 1));
  for (const Mount& entry : asked().mounts) bind(entry.source, root / entry.target.substr(1));
  check(chroot(root.c_str()), "chroot");
  check(chdir("/"), "chdir /");
}

}  // namespace

extern "C" int slurm_spank_init(spank_t spank, int, char**) {
  struct Option {
    std::string name;
    int with_value;
    spank_opt_cb_f take;
  };
  std::string usage = "as Pyxis", value = "VALUE";
  for (Option& known : std::array<Option, 3>{{{"container-image", 1, take_image},
                                              {"container-mounts", 1, take_mounts},
                                              {"no-container-entrypoint", 0, take_nothing}}}) {
    spank_option option{known.name.data(), value.data(), usage.data(), known.with_value, 0, known.take};
    if (spank_option_register(spank, &option) != ESPANK_SUCCESS) return -1;
  }
  return 0;
}

extern "C" int slurm_spank_init_post_opt(spank_t, int, char**) {
  if (asked().mounts.empty() || !asked().image.empty()) return 0;
  slurm_error("pyxis stand-in: --container-mounts without --container-image");
  return -1;
}

extern "C" int slurm_spank_local_user_init(spank_t, int, char**) {
  if (!asked().image.empty())
    slurm_info(
        "pyxis stand-in: no image is unpacked: the container is the folder beside it, this system and what is mounted");
  return 0;
}

extern "C" int slurm_spank_task_init(spank_t spank, int, char**) {  // as the user: the tests' is root
  if (asked().image.empty()) return 0;
  try {
    enter_container(spank);
    return 0;
  } catch (const std::exception& error) {
    slurm_error("pyxis stand-in: %s", error.what());
    return -1;
  }
}
