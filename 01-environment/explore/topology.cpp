#include "explore/probes.hpp"

#include <multinode/base/text.hpp>

#include <nlohmann/json.hpp>

#ifdef EXPLORE_HAVE_HWLOC
#include <hwloc.h>
#endif

#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>

namespace explore {

#ifdef EXPLORE_HAVE_HWLOC

namespace {

struct Destroy {
  void operator()(hwloc_topology_t topology) const { hwloc_topology_destroy(topology); }
  void operator()(hwloc_bitmap_t bitmap) const { hwloc_bitmap_free(bitmap); }
};

// Objects of `type` that contain at least one of `cpus`.
std::vector<int> objects_with(hwloc_topology_t topology, hwloc_obj_type_t type, hwloc_const_bitmap_t cpus) {
  std::vector<int> numbers;
  for (hwloc_obj_t o = nullptr; (o = hwloc_get_next_obj_by_type(topology, type, o)) != nullptr;)
    if (hwloc_bitmap_intersects(o->cpuset, cpus)) numbers.push_back(static_cast<int>(o->os_index));
  return numbers;
}

}  // namespace

#endif

nlohmann::json read_cpu(const std::vector<int>& cpus, [[maybe_unused]] const std::string& synthetic) {
  nlohmann::json cpu = {{"allowed", multinode::ranges(cpus)},
                        {"count", cpus.size()},
                        {"cores", nullptr},
                        {"numa_nodes", nullptr},
                        {"machine", nullptr}};
#ifdef EXPLORE_HAVE_HWLOC
  hwloc_topology_t made = nullptr;
  if (hwloc_topology_init(&made) < 0) return cpu;
  const std::unique_ptr<hwloc_topology, Destroy> topology(made);
  // The whole machine, with the parts that a container may not use. hwloc leaves out devices, which are slow to find.
  hwloc_topology_set_flags(made, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
  if (!synthetic.empty() && hwloc_topology_set_synthetic(made, synthetic.c_str()) < 0)
    throw std::invalid_argument("not a topology: " + synthetic);
  if (hwloc_topology_load(made) < 0) return cpu;

  const std::unique_ptr<hwloc_bitmap_s, Destroy> set(hwloc_bitmap_alloc());
  for (const int number : cpus) hwloc_bitmap_set(set.get(), static_cast<unsigned>(number));
  cpu["cores"] = objects_with(made, HWLOC_OBJ_CORE, set.get()).size();
  cpu["numa_nodes"] = multinode::ranges(objects_with(made, HWLOC_OBJ_NUMANODE, set.get()));
  hwloc_obj* const package = hwloc_get_obj_by_type(made, HWLOC_OBJ_PACKAGE, 0);
  const char* const model = package ? hwloc_obj_get_info_by_name(package, "CPUModel") : nullptr;
  cpu["machine"] = {{"model", model ? nlohmann::json(model) : nlohmann::json()},
                    {"cpus", hwloc_get_nbobjs_by_type(made, HWLOC_OBJ_PU)},
                    {"cores", hwloc_get_nbobjs_by_type(made, HWLOC_OBJ_CORE)},
                    {"packages", hwloc_get_nbobjs_by_type(made, HWLOC_OBJ_PACKAGE)},
                    {"numa_nodes", hwloc_get_nbobjs_by_type(made, HWLOC_OBJ_NUMANODE)}};
#endif
  return cpu;
}

namespace {

struct Threads {
  std::size_t count;
  std::string from;
};

// The positive number that `variable` requests; of a list (OMP_NUM_THREADS=8,2) the first.
std::optional<Threads> requested(const multinode::Environment& environment, const std::string& variable) {
  const auto found = environment.find(variable);
  if (found == environment.end()) return std::nullopt;
  std::string_view text = found->second;
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  const auto count = multinode::number_of<std::size_t>(text.substr(0, text.find_first_of(", ")));
  if (!count || *count == 0) return std::nullopt;
  return Threads{*count, variable};
}

}  // namespace

nlohmann::json predict_threads(const multinode::Environment& environment, std::size_t cpus) {
  Threads openmp = requested(environment, "OMP_NUM_THREADS").value_or(Threads{cpus, "CPU set"});
  if (const auto limit = requested(environment, "OMP_THREAD_LIMIT"); limit && limit->count < openmp.count)
    openmp = *limit;
  return {{"openmp", openmp.count}, {"openmp_from", openmp.from}};
}

}  // namespace explore
