// The scheduler: lanes, warps, blocks, barriers and calls.
#include <algorithm>
#include <cfenv>
#include <cstdio>
#include <cstdlib>

#include "checker.hpp"
#include "interpreter.hpp"

namespace emulated_gpu::ptx {

// After this many backward jumps a warp lets others run, because it may wait for one of them.
constexpr int backward_branches = 5000, checked_branches = 200;
// A block that spins for so many turns may wait for a block that has not started. Then the others have less patience.
constexpr int most_patience = 20;
// Blocks do not start in the order of their numbers: so many in the opposite one or, with Launch::check, in any and
// together.
constexpr std::size_t together = 4;
constexpr std::size_t stack_bytes = 16384;
constexpr int barriers = 16;

struct Block {
  struct Barrier {
    u32 arrived = 0, expected = 0, votes = 0, voters = 0, went_on = 0;  // went_on: warps that did not wait
  };
  Context context;
  std::vector<std::unique_ptr<Warp>> warps;
  std::unique_ptr<Checker> checker;
  u32 alive = 0;
  int turns = 0;
  Barrier barrier[barriers];
  using Freed = decltype([](u8* memory) { std::free(memory); });
  std::unique_ptr<u8, Freed> shared, local;

  Block(const Kernel& kernel, const Launch& launch, const Surroundings& surroundings, u64 workspace);
  void start(u64 number);
  void recheck(u32 id);
  void leave(u32 count) {
    alive -= count;
    for (u32 id = 0; id < barriers; ++id) recheck(id);
  }
  enum class State { done, ran, waits };
  State step();
  [[noreturn]] void report_deadlock() const;
  std::string place() const;
};

namespace {

enum BarrierKind : u64 { wait, arrive, count_votes, all_votes, any_vote };  // immediate of a barrier

// The instruction at which a lane waits for a barrier or for other lanes.
const Instruction& waits_at(const Warp& w, int lane) {
  const bool behind = w.at_barrier >> lane & 1;
  return w.context->kernel->code[w.pc[lane] - (behind ? 1 : 0)];
}

// Lanes that wait in an instruction between lanes and may continue; false if there are none.
bool resolve_sync(Warp& w) {
  const std::vector<Instruction>& code = w.context->kernel->code;
  for (const int l : Lanes{w.at_sync}) {
    const bool any_place = code[w.pc[l]].run == no_effect;  // bar.warp.sync
    u32 waiting = 0;
    for (const int k : Lanes{w.at_sync}) {
      const bool here = w.pc[k] == w.pc[l] && w.frame_base[k] == w.frame_base[l];
      if (w.members[k] == w.members[l] && (here || (any_place && code[w.pc[k]].run == no_effect))) waiting |= 1u << k;
    }
    const u32 required = w.members[l] & w.alive;
    if ((waiting & required) != required) continue;
    w.at_sync &= ~waiting;
    if (any_place) {
      if (w.context->checker) w.context->checker->meet(w, waiting);
      for (const int k : Lanes{waiting}) ++w.pc[k];
    }
    return true;
  }
  return false;
}

void call_function(Warp& w, const Code& caller, const Code& callee, const Instruction& i, int lane, u32 return_pc) {
  const Context& c = *w.context;
  const u64 from = w.local[lane], to = from + (caller.frame + 15) / 16 * 16;
  const u64 start = reinterpret_cast<u64>(c.local);
  const u64 end = start + ((from - start) / c.local_per_thread + 1) * c.local_per_thread;
  if (to + callee.frame > end)
    fail(Fault::stack_overflow, w, lane, i, "stack overflow (cudaDeviceSetLimit with cudaLimitStackSize)");
  w.stack[lane].push_back({return_pc, w.frame_base[lane], from, i.extra});
  for (std::size_t n = 0; n < std::min(i.extra->arguments.size(), callee.function->params.size()); ++n)
    std::memcpy(reinterpret_cast<u8*>(to + callee.function->params[n]->offset),
                reinterpret_cast<u8*>(from + i.extra->arguments[n].offset),
                std::min(i.extra->arguments[n].size, callee.function->params[n]->size));
  w.local[lane] = to;
  w.pc[lane] = callee.entry;
}
void return_from(Warp& w, const Function& callee, int lane) {
  const Frame frame = w.stack[lane].back();
  w.stack[lane].pop_back();
  for (std::size_t n = 0; n < std::min(frame.call->results.size(), callee.results.size()); ++n)
    std::memcpy(reinterpret_cast<u8*>(frame.local + frame.call->results[n].offset),
                reinterpret_cast<u8*>(w.local[lane] + callee.results[n]->offset),
                std::min(frame.call->results[n].size, callee.results[n]->size));
  w.local[lane] = frame.local;
  w.frame_base[lane] = frame.base;
  w.pc[lane] = frame.pc;
}
void need_registers(Warp& w, std::size_t bytes) {
  if (bytes + 64 <= w.storage.size()) return;
  std::vector<u8> bigger(2 * bytes + 64);
  u8* const to = bigger.data() + (64 - reinterpret_cast<u64>(bigger.data()) % 64) % 64;
  if (w.registers) std::memcpy(to, w.registers, w.storage.size() - 64);
  w.storage = std::move(bigger);
  w.registers = to;
}

// The lanes that run next: those at the smallest pc in the deepest call.
struct Group {
  u32 mask = 0, pc = 0, limit = ~0u, base = 0;  // limit: where the next others are
};
Group next_group(const Warp& w, u32 ready) {
  u64 key[warp_size], least = ~u64{0};
  for (u32 l = 0; l < warp_size; ++l) {
    key[l] = ready >> l & 1 ? u64{~w.frame_base[l]} << 32 | w.pc[l] : ~u64{0};
    least = std::min(least, key[l]);
  }
  // After a spin another group than the first, and every second time that of the next lane: each has its turn.
  if (w.turn) {
    u32 from = ready;
    for (u32 l = 0; l < warp_size && w.turn % 2; ++l) from &= ~(u32{key[l] == least} << l);
    const u32 behind = from & all_lanes << w.turn / 2 % warp_size;
    if (from) least = key[std::countr_zero(behind ? behind : from)];
  }
  Group g{0, static_cast<u32>(least), ~0u, ~static_cast<u32>(least >> 32)};
  for (u32 l = 0; l < warp_size; ++l) {
    g.mask |= u32{key[l] == least} << l;
    if (key[l] > least && key[l] >> 32 == least >> 32) g.limit = std::min(g.limit, static_cast<u32>(key[l]));
  }
  return g;
}

// Carries out an instruction between lanes for those whose members are all here; returns the others. Lanes of one mask
// may have different members, as in tiles of cooperative groups.
u32 sync_lanes(Warp& w, const Instruction& i, u32 mask) {
  const u32* members_of = i.s[3] ? w.row<u32>(i.s[3]) : nullptr;
  u32 missing = 0;
  while (mask) {
    const int first = std::countr_zero(mask);
    const u32 members = members_of ? members_of[first] : mask;
    u32 group = mask;
    if (members_of && i.s[3].frame)
      for (const int l : Lanes{mask})
        if (members_of[l] != members) group &= ~(1u << l);
    mask &= ~group;
    if (!(members >> first & 1)) fail(Fault::trap, w, first, i, "the thread is not in its member mask");
    const u32 required = members & w.alive;
    if ((group & required) == required) {
      i.run(w, i, group);
      if (w.context->checker) w.context->checker->meet(w, group);
    } else {
      missing |= group;
      for (const int l : Lanes{group}) w.members[l] = members;
    }
  }
  return missing;
}

enum class Ran { waits, yields, spins };

// Runs lanes until all wait or have left, for some time, or until the check lets others go on after an access to global
// memory.
Ran run_warp(Warp& w) {
  Context& c = *w.context;
  Block& block = *w.block;
  const Kernel& kernel = *c.kernel;
  const Instruction* const code = kernel.code.data();
  int budget = std::exchange(w.budget, c.random ? checked_branches : backward_branches);
  const auto set_pc = [&](u32 mask, u32 pc) { for_lanes(mask, [&](int l) { w.pc[l] = pc; }); };
  for (;;) {
    const u32 ready = w.alive & ~w.at_barrier & ~w.at_sync;
    if (!ready) {
      if (w.at_sync && resolve_sync(w)) continue;
      return Ran::waits;
    }
    if (budget <= 0) {
      w.turn = w.turn % (2 * warp_size) + 1;
      return Ran::spins;
    }
    const Group group = next_group(w, ready);
    u32 pc = group.pc, mask = group.mask;
    w.base = reinterpret_cast<std::intptr_t>(w.registers) + group.base;
    do {
      const Instruction& i = code[pc];
      u32 m = mask;
      if (i.guard) {
        const u32 p = *reinterpret_cast<const u32*>(w.base + i.guard);
        m &= i.guard_negated ? ~p : p;
      }
      if (i.flow == Flow::next) {
        if (m) i.run(w, i, m);
        ++pc;
        continue;
      }
      if (!m && i.flow != Flow::exit) {
        ++pc;
        continue;
      }
      if (i.flow == Flow::global) {
        i.run(w, i, m);
        ++pc;
        if (!c.random || (*c.random)() % 2) continue;
        set_pc(mask, pc);
        w.budget = budget;
        return Ran::yields;
      }
      if (i.flow == Flow::branch) {
        if (i.target <= pc) --budget;
        if (m == mask) {
          pc = i.target;
          if (budget <= 0) break;
          continue;
        }
        set_pc(m, i.target);
        set_pc(mask & ~m, pc + 1);
        goto regroup;
      }
      if (i.flow == Flow::exit || (i.flow == Flow::ret && group.base == 0)) {
        w.alive &= ~m;
        mask &= ~m;
        ++pc;
        if (m) {
          set_pc(mask, pc);
          block.leave(static_cast<u32>(std::popcount(m)));
        }
        if (!mask) goto regroup;
        continue;
      }
      if (i.flow == Flow::warp_sync) {
        const u32 missing = sync_lanes(w, i, m);
        if (!missing) {
          ++pc;
          continue;
        }
        set_pc(missing, pc);
        set_pc(mask & ~missing, pc + 1);
        w.at_sync |= missing;
        resolve_sync(w);
        goto regroup;
      }
      set_pc(mask, pc + 1);
      switch (i.flow) {
        case Flow::branch_indexed: {
          const u32* index = w.row<u32>(i.s[0]);
          for (const int l : Lanes{m}) {
            if (index[l] >= i.extra->targets.size()) fail(Fault::invalid_pc, w, l, i, "branch index out of range");
            w.pc[l] = i.extra->targets[index[l]];
          }
          --budget;
          break;
        }
        case Flow::ret:
          for (const int l : Lanes{m}) return_from(w, *kernel.functions[i.immediate].function, l);
          break;
        case Flow::call:
        case Flow::call_indirect: {
          const Code& caller = kernel.functions[i.immediate];
          const u32 base = group.base + static_cast<u32>(caller.registers);
          std::size_t most = 0;
          for (const int l : Lanes{m}) {
            int number = i.extra->function;
            if (i.flow == Flow::call_indirect) {
              const std::string* name = kernel.program->function_at(w.row<u64>(i.s[0])[l]);
              const auto found = name ? kernel.number_of.find(*name) : kernel.number_of.end();
              if (found == kernel.number_of.end())
                fail(Fault::invalid_pc, w, l, i, "call of an address that is no function");
              number = found->second;
            }
            const Code& callee = kernel.functions[static_cast<std::size_t>(number)];
            call_function(w, caller, callee, i, l, pc + 1);
            w.frame_base[l] = base;
            most = std::max(most, callee.registers);
          }
          need_registers(w, base + most);
          break;
        }
        case Flow::barrier: {
          const int first = std::countr_zero(m);
          const u32 id = w.row<u32>(i.s[0])[first] & 15, n = static_cast<u32>(std::popcount(m));
          Block::Barrier& barrier = block.barrier[id];
          if (i.s[1]) barrier.expected = w.row<u32>(i.s[1])[first];
          barrier.arrived += n;
          if (i.immediate >= count_votes) {
            barrier.voters += n;
            barrier.votes += static_cast<u32>(std::popcount(predicate(w, i.s[2], i.offset) & m));
          }
          for_lanes(m, [&](int l) { w.barrier[l] = id; });
          if (i.immediate != arrive) w.at_barrier |= m;
          else barrier.went_on |= 1u << w.number;
          block.recheck(id);
          break;
        }
        default: break;
      }
      goto regroup;
    } while (pc < group.limit);
    set_pc(mask, pc);
  regroup:;
  }
}

u8* allocated(std::size_t bytes) {
  void* const memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096 + 4096);
  if (!memory) throw std::bad_alloc();
  return static_cast<u8*>(memory);
}

}  // namespace

Block::Block(const Kernel& kernel, const Launch& launch, const Surroundings& surroundings, u64 workspace) {
  Context& c = context;
  c.kernel = &kernel;
  c.launch = &launch;
  c.surroundings = &surroundings;
  c.workspace = workspace;
  c.hits.resize(kernel.caches);
  const u32 count = launch.block[0] * launch.block[1] * launch.block[2],
            warps_needed = (count + warp_size - 1) / warp_size;
  c.shared_size = launch.shared ? (kernel.shared + 15) / 16 * 16 + launch.shared : kernel.shared;
  shared.reset(allocated(c.shared_size));
  std::size_t frames = kernel.functions[0].frame;
  if (kernel.functions.size() > 1) {
    frames = std::max(stack_bytes, launch.stack);
    for (const Code& f : kernel.functions) frames += (f.frame + 15) / 16 * 16;
  }
  c.local_per_thread = (frames + 15) / 16 * 16;
  c.local_size = c.local_per_thread * warps_needed * warp_size;
  local.reset(allocated(c.local_size));
  c.shared = shared.get();
  const u64 begin = reinterpret_cast<u64>(c.shared);
  c.shared_range = {begin + (kernel.uses_reserved ? 0 : reserved_shared), begin + c.shared_size};
  c.local = local.get();
  if (launch.check) checker = std::make_unique<Checker>(c.shared_size, warps_needed);
  c.checker = checker.get();
  for (u32 n = 0; n < warps_needed; ++n) {
    Warp& w = *warps.emplace_back(std::make_unique<Warp>());
    w.number = n;
    w.context = &c;
    w.block = this;
    need_registers(w, kernel.functions[0].registers);
    for (u32 l = 0; l < warp_size; ++l)
      for (u32 d = 0, rest = n * warp_size + l; d < 3; rest /= launch.block[d++])
        w.thread[d][l] = rest % launch.block[d];
  }
}

void Block::start(u64 number) {
  const Launch& launch = *context.launch;
  context.number = number;
  for (u32 d = 0; d < 3; number /= launch.grid[d++]) context.block[d] = static_cast<u32>(number % launch.grid[d]);
  alive = launch.block[0] * launch.block[1] * launch.block[2];
  turns = 0;
  std::fill(std::begin(barrier), std::end(barrier), Barrier{});
  make_fresh(context.shared, context.shared_size);
  if (context.kernel->uses_reserved) std::memset(context.shared, 0, reserved_shared);  // as the driver leaves it
  if (checker) {
    make_fresh(context.local, context.local_size);
    checker->restart();
  }
  for (const auto& w : warps) {
    const u32 first = w->number * warp_size, count = std::min<u32>(warp_size, alive - first);
    w->alive = count == warp_size ? all_lanes : (1u << count) - 1;
    w->at_barrier = w->at_sync = w->turn = 0;
    w->budget = context.random ? checked_branches : backward_branches;
    for (u32 l = 0; l < warp_size; ++l) {
      w->pc[l] = w->frame_base[l] = 0;
      w->stack[l].clear();
      w->local[l] = reinterpret_cast<u64>(context.local) + (first + l) * context.local_per_thread;
    }
  }
}

// Lets the waiting threads go if all have arrived.
void Block::recheck(u32 id) {
  Barrier& b = barrier[id];
  if (b.arrived == 0 || b.arrived < (b.expected ? b.expected : alive)) return;
  const Warp* other = nullptr;  // the first that waits
  int other_lane = 0;
  std::vector<unsigned> waited, arrived;
  for (const auto& w : warps) {
    u32 here = 0;
    for (int l = 0; l < warp_size; ++l) here |= u32{w->barrier[l] == id} << l;
    here &= w->at_barrier;
    if (!here) continue;
    if (checker) waited.push_back(w->number);
    const int lead = std::countr_zero(here);
    u32 apart = 0;
    for (int l = 0; l < warp_size; ++l) apart |= u32{w->pc[l] != w->pc[lead]} << l;
    const bool all = apart & here || waits_at(*w, lead).immediate >= count_votes;
    for (const int l : Lanes{all ? here : 1u << lead}) {
      const Instruction& i = waits_at(*w, l);
      // All threads of a warp must reach the same bar.sync, and without a count all of the block.
      const Warp* with = w->pc[l] != w->pc[lead]                                     ? w.get()
                         : other && !b.expected && other->pc[other_lane] != w->pc[l] ? other
                                                                                     : nullptr;
      const int with_lane = with == w.get() ? lead : other_lane;
      if (with && i.aligned && waits_at(*with, with_lane).aligned)
        fail(Fault::trap, *w, l, i,
             "barrier in divergent code: " + thread_text(*with, with_lane) + " waits at another one, " +
                 text_of(context, waits_at(*with, with_lane)));
      if (i.immediate < count_votes) continue;
      w->base = reinterpret_cast<std::intptr_t>(w->registers) + w->frame_base[l];
      if (i.immediate == count_votes) w->row<u32>(i.d)[l] = b.votes;
      else
        set_predicate(*w, i.d, 1u << l, (i.immediate == all_votes ? b.votes == b.voters : b.votes > 0) ? all_lanes : 0);
    }
    if (!other) other = w.get(), other_lane = lead;
    w->at_barrier &= ~here;
  }
  for (const int number : Lanes{b.went_on}) arrived.push_back(static_cast<unsigned>(number));
  if (checker) checker->meet(waited, arrived);
  b = {};
}

// Each warp runs for some time.
Block::State Block::step() {
  bool ran = false, left = false, spins = false, yields = false;
  const std::size_t first = context.random ? (*context.random)() % warps.size() : 0;
  for (std::size_t n = 0; n < warps.size(); ++n) {
    Warp& w = *warps[(first + n) % warps.size()];
    if (!w.alive) continue;
    left = true;
    if (!(w.alive & ~w.at_barrier & ~w.at_sync)) continue;
    const Ran how = run_warp(w);
    spins |= how == Ran::spins;
    yields |= how == Ran::yields;
    ran = true;
  }
  turns = spins ? turns + 1 : yields ? turns : 0;
  return !left ? State::done : ran ? State::ran : State::waits;
}

void Block::report_deadlock() const {
  const Warp* first = nullptr;
  int lane = 0;
  for (const auto& w : warps)
    for (const int l : Lanes{w->alive}) {
      if (!first) {
        first = w.get(), lane = l;
        continue;
      }
      const Instruction &one = waits_at(*first, lane), &two = waits_at(*w, l);
      if (&one == &two) continue;
      fail(Fault::deadlock, *first, lane, one,
           "waits forever, because " + thread_text(*w, l) + " waits at " + text_of(context, two));
    }
  fail(Fault::deadlock, *first, lane, waits_at(*first, lane),
       "waits forever, because " + std::to_string(alive) + " threads are left and more are expected");
}

std::string Block::place() const {
  const auto found = std::ranges::find_if(warps, [](const auto& one) { return one->alive != 0; });
  if (found == warps.end()) return "kernel " + context.kernel->attributes.title;  // the block has just ended
  const Warp& w = **found;
  const u32 runs = w.alive & ~w.at_barrier & ~w.at_sync;
  const int lane = std::countr_zero(runs ? runs : w.alive);
  return place_of(w, lane) + " is at " + text_of(context, waits_at(w, lane));
}

void run(const Kernel& kernel, const Launch& launch, const Surroundings& surroundings) {
  struct Arithmetic {  // the program may have changed the rounding mode of its thread
    std::fenv_t old;
    Arithmetic() { std::fegetenv(&old), std::fesetenv(FE_DFL_ENV); }
    ~Arithmetic() { std::fesetenv(&old); }
  } arithmetic;
  const u64 blocks = u64{launch.grid[0]} * launch.grid[1] * launch.grid[2];
  alignas(64) u8 workspace[64] = {};
  std::vector<std::unique_ptr<Block>> resident, idle;
  u64 next = 0;
  const auto began = std::chrono::steady_clock::now();
  std::chrono::seconds report_after = std::max(surroundings.deadline, std::chrono::seconds(1));
  int patience = most_patience;
  std::minstd_rand random(launch.seed);
  static thread_local GlobalChecker global;
  if (launch.check) global.restart();
  std::vector<u64> order;  // of the next blocks, the first last
  const auto admit = [&] {
    if (idle.empty()) {
      idle.push_back(std::make_unique<Block>(kernel, launch, surroundings,
                                             launch.cooperative ? reinterpret_cast<u64>(workspace) : 0));
      if (launch.check) idle.back()->context.random = &random, idle.back()->context.global = &global;
    }
    resident.push_back(std::move(idle.back()));
    idle.pop_back();
    if (order.empty()) {
      for (u64 n = next; n < std::min(blocks, next + together); ++n) order.push_back(n);
      if (launch.check) std::shuffle(order.begin(), order.end(), random);
    }
    resident.back()->start(order.back());
    order.pop_back();
    ++next;
  };
  const auto finish = [&](Block& block) {
    if (!block.context.output.empty()) std::fwrite(block.context.output.data(), 1, block.context.output.size(), stdout);
    block.context.output.clear();
    std::fflush(stdout);
  };
  try {
    while (next < blocks || !resident.empty()) {
      const std::size_t wanted = launch.cooperative ? blocks : launch.check ? together : 1;
      while (next < blocks && resident.size() < wanted) admit();
      if (launch.check) std::shuffle(resident.begin(), resident.end(), random);
      bool ran = false, patient = false;
      for (std::size_t n = 0; n < resident.size();) {
        const Block::State state = resident[n]->step();
        ran |= state != Block::State::waits;
        if (state == Block::State::done) {
          finish(*resident[n]);
          idle.push_back(std::move(resident[n]));
          resident.erase(resident.begin() + static_cast<std::ptrdiff_t>(n));
          patient = true;
          continue;
        }
        patient |= resident[n]->turns < patience;
        if (state == Block::State::waits && !launch.cooperative) resident[n]->report_deadlock();
        ++n;
      }
      if (!ran) resident[0]->report_deadlock();
      if (!resident.empty() && std::chrono::steady_clock::now() - began > report_after) {
        surroundings.say("a kernel runs for " + std::to_string(report_after.count()) +
                         " s: " + std::to_string(next - resident.size()) + " of " + std::to_string(blocks) +
                         " blocks are done; " + resident[0]->place());
        report_after *= 2;
      }
      if (!patient && next < blocks && resident.size() < launch.resident) {
        admit();
        patience = 1;
      }
    }
  } catch (...) {
    for (const auto& block : resident) finish(*block);
    throw;
  }
}

}  // namespace emulated_gpu::ptx
