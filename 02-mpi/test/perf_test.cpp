// Runs the programs as a user does, and compares every row that they write with the expected rows.
#include <test/support/faults.hpp>
#include <test/support/json_lines.hpp>
#include <test/support/program_test.hpp>
#include <test/support/temporary_folder.hpp>

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <ostream>
#include <set>
#include <sstream>

namespace perf_test {

using namespace multinode::testing;
using namespace std::chrono_literals;
using Words = std::vector<std::string>;

Words operator+(Words left, const Words& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

// nccl-tests' definition of each collective: the blocks of its larger buffer, and the factor of its bus bandwidth.
struct Collective {
  std::string name, program;
  bool reduces, rooted;
  std::function<std::size_t(std::size_t n)> blocks;
  std::function<double(double n)> bus_factor;
  bool in_place_over_mpi = true, in_place_over_gloo = true;
};

std::size_t one_block(std::size_t) { return 1; }
double one(double) { return 1; }
std::size_t per_rank(std::size_t n) { return n; }
double share(double n) { return (n - 1) / n; }
const std::vector<Collective>& collectives() {
  static const std::vector<Collective> all = {
      {"all_gather", PATH_all_gather_perf, false, false, per_rank, share},
      {"all_reduce", PATH_all_reduce_perf, true, false, one_block, [](double n) { return 2 * (n - 1) / n; }},
      {"alltoall", PATH_alltoall_perf, false, false, per_rank, share, true, false},
      {"broadcast", PATH_broadcast_perf, false, true, one_block, one},
      {"gather", PATH_gather_perf, false, true, per_rank, share},
      {"reduce", PATH_reduce_perf, true, true, one_block, one},
      {"reduce_scatter", PATH_reduce_scatter_perf, true, false, per_rank, share, false, false},
      {"scatter", PATH_scatter_perf, false, true, per_rank, share},
      {"sendrecv", PATH_sendrecv_perf, false, false, one_block, one, true, false},
  };
  return all;
}
const Collective& collective(std::string_view name) {
  return *std::ranges::find(collectives(), name, &Collective::name);
}

const std::map<std::string, std::size_t> types = {{"int8", 1},   {"uint8", 1},   {"int32", 4}, {"uint32", 4},
                                                  {"int64", 8},  {"uint64", 8},  {"half", 2},  {"float", 4},
                                                  {"double", 8}, {"bfloat16", 2}};
const std::set<std::string> reductions = {"sum", "prod", "max", "min"};  // that MPI and Gloo have

// Starts a program with `ranks` ranks and waits until it ends.
using Start = Result(int ranks, const Words& program);
constexpr auto longest = 250s;  // below ctest's TIMEOUT, for the largest collectives

Result mpirun(int ranks, const Words& program) { return run(under_mpirun(ranks, program), {}, longest); }
Result threads(int ranks, const Words& program) {
  return run(program + Words{"-g", std::to_string(ranks)}, {}, longest);
}
// A program's end, and the results that it wrote with --json.
struct Outcome : Result {
  std::vector<nlohmann::json> rows;
};

struct Way {
  std::string backend, how;
  int ranks;
  Start* start;

  std::string name() const { return how + "_" + std::to_string(ranks); }
  friend void PrintTo(const Way& way, std::ostream* out) { *out << way.name(); }
  Outcome run(const std::string& program, const Words& options) const {
    const TemporaryFolder folder;
    const std::string json = folder / "json";
    Outcome done{start(ranks, Words{program, "--backend", backend, "--json", json} + options), {}};
    done.rows = json_lines(json);
    std::erase_if(done.rows, [](const auto& line) { return line.contains("fingerprint"); });
    return done;
  }
};
Way over_mpi(int ranks) { return {"mpi", "mpi", ranks, mpirun}; }
Way in_threads(int ranks) { return {"gloo", "gloo_threads", ranks, threads}; }

struct Sizes {
  std::size_t first, last, factor;
  Words options() const {
    return {"-b", std::to_string(first), "-e", std::to_string(last), "-f", std::to_string(factor)};
  }
};

const Sizes one_size{1000, 1000, 2};
const Words small = one_size.options() + Words{"-n", "1", "-w", "0"};

// Identifies a row.
std::string row_text(std::size_t count, const std::string& type, const std::string& redop, int root, bool in_place,
                     int cycle) {
  return fmt::format("count {}, {}, {}, root {}, {}, cycle {}", count, type, redop, root,
                     in_place ? "in place" : "out of place", cycle);
}
std::string row_text(const nlohmann::json& result) {
  return row_text(result.at("count"), result.at("type"), result.at("redop"), result.at("root"), result.at("in_place"),
                  result.at("cycle"));
}

std::multiset<std::string> expected_rows(const Collective& collective, const Way& way, const Sizes& sizes, int cycles) {
  std::multiset<std::string> rows;
  const std::size_t blocks = collective.blocks(static_cast<std::size_t>(way.ranks));
  const bool in_place = way.backend == "mpi" ? collective.in_place_over_mpi : collective.in_place_over_gloo;
  for (const auto& [type, width] : types)
    for (const std::string& redop : collective.reduces ? reductions : std::set<std::string>{"none"})
      for (int root = collective.rooted ? 0 : -1; root < (collective.rooted ? way.ranks : 0); ++root)
        for (std::size_t size = sizes.first; size <= sizes.last; size *= sizes.factor)
          for (int cycle = 0; cycle < cycles; ++cycle) {
            const std::size_t count = size / width / blocks;
            if (count == 0) continue;
            rows.insert(row_text(count, type, redop, root, false, cycle));
            if (in_place) rows.insert(row_text(count, type, redop, root, true, cycle));
          }
  return rows;
}

// One line for each fault in the rows of a run of `everything`; "" if all are right.
std::string complaints(const Collective& collective, const Way& way, const Sizes& sizes,
                       const std::vector<nlohmann::json>& results) {
  std::ostringstream out;
  std::multiset<std::string> missing = expected_rows(collective, way, sizes, 1);
  const double n = way.ranks;
  for (const nlohmann::json& result : results) {
    const std::string row = row_text(result);
    if (const auto found = missing.find(row); found != missing.end())
      missing.erase(found);
    else
      out << row << ": twice, or not expected\n";
    const auto must = [&](bool right, const std::string& what) {
      if (!right) out << row << ": " << what << " is wrong: " << multinode::json_text(result) << "\n";
    };
    must(result.at("wrong") == 0, "a result");
    must(result.at("collective") == collective.name, "collective");
    must(result.at("backend") == way.backend, "backend");
    must(result.at("ranks") == way.ranks, "ranks");
    must(result.at("size_bytes") == result.at("count").get<std::size_t>() * types.at(result.at("type")) *
                                        collective.blocks(static_cast<std::size_t>(way.ranks)),
         "size");
    must(result.at("rank_times_us").size() == static_cast<std::size_t>(way.ranks), "rank_times_us");
    const double time = result.at("time_us"), algbw = result.at("algbw_gb_per_s");
    const double size = result.at("size_bytes");
    must(time > 0 && std::abs(algbw * time * 1e3 - size) <= 1e-9 * size, "algbw");
    if (way.ranks == 1)
      must(result.at("busbw_gb_per_s").is_null(), "busbw of one rank");
    else
      must(std::abs(result.at("busbw_gb_per_s").get<double>() - algbw * collective.bus_factor(n)) <= 1e-9 * algbw,
           "busbw");
  }
  for (const std::string& row : missing) out << row << ": missing\n";
  return out.str();
}

// Every type, reduction and root of one collective.
const Words everything{"-d", "all", "-o", "all", "-r", "all", "-n", "1", "-w", "0"};

class Matrix : public ::testing::TestWithParam<std::pair<Way, Sizes>> {};
TEST_P(Matrix, EveryTypeReductionAndRootIsRight) {
  const auto& [way, sizes] = GetParam();
  std::size_t rows = 0;
  for (const Collective& collective : collectives()) {
    const Outcome result = way.run(collective.program, everything + sizes.options());
    EXPECT_EQ(result.status, 0) << collective.name << ": " << result.all().substr(0, 3000);
    EXPECT_SAYS(result.out.substr(result.out.size() - std::min<std::size_t>(result.out.size(), 300)),
                "# Out of bounds values : 0 OK");
    EXPECT_EQ(complaints(collective, way, sizes, result.rows), "") << collective.name;
    rows += result.rows.size();
  }
  std::cout << rows << " rows are right\n";
}
// `ranks` ranks over each library.
std::vector<Way> libraries([[maybe_unused]] int ranks) {
  std::vector<Way> all;
#ifdef MULTINODE_HAVE_MPI
  all.push_back(over_mpi(ranks));
#endif
#ifdef MULTINODE_HAVE_GLOO
  all.push_back(in_threads(ranks));
#endif
  return all;
}
std::vector<std::pair<Way, Sizes>> on(const std::vector<int>& numbers_of_ranks, const Sizes& sizes) {
  std::vector<std::pair<Way, Sizes>> all;
  for (const int ranks : numbers_of_ranks)
    for (const Way& way : libraries(ranks)) all.emplace_back(way, sizes);
  return all;
}
INSTANTIATE_TEST_SUITE_P(By, Matrix, ::testing::ValuesIn(on({3}, one_size)),
                         [](const auto& info) { return info.param.first.name(); });
// Sizes: less than an element for each rank; some elements; more than one segment of Gloo's and of MPI's.
INSTANTIATE_TEST_SUITE_P(Whole, Matrix, ::testing::ValuesIn(on({1, 2, 3, 4, 8}, {7, 300'000, 207})),
                         [](const auto& info) { return info.param.first.name(); });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Matrix);

// The following tests run with each library.
class Perf : public ::testing::TestWithParam<Way> {
 protected:
  Outcome run(const std::string& name, const Words& options) const {
    return GetParam().run(collective(name).program, options);
  }
};

class PerfOnce : public Perf {};  // what does not depend on the library: with the one whose ranks start faster

// Shows that the checks of the matrix can fail.
TEST_P(PerfOnce, EveryCorruptedElementIsFound) {
  for (const Collective& collective : collectives()) {
    const Outcome result =
        run(collective.name, small + Words{"-c", "20", "--corrupt", "1", "-r", collective.rooted ? "1" : "0"});
    EXPECT_EQ(result.status, 1) << result.all();
    EXPECT_SAYS(result.err, "rank 1: block ");
    EXPECT_SAYS(result.out, " FAILED");
    EXPECT_EQ(result.out.find("OK"), std::string::npos) << result.out;
    EXPECT_FALSE(result.rows.empty());
    for (const auto& row : result.rows) EXPECT_EQ(row.at("wrong"), 20) << row;
    EXPECT_SAYS(complaints(collective, GetParam(), one_size, result.rows), ": a result is wrong: ");
  }
}

TEST_P(Perf, WithAllRootsARankIsCorruptedWhereItIsRoot) {
  const Result result = run("reduce", small + Words{"--corrupt", "1", "-r", "all"});
  EXPECT_EQ(result.status, 1) << result.all();
  EXPECT_SAYS(result.out, "# Out of bounds values : 2 FAILED");
  EXPECT_EQ(occurrences(result.err, "rank 1: block 0: element "), 2u) << result.err;
}

TEST_P(PerfOnce, AMissingOrDoubledOrFalseRowIsFound) {
  const Collective& all_reduce = collective("all_reduce");
  const Outcome result = run("all_reduce", everything + one_size.options());
  EXPECT_EQ(result.status, 0) << result.all();
  ASSERT_EQ(complaints(all_reduce, GetParam(), one_size, result.rows), "");
  const auto changed = [&](auto&& change) {
    auto copy = result.rows;
    change(copy);
    return complaints(all_reduce, GetParam(), one_size, copy);
  };
  EXPECT_SAYS(changed([](auto& rows) { rows.pop_back(); }), "missing");
  EXPECT_SAYS(changed([](auto& rows) { rows.push_back(rows[0]); }), "twice, or not expected");
  for (const char* key : {"busbw_gb_per_s", "algbw_gb_per_s", "size_bytes", "ranks"})
    EXPECT_SAYS(changed([&](auto& rows) { rows[3][key] = 1.5 * rows[3][key].template get<double>(); }), " is wrong: ");
}

TEST_P(PerfOnce, CsvHasTheRowsOfTheJson) {
  const TemporaryFolder folder;
  for (const Words& options : {Words{}, {"-c", "0"}}) {
    const Outcome result = run("reduce", small + Words{"-o", "all", "-N", "2", "--csv", folder / "csv"} + options);
    EXPECT_EQ(result.status, 0) << result.all();
    std::ifstream file(folder / "csv");
    const auto cells_of_line = [&] {
      std::vector<std::string> cells;
      std::string line, cell;
      std::getline(file, line);
      for (std::istringstream in(line + ','); std::getline(in, cell, ',');) cells.push_back(cell);
      return cells;
    };
    const std::vector<std::string> names = cells_of_line();
    EXPECT_EQ(names.size() + 2, result.rows.at(0).size());  // all but late_ranks and rank_times_us
    for (const nlohmann::json& row : result.rows) {
      const std::vector<std::string> cells = cells_of_line();
      ASSERT_EQ(cells.size(), names.size());
      for (std::size_t i = 0; i < cells.size(); ++i) {
        const nlohmann::json& value = row.at(names[i]);
        EXPECT_EQ(cells[i], value.is_null()     ? ""
                            : value.is_string() ? value.get<std::string>()
                                                : multinode::json_text(value));
      }
    }
    EXPECT_EQ(file.peek(), EOF);
  }
  const Result full = run("reduce", small + Words{"--csv", "/dev/full"});
  EXPECT_EQ(full.status, 1) << full.all();
  EXPECT_SAYS(full.err, "cannot write to /dev/full: No space left on device");
}

TEST_P(PerfOnce, WhatIsNotCheckedIsNotCalledRight) {
  for (const char* name : {"all_reduce", "gather"}) {
    const Outcome result = run(name, small + Words{"-c", "0"});
    EXPECT_EQ(result.status, 0) << result.all();
    EXPECT_SAYS(result.out, "not checked");
    EXPECT_EQ(result.out.find("OK"), std::string::npos) << result.out;
    EXPECT_FALSE(result.rows.empty());
    for (const auto& row : result.rows) EXPECT_TRUE(row.at("wrong").is_null()) << row;
  }
}

TEST_P(Perf, CyclesAndSizesThatGiveTheSameCount) {
  for (const char* name : {"broadcast", "alltoall"}) {
    const Outcome result = run(name, everything + Words{"-b", "40", "-e", "44", "-i", "1", "-N", "2"});
    EXPECT_EQ(result.status, 0) << result.all();
    std::multiset<std::string> rows;
    for (const auto& row : result.rows) {
      EXPECT_EQ(row.at("wrong"), 0) << row;
      rows.insert(row_text(row));
    }
    std::set<std::string> wanted;
    for (std::size_t size = 40; size <= 44; ++size)
      wanted.merge(expected_rows(collective(name), GetParam(), {size, size, 2}, 2));
    EXPECT_TRUE(std::ranges::equal(rows, wanted)) << name << ": " << rows.size() << " rows, not " << wanted.size();
  }
}

TEST_P(Perf, WhatThisRunCannotDoIsRefusedInOneLine) {
  struct Case {
    Words options;
    std::string says;
  };
  std::vector<Case> cases = {{{"-o", "avg"}, "has no average: use -o sum"},
                             {{"-G", "1"}, "-G: there are no CUDA graphs without a GPU"}};
  if (GetParam().backend == "mpi")
    cases.insert(
        cases.end(),
        {{{"-g", "2"}, "-t and -g: MPI has one rank per process: start more with mpirun -n, or use --backend gloo"},
         {{"-b", "16G", "-e", "16G"}, "elements of type float than the int counts of mpi can hold"}});
  else  // the same with MPI, which takes longer to start
    cases.insert(cases.end(),
                 {{{"-r", "4"}, "--root must be from 0 to 3, not 4"},
                  {{"--corrupt", "4"}, "--corrupt must be from 0 to 3, not 4"},
                  {{"--corrupt", "0", "-r", "1"}, "--corrupt: rank 0 receives no result of reduce with root 1"},
                  {{"--iterz", "3"}, "unrecognised option '--iterz'"},
                  {{"--csv", "/nowhere/a.csv"}, "--csv: cannot write to /nowhere/a.csv: No such file"}});
  for (const auto& c : cases) {
    const Result result = run("reduce", c.options);
    EXPECT_EQ(result.status, 2) << testing::PrintToString(c.options) << result.all();
    EXPECT_SAYS(result.err, c.says);
    EXPECT_EQ(occurrences(result.err, "reduce_perf: "), 1u) << result.err;
  }
}

INSTANTIATE_TEST_SUITE_P(By, Perf, ::testing::ValuesIn(libraries(4)),
                         [](const auto& info) { return info.param.name(); });
INSTANTIATE_TEST_SUITE_P(By, PerfOnce, ::testing::ValuesIn([] {
                           std::vector<Way> all = libraries(4);
                           if (all.size() > 1) all.erase(all.begin());
                           return all;
                         }()),
                         [](const auto& info) { return info.param.name(); });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Perf);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PerfOnce);

#ifdef MULTINODE_HAVE_GLOO
TEST(PerfGloo, ASizeThatDoesNotFitIsRefusedWithTheLargestThatDoes) {
  for (const char* program : {PATH_all_reduce_perf, PATH_alltoall_perf}) {
    const Result result = in_threads(4).run(program, {"-b", "4", "-e", "8192G", "-f", "2"});
    EXPECT_EQ(result.status, 2) << result.all();
    const Match match =
        match_in(result.err, "--maxbytes: .* need 67108864 MiB, .*: the largest -e that fits is (\\d+)M\n");
    ASSERT_FALSE(match.empty()) << result.err;
    // Of the memory that is free now, in and out of four ranks take not more and not much less.
    std::ifstream meminfo("/proc/meminfo");
    double free = 0;
    for (std::string key, rest; meminfo >> key; std::getline(meminfo, rest))
      if (key == "MemAvailable:") meminfo >> free;
    const double taken = 4 * 2 * std::stod(match[1]) * 1024;
    EXPECT_LT(taken, free * 1.2);
    EXPECT_GT(taken, free * 0.5);
  }
}

#endif

#ifdef MULTINODE_HAVE_MPI
// NCCL_TESTS_SPLIT: several groups at the same time.
class Split : public ::testing::TestWithParam<std::string> {
 protected:
  Outcome run(const std::string& split, const std::string& program, const Words& options) const {
    const TemporaryFolder folder;
    const std::string json = folder / "json";
    const Words words = Words{program, "--backend", GetParam(), "--json", json} + small + options;
    Outcome done{multinode::testing::run(under_mpirun(4, words), {{"NCCL_TESTS_SPLIT", split}}, longest), {}};
    done.rows = json_lines(json);
    std::erase_if(done.rows, [](const auto& line) { return line.contains("fingerprint"); });
    return done;
  }
};
TEST_P(Split, EveryGroupIsRight) {
  for (const auto& [split, colors] : {std::pair("MOD 2", "0101"), {"DIV 2", "0011"}}) {
    const Outcome result = run(split, PATH_all_reduce_perf, {});
    EXPECT_EQ(result.status, 0) << result.all();
    EXPECT_SAYS(result.out, "4 ranks in 4 processes");
    for (int rank = 0; rank < 4; ++rank)
      EXPECT_SAYS(result.out, fmt::format("#  Rank {} Group {} Pid ", rank, colors[rank]));
    EXPECT_FALSE(result.rows.empty());
    for (const auto& row : result.rows)
      EXPECT_TRUE(row.at("wrong") == 0 && row.at("ranks") == 2 && row.at("groups") == 2) << row;
  }
}
TEST_P(Split, ARankIsCorruptedInEachGroup) {
  for (const char* name : {"alltoall", "gather"}) {
    const Outcome result =
        run("MOD 2", collective(name).program, {"--corrupt", "1", "-r", collective(name).rooted ? "1" : "0"});
    EXPECT_EQ(result.status, 1) << result.all();
    EXPECT_FALSE(result.rows.empty());
    for (const auto& row : result.rows) EXPECT_EQ(row.at("wrong"), 2) << row;
  }
}
TEST_P(Split, GroupsOfDifferentSizesAreRefused) {
  const Outcome result = run("MOD 3", PATH_all_reduce_perf, {});
  EXPECT_EQ(result.status, 2) << result.all();
  EXPECT_SAYS(result.err, "of 4 processes group 0 has 2 and group 1 has 1: start more or fewer");
}
INSTANTIATE_TEST_SUITE_P(By, Split, ::testing::ValuesIn([] {
                           std::vector<std::string> all = {"mpi"};
#ifdef MULTINODE_HAVE_GLOO
                           all.push_back("gloo");
#endif
                           return all;
                         }()),
                         [](const auto& info) { return info.param; });
#endif

// A rank that dies.
class Faults : public ::testing::TestWithParam<Starter> {
 protected:
  // Each row has one element more than the last, so its count shows the progress.
  static Words long_run(const std::string& name) {
    const Words options{"-d", "int8", "-b", "4", "-e", "99999", "-i", "1", "-n", "1", "-w", "0"};
    return Words{collective(name).program, "--backend", GetParam() == Starter::mpirun ? "mpi" : "gloo"} + options;
  }
};

TEST_P(Faults, AKilledRankIsNamedAndEndsTheOthers) {
  std::mt19937 random(20261121);
  std::string record;
  for (const char* name : {"all_reduce", "alltoall"})
    EXPECT_EQ(kill_one(GetParam(), 4, long_run(name), " +\\d+ +(\\d+) +int8", 4, 40, random, &record), "") << name;
  std::cout << record;
}

#ifdef MULTINODE_HAVE_MPI
INSTANTIATE_TEST_SUITE_P(OverMpi, Faults, ::testing::Values(Starter::mpirun),
                         [](const auto& info) { return name_of(info.param); });
#endif
#ifdef MULTINODE_HAVE_GLOO
INSTANTIATE_TEST_SUITE_P(OverGloo, Faults, ::testing::Values(Starter::bare),
                         [](const auto& info) { return name_of(info.param); });
#endif
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Faults);

}  // namespace perf_test
