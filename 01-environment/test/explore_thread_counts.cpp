// Asks the OpenMP runtime and OpenBLAS how many threads they would start: {"openmp": N, "openblas": N}, without those
// that are not here.
#include <dlfcn.h>

#include <algorithm>
#include <iostream>
#include <string>

namespace {

int call(const char* library, const char* function) {
  void* const handle = dlopen(library, RTLD_NOW);
  if (handle == nullptr) return 0;
  const auto address = reinterpret_cast<int (*)()>(dlsym(handle, function));
  return address == nullptr ? 0 : address();
}

}  // namespace

int main() {
  const int openmp =
      std::min(call("libgomp.so.1", "omp_get_max_threads"), call("libgomp.so.1", "omp_get_thread_limit"));
  const bool pthreads = call("libopenblas.so.0", "openblas_get_parallel") == 1;
  const int openblas = pthreads ? call("libopenblas.so.0", "openblas_get_num_threads") : 0;
  std::string text;
  if (openmp > 0) text += "\"openmp\": " + std::to_string(openmp);
  if (openblas > 0) text += (text.empty() ? "" : ", ") + ("\"openblas\": " + std::to_string(openblas));
  std::cout << "{" + text + "}\n";
}
