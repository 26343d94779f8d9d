#include "checker.hpp"

#include <algorithm>

namespace emulated_gpu::ptx {

// An access with .release or .acquire orders what its warp did before or does afterwards.
void Checker::synchronize(const Warp& w, const Instruction& i, u64 offset) {
  if (!i.release && !i.acquire) return;
  std::vector<Clock>&known = barriers[w.number], &there = released[offset];
  const auto join = [](std::vector<Clock>& to, const std::vector<Clock>& from) {
    for (std::size_t v = 0; v < from.size(); ++v) to[v] = std::max(to[v], from[v]);
  };
  if (i.acquire && !there.empty()) join(known, there);
  if (!i.release) return;
  known[w.number] = ++clock[w.number];
  there.resize(clock.size());
  join(there, known);
}

bool Checker::ordered(const Event& before, const Warp& w, int lane) const {
  const unsigned warp = before.thread / warp_size, other = before.thread % warp_size;
  if (barriers[w.number][warp] > before.warp) return true;  // there was a barrier since
  if (warp != w.number) return false;
  return other == static_cast<unsigned>(lane) || lanes[warp].seen[lane][other] > before.lane;
}

Checker::Event Checker::event(const Warp& w, const Instruction& i, int lane) const {
  return {static_cast<u16>(w.number * warp_size + static_cast<unsigned>(lane)), clock[w.number],
          lanes[w.number].lane[lane], static_cast<u32>(&i - w.context->kernel->code.data())};
}

void Checker::access(const Warp& w, const Instruction& i, u32 mask, const u64* address, unsigned bytes, Access kind,
                     Stored stored) {
  const Context& c = *w.context;
  const u64 shared = reinterpret_cast<u64>(c.shared);
  for (const int l : Lanes{mask}) {
    const auto* value = static_cast<const u8*>(stored.first) + static_cast<std::size_t>(l) * stored.stride;
    const u64 offset = address[l] - shared;
    if (const auto behind = c.kernel->shared_variables.upper_bound(offset);
        behind != c.kernel->shared_variables.begin() && offset < c.kernel->shared) {
      const auto& [begin, variable] = *std::prev(behind);
      if (offset + bytes > begin + variable->size)
        fail(Fault::illegal_address, w, l, i,
             "access of " + std::to_string(bytes) + " bytes at byte " + std::to_string(offset - begin) + " of " +
                 demangled(variable->name) + ", a shared variable of " + std::to_string(variable->size) + " bytes");
    }
    const bool of_thread = address[l] - reinterpret_cast<u64>(c.local) < c.local_size;
    // To set one bit of a local object through a generic pointer, a thread reads the whole word, which may be unset.
    if ((kind == Access::read || kind == Access::atomic) && i.mode != Mode::frame && i.mode != Mode::parameter &&
        !(of_thread && i.mode == Mode::generic)) {
      const auto* const at = reinterpret_cast<const u32*>(address[l] & ~u64{3});
      if (std::all_of(at, at + (bytes + 3) / 4, [](u32 word) { return word == fresh_word; })) {
        const std::string where = c.kernel->attributes.title + text_of(c, i);
        // CUB loads whole tiles of shared memory, also what it then does not use.
        if (offset >= c.shared_size || where.find("cub::") == std::string::npos)
          fail(Fault::trap, w, l, i, "read of memory that was never written");
      }
    }
    if (offset >= c.shared_size) {
      if (c.global && i.flow == Flow::global && !of_thread) c.global->access(w, i, l, address[l], bytes, kind, value);
      continue;
    }
    synchronize(w, i, offset);
    if (kind >= Access::atomic) continue;
    const Event now = event(w, i, l);
    for (Cell& cell : std::span(cells).subspan(offset, bytes)) {
      const auto race = [&](const Event& before, const char* what) {
        if (before.thread == Event{}.thread || before.thread == now.thread || ordered(before, w, l)) return;
        fail(Fault::trap, w, l, i,
             "race on shared memory: " + std::string(kind == Access::write ? "write" : "read") + " at offset " +
                 std::to_string(address[l] - c.shared_range.begin) + " without a barrier after the " + what +
                 " by thread " + triple(before.thread, c.launch->block) + " at " +
                 text_of(c, c.kernel->code[before.code]));
      };
      // Threads may write the same value: CUDA says that one of the writes is performed.
      if (kind != Access::write || cell.value != *value) race(cell.write, "write");
      if (kind == Access::write) {
        race(cell.reads[0], "read");
        race(cell.reads[1], "read");
        cell.write = now;
        cell.value = *value++;
        cell.reads[0] = cell.reads[1] = {};
      } else if (cell.reads[0].thread != now.thread) {
        cell.reads[1] = std::exchange(cell.reads[0], now);
      } else {
        cell.reads[0] = now;
      }
    }
  }
}

void Checker::meet(const Warp& w, u32 mask) {
  WarpClocks& c = lanes[w.number];
  Clock all[warp_size] = {};
  for (const int l : Lanes{mask}) {
    c.seen[l][l] = ++c.lane[l];
    for (int k = 0; k < warp_size; ++k) all[k] = std::max(all[k], c.seen[l][k]);
  }
  for (const int l : Lanes{mask}) std::copy(all, all + warp_size, c.seen[l]);
}

void Checker::meet(const std::vector<unsigned>& waited, const std::vector<unsigned>& arrived) {
  std::vector<Clock> all(clock.size());
  for (const auto* list : {&waited, &arrived})
    for (const unsigned w : *list) {
      barriers[w][w] = ++clock[w];
      for (std::size_t v = 0; v < all.size(); ++v) all[v] = std::max(all[v], barriers[w][v]);
    }
  for (const unsigned w : waited) barriers[w] = all;
}

void GlobalChecker::restart() {
  ++launch_;
  if (pages_.size() >= most_pages / 2) pages_.clear();
  last_ = ~u64{0};
  now_ = 0;
  done_ = false;
  for (auto& fences : fences_) fences.clear();
  known_.clear();
}

void GlobalChecker::fence(const Context& c, const Instruction& i) {
  c.surroundings->used->signals |= i.source->is("sys");
  const u32 block = static_cast<u32>(c.number) + 1;
  known_[block] = ++now_;
  for (const int n : {0, 1})
    if (n || !i.source->is("cta")) fences_[n][block].push_back(now_);
}

void GlobalChecker::access(const Warp& w, const Instruction& i, int lane, u64 address, unsigned bytes, Access kind,
                           const u8* value) {
  if (done_) return;
  const Context& c = *w.context;
  const u32 block = static_cast<u32>(c.number) + 1;
  if (i.release) fence(c, i);
  if (kind >= Access::atomic || i.weak) c.surroundings->used->add(std::min(static_cast<int>(kind), 2), address, bytes);
  if (kind >= Access::atomic || !i.weak) {
    if (now_) known_[block] = now_;
    return;
  }
  const Checker::Event event = c.checker->event(w, i, lane);
  const auto unordered = [&](const Event& before) {
    const bool same = before.block == block;
    if (before.block == 0 || (same && (before.thread == event.thread || c.checker->ordered(before, w, lane))))
      return false;
    const auto known = known_.find(block);
    const auto fences = fences_[same].find(before.block);
    if (known == known_.end() || fences == fences_[same].end()) return true;
    const auto next = std::upper_bound(fences->second.begin(), fences->second.end(), before.time);
    return next == fences->second.end() || *next > known->second;
  };
  for (u64 a = address; a < address + bytes; a = (a | 3) + 1) {
    if (a / page_bytes != last_) {
      auto& page = pages_[last_ = a / page_bytes];
      if (!page && pages_.size() <= most_pages) page = std::make_unique<Page>();
      page_ = page.get();
    }
    if (!page_) continue;
    Word& word = page_->words[a % page_bytes / 4];
    if (word.launch != launch_) word = Word{{}, {}, launch_, {}};
    const unsigned first = a & 3, count = static_cast<unsigned>(std::min<u64>(4 - first, address + bytes - a));
    const Event now{event, block, now_, static_cast<u8>(((1u << count) - 1) << first)};
    if (kind == Access::read) {
      if (word.write.bytes & now.bytes && unordered(word.write)) return report(w, i, lane, "read", word.write, "write");
      if (word.reads[0].block != block) word.reads[2] = word.reads[0];
      else if (word.reads[0].thread != now.thread) word.reads[1] = word.reads[0];
      word.reads[0] = now;
      continue;
    }
    // A write of what is there already, or what another lane stores there, has no effect: several threads set a flag.
    const u8* const stored = value + (a - address);
    const bool again = word.write.block == block && word.write.code == now.code &&
                       word.write.thread / warp_size == w.number && word.write.bytes == now.bytes;
    if (std::memcmp(again ? word.value : reinterpret_cast<const u8*>(a), stored, count) == 0) continue;
    std::memcpy(word.value, stored, count);
    if (word.write.bytes & now.bytes && unordered(word.write)) return report(w, i, lane, "write", word.write, "write");
    for (const Event& read : word.reads)
      if (read.bytes & now.bytes && unordered(read)) return report(w, i, lane, "write", read, "read");
    word.write = now;
  }
}

void GlobalChecker::report(const Warp& w, const Instruction& i, int lane, const char* what, const Event& before,
                           const char* other) {
  const Context& c = *w.context;
  done_ = true;  // of this launch
  c.surroundings->note(place_of(w, lane) + ": race on global memory: " + what + " in no order with the " + other +
                       " by block " + triple(before.block - 1, c.launch->grid) + ", thread " +
                       triple(before.thread, c.launch->block) + " at " + text_of(c, c.kernel->code[before.code]) +
                       ": " + text_of(c, i));
}

}  // namespace emulated_gpu::ptx
