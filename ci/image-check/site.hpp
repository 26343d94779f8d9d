// site.hpp: checks as data: the built-in ones (checks.json), and those of a site.
//
// A site file is JSON with // comments. All members are optional; an unknown one is an error.
//   launcher            "srun --mpi=pmix --container-image=IMAGE", in place of --launcher auto
//   budgets             seconds of a suite: {"smoke": 90, "gate": 600}
//   kinds               of nodes: [{"nodes": "gpu[0-9]+", "at_least": {"memory_bandwidth": 200}, "at_most": {...},
//                       "inventory": {"gpus": 8, "mounts": ["/scratch"]}}]; see node_check/look.hpp for that, which
//                       image-check node reads. `nodes` is a regular expression; a node that none matches is an error,
//                       and so is a metric that no check has; the metrics are named as `compare` prints them, without
//                       node: "all_reduce bus bandwidth, mpi, 1 MiB"
//   checks              [...], each with
//     name              of a built-in check: the other members change it. Of none: it is a new check
//     title             what it shows, a few words
//     suite             smoke, gate or deep: the smallest one that has it; "none": only --only runs it
//     program           CHAPTER/PROGRAM of the examples, with `arguments`; see Check::arguments
//     command           or a command for sh
//     where             "every process" (default), "every node" or "once"
//     needs             ["mpi", "gpu" ...]: else it is skipped; see Need
//     seconds, limit    that it takes, about, and that it may take
//     action            for a failure: "investigate" (default), "drain the node", "replace the node", "reboot the node"
//     variables         {"NAME": "VALUE"}
//     exit_status       of a right run: 0
//     says              POSIX extended regular expressions, each of which a line of the output must match
//     answers           {"key": "value"}: what its JSON lines must have
//     measures          what it measures, by its JSON lines or output:
//       value           key of a line; times, over: keys of a factor and a divisor of it
//       pattern         or such an expression on lines of the output, whose first group is the value
//       metric          name, in which {key} is the line's value of it; so in unit and better ("more" or "less")
//       band, node      keys of the size in bytes, and of the host
//       if, unless      {"key": [values that it must have]}; a key that must be absent
//     each              lists of objects: one check for each combination. Their members join those of the check, and
//                       {member} in its texts is their value
#pragma once

#include "checks.hpp"
#include "results.hpp"

#include <nlohmann/json.hpp>

#include <filesystem>
#include <map>

namespace image_check {

struct Kind {
  std::string nodes;  // regular expression
  nlohmann::json inventory = nlohmann::json::object();
};

struct Site {
  std::vector<Check> checks;              // in the order in which they run
  std::string launcher;                   // "": auto
  std::map<std::string, double> budgets;  // seconds, by suite
  std::vector<Kind> kinds;
};

// What the kinds that match the node say together. Throws multinode::UsageError if there are kinds, and none matches.
nlohmann::json inventory_of(const Site& site, const std::string& node);

// The built-in checks, changed by that file; "": none. Throws multinode::UsageError, naming the file and the check.
Site read_site(const std::filesystem::path& file);

// A site file for nodes like those of these sessions: what they have, and the least that they must reach. Throws
// multinode::UsageError for a session that did not pass.
std::string site_file(const std::vector<Results>& sessions);

}  // namespace image_check
