// rdma_bw: the bandwidth between nodes with RDMA and without: chapter 02's all_reduce_perf, run twice for each number
// of processes. Exit status: 0 both measured, and the first over RDMA; 1 a run failed, or RDMA was not used; 2 bad
// command line; 3 the counters cannot tell; 77 no RDMA here: only the half without it was measured.
#include "rdma_tune/choice.hpp"
#include "rdma_tune/options.hpp"
#include "rdma_tune/verify.hpp"

#include <multinode/check.hpp>
#include <multinode/child_process.hpp>
#include <multinode/descriptor.hpp>
#include <multinode/options.hpp>
#include <multinode/program_options.hpp>
#include <multinode/report.hpp>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <optional>
#include <set>
#include <sstream>
#include <thread>

namespace rdma_bw {

namespace po = boost::program_options;
using multinode::UsageError, multinode::check_errno, nlohmann::json;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

struct Options {
  std::string launch = "mpirun -n {n}", benchmark, backend = "auto", plot;
  std::vector<int> processes;
  double timeout = 600, baseline = 1;
  rdma::SystemOptions system;
  rdma::WantedOptions wanted;
  std::vector<std::string> arguments;  // of the benchmark
};

// As a shell splits it: blanks, quotes, backslashes.
std::vector<std::string> words_of(const std::string& option, const std::string& text) {
  std::vector<std::string> words;
  bool in_word = false;
  char quote = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    const bool blank = !quote && (c == ' ' || c == '\t' || c == '\n');
    if (!blank && !in_word) words.emplace_back();
    in_word = !blank;
    if (blank) continue;
    if (c == quote) {
      quote = 0;
    } else if (!quote && (c == '\'' || c == '"')) {
      quote = c;
    } else {
      if (c == '\\' && quote != '\'') {
        if (++i == text.size()) throw UsageError(option + ": '" + text + "' ends with a backslash");
        c = text[i];
      }
      words.back() += c;
    }
  }
  if (quote) throw UsageError(option + ": '" + text + "' has an unmatched quote");
  return words;
}

std::string folder_of_this_program() {
  char path[4096];
  const ssize_t size = ::readlink("/proc/self/exe", path, sizeof path);
  const std::string text(path, static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
  return text.substr(0, text.find_last_of('/') + 1);
}

bool parse(int argc, const char* const* argv, Options& options) {
  const char* const* const end = argv + argc;
  const char* const* const dashes = std::find_if(argv, end, [](const char* word) { return !std::strcmp(word, "--"); });
  const auto set_processes = [&](const std::string& text) {
    std::istringstream list(text + ",");
    for (std::string word; std::getline(list, word, ',');) {
      char* after = nullptr;
      const long number = std::strtol(word.c_str(), &after, 10);
      if (word.empty() || *after || number < 2 || number > 1'000'000)
        throw UsageError("--processes must be numbers from 2 on, such as 2,4,8, not '" + text + "'");
      options.processes.push_back(static_cast<int>(number));
    }
  };
  po::options_description known("rdma_bw [options] [-- options of the benchmark; without any: -b 8 -e 128M -f 8]");
  known.add_options()("launch", po::value(&options.launch)->default_value(options.launch),
                      "command that starts {n} processes on the nodes; this machine is one of the nodes")(
      "processes", po::value<std::string>()->default_value("2")->notifier(set_processes), "the numbers {n}: 2,4,8")(
      "benchmark", po::value(&options.benchmark), "path of all_reduce_perf; default: the one of this build")(
      "backend", po::value(&options.backend)->default_value(options.backend),
      "nccl, mpi (over UCX), or auto: nccl where a GPU is here")("plot", po::value(&options.plot),
                                                                 "SVG file to draw the bus bandwidths to")(
      "timeout", po::value(&options.timeout)->default_value(600, "600"), "seconds that one run may take")(
      "baseline", po::value(&options.baseline)->default_value(1, "1"),
      "seconds to watch the idle machine before each run; its own traffic is subtracted");
  known.add(options.wanted.description()).add(options.system.description());
  if (!multinode::parse_command_line(static_cast<int>(dashes - argv), argv, known, true)) return false;
  multinode::require_range("--timeout", options.timeout, 0.1, 1e6);
  multinode::require_range("--baseline", options.baseline, 0.0, 3600.0);
  if (options.backend != "auto" && options.backend != "nccl" && options.backend != "mpi")
    throw UsageError("--backend must be auto, nccl or mpi, not '" + options.backend + "'");
  if (options.processes.size() > 1 && options.launch.find("{n}") == std::string::npos)
    throw UsageError("--processes has several numbers, but --launch has no {n}");
  if (options.benchmark.empty()) options.benchmark = folder_of_this_program() + "../02-mpi/all_reduce_perf";
  if (::access(options.benchmark.c_str(), X_OK) != 0)
    throw UsageError("--benchmark: cannot run " + options.benchmark + ": " + std::strerror(errno));
  if (words_of("--launch", options.launch).empty()) throw UsageError("--launch is empty");
  if (!options.plot.empty() && !std::ofstream(options.plot, std::ios::app))
    throw UsageError("--plot: cannot write " + options.plot + ": " + std::strerror(errno));
  options.arguments.assign(dashes == end ? end : dashes + 1, end);
  if (options.arguments.empty()) options.arguments = {"-b", "8", "-e", "128M", "-f", "8"};
  return true;
}

struct Ended {
  int status = 0;  // as a shell says it
  bool timed_out = false;
  std::string out;
};

// Its standard error is this program's. When it has had its time, or this program dies, it gets a SIGTERM.
Ended run(const std::vector<std::string>& command, std::chrono::duration<double> time) {
  auto output = multinode::make_pipe();
  std::optional<multinode::ChildProcess> process;
  try {
    process.emplace(multinode::ChildCommand{
        .arguments = command, .descriptors = {0, output.to.get(), 2}, .when_parent_dies = SIGTERM});
  } catch (const multinode::StartError& e) {
    throw UsageError("--launch: cannot run " + command.front() + ": " + std::strerror(e.error));
  }
  output.to.reset();
  Ended result;
  auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(time);
  bool ended = false;
  char buffer[65'536];
  // A process that the command left behind may hold the pipe: what comes late is not waited for.
  while (!ended || output.from.get() >= 0) {
    pollfd polled{output.from.get(), POLLIN, 0};
    if (::poll(&polled, 1, ended ? 200 : 20) == 0 && ended) break;
    if (polled.revents) {
      const ssize_t size = ::read(polled.fd, buffer, sizeof buffer);
      if (size > 0)
        result.out.append(buffer, static_cast<std::size_t>(size));
      else if (size == 0 || errno != EINTR)
        output.from.reset();
    }
    ended = process->look() || ended;
    if (Clock::now() < deadline) continue;
    if (ended) break;
    process->signal(result.timed_out ? SIGKILL : SIGTERM);
    result.timed_out = true;
    deadline = Clock::now() + 10s;
  }
  result.status = process->ending()->as_exit_status();
  return result;
}

// One run of the benchmark.
struct Half {
  int ranks = 0;
  double busbw = 0, algbw = 0;  // Gbit/s, of the largest size
  double latency = 0;           // microseconds a call of the smallest size
  std::size_t size = 0, smallest = 0;
  rdma::Assessment over;
};

// From the benchmark's JSON lines, among what else it prints and behind what a launcher puts in front.
Half read_results(const std::string& out) {
  Half half;
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t brace = line.find('{');
    if (brace == line.npos) continue;
    const json object = json::parse(line.substr(brace, line.rfind('}') + 1 - brace), nullptr, false);
    try {
      if (!object.is_object() || !object.contains("busbw_gb_per_s") || object.at("in_place").get<bool>()) continue;
      if (object.at("busbw_gb_per_s").is_null())
        throw std::runtime_error("the benchmark ran on one rank, where there is no bandwidth: see --launch");
      const std::size_t size = object.at("size_bytes");
      if (!half.ranks || size <= half.smallest) {
        half.smallest = size;
        half.latency = object.at("time_us");
      }
      if (!half.ranks || size >= half.size) {
        half.size = size;
        half.busbw = 8 * object.at("busbw_gb_per_s").get<double>();
        half.algbw = 8 * object.at("algbw_gb_per_s").get<double>();
      }
      half.ranks = object.at("ranks");
    } catch (const json::exception& e) {
      throw std::runtime_error(std::string("the benchmark's JSON is not what it should be: ") + e.what());
    }
  }
  if (!half.ranks) throw std::runtime_error("the benchmark printed no result");
  return half;
}

std::string digits(double value) { return fmt::format("{:.{}f}", value, value < 1 ? 3 : 1); }

using Variables = std::vector<std::string>;  // NAME=value

Variables with_rdma(const std::vector<rdma::Export>& exports) {
  Variables all;
  for (const rdma::Export& one : exports) all.push_back(one.name + "=" + one.value);
  return all;
}

// The same interface, by sockets.
Variables without_rdma(const std::vector<rdma::Export>& exports) {
  Variables all{"UCX_TLS=tcp,self,sm"};
  for (const rdma::Export& one : exports) all.push_back(one.name + "=" + one.value);
  return all;
}

Half measure(const Options& options, int processes, const Variables& variables) {
  std::vector<std::string> command;
  for (std::string word : words_of("--launch", options.launch)) {
    for (std::size_t at; (at = word.find("{n}")) != word.npos;) word.replace(at, 3, std::to_string(processes));
    command.push_back(word);
  }
  // env, as each launcher has its own way to pass variables on.
  command.emplace_back("env");
  command.insert(command.end(), variables.begin(), variables.end());
  command.push_back(options.benchmark);
  // Rank 0 may be on another node: its results come by its standard output.
  command.insert(command.end(), {"--backend", options.backend, "--json", "/dev/stdout"});
  command.insert(command.end(), options.arguments.begin(), options.arguments.end());

  const rdma::Counters idle = rdma::read_counters(options.system.sysfs);
  if (options.baseline > 0)
    std::this_thread::sleep_for(
        std::max<std::chrono::duration<double>>(std::chrono::duration<double>(options.baseline), idle.delay));
  const rdma::Counters before = options.baseline > 0 ? rdma::read_counters(options.system.sysfs) : idle;
  const Ended ended = run(command, std::chrono::duration<double>(options.timeout));
  std::this_thread::sleep_for(before.delay);  // of counters that are only fetched so often
  if (ended.timed_out)
    throw std::runtime_error("the benchmark did not end within --timeout, " + digits(options.timeout) + " s");
  if (ended.status == multinode::exit_hardware_absent)
    throw multinode::HardwareAbsent("the benchmark lacks its hardware (exit status 77); see --backend");
  if (ended.status) {
    std::cerr << ended.out;
    throw std::runtime_error("the benchmark ended with exit status " + std::to_string(ended.status));
  }
  Half half = read_results(ended.out);
  half.over = rdma::assess(idle, before, rdma::read_counters(options.system.sysfs));
  // Between nodes each block crosses at least once; less than that is somebody else's.
  if (half.over.verdict == rdma::Verdict::tcp && half.over.tcp_bytes < static_cast<double>(half.size))
    half.over.verdict = rdma::Verdict::no_traffic;
  return half;
}

struct Row {
  int processes = 0;
  std::optional<Half> rdma, sockets;
};

// Two bars for each number of processes.
void draw(const std::string& path, const std::vector<Row>& rows) {
  double most = 1e-9;
  for (const Row& row : rows)
    for (const auto& half : {row.rdma, row.sockets})
      if (half) most = std::max(most, half->busbw);
  constexpr int bar = 56, group = 3 * bar, height = 240, top = 70, left = 30;
  const int width = std::max(480, 2 * left + group * static_cast<int>(rows.size()));
  std::ostringstream svg;
  svg << "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " << width << ' ' << top + height + 50
      << "\" role=\"img\" font-family=\"sans-serif\" font-size=\"13\" fill=\"#222222\">\n"
      << "<title>All-reduce, bus bandwidth in Gbit/s</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
      << "<text x=\"" << left << "\" y=\"28\" font-weight=\"bold\">All-reduce, bus bandwidth in Gbit/s</text>\n"
      << "<text x=\"" << left << "\" y=\"48\"><tspan fill=\"#0072b2\">with RDMA</tspan>, "
      << "<tspan fill=\"#d55e00\">without</tspan></text>\n";
  int x = left;
  for (const Row& row : rows) {
    int at = x + bar / 2;
    for (const auto& [half, colour] : {std::pair(&row.rdma, "#0072b2"), std::pair(&row.sockets, "#d55e00")}) {
      const double tall = *half ? height * (*half)->busbw / most : 0;
      svg << "<rect x=\"" << at << "\" y=\"" << top + height - tall << "\" width=\"" << bar - 8 << "\" height=\""
          << tall << "\" fill=\"" << colour << "\"/>\n<text text-anchor=\"middle\" x=\"" << at + bar / 2 - 4
          << "\" y=\"" << top + height - tall - 6 << "\">" << (*half ? digits((*half)->busbw) : "-") << "</text>\n";
      at += bar;
    }
    svg << "<text text-anchor=\"middle\" x=\"" << x + group / 2 << "\" y=\"" << top + height + 22 << "\">"
        << row.processes << " processes</text>\n";
    x += group;
  }
  svg << "</svg>\n";
  std::ofstream file(path, std::ios::trunc);
  file << svg.str() << std::flush;
  if (!file) throw std::runtime_error("--plot: cannot write " + path + ": " + std::strerror(errno));
}

json to_json(const Row& row) {
  const auto of = [](const std::optional<Half>& half) -> json {
    if (!half) return nullptr;
    return {{"busbw_gbit_per_s", half->busbw},
            {"algbw_gbit_per_s", half->algbw},
            {"size_bytes", half->size},
            {"latency_us", half->latency},
            {"latency_size_bytes", half->smallest},
            {"over", text_of(half->over.verdict)}};
  };
  return {{"processes", row.processes}, {"rdma", of(row.rdma)}, {"without", of(row.sockets)}};
}

int report(const Options& options, const std::vector<Row>& rows) {
  multinode::Table table(
      {"processes", "RDMA busbw", "algbw", "latency", "over", "no RDMA busbw", "algbw", "latency", "over", "ratio"});
  int status = multinode::exit_right;
  std::set<std::string> lines;
  multinode::JsonLines json_lines(options.system.json);
  for (const Row& row : rows) {
    std::vector<std::string> cells{std::to_string(row.processes)};
    for (const auto& half : {row.rdma, row.sockets}) {
      if (half)
        cells.insert(cells.end(),
                     {digits(half->busbw), digits(half->algbw), digits(half->latency), text_of(half->over.verdict)});
      else
        cells.insert(cells.end(), {"-", "-", "-", "-"});
    }
    cells.push_back(row.rdma && row.sockets && row.sockets->busbw > 0 ? digits(row.rdma->busbw / row.sockets->busbw)
                                                                      : "-");
    table.add(cells);
    json_lines.write(to_json(row));
    const std::string who = std::to_string(row.processes) + " processes: ";
    if (!row.rdma) {
      status = multinode::exit_hardware_absent;
    } else if (row.rdma->over.verdict == rdma::Verdict::tcp) {
      lines.insert(who + (row.sockets->over.verdict == rdma::Verdict::tcp ? "both halves" : "the half with RDMA") +
                   " ran over TCP: RDMA was not used; see rdma_tune verify and check");
      status = multinode::exit_wrong;
    } else if (row.rdma->over.verdict == rdma::Verdict::no_traffic) {
      lines.insert(who + "nothing left this machine: --launch must start processes on two nodes");
      status = multinode::exit_wrong;
    } else if (row.rdma->over.verdict == rdma::Verdict::cannot_tell) {
      lines.insert(who + "the counters cannot tell whether the half with RDMA used RDMA");
      if (!status) status = multinode::exit_untestable;
    }
    if (row.sockets &&
        (row.sockets->over.verdict == rdma::Verdict::rdma || row.sockets->over.verdict == rdma::Verdict::mixed)) {
      lines.insert(who + "the half without RDMA ran over RDMA too");
      status = multinode::exit_wrong;
    }
  }
  table.print(std::cout);
  const auto& any = rows.front().sockets;
  std::cout << "busbw and algbw: Gbit/s at " << any->size << " bytes; latency: us at " << any->smallest << " bytes\n";
  for (const std::string& line : lines) std::cout << line << '\n';
  if (status == multinode::exit_hardware_absent)
    std::cout << "no usable RDMA port here: only the half without RDMA was measured\n";
  std::cout << std::flush;
  if (!options.plot.empty()) draw(options.plot, rows);
  return status;
}

int compare_halves(Options& options) {
  const rdma::System system = rdma::read_system(options.system.sysfs);
  const rdma::Choice choice = choose(system, options.wanted.wanted);
  if (options.backend == "auto") options.backend = system.gpus.empty() ? "mpi" : "nccl";
  const auto exports = rdma::exports(system, choice, {2, 28}), sockets = socket_exports(system, choice);
  Variables of_mpi;
  if (choice.has_rdma() && options.backend == "mpi")  // Open MPI has other ways, which UCX's variables do not reach
    of_mpi = {"OMPI_MCA_pml=ucx", "OMPI_MCA_opal_common_ucx_tls=any", "OMPI_MCA_opal_common_ucx_devices=any"};
  const auto joined = [&](Variables all) {
    all.insert(all.end(), of_mpi.begin(), of_mpi.end());
    return all;
  };

  std::vector<Row> rows;
  for (const int processes : options.processes) {
    Row row{processes, {}, {}};
    if (choice.has_rdma()) {
      std::cerr << "rdma_bw: " << processes << " processes, with RDMA ...\n";
      row.rdma = measure(options, processes, joined(with_rdma(exports)));
    }
    std::cerr << "rdma_bw: " << processes << " processes, without RDMA ...\n";
    row.sockets = measure(options, processes, joined(without_rdma(sockets)));
    row.processes = row.sockets->ranks;
    if (row.rdma && row.rdma->ranks != row.processes)
      throw std::runtime_error("the halves ran on different numbers of ranks");
    rows.push_back(std::move(row));
  }
  return report(options, rows);
}

}  // namespace rdma_bw

int rdma_bw_main(int argc, char** argv) {
  using namespace rdma_bw;
  std::string error;
  int status = multinode::exit_right;
  try {
    if (Options options; parse(argc, argv, options)) status = compare_halves(options);
  } catch (const UsageError& e) {
    status = multinode::exit_usage;
    error = e.what();
  } catch (const multinode::HardwareAbsent& e) {
    status = multinode::exit_hardware_absent;
    error = e.what();
  } catch (const std::exception& e) {
    status = multinode::exit_wrong;
    error = e.what();
  }
  if (!error.empty()) std::cerr << "rdma_bw: " + error + "\n";
  return status;
}
