#include "path_faults.hpp"

#include <multinode/base/options.hpp>
#include <multinode/base/text.hpp>
#include <multinode/launch/host_list.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <sstream>
#include <unordered_map>

namespace image_check {
namespace {

using Nodes = std::vector<std::size_t>;
using Key = std::uint64_t;  // of a possible fault: what it is, and up to two vertices

constexpr std::size_t all_pairs_up_to = 32;
constexpr double odds = 6.9;  // log(1000): a fault must be a thousand times likelier than none

constexpr Key key_of(Fault fault, std::size_t a, std::size_t b = 0) { return Key(fault) << 60 | Key(a) << 30 | Key(b); }
constexpr Fault fault_of(Key key) { return Fault(key >> 60); }
constexpr std::size_t first_of(Key key) { return key >> 30 & ((1U << 30) - 1); }
constexpr std::size_t second_of(Key key) { return key & ((1U << 30) - 1); }

// The 90th percentile: the good ones' value, as long as one in ten is good. 0 of none.
double good_of(std::vector<double>& values) {
  if (values.empty()) return 0;
  const auto at = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) * 9 + 9) / 10;
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

class Search {
 public:
  Search(const Topology& tree, const MeasurePairs& measure, double at_least)
      : tree_(tree),
        measure_(measure),
        at_least_(at_least),
        share_(at_least),
        children_(tree.names.size()),
        depth_(tree.names.size()) {
    for (std::size_t v = root(); v-- > 0;) children_[tree.parents[v]].push_back(v);
    walk(root());
    contended_.resize(1 + *std::ranges::max_element(depth_));
  }

  PathFaults run() {
    survey();
    if (good_ == 0) {
      found_.verdicts.push_back({.text = "cannot tell: no pair works"});
      return std::move(found_);
    }
    for (std::size_t level = 0; level < contended_.size(); ++level) look_for_contention(level);
    if (tree_.nodes > all_pairs_up_to) join();
    explain();
    for (int step = 0; step < 9; ++step) {
      const auto suspects = unresolved();
      if (suspects.empty()) break;
      measure(step % 2 == 0 ? disjoint(suspects) : partners(suspects));
      explain();
    }
    if (const double often = leftovers(); often > 0) {
      background_ = often;  // a fault must stand out from that
      explain();
    }
    for (const auto& chosen : best_.faults) conclude(chosen);
    if (share_ < at_least_ / 2)
      found_.verdicts.push_back(
          {.text = fmt::format("cannot tell: the bandwidth of one pair varies by {:.0f} %, so only "
                               "losses of more than {:.0f} % can be seen",
                               100 * found_.noise, 100 * (1 - share_))});
    found_.paths = times_.size();
    found_.good = good_;
    found_.limit = share_;
    return std::move(found_);
  }

 private:
  struct Measured {
    Pair pair;
    std::size_t round, level;  // level: depth of the switch over which it goes
    double value;              // 0: failed
    bool slow, good;           // good: far from slow
    std::vector<Key> keys{};   // of all faults that can be why it is slow
    bool may_be(Key key) const { return std::ranges::find(keys, key) != keys.end(); }
  };
  struct Times {
    int all = 0, slow = 0;
  };
  struct Counts {
    int all = 0, slow = 0, failed = 0;
    double share() const { return static_cast<double>(slow) / all; }
  };
  struct Chosen {
    Key key;
    Counts counts;
    double gain, confidence = 0;
    Key instead = 0;  // the most likely other explanation
  };
  struct Explanation {
    std::vector<Chosen> faults;
    double likelihood = 0;
    std::vector<char> explained{};  // of the measurements
    bool has(Key key) const { return std::ranges::find(faults, key, &Chosen::key) != faults.end(); }
  };

  // The tree.
  std::size_t root() const { return tree_.names.size() - 1; }
  bool switches_known() const { return root() > tree_.nodes; }
  bool is_switch(std::size_t v) const { return v >= tree_.nodes; }
  void walk(std::size_t v) {  // fills below_
    below_.resize(tree_.names.size());
    for (const auto child : children_[v]) {
      depth_[child] = depth_[v] + 1;
      walk(child);
      below_[v].insert(below_[v].end(), below_[child].begin(), below_[child].end());
    }
    if (!is_switch(v)) below_[v] = {v};
    std::ranges::sort(below_[v]);
  }
  // The switch over which a pair goes, and the vertices below it on both ways.
  std::array<std::size_t, 3> way(std::size_t a, std::size_t b) const {
    while (tree_.parents[a] != tree_.parents[b])
      if (depth_[a] >= depth_[b])
        a = tree_.parents[a];
      else
        b = tree_.parents[b];
    return {tree_.parents[a], a, b};
  }

  // Measuring.
  void measure(const std::vector<Pair>& pairs) {
    if (pairs.empty()) return;
    const auto values = measure_(pairs);
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      const Pair pair = std::minmax(pairs[i].first, pairs[i].second);
      const auto over = way(pair.first, pair.second)[0];
      all_.push_back({pair, found_.rounds, depth_[over], values.at(i).value_or(0), false, false});
    }
    ++found_.rounds;
    judge();
  }
  // Says which ones are slow. Pairs are compared with the good ones over switches of their level: those above may be
  // oversubscribed.
  void judge() {
    std::vector<std::vector<double>> by_level(contended_.size());
    for (const auto& one : all_)
      if (one.value > 0) by_level[one.level].push_back(one.value);
    std::vector<double> good;
    for (auto& values : by_level) good.push_back(good_of(values));
    good_ = *std::ranges::max_element(good);
    for (std::size_t level = 0; level < good.size(); ++level)
      if (contended_[level])
        good[level] = *contended_[level];
      else if (good[level] < share_ * good_)
        good[level] = good_;
    for (auto& one : all_) {
      one.slow = one.value < share_ * good[one.level] || one.value == 0;
      one.good = !one.slow && one.value >= (1 + share_) / 2 * good[one.level];
    }
  }
  void count_times() {
    times_.clear();
    for (const auto& one : all_) {
      auto& times = times_[one.pair];
      ++times.all;
      times.slow += one.slow;
    }
  }
  std::vector<Pair> matching(Nodes nodes) {
    std::vector<Pair> pairs;
    std::ranges::shuffle(nodes, random_);
    for (std::size_t i = 0; i + 1 < nodes.size(); i += 2) pairs.emplace_back(nodes[i], nodes[i + 1]);
    return pairs;
  }
  void survey() {
    std::vector<std::vector<Pair>> rounds;
    const std::size_t n = tree_.nodes, even = n + n % 2;
    if (n <= all_pairs_up_to) {  // as in a tournament: one stays, the others go round
      for (std::size_t round = 0; round + 1 < even; ++round) {
        rounds.emplace_back();
        for (std::size_t i = 0; i < even / 2; ++i) {
          const std::size_t a = (round + i) % (even - 1), b = i == 0 ? even - 1 : (round + even - 1 - i) % (even - 1);
          if (a < n && b < n) rounds.back().emplace_back(a, b);
        }
      }
    } else {
      for (std::size_t level = 0; level < contended_.size(); ++level)
        for (int round = 0; round < (level == 0 ? 4 : 2); ++round) {
          std::vector<Pair> pairs;
          for (std::size_t v = n; v <= root(); ++v)
            if (depth_[v] == level) std::ranges::copy(matching(below_[v]), std::back_inserter(pairs));
          rounds.push_back(pairs);
        }
    }
    for (const auto& pairs : rounds) measure(pairs);
    // For the noise, again, without those that failed: they have none, and cost a deadline.
    const std::size_t once = all_.size();
    std::set<Pair> failed;
    for (const auto& one : all_)
      if (one.value == 0) failed.insert(one.pair);
    for (auto& pairs : rounds) {
      if (all_.size() >= once + 24) break;
      std::erase_if(pairs, [&](const Pair& pair) { return failed.contains(std::minmax(pair.first, pair.second)); });
      measure(pairs);
    }
    look_at_noise();
  }
  // Noise: how much a pair's two measurements differ. A loss that it hides is not looked for.
  void look_at_noise() {
    std::map<Pair, const Measured*> before;
    std::vector<double> differences;
    int repeated = 0, changed = 0;
    for (const auto& one : all_) {
      const auto [old, is_first] = before.emplace(one.pair, &one);
      if (is_first) continue;
      ++repeated;
      changed += old->second->slow != one.slow;
      if (old->second->value > 0 && one.value > 0 && old->second->slow == one.slow)
        differences.push_back(std::abs(std::log(one.value / old->second->value)));
    }
    if (!differences.empty()) {
      const auto at = differences.begin() + static_cast<std::ptrdiff_t>((differences.size() - 1) * 683 / 1000);
      std::nth_element(differences.begin(), at, differences.end());
      found_.noise = *at / std::sqrt(2.0);  // 68.3 % are within it
    }
    share_ = std::clamp(1 - 3.5 * found_.noise, std::min(0.1, share_), share_);
    const double beyond = (1 - share_ * (1 + 1.28 * found_.noise)) / std::max(found_.noise, 1e-6);
    background_ = 0.002 + 0.5 * std::erfc(beyond / std::sqrt(2.0)) + 0.5 * changed / (repeated + 50);
    background_ = std::min(background_, 0.3);
    judge();
  }
  // Parts: nodes that good pairs connect, the largest part first.
  std::vector<Nodes> parts() const {
    Nodes of(tree_.nodes);
    std::iota(of.begin(), of.end(), 0U);
    const auto find = [&](std::size_t node) {
      while (of[node] != node) node = of[node] = of[of[node]];
      return node;
    };
    for (const auto& one : all_)
      if (one.good) of[find(one.pair.first)] = find(one.pair.second);
    std::map<std::size_t, Nodes> by_first;
    for (std::size_t node = 0; node < tree_.nodes; ++node) by_first[find(node)].push_back(node);
    std::vector<Nodes> all;
    for (auto& [first, nodes] : by_first) all.push_back(std::move(nodes));
    std::ranges::stable_sort(all, std::greater{}, &Nodes::size);
    return all;
  }
  // Tries nodes of the smaller parts with the largest ones, and with each other, until nothing joins.
  void join() {
    for (int pass = 0; pass < 5; ++pass) {
      auto all = parts();
      for (auto& part : all) std::ranges::shuffle(part, random_);
      for (std::size_t to = 0; to < std::min<std::size_t>(all.size(), 4) && (to == 0 || all[to].size() > 1); ++to) {
        std::vector<Pair> pairs;
        for (std::size_t from = to + 1; from < all.size(); ++from)
          for (std::size_t i = 0; i < std::min<std::size_t>(all[from].size(), 32); ++i)
            if (pairs.size() < all[to].size()) pairs.emplace_back(all[to][pairs.size()], all[from][i]);
        measure(pairs);
      }
      Nodes rest;
      for (std::size_t from = 1; from < all.size(); ++from)
        if (all[from].size() < 32) rest.insert(rest.end(), all[from].begin(), all[from].end());
      measure(matching(rest));
      if (parts().size() == all.size()) return;
    }
  }
  // Some of these pairs, each while no other sends: how many in ten are fast.
  double fast_alone(std::vector<Pair> pairs) {
    if (pairs.empty()) return 0;
    std::ranges::shuffle(pairs, random_);
    pairs.resize(std::min<std::size_t>(pairs.size(), 9));
    int fast = 0;
    for (const auto& pair : pairs) fast += measure_({pair}).at(0).value_or(0) >= share_ * good_;
    found_.rounds += pairs.size();
    return 10.0 * fast / static_cast<double>(pairs.size());
  }
  void look_for_contention(std::size_t level) {
    std::map<std::size_t, std::vector<double>> by_round;
    std::vector<Pair> pairs;
    for (const auto& one : all_)
      if (one.level == level && one.value > 0) {
        by_round[one.round].push_back(one.value);
        pairs.push_back(one.pair);
      }
    double least = good_;
    for (auto& [round, values] : by_round)
      if (values.size() > 4) least = std::min(least, good_of(values));
    if (least >= share_ * good_ || fast_alone(pairs) < 8) return;
    contended_[level] = least;
    judge();
    add_contention();
  }
  void add_contention() {
    if (std::ranges::find(found_.verdicts, Fault::contention, &PathVerdict::fault) != found_.verdicts.end()) return;
    found_.verdicts.push_back(
        {.fault = Fault::contention,
         .confidence = 1,
         .text = "pairs that are slow at once are fast one by one: the network is oversubscribed, or lacks some of its "
                 "links"});
  }

  // Explaining.
  void look_at_keys(Measured& one) const {
    const auto [a, b] = one.pair;
    const auto [over, below_a, below_b] = way(a, b);
    auto& keys = one.keys;
    keys.assign({key_of(Fault::node, a), key_of(Fault::node, b), key_of(Fault::path, a, b)});
    const bool two = children_[over].size() == 2, switches = is_switch(below_a) && is_switch(below_b);
    for (const auto& [from, to] : {std::pair(a, below_a), std::pair(b, below_b)})
      for (auto v = from; v != to;) {
        v = tree_.parents[v];
        if (!(v == to && over == root() && two)) keys.push_back(key_of(Fault::uplink, v));
      }
    if (switches_known() && (!two || switches)) keys.push_back(key_of(Fault::inside, over));
    if (!two && switches)
      keys.push_back(key_of(Fault::between, std::min(below_a, below_b), std::max(below_a, below_b)));
    if (part_of_[a] != part_of_[b])
      for (const auto part : {part_of_[a], part_of_[b]})
        if (may_split_[part]) keys.push_back(key_of(Fault::split, part));
  }
  // Parts that no switch separates are possible faults.
  void look_at_parts() {
    parts_ = parts();
    part_of_.assign(tree_.nodes, 0);
    for (std::size_t part = 0; part < parts_.size(); ++part)
      for (const auto node : parts_[part]) part_of_[node] = part;
    pieces_.assign(parts_.size(), 0);
    std::vector<std::size_t> all_of(tree_.names.size());  // the part that has all below a vertex
    constexpr std::size_t any = -1, several = -2;         // a node that works with nobody is on any side
    std::size_t large = 0;
    while (large < parts_.size() && parts_[large].size() > 1) ++large;
    const std::function<void(std::size_t)> look = [&](std::size_t v) {
      all_of[v] = is_switch(v) || part_of_[v] >= large ? any : part_of_[v];
      for (const auto child : children_[v]) {
        look(child);
        if (all_of[v] == any)
          all_of[v] = all_of[child];
        else if (all_of[child] != any && all_of[child] != all_of[v])
          all_of[v] = several;
      }
      if (all_of[v] != several) return;
      for (const auto child : children_[v])
        if (all_of[child] < large) ++pieces_[all_of[child]];
    };
    look(root());
    // What a switch has below it is no split.
    const auto is_of_switch = [&](std::size_t part) { return pieces_[part] == 1; };
    may_split_.assign(parts_.size(), false);
    for (std::size_t part = 1; part < large; ++part)
      may_split_[part] = !is_of_switch(part) && !(large == 2 && is_of_switch(0));
  }
  double gain_of(Key key, const Counts& counts) const {
    const double n = static_cast<double>(tree_.nodes), switches = static_cast<double>(tree_.names.size()) - n + 1;
    const Fault fault = fault_of(key);
    const double prior = fault == Fault::node      ? std::log(n)
                         : fault == Fault::path    ? std::log(n * n / 2) + 3  // rarer than a bad node
                         : fault == Fault::between ? 2 * std::log(switches)
                         : fault == Fault::split ? std::log(n + switches) * static_cast<double>(pieces_[first_of(key)])
                                                 : std::log(switches);
    return gain(counts.slow, counts.all, background_) - prior;
  }
  // How much likelier so many slow ones are with a fault than by chance, as a logarithm.
  static double gain(int slow, int all, double chance) {
    const double part = std::min(static_cast<double>(slow) / std::max(all, 1), 0.98);
    if (part <= chance) return -1;
    return slow * std::log(part / chance) + (all - slow) * std::log((1 - part) / (1 - chance));
  }
  // The likeliest fault, then the likeliest for what it does not explain, and so on. Whole faults first, or not.
  Explanation explanation(bool whole, std::optional<Key> without = {}) const {
    Explanation found{.faults = {}, .explained = std::vector<char>(all_.size())};
    std::unordered_map<Key, Counts> counts;
    for (const auto& one : all_)
      if (one.slow)
        for (const auto key : one.keys) counts[key];
    if (without) counts.erase(*without);
    const auto count = [&](const Measured& one, int more) {
      if (counts.empty()) return;
      for (const auto key : one.keys)
        if (const auto of = counts.find(key); of != counts.end()) {
          of->second.all += more;
          of->second.slow += one.slow ? more : 0;
          of->second.failed += one.value == 0 ? more : 0;
        }
    };
    for (const auto& one : all_) count(one, 1);
    while (true) {
      Chosen best{0, {}, without ? 0 : odds};
      for (const auto& [key, of] : counts) {
        if (of.slow == 0) continue;
        const Fault fault = fault_of(key);
        const double least = whole || fault == Fault::split                 ? 0.9
                             : fault == Fault::node || fault == Fault::path ? 0.5
                                                                            : 0;
        if (of.share() < least) continue;
        const double gain = gain_of(key, of);
        if (gain > best.gain || (gain == best.gain && key < best.key)) best = {key, of, gain};
      }
      if (best.counts.slow == 0 && !whole) return found;
      if (best.counts.slow == 0) {
        whole = false;
        continue;
      }
      found.faults.push_back(best);
      found.likelihood += best.gain;
      for (std::size_t i = 0; i < all_.size(); ++i) {
        if (found.explained[i] || !all_[i].may_be(best.key)) continue;
        found.explained[i] = true;
        count(all_[i], -1);
      }
    }
  }
  // The best explanation; each of its faults is as sure as the best one without it is unlikely.
  void explain() {
    count_times();
    look_at_parts();
    for (auto& one : all_) look_at_keys(one);
    const auto better = [](Explanation a, Explanation b) { return a.likelihood >= b.likelihood ? a : b; };
    const std::array both{explanation(true), explanation(false)};
    best_ = better(both[0], both[1]);
    for (std::size_t i = 0; i < best_.faults.size(); ++i) {
      auto& chosen = best_.faults[i];
      chosen.confidence = 1 / (1 + std::exp(-chosen.gain));
      if (i >= 16) continue;
      auto other = better(explanation(true, chosen.key), explanation(false, chosen.key));
      for (const auto& one : both)
        if (!one.has(chosen.key)) other = better(other, one);
      chosen.confidence = 1 / (1 + std::exp(other.likelihood - best_.likelihood));
      for (const auto& one : other.faults)
        if (!best_.has(one.key) && chosen.instead == 0) chosen.instead = one.key;
    }
  }

  // Rounds that follow. Pairs that are slow, and no fault explains it, or not surely.
  std::vector<Pair> unresolved() {
    std::set<Pair> pairs;
    for (std::size_t i = 0; i < all_.size(); ++i) {
      if (!all_[i].slow) continue;
      const auto times = times_.at(all_[i].pair);
      if (!best_.explained[i] && !(times.all >= 3 && 3 * times.slow <= times.all)) pairs.insert(all_[i].pair);
      for (const auto& chosen : best_.faults)
        if (chosen.confidence < 0.95 && all_[i].may_be(chosen.key)) pairs.insert(all_[i].pair);
    }
    return {pairs.begin(), pairs.end()};
  }
  std::vector<Pair> disjoint(std::vector<Pair> pairs) {
    std::ranges::shuffle(pairs, random_);
    std::set<std::size_t> used;
    std::erase_if(pairs, [&](const Pair& pair) {
      if (used.contains(pair.first) || used.contains(pair.second)) return true;
      used.insert({pair.first, pair.second});
      return false;
    });
    return pairs;
  }
  // Each node of the suspects with another one.
  std::vector<Pair> partners(const std::vector<Pair>& suspects) {
    std::set<std::size_t> used, nodes;
    for (const auto& [a, b] : suspects) nodes.insert({a, b});
    for (const auto& chosen : best_.faults)
      if (fault_of(chosen.key) == Fault::node) used.insert(first_of(chosen.key));
    std::vector<Pair> pairs;
    for (const auto node : nodes) {
      for (int tries = 0; tries < 20; ++tries) {
        const auto other = random_() % tree_.nodes;
        if (nodes.contains(other) || used.contains(other)) continue;
        used.insert(other);
        pairs.emplace_back(node, other);
        break;
      }
    }
    return pairs;
  }

  // Saying it.
  std::string names(const Nodes& nodes) const {
    constexpr std::size_t most = 8;
    std::vector<std::string> some;
    for (const auto node : nodes)
      if (some.size() < most) some.push_back(tree_.names[node]);
    return "{" + multinode::join(some, ", ") +
           (nodes.size() > most ? fmt::format(", ... ({} nodes)}}", nodes.size()) : "}");
  }
  Nodes all_but(const Nodes& nodes) const {
    Nodes others;
    std::ranges::set_difference(below_[root()], nodes, std::back_inserter(others));
    return others;
  }
  // What it is called, and its two sides.
  PathVerdict named(Key key, bool failed) const {
    const auto a = first_of(key), b = second_of(key);
    PathVerdict verdict{.fault = fault_of(key)};
    switch (verdict.fault) {
      case Fault::node:
        verdict.one = {a};
        verdict.text = "node " + tree_.names[a];
        break;
      case Fault::path:
        verdict.one = {a};
        verdict.other = {b};
        verdict.text = "one path " + tree_.names[a] + " - " + tree_.names[b];
        return verdict;
      case Fault::between:
        verdict.one = below_[a];
        verdict.other = below_[b];
        verdict.text = "link or uplink between " + tree_.names[a] + " and " + tree_.names[b];
        return verdict;
      case Fault::inside:
        if (children_[a].size() == 2) return named(key_of(Fault::between, children_[a][1], children_[a][0]), failed);
        verdict.one = below_[a];
        verdict.text = "switch " + tree_.names[a] + ", or links between those below it";
        return verdict;
      case Fault::uplink:
        verdict.one = below_[a];
        verdict.text = "uplink of " + tree_.names[a];
        break;
      default: {
        verdict.one = parts_[a];
        const auto rest = all_but(parts_[a]);
        verdict.text =
            (failed ? "cluster is split: " : "slow link or uplink between ") + names(parts_[a]) + " and " + names(rest);
      }
    }
    verdict.other = all_but(verdict.one);
    return verdict;
  }
  void conclude(const Chosen& chosen) {
    const bool failed = chosen.counts.failed * 10 >= chosen.counts.slow * 9;
    PathVerdict verdict = named(chosen.key, failed);
    verdict.confidence = std::min(chosen.confidence, 0.99);
    const bool no_other = verdict.fault == (switches_known() ? Fault::between : Fault::split);  // to compare it with
    if (!failed && no_other && chosen.counts.share() >= 0.9) {
      std::vector<Pair> slow;
      for (const auto& one : all_)
        if (one.slow && one.may_be(chosen.key)) slow.push_back(one.pair);
      if (fast_alone(slow) > 5) {
        add_contention();
        return;
      }
    }
    verdict.text += fmt::format(": {} of {} measurements {}", chosen.counts.slow, chosen.counts.all,
                                failed ? "failed" : "are slow");
    if (chosen.counts.share() < 0.9) verdict.text += ", as of some of several links that share the traffic (ECMP)";
    verdict.text += fmt::format("; confidence {:.0f} %", std::floor(100 * verdict.confidence));
    const bool in_part = chosen.counts.share() < 0.9 && (verdict.fault == Fault::node || verdict.fault == Fault::path);
    if (verdict.confidence < 0.9 || in_part) {
      verdict.fault = Fault::unknown;
      if (chosen.instead != 0) verdict.text += ", or " + named(chosen.instead, failed).text;
    }
    if (verdict.fault == Fault::unknown) verdict.text = "cannot tell: " + verdict.text;
    found_.verdicts.push_back(std::move(verdict));
  }
  // Adds a verdict if pairs are slow again and again, and nothing explains it. Returns how often they are.
  double leftovers() {
    std::vector<Pair> pairs;
    std::set<Pair> seen;
    int slow = 0, all = 0;
    for (std::size_t i = 0; i < all_.size(); ++i) {
      const auto& pair = all_[i].pair;
      if (!all_[i].slow || best_.explained[i] || !seen.insert(pair).second) continue;
      const auto& times = times_.at(pair);
      slow += times.slow - 1;
      all += times.all - 1;
      if (times.slow > 1) pairs.push_back(pair);
    }
    if (gain(slow, all, std::min(background_, 0.01)) < odds) return 0;
    if (4 * seen.size() >= times_.size() && fast_alone(pairs) > 8) {
      add_contention();
      return 0;
    }
    std::vector<std::string> some;
    for (const auto& [a, b] : pairs)
      if (some.size() < 8) some.push_back(tree_.names[a] + " - " + tree_.names[b]);
    found_.verdicts.push_back(
        {.text =
             fmt::format("cannot tell: {} pairs were slow again, in {} of {} measurements, with no node or switch in "
                         "common: {}{}",
                         pairs.size(), slow, all, multinode::join(some, ", "),
                         switches_known() ? "" : "; name the switches with --topology")});
    return static_cast<double>(slow) / all;
  }

  const Topology& tree_;
  const MeasurePairs& measure_;
  const double at_least_;
  double share_;  // of the good ones', else it is slow
  std::vector<Nodes> children_, below_;
  std::vector<std::size_t> depth_;
  std::mt19937_64 random_{1};
  std::vector<Measured> all_;
  std::map<Pair, Times> times_;
  std::vector<std::optional<double>> contended_;  // by level
  double good_ = 0, background_ = 0.002;          // that a pair is slow by chance
  std::vector<Nodes> parts_;
  std::vector<std::size_t> part_of_;
  std::vector<std::size_t> pieces_;  // of a part: vertices that have nothing else below them
  std::vector<bool> may_split_;
  Explanation best_;
  PathFaults found_;
};

}  // namespace

PathFaults find_path_faults(const Topology& topology, const MeasurePairs& measure, double at_least) {
  return Search(topology, measure, at_least).run();
}

Topology one_switch(const std::vector<std::string>& nodes) {
  Topology topology{nodes.size(), nodes, std::vector<std::size_t>(nodes.size() + 1, nodes.size())};
  topology.names.push_back("the network");
  return topology;
}

Topology read_topology(const std::filesystem::path& file, const std::vector<std::string>& nodes) {
  using multinode::UsageError;
  std::ifstream stream(file);
  if (!stream) throw UsageError("--topology: " + file.string() + " cannot be read");
  std::map<std::string, std::vector<std::string>> below;  // by switch
  std::map<std::string, std::string> above;
  std::string line;
  for (int number = 1; std::getline(stream, line); ++number) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string name;
    std::vector<std::string> children;
    for (std::string word; words >> word;) {
      auto key = word.substr(0, word.find('='));
      const auto value = word.substr(std::min(key.size() + 1, word.size()));
      std::ranges::transform(key, key.begin(), [](unsigned char c) { return std::tolower(c); });
      if (key == "switchname")
        name = value;
      else if (key == "nodes" || key == "switches")
        std::ranges::copy(multinode::expand_host_list(value), std::back_inserter(children));
    }
    if (name.empty() && children.empty()) continue;
    const auto wrong = [&](const std::string& why) {
      throw UsageError(fmt::format("--topology: {}:{}: {}", file.string(), number, why));
    };
    if (name.empty() || children.empty() || below.contains(name)) wrong("not a new SwitchName with Nodes or Switches");
    for (const auto& child : children)
      if (!above.emplace(child, name).second || child == name) wrong(child + " is below two switches");
    below[name] = children;
  }

  Topology topology{nodes.size(), nodes, std::vector<std::size_t>(nodes.size())};
  std::map<std::string, std::size_t> number;
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    if (!above.contains(nodes[node])) throw UsageError("--topology: " + file.string() + " has no node " + nodes[node]);
    number[nodes[node]] = node;
  }
  // Vertices below it that are left; one: that stands for the switch, too.
  const std::function<std::vector<std::size_t>(const std::string&)> add = [&](const std::string& name) {
    std::vector<std::size_t> left;
    if (const auto node = number.find(name); node != number.end()) return std::vector{node->second};
    for (const auto& child : below[name])
      for (const auto vertex : add(child)) left.push_back(vertex);
    if (left.size() < 2) return left;
    for (const auto vertex : left) topology.parents[vertex] = topology.names.size();
    topology.names.push_back(name);
    topology.parents.push_back(topology.names.size() - 1);
    return std::vector{topology.names.size() - 1};
  };
  std::vector<std::size_t> roots;
  for (const auto& [name, children] : std::map(below))
    if (!above.contains(name))
      for (const auto vertex : add(name)) roots.push_back(vertex);
  std::size_t reached = 0;
  for (const auto vertex : roots) reached += vertex < nodes.size();
  for (std::size_t v = 0; v < topology.parents.size(); ++v)
    reached += v < nodes.size() && topology.parents[v] >= nodes.size();
  if (reached < nodes.size()) throw UsageError("--topology: " + file.string() + ": no switch is above all others");
  if (roots.size() == 1) return topology;
  for (const auto vertex : roots) topology.parents[vertex] = topology.names.size();
  topology.names.push_back("the network");
  topology.parents.push_back(topology.names.size() - 1);
  return topology;
}

}  // namespace image_check
