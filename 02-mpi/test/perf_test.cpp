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
  bool sums;
  std::function<std::size_t(std::size_t n)> blocks;
  std::function<double(double n)> bus_factor;
  bool in_place_over_mpi = true, in_place_over_gloo = true;
};

std::size_t one_block(std::size_t) { return 1; }
std::size_t per_rank(std::size_t n) { return n; }
double share(double n) { return (n - 1) / n; }
const std::vector<Collective>& collectives() {
  static const std::vector<Collective> all = {
      {"all_gather", PATH_all_gather_perf, false, per_rank, share},
      {"all_reduce", PATH_all_reduce_perf, true, one_block, [](double n) { return 2 * (n - 1) / n; }},
      {"alltoall", PATH_alltoall_perf, false, per_rank, share, true, false},
      {"reduce_scatter", PATH_reduce_scatter_perf, true, per_rank, share, false, false},
      {"sendrecv", PATH_sendrecv_perf, false, one_block, [](double) { return 1.0; }, true, false},
  };
  return all;
}
const Collective& collective(std::string_view name) {
  return *std::ranges::find(collectives(), name, &Collective::name);
}

const std::map<std::string, std::size_t> types = {{"int8", 1},   {"uint8", 1},   {"int32", 4}, {"uint32", 4},
                                                  {"int64", 8},  {"uint64", 8},  {"half", 2},  {"float", 4},
                                                  {"double", 8}, {"bfloat16", 2}};

constexpr auto longest = 250s;  // below ctest's TIMEOUT, for the largest collectives

// A program's end, and the results that it wrote with --json.
struct Outcome : Result {
  std::vector<nlohmann::json> rows;
};

// How `ranks` ranks run: as processes over MPI, or as threads of one process over Gloo.
struct Way {
  std::string backend;
  int ranks;

  std::string name() const { return backend + "_" + std::to_string(ranks); }
  friend void PrintTo(const Way& way, std::ostream* out) { *out << way.name(); }
  Outcome run(const std::string& program, const Words& options) const {
    const TemporaryFolder folder;
    const std::string json = folder / "json";
    const Words command = Words{program, "--backend", backend, "--json", json} + options;
    Outcome done{multinode::testing::run(
                     backend == "mpi" ? under_mpirun(ranks, command) : command + Words{"-g", std::to_string(ranks)}, {},
                     longest),
                 {}};
    done.rows = json_lines(json);
    std::erase_if(done.rows, [](const auto& line) { return line.contains("fingerprint"); });
    return done;
  }
};

struct Sizes {
  std::size_t first, last, factor;
  Words options() const {
    return {"-b", std::to_string(first), "-e", std::to_string(last), "-f", std::to_string(factor)};
  }
};

const Sizes one_size{1000, 1000, 2};
const Words small = one_size.options() + Words{"-n", "1", "-w", "0"};

// Identifies a row.
std::string row_text(std::size_t count, const std::string& type, bool in_place, int cycle) {
  return fmt::format("count {}, {}, {}, cycle {}", count, type, in_place ? "in place" : "out of place", cycle);
}
std::string row_text(const nlohmann::json& result) {
  return row_text(result.at("count"), result.at("type"), result.at("in_place"), result.at("cycle"));
}

std::multiset<std::string> expected_rows(const Collective& collective, const Way& way, const Sizes& sizes, int cycles) {
  std::multiset<std::string> rows;
  const std::size_t blocks = collective.blocks(static_cast<std::size_t>(way.ranks));
  const bool in_place = way.backend == "mpi" ? collective.in_place_over_mpi : collective.in_place_over_gloo;
  for (const auto& [type, width] : types)
    for (std::size_t size = sizes.first; size <= sizes.last; size *= sizes.factor)
      for (int cycle = 0; cycle < cycles; ++cycle) {
        const std::size_t count = size / width / blocks;
        if (count == 0) continue;
        rows.insert(row_text(count, type, false, cycle));
        if (in_place) rows.insert(row_text(count, type, true, cycle));
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
    must(result.at("redop") == (collective.sums ? "sum" : "none"), "redop");
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

const Words everything{"-d", "all", "-n", "1", "-w", "0"};

class Matrix : public ::testing::TestWithParam<std::pair<Way, Sizes>> {};
TEST_P(Matrix, EveryTypeIsRight) {
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
  all.push_back({"mpi", ranks});
#endif
#ifdef MULTINODE_HAVE_GLOO
  all.push_back({"gloo", ranks});
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

#if defined(MULTINODE_HAVE_MPI) || defined(MULTINODE_HAVE_GLOO)
const Way quick = libraries(4).back();  // for what does not depend on the library: ranks over Gloo start faster

// Shows that the checks of the matrix can fail.
TEST(Perf, EveryCorruptedElementIsFound) {
  for (const Collective& collective : collectives()) {
    const Outcome result = quick.run(collective.program, small + Words{"-c", "20", "--corrupt", "1"});
    EXPECT_EQ(result.status, 1) << result.all();
    EXPECT_SAYS(result.err, "rank 1: block ");
    EXPECT_SAYS(result.out, " FAILED");
    EXPECT_EQ(result.out.find("OK"), std::string::npos) << result.out;
    EXPECT_FALSE(result.rows.empty());
    for (const auto& row : result.rows) EXPECT_EQ(row.at("wrong"), 20) << row;
    EXPECT_SAYS(complaints(collective, quick, one_size, result.rows), ": a result is wrong: ");
  }
}

TEST(Perf, AMissingOrDoubledOrFalseRowIsFound) {
  const Collective& all_reduce = collective("all_reduce");
  const Outcome result = quick.run(PATH_all_reduce_perf, everything + one_size.options());
  EXPECT_EQ(result.status, 0) << result.all();
  ASSERT_EQ(complaints(all_reduce, quick, one_size, result.rows), "");
  const auto changed = [&](auto&& change) {
    auto copy = result.rows;
    change(copy);
    return complaints(all_reduce, quick, one_size, copy);
  };
  EXPECT_SAYS(changed([](auto& rows) { rows.pop_back(); }), "missing");
  EXPECT_SAYS(changed([](auto& rows) { rows.push_back(rows[0]); }), "twice, or not expected");
  for (const char* key : {"busbw_gb_per_s", "algbw_gb_per_s", "size_bytes", "ranks"})
    EXPECT_SAYS(changed([&](auto& rows) { rows[3][key] = 1.5 * rows[3][key].template get<double>(); }), " is wrong: ");
}

TEST(Perf, WhatIsNotCheckedIsNotCalledRight) {
  const Outcome result = quick.run(PATH_all_reduce_perf, small + Words{"-c", "0"});
  EXPECT_EQ(result.status, 0) << result.all();
  EXPECT_SAYS(result.out, "not checked");
  EXPECT_EQ(result.out.find("OK"), std::string::npos) << result.out;
  EXPECT_FALSE(result.rows.empty());
  for (const auto& row : result.rows) EXPECT_TRUE(row.at("wrong").is_null()) << row;
}

TEST(Perf, CyclesAndSizesThatGiveTheSameCount) {
  for (const char* name : {"all_reduce", "alltoall"}) {
    const Outcome result =
        quick.run(collective(name).program, everything + Words{"-b", "40", "-e", "44", "-f", "1.001", "-N", "2"});
    EXPECT_EQ(result.status, 0) << result.all();
    std::multiset<std::string> rows;
    for (const auto& row : result.rows) {
      EXPECT_EQ(row.at("wrong"), 0) << row;
      rows.insert(row_text(row));
    }
    std::set<std::string> wanted;
    for (std::size_t size = 40; size <= 44; ++size)
      wanted.merge(expected_rows(collective(name), quick, {size, size, 2}, 2));
    EXPECT_TRUE(std::ranges::equal(rows, wanted)) << name << ": " << rows.size() << " rows, not " << wanted.size();
  }
}

TEST(Perf, WhatThisRunCannotDoIsRefusedInOneLine) {
  const auto expect_refused = [](const Way& way, const Words& options, const std::string& says) {
    const Result result = way.run(PATH_all_reduce_perf, options);
    EXPECT_EQ(result.status, 2) << testing::PrintToString(options) << result.all();
    EXPECT_SAYS(result.err, says);
    EXPECT_EQ(occurrences(result.err, "all_reduce_perf: "), 1u) << result.err;
  };
  expect_refused(quick, {"--corrupt", "4"}, "--corrupt must be from 0 to 3, not 4");
  expect_refused(quick, {"--corrupt", "0", "-c", "0"}, "--corrupt needs the check: leave out -c 0");
  expect_refused(quick, {"--iterz", "3"}, "unrecognised option '--iterz'");
  const Result limited =
      run({"sh", "-c", "ulimit -n 200; exec " PATH_all_reduce_perf " --backend gloo -g 16 -b 8 -e 8"});
  EXPECT_EQ(limited.status, 2);
  EXPECT_SAYS(limited.err, "-g 16: over Gloo such a process needs 340 open files, and may have 200: raise the limit");
#ifdef MULTINODE_HAVE_MPI
  const Way mpi{"mpi", 4};
  expect_refused(mpi, {"-g", "2"},
                 "-g: MPI has one rank per process: start more with mpirun -n, or use --backend gloo");
  expect_refused(mpi, {"-b", "16G", "-e", "16G"}, "elements of type float than the int counts of mpi can hold");
#endif
}

#endif

#ifdef MULTINODE_HAVE_GLOO
TEST(PerfGloo, ASizeThatDoesNotFitIsRefusedWithTheLargestThatDoes) {
  for (const char* program : {PATH_all_reduce_perf, PATH_alltoall_perf}) {
    const Result result = Way{"gloo", 4}.run(program, {"-b", "4", "-e", "8192G", "-f", "2"});
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

void kill_a_rank(Starter starter, const std::string& backend) {
  std::mt19937 random(20261121);
  std::string record;
  for (const char* program : {PATH_all_reduce_perf, PATH_alltoall_perf}) {
    // Each row has one element more than the last, so its count shows the progress.
    const Words command{program, "--backend", backend,   "-d", "int8", "-b", "4", "-e",
                        "99999", "-f",        "1.00001", "-n", "1",    "-w", "0"};
    EXPECT_EQ(kill_one(starter, 4, command, " +\\d+ +(\\d+) +int8", 4, 40, random, &record), "") << program;
  }
  std::cout << record;
}

#ifdef MULTINODE_HAVE_MPI
TEST(AKilledRank, IsNamedAndEndsTheOthersOverMpi) { kill_a_rank(Starter::mpirun, "mpi"); }
#endif
#ifdef MULTINODE_HAVE_GLOO
TEST(AKilledRank, IsNamedAndEndsTheOthersOverGloo) { kill_a_rank(Starter::bare, "gloo"); }
#endif

}  // namespace perf_test
