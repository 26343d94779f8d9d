#include "report.hpp"

#include <multinode/options.hpp>

#include <unistd.h>
#include <cerrno>
#include <cstring>
#include <fstream>

namespace image_check {

namespace {

void write_whole(const std::filesystem::path& path, const std::string& text) {
  const auto aside = path.string() + ".new-" + std::to_string(getpid());
  std::ofstream file(aside, std::ios::binary);
  file << text << std::flush;
  if (file) {
    file.close();
    std::error_code error;
    std::filesystem::rename(aside, path, error);
    if (!error) return;
    errno = error.value();
  }
  const std::string why = std::strerror(errno);
  std::error_code ignored;
  std::filesystem::remove(aside, ignored);
  throw multinode::UsageError("cannot write " + path.string() + ": " + why);
}

}  // namespace

void write_reports(const std::filesystem::path& folder, const Results& results, const Results* baseline) {
  write_whole(folder / "report.html", html_page(results, baseline));
  write_whole(folder / "junit.xml", junit_xml(results));
}

}  // namespace image_check
