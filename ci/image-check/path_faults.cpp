#include "path_faults.hpp"

#include <multinode/base/text.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <tuple>
#include <unordered_map>

namespace image_check {
namespace {

constexpr std::size_t all_pairs_up_to = 32;
constexpr double odds = 6.9;  // log(1000): a fault must be a thousand times likelier than none

// A tree of switches, with what is below each of its vertices.
struct Tree : Topology {
  explicit Tree(const Topology& topology)
      : Topology(topology), children(names.size()), below(names.size()), depth(names.size()) {
    for (std::size_t v = root(); v-- > 0;) children[parents[v]].push_back(v);
    walk(root());
    levels = 1 + *std::ranges::max_element(depth);
  }
  std::size_t root() const { return names.size() - 1; }
  bool switches_known() const { return root() > nodes; }
  bool is_switch(std::size_t v) const { return v >= nodes; }
  // The switch over which a pair goes, and the vertices below it on both ways.
  std::array<std::size_t, 3> way(std::size_t a, std::size_t b) const {
    while (parents[a] != parents[b]) {
      auto& deeper = depth[a] >= depth[b] ? a : b;
      deeper = parents[deeper];
    }
    return {parents[a], a, b};
  }
  Nodes all_but(const Nodes& some) const {
    Nodes others;
    std::ranges::set_difference(below[root()], some, std::back_inserter(others));
    return others;
  }
  std::vector<Nodes> children, below;  // below: nodes, sorted
  Nodes depth;
  std::size_t levels = 0;

 private:
  void walk(std::size_t v) {
    for (const auto child : children[v]) {
      depth[child] = depth[v] + 1;
      walk(child);
      std::ranges::copy(below[child], std::back_inserter(below[v]));
    }
    if (!is_switch(v)) below[v] = {v};
    std::ranges::sort(below[v]);
  }
};

// The one at that place of the sorted values.
double value_at(std::vector<double> values, std::size_t place) {
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(place);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}
// The 90th percentile: the good ones' value, as long as one in ten is good. 0 of none.
double good_of(const std::vector<double>& values) {
  return values.empty() ? 0 : value_at(values, ((values.size() - 1) * 9 + 9) / 10);
}

// How much likelier so many slow ones are with a fault than by chance, as a logarithm.
double gain(int slow, int all, double chance) {
  const double part = std::min(static_cast<double>(slow) / std::max(all, 1), 0.98);
  if (part <= chance) return -1;
  return slow * std::log(part / chance) + (all - slow) * std::log((1 - part) / (1 - chance));
}

// What was measured so far, and what of it is slow.
class Measurements {
 public:
  struct One {
    Pair pair;
    std::size_t round, level;         // level: depth of the switch over which it goes
    double value;                     // 0: failed
    bool slow = false, good = false;  // good: far from slow
  };
  struct Times {
    int all = 0, slow = 0;
  };

  Measurements(const Tree& tree, const MeasurePairs& measure, double at_least)
      : share(at_least), tree_(tree), measure_(measure), contended_(tree.levels) {}

  void measure(const std::vector<Pair>& pairs) {
    if (pairs.empty()) return;
    const auto values = measure_(pairs);
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      const Pair pair = std::minmax(pairs[i].first, pairs[i].second);
      all.push_back({pair, rounds, tree_.depth[tree_.way(pair.first, pair.second)[0]], values.at(i).value_or(0)});
    }
    ++rounds;
    judge();
  }

  void survey() {
    auto planned = tree_.nodes <= all_pairs_up_to ? tournament() : samples();
    for (const auto& pairs : planned) measure(pairs);
    // For the noise, again, without those that failed: they have none, and cost a deadline.
    const std::size_t once = all.size();
    std::set<Pair> failed;
    for (const auto& one : all)
      if (one.value == 0) failed.insert(one.pair);
    for (auto& pairs : planned) {
      if (all.size() >= once + 24) break;
      std::erase_if(pairs, [&](const Pair& pair) { return failed.contains(std::minmax(pair.first, pair.second)); });
      measure(pairs);
    }
    look_at_noise();
  }

  // Parts: nodes that good pairs connect, the largest part first.
  std::vector<Nodes> parts() const {
    Nodes of(tree_.nodes);
    std::iota(of.begin(), of.end(), 0U);
    const auto find = [&](std::size_t node) {
      while (of[node] != node) node = of[node] = of[of[node]];
      return node;
    };
    for (const auto& one : all)
      if (one.good) of[find(one.pair.first)] = find(one.pair.second);
    std::map<std::size_t, Nodes> by_first;
    for (std::size_t node = 0; node < tree_.nodes; ++node) by_first[find(node)].push_back(node);
    std::vector<Nodes> found;
    for (auto& [first, nodes] : by_first) found.push_back(std::move(nodes));
    std::ranges::stable_sort(found, std::greater{}, &Nodes::size);
    return found;
  }
  // Tries nodes of the smaller parts with the largest ones, and with each other, until nothing joins.
  void join() {
    for (int pass = 0; pass < 5; ++pass) {
      auto now = parts();
      for (auto& part : now) std::ranges::shuffle(part, random);
      for (std::size_t to = 0; to < std::min<std::size_t>(now.size(), 4) && (to == 0 || now[to].size() > 1); ++to) {
        std::vector<Pair> pairs;
        for (std::size_t from = to + 1; from < now.size(); ++from)
          for (std::size_t i = 0; i < std::min<std::size_t>(now[from].size(), 32); ++i)
            if (pairs.size() < now[to].size()) pairs.emplace_back(now[to][pairs.size()], now[from][i]);
        measure(pairs);
      }
      Nodes rest;
      for (std::size_t from = 1; from < now.size(); ++from)
        if (now[from].size() < 32) std::ranges::copy(now[from], std::back_inserter(rest));
      measure(matching(rest));
      if (parts().size() == now.size()) return;
    }
  }

  // Whether more than `part` of some of these pairs are fast while no other sends. Stops when that is certain.
  bool fast_alone(std::vector<Pair> pairs, double part) {
    std::ranges::shuffle(pairs, random);
    pairs.resize(std::min<std::size_t>(pairs.size(), 9));
    const double wanted = part * static_cast<double>(pairs.size());
    double fast = 0, left = static_cast<double>(pairs.size());
    for (auto pair = pairs.begin(); fast <= wanted && fast + left > wanted; ++pair, --left, ++rounds)
      fast += measure_({*pair}).at(0).value_or(0) >= share * good;
    return fast > wanted;
  }
  // Pairs over the switches of a level that are slow together, and not alone: then that is what is usual there.
  void look_for_contention() {
    for (std::size_t level = 0; level < tree_.levels; ++level) {
      std::map<std::size_t, std::vector<double>> by_round;
      std::vector<Pair> pairs;
      for (const auto& one : all)
        if (one.level == level && one.value > 0) {
          by_round[one.round].push_back(one.value);
          pairs.push_back(one.pair);
        }
      double least = good;
      for (const auto& [round, values] : by_round)
        if (values.size() > 4) least = std::min(least, good_of(values));
      if (least >= share * good || !fast_alone(pairs, 0.79)) continue;
      contended_[level] = least;
      contention = true;
      judge();
    }
  }

  std::map<Pair, Times> times() const {
    std::map<Pair, Times> counted;
    for (const auto& one : all) {
      auto& times = counted[one.pair];
      ++times.all;
      times.slow += one.slow;
    }
    return counted;
  }

  std::vector<One> all{};
  std::size_t rounds = 0;
  double share;               // of the good ones', else it is slow
  double good = 0;            // GB/s
  double noise = 0;           // of one measurement, as part of it
  double background = 0.002;  // that a pair is slow by chance
  bool contention = false;    // pairs are slow while others send, and fast alone
  std::mt19937_64 random{1};

 private:
  std::vector<Pair> matching(Nodes nodes) {
    std::vector<Pair> pairs;
    std::ranges::shuffle(nodes, random);
    for (std::size_t i = 0; i + 1 < nodes.size(); i += 2) pairs.emplace_back(nodes[i], nodes[i + 1]);
    return pairs;
  }
  // All pairs, as in a tournament: one stays, the others go round.
  std::vector<std::vector<Pair>> tournament() const {
    const std::size_t n = tree_.nodes, even = n + n % 2;
    std::vector<std::vector<Pair>> found(even - 1);
    for (std::size_t round = 0; round + 1 < even; ++round)
      for (std::size_t i = 0; i < even / 2; ++i) {
        const std::size_t a = (round + i) % (even - 1), b = i == 0 ? even - 1 : (round + even - 1 - i) % (even - 1);
        if (a < n && b < n) found[round].emplace_back(a, b);
      }
    return found;
  }
  // A few rounds within the switches of each level.
  std::vector<std::vector<Pair>> samples() {
    std::vector<std::vector<Pair>> found;
    for (std::size_t level = 0; level < tree_.levels; ++level)
      for (int round = 0; round < (level == 0 ? 4 : 2); ++round) {
        found.emplace_back();
        for (std::size_t v = tree_.nodes; v <= tree_.root(); ++v)
          if (tree_.depth[v] == level) std::ranges::copy(matching(tree_.below[v]), std::back_inserter(found.back()));
      }
    return found;
  }
  // Says which ones are slow. Pairs are compared with the good ones over switches of their level: those above may be
  // oversubscribed.
  void judge() {
    std::vector<std::vector<double>> by_level(tree_.levels);
    for (const auto& one : all)
      if (one.value > 0) by_level[one.level].push_back(one.value);
    std::vector<double> usual;
    for (const auto& values : by_level) usual.push_back(good_of(values));
    good = *std::ranges::max_element(usual);
    for (std::size_t level = 0; level < usual.size(); ++level)
      if (contended_[level] > 0)
        usual[level] = contended_[level];
      else if (usual[level] < share * good)
        usual[level] = good;
    for (auto& one : all) {
      one.slow = one.value < share * usual[one.level] || one.value == 0;
      one.good = !one.slow && one.value >= (1 + share) / 2 * usual[one.level];
    }
  }
  // Noise: how much a pair's two measurements differ. A loss that it hides is not looked for.
  void look_at_noise() {
    std::map<Pair, const One*> before;
    std::vector<double> differences;
    int repeated = 0, changed = 0;
    for (const auto& one : all) {
      const auto [old, is_first] = before.emplace(one.pair, &one);
      if (is_first) continue;
      ++repeated;
      changed += old->second->slow != one.slow;
      if (old->second->value > 0 && one.value > 0 && old->second->slow == one.slow)
        differences.push_back(std::abs(std::log(one.value / old->second->value)));
    }
    if (!differences.empty())  // 68.3 % are within it
      noise = value_at(differences, (differences.size() - 1) * 683 / 1000) / std::sqrt(2.0);
    share = std::clamp(1 - 3.5 * noise, std::min(0.1, share), share);
    const double beyond = (1 - share * (1 + 1.28 * noise)) / std::max(noise, 1e-6);
    background = std::min(0.002 + 0.5 * std::erfc(beyond / std::sqrt(2.0)) + 0.5 * changed / (repeated + 50), 0.3);
    judge();
  }

  const Tree& tree_;
  const MeasurePairs& measure_;
  std::vector<double> contended_;  // by level, what is usual there; 0: what is good
};

using Key = std::uint64_t;  // of a possible fault: what it is, and up to two vertices, or a part; 0: none
constexpr Key key_of(Fault fault, std::size_t a, std::size_t b = 0) { return Key(fault) << 60 | Key(a) << 30 | Key(b); }
constexpr Fault fault_of(Key key) { return Fault(key >> 60); }
constexpr std::size_t first_of(Key key) { return key >> 30 & ((1U << 30) - 1); }
constexpr std::size_t second_of(Key key) { return key & ((1U << 30) - 1); }

struct Chosen {
  Key key = 0;
  int all = 0, slow = 0, failed = 0;  // measurements that the fault touches
  double gain = 0, confidence = 0;
  Key instead = 0;  // the most likely other explanation
  double share() const { return static_cast<double>(slow) / all; }
};

struct Faults {
  std::vector<Chosen> faults{};
  double likelihood = 0;
  std::vector<char> explained{};  // of the measurements
  bool has(Key key) const { return std::ranges::find(faults, key, &Chosen::key) != faults.end(); }
};

// The likeliest faults for what was measured, the rounds that follow, and the words.
class Explanation : public Faults {
 public:
  Explanation(const Tree& tree, Measurements& measured) : tree_(tree), measured_(measured), parts_(measured.parts()) {
    look_at_parts();
    for (const auto& one : measured.all) keys_.push_back(faults_of(one.pair));
    const auto better = [](const Faults& a, const Faults& b) { return a.likelihood >= b.likelihood ? a : b; };
    const std::array both{likeliest(true, 0), likeliest(false, 0)};
    static_cast<Faults&>(*this) = better(both[0], both[1]);
    // Each fault is as sure as the best explanation without it is unlikely.
    for (std::size_t i = 0; i < faults.size(); ++i) {
      auto& chosen = faults[i];
      chosen.confidence = 1 / (1 + std::exp(-chosen.gain));
      if (i >= 16) continue;
      auto other = better(likeliest(true, chosen.key), likeliest(false, chosen.key));
      for (const auto& one : both)
        if (!one.has(chosen.key)) other = better(other, one);
      chosen.confidence = 1 / (1 + std::exp(other.likelihood - likelihood));
      for (const auto& one : other.faults)
        if (!has(one.key) && chosen.instead == 0) chosen.instead = one.key;
    }
  }
  // A round of pairs that are slow, and no fault explains it, or not surely.
  std::vector<Pair> unresolved() const {
    std::set<Pair> pairs;
    const auto times = measured_.times();
    for (std::size_t i = 0; i < measured_.all.size(); ++i) {
      const auto& one = measured_.all[i];
      if (!one.slow) continue;
      const auto [all, slow] = times.at(one.pair);
      if (!explained[i] && !(all >= 3 && 3 * slow <= all)) pairs.insert(one.pair);
      for (const auto& chosen : faults)
        if (chosen.confidence < 0.95 && may_be(i, chosen.key)) pairs.insert(one.pair);
    }
    std::vector<Pair> round(pairs.begin(), pairs.end());
    std::ranges::shuffle(round, measured_.random);
    std::set<std::size_t> used;
    std::erase_if(round, [&](const Pair& pair) {
      if (used.contains(pair.first) || used.contains(pair.second)) return true;
      used.insert({pair.first, pair.second});
      return false;
    });
    return round;
  }
  // Nothing: the pairs are slow only while others send.
  std::optional<PathVerdict> conclude(const Chosen& chosen) const {
    const bool failed = chosen.failed * 10 >= chosen.slow * 9, in_part = chosen.share() < 0.9;
    PathVerdict verdict = named(chosen.key, failed);
    verdict.confidence = std::min(chosen.confidence, 0.99);
    const bool no_other = verdict.fault == (tree_.switches_known() ? Fault::between : Fault::split);  // to compare with
    if (!failed && no_other && !in_part) {
      std::vector<Pair> slow;
      for (std::size_t i = 0; i < explained.size(); ++i)
        if (measured_.all[i].slow && may_be(i, chosen.key)) slow.push_back(measured_.all[i].pair);
      if (measured_.fast_alone(slow, 0.5)) return std::nullopt;
    }
    verdict.text += fmt::format(": {} of {} measurements {}{}; confidence {:.0f} %", chosen.slow, chosen.all,
                                failed ? "failed" : "are slow",
                                in_part ? ", as of some of several links that share the traffic (ECMP)" : "",
                                std::floor(100 * verdict.confidence));
    const bool one = verdict.fault == Fault::node || verdict.fault == Fault::path;
    if (verdict.confidence < 0.9 || (in_part && one)) {
      verdict.fault = Fault::unknown;
      verdict.text = "cannot tell: " + verdict.text;
      if (chosen.instead != 0) verdict.text += ", or " + named(chosen.instead, failed).text;
    }
    return verdict;
  }

  // Pairs that are slow again and again, and nothing explains it; and how often they are.
  std::optional<std::pair<PathVerdict, double>> leftovers() const {
    std::vector<Pair> pairs;
    std::set<Pair> seen;
    int slow = 0, all = 0;
    const auto times = measured_.times();
    for (std::size_t i = 0; i < measured_.all.size(); ++i) {
      const auto& pair = measured_.all[i].pair;
      if (!measured_.all[i].slow || explained[i] || !seen.insert(pair).second) continue;
      const auto& of = times.at(pair);
      slow += of.slow - 1;
      all += of.all - 1;
      if (of.slow > 1) pairs.push_back(pair);
    }
    if (gain(slow, all, std::min(measured_.background, 0.01)) < odds) return std::nullopt;
    if (4 * seen.size() >= times.size() && measured_.fast_alone(pairs, 0.8)) {
      measured_.contention = true;
      return std::nullopt;
    }
    const auto count = pairs.size();
    pairs.resize(std::min<std::size_t>(count, 8));
    const auto some = multinode::join(
        pairs, ", ", [&](const Pair& pair) { return tree_.names[pair.first] + " - " + tree_.names[pair.second]; });
    return std::pair(
        PathVerdict{.text = fmt::format("cannot tell: {} pairs were slow again, in {} of {} measurements, with no node "
                                        "or switch in common: {}{}",
                                        count, slow, all, some,
                                        tree_.switches_known() ? "" : "; name the switches with --topology")},
        static_cast<double>(slow) / all);
  }

 private:
  // Whether the fault can be why that measurement is slow.
  bool may_be(std::size_t measurement, Key key) const {
    return std::ranges::find(keys_[measurement], key) != keys_[measurement].end();
  }
  // Parts that no switch separates are possible faults.
  void look_at_parts() {
    part_of_.assign(tree_.nodes, 0);
    for (std::size_t part = 0; part < parts_.size(); ++part)
      for (const auto node : parts_[part]) part_of_[node] = part;
    pieces_.assign(parts_.size(), 0);
    Nodes all_of(tree_.names.size());              // the part that has all below a vertex
    constexpr std::size_t any = -1, several = -2;  // any: only nodes that no good pair connects to another
    std::size_t large = 0;
    while (large < parts_.size() && parts_[large].size() > 1) ++large;
    const std::function<void(std::size_t)> look = [&](std::size_t v) {
      all_of[v] = tree_.is_switch(v) || part_of_[v] >= large ? any : part_of_[v];
      for (const auto child : tree_.children[v]) {
        look(child);
        if (all_of[v] == any)
          all_of[v] = all_of[child];
        else if (all_of[child] != any && all_of[child] != all_of[v])
          all_of[v] = several;
      }
      if (all_of[v] != several) return;
      for (const auto child : tree_.children[v])
        if (all_of[child] < large) ++pieces_[all_of[child]];
    };
    look(tree_.root());
    // What a switch has below it is no split.
    const auto is_of_switch = [&](std::size_t part) { return pieces_[part] == 1; };
    may_split_.assign(parts_.size(), false);
    for (std::size_t part = 1; part < large; ++part)
      may_split_[part] = !is_of_switch(part) && !(large == 2 && is_of_switch(0));
  }

  // All faults that can be why a pair is slow.
  std::vector<Key> faults_of(Pair pair) const {
    const auto [a, b] = pair;
    const auto [over, below_a, below_b] = tree_.way(a, b);
    std::vector<Key> keys{key_of(Fault::node, a), key_of(Fault::node, b), key_of(Fault::path, a, b)};
    const bool two = tree_.children[over].size() == 2, switches = tree_.is_switch(below_a) && tree_.is_switch(below_b);
    for (const auto& [from, to] : {std::pair(a, below_a), std::pair(b, below_b)})
      for (auto v = from; v != to;) {
        v = tree_.parents[v];
        if (!(v == to && over == tree_.root() && two)) keys.push_back(key_of(Fault::uplink, v));
      }
    if (tree_.switches_known() && (!two || switches)) keys.push_back(key_of(Fault::inside, over));
    if (!two && switches)
      keys.push_back(key_of(Fault::between, std::min(below_a, below_b), std::max(below_a, below_b)));
    if (part_of_[a] != part_of_[b])
      for (const auto part : {part_of_[a], part_of_[b]})
        if (may_split_[part]) keys.push_back(key_of(Fault::split, part));
    return keys;
  }
  double gain_of(const Chosen& one) const {
    const double n = static_cast<double>(tree_.nodes), switches = static_cast<double>(tree_.names.size()) - n + 1;
    const Fault fault = fault_of(one.key);
    const double prior = fault == Fault::node      ? std::log(n)
                         : fault == Fault::path    ? std::log(n * n / 2) + 3  // rarer than a bad node
                         : fault == Fault::between ? 2 * std::log(switches)
                         : fault == Fault::split
                             ? std::log(n + switches) * static_cast<double>(pieces_[first_of(one.key)])
                             : std::log(switches);
    return gain(one.slow, one.all, measured_.background) - prior;
  }
  // The likeliest fault, then the likeliest for what it does not explain, and so on, but not `without`, even if that
  // leaves less than chance. Whole faults first, or not.
  Faults likeliest(bool whole, Key without) const {
    const auto& all = measured_.all;
    Faults found{.explained = std::vector<char>(all.size())};
    std::unordered_map<Key, Chosen> counts;
    for (std::size_t i = 0; i < all.size(); ++i)
      if (all[i].slow)
        for (const auto key : keys_[i]) counts[key].key = key;
    counts.erase(without);
    const auto count = [&](std::size_t i, int more) {
      if (counts.empty()) return;
      for (const auto key : keys_[i])
        if (const auto of = counts.find(key); of != counts.end()) {
          of->second.all += more;
          of->second.slow += all[i].slow ? more : 0;
          of->second.failed += all[i].value == 0 ? more : 0;
        }
    };
    for (std::size_t i = 0; i < all.size(); ++i) count(i, 1);
    while (true) {
      Chosen best{.gain = without ? 0 : odds};
      for (auto& [key, one] : counts) {
        if (one.slow == 0) continue;
        const Fault fault = fault_of(key);
        const double least = whole || fault == Fault::split                 ? 0.9
                             : fault == Fault::node || fault == Fault::path ? 0.5
                                                                            : 0;
        if (one.share() < least) continue;
        one.gain = gain_of(one);
        if (one.gain > best.gain || (one.gain == best.gain && key < best.key)) best = one;
      }
      if (best.slow == 0 && !whole) return found;
      if (best.slow == 0) {
        whole = false;
        continue;
      }
      found.faults.push_back(best);
      found.likelihood += best.gain;
      for (std::size_t i = 0; i < all.size(); ++i) {
        if (found.explained[i] || !may_be(i, best.key)) continue;
        found.explained[i] = true;
        count(i, -1);
      }
    }
  }

  std::string names(Nodes nodes) const {
    constexpr std::size_t most = 8;
    const auto count = nodes.size();
    nodes.resize(std::min(count, most));
    return "{" + multinode::join(nodes, ", ", [&](std::size_t node) { return tree_.names[node]; }) +
           (count > most ? fmt::format(", ... ({} nodes)}}", count) : "}");
  }
  // What it is called, and its two sides.
  PathVerdict named(Key key, bool failed) const {
    const auto a = first_of(key), b = second_of(key);
    const auto& [below, name] = std::tie(tree_.below, tree_.names);
    const auto of = [&](const Nodes& one, const std::string& text) {
      return PathVerdict{.fault = fault_of(key), .one = one, .other = tree_.all_but(one), .text = text};
    };
    switch (fault_of(key)) {
      case Fault::node:
        return of({a}, "node " + name[a]);
      case Fault::path:
        return {.fault = Fault::path, .one = {a}, .other = {b}, .text = "one path " + name[a] + " - " + name[b]};
      case Fault::between:
        return {.fault = Fault::between,
                .one = below[a],
                .other = below[b],
                .text = "link or uplink between " + name[a] + " and " + name[b]};
      case Fault::inside:
        if (const auto& two = tree_.children[a]; two.size() == 2)
          return named(key_of(Fault::between, two[1], two[0]), failed);
        return {
            .fault = Fault::inside, .one = below[a], .text = "switch " + name[a] + ", or links between those below it"};
      case Fault::uplink:
        return of(below[a], "uplink of " + name[a]);
      default:
        const auto& part = parts_[a];
        return of(part, (failed ? "cluster is split: " : "slow link or uplink between ") + names(part) + " and " +
                            names(tree_.all_but(part)));
    }
  }

  const Tree& tree_;
  Measurements& measured_;
  const std::vector<Nodes> parts_;        // as those of Measurements
  std::vector<std::vector<Key>> keys_{};  // of each measurement
  Nodes part_of_{}, pieces_{};            // pieces of a part: vertices that have nothing else below them
  std::vector<bool> may_split_{};
};

}  // namespace

PathFaults find_path_faults(const Topology& topology, const MeasurePairs& measure, double at_least) {
  const Tree tree(topology);
  Measurements measured(tree, measure, at_least);
  const auto result = [&](std::vector<PathVerdict> verdicts) {
    return PathFaults{std::move(verdicts), measured.rounds, measured.times().size(), measured.good,
                      measured.noise,      measured.share,  measured.contention};
  };
  measured.survey();
  if (measured.good == 0) return result({{.text = "cannot tell: no pair works"}});
  measured.look_for_contention();
  if (tree.nodes > all_pairs_up_to) measured.join();
  std::optional<Explanation> explanation(std::in_place, tree, measured);
  for (int step = 0; step < 9; ++step) {
    const auto suspects = explanation->unresolved();
    if (suspects.empty()) break;
    measured.measure(suspects);
    explanation.emplace(tree, measured);
  }
  std::vector<PathVerdict> verdicts;
  if (auto found = explanation->leftovers()) {
    verdicts.push_back(std::move(found->first));
    measured.background = found->second;  // a fault must stand out from that
    explanation.emplace(tree, measured);
  }
  for (const auto& chosen : explanation->faults)
    if (auto verdict = explanation->conclude(chosen))
      verdicts.push_back(*std::move(verdict));
    else
      measured.contention = true;
  if (measured.share < at_least / 2)
    verdicts.push_back({.text = fmt::format("cannot tell: the bandwidth of one pair varies by {:.0f} %, so only losses "
                                            "of more than {:.0f} % can be seen",
                                            100 * measured.noise, 100 * (1 - measured.share))});
  return result(std::move(verdicts));
}

}  // namespace image_check
