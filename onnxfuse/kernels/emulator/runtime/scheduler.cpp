// Runs the threads of a block, one at a time, each until it waits for others.
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <algorithm>
#include <utility>
#include <vector>

#include "../include/emulator.h"
#include "bulk.h"
#include "checker.h"
#include "counter.h"
#include "fiber.h"
#include "launch.h"
#include "scheduler.h"
#include "tensor_memory.h"
#include "warpgroup.h"

// Zero-initialised data of the library is shared memory, and poisoned before each block: what the runtime keeps must
// lie elsewhere.
#define KEPT __attribute__((section("emulator_state")))

asm(R"(
.section emulator_dynamic, "aw", %nobits
.balign 1024
.globl emulator_dynamic_shared
.hidden emulator_dynamic_shared
emulator_dynamic_shared: .zero 232448
.previous
)");

namespace emulator {

KEPT Thread *thread = nullptr;
KEPT Place place = {};

namespace {

KEPT Scheduler *scheduler = nullptr;

uint64_t next_random() {
  uint64_t &x = scheduler->random;
  x ^= x << 13, x ^= x >> 7, x ^= x << 17;
  return x;
}

bool same(Site a, Site b) { return a.line == b.line && (a.file == b.file || !strcmp(a.file, b.file)); }

void thread_body();

Fiber *take_fiber() {
  Scheduler &s = *scheduler;
  if (s.idle.empty()) {
    if (s.used == s.fibers.size()) s.fibers.push_back(new Fiber{nullptr, nullptr, s.used});
    Fiber *fiber = s.fibers[s.used++];
    give_stack(fiber, s.launch->stacks);
    reset(fiber, thread_body);
    return fiber;
  }
  Fiber *fiber = s.idle.back();
  s.idle.pop_back();
  return fiber;
}

// The next thread to run, or null.
Thread *take_ready() {
  std::vector<Thread *> &ready = scheduler->ready;
  if (ready.empty()) return nullptr;
  if (scheduler->launch->order == 2) std::swap(ready[next_random() % ready.size()], ready.back());
  Thread *next = ready.back();
  ready.pop_back();
  return next;
}

// Make threads ready so that they run in the order asked for.
template <class Wanted>
void release(unsigned first, unsigned count, Wanted wanted) {
  Scheduler &s = *scheduler;
  bool reverse = s.launch->order == 1;
  for (unsigned i = 0; i < count; i++) {
    Thread &t = s.threads[first + (reverse ? i : count - 1 - i)];
    if (!wanted(t)) continue;
    t.state = State::ready;
    s.ready.push_back(&t);
  }
}

void become(Thread *next) {
  thread = next;
  place.thread = next->index;
}

// Leave the current fiber, kept at `*from`, for a thread that can run; for the caller if there is none.
void leave(void **from, Thread *next) {
  Scheduler &s = *scheduler;
  if (!next) return emulator_switch(from, s.caller);
  become(next);
  if (!next->fiber) next->fiber = take_fiber();
  s.fiber = next->fiber;
  emulator_switch(from, s.fiber->stack_pointer);
}

void wait(State state, Site site) {
  Thread *self = thread;
  self->state = state;
  self->site = site;
  leave(&self->fiber->stack_pointer, take_ready());
}

void complete(Warp &warp, unsigned first, unsigned at) {
  Scheduler &s = *scheduler;
  Gathering done = warp.gatherings[at];
  warp.gatherings[at] = warp.gatherings[--warp.count];
  if (done.arrived == warp.live) counted_warp_met(first / WARP);
  Thread *lanes = &s.threads[first];
  if (done.meeting == Meeting::exchange) {
    for (unsigned i = 0; i < WARP; i++) {
      if (!(done.arrived >> i & 1)) continue;
      unsigned source = lanes[i].source;
      if (source >= WARP || !(done.arrived >> source & 1)) {
        thread = &lanes[i];
        bool named = source < WARP && (done.mask >> source & 1);
        fail(done.site, "shuffle reads lane %u, which is not in the %s", source, named ? "block" : "mask");
      }
      memcpy(lanes[i].received, lanes[source].sent, sizeof lanes[i].received);
    }
  } else if (done.meeting == Meeting::sync) {
    warp_met(lanes, done.arrived);
    if (s.launch->checked) warp_passed(lanes, done.arrived);
  }
  unsigned count = unsigned(s.threads.size()) - first;
  release(first, count < WARP ? count : WARP,
          [&](Thread &t) { return done.arrived >> t.lane & 1 && t.state == State::in_warp; });
}

void exit_thread() {
  Scheduler &s = *scheduler;
  Thread *self = thread;
  self->state = State::done;
  self->fiber = nullptr;
  s.live--;
  Warp &warp = s.warps[self->warp];
  warp.live &= ~(1u << self->lane);
  if (s.waiting) fail(s.waiting_at, "divergent barrier: thread %u exits while others wait here", self->rank);
  for (unsigned i = 0; i < warp.count; i++)
    if (const Gathering &gathering = warp.gatherings[i]; gathering.mask >> self->lane & 1)
      fail(gathering.site, "lane %u exits while others wait for it here with mask %08x", self->lane, gathering.mask);
}

// A fiber takes thread after thread; it keeps the stack of one only while that one waits.
void thread_body() {
  for (;;) {
    Scheduler &s = *scheduler;
    s.launch->kernel(s.launch->arguments);
    exit_thread();
    Thread *next = take_ready();
    if (next && !next->fiber) {
      next->fiber = s.fiber;
      become(next);
      continue;
    }
    s.idle.push_back(s.fiber);
    leave(&s.fiber->stack_pointer, next);
  }
}

void start_block(uint64_t number) {
  Scheduler &s = *scheduler;
  const Launch &launch = *s.launch;
  place.index = {unsigned(number % launch.grid[0]), unsigned(number / launch.grid[0] % launch.grid[1]),
                 unsigned(number / launch.grid[0] / launch.grid[1])};
  memset(launch.shared, POISON, launch.shared_bytes);
  memset(emulator_dynamic_shared, POISON, launch.dynamic_bytes);
  unsigned count = unsigned(s.threads.size());
  s.live = count;
  if (launch.checked) std::fill(s.knowledge.begin(), s.knowledge.end(), 0);
  s.waiting = 0;
  std::fill(s.warpgroups.begin(), s.warpgroups.end(), Gathered{});
  begin_warpgroups(unsigned(s.warpgroups.size()));
  begin_bulk(count);
  begin_tensor_memory(count);
  for (unsigned w = 0; w < s.warps.size(); w++) {
    unsigned lanes = count - w * WARP;
    s.warps[w].lanes = s.warps[w].live = lanes >= WARP ? ~0u : (1u << lanes) - 1;
    s.warps[w].count = 0;
  }
  for (Thread &t : s.threads) {
    t.fiber = nullptr;
    t.copies->count = t.copies->groups = 0;
    t.time = 1;
  }
  if (launch.checked) begin_counted_block(), begin_block();
  release(0, count, [](Thread &) { return true; });
}

void report(Site site, const char *format, va_list values) {
  Scheduler &s = *scheduler;
  // A site without a line is a code address: the loader has the line table.
  char where[256], who[64] = "", text[512];
  if (site.line) snprintf(where, sizeof where, "%s:%d", site.file, site.line);
  else snprintf(where, sizeof where, "@%zx@", size_t(site.file - s.launch->image));
  uint3 b = place.index;
  if (thread) snprintf(who, sizeof who, ", thread (%u,%u,%u)", thread->index.x, thread->index.y, thread->index.z);
  vsnprintf(text, sizeof text, format, values);
  snprintf(s.launch->message, s.launch->message_bytes, "%s: block (%u,%u,%u)%s: %s", where, b.x, b.y, b.z, who, text);
  s.failed = true;
}

void report(Site site, const char *format, ...) {
  va_list values;
  va_start(values, format);
  report(site, format, values);
  va_end(values);
}

void report_phases(Site site) {
  char text[256] = "";
  describe_waiting(text, sizeof text);
  report(site, "deadlock: threads wait for a phase that is never complete%s", text);
}

void report_deadlock() {
  const Thread *at_barrier = nullptr, *in_warp = nullptr, *at_mbarrier = nullptr;
  unsigned barriers = 0, warps = 0;
  for (const Thread &t : scheduler->threads) {
    if (t.state == State::at_barrier) at_barrier = &t, barriers++;
    if (t.state == State::at_mbarrier) at_mbarrier = &t;
    if (t.state == State::in_warp || t.state == State::in_warpgroup) in_warp = &t, warps++;
  }
  thread = nullptr;
  if (at_mbarrier) return report_phases(at_mbarrier->site);
  if (at_barrier && in_warp)
    report(at_barrier->site, "deadlock: %u threads wait at this barrier, %u in a warp operation at %s:%d", barriers,
           warps, in_warp->site.file, in_warp->site.line);
  else if (in_warp)
    report(in_warp->site, "deadlock: %u threads wait in a warp operation for lanes that do not come", warps);
}

void run_block(uint64_t number) {
  Scheduler &s = *scheduler;
  start_block(number);
  leave(&s.caller, take_ready());
  if (!s.failed && s.live) report_deadlock();
  thread = nullptr;
  if (const Site *forgotten = s.failed ? nullptr : unfinished()) report(*forgotten, "a product of a warpgroup that nobody waits for");
  if (const Site *forgotten = s.failed ? nullptr : unawaited()) report(*forgotten, "a copy that nobody waits for");
  if (const Site *forgotten = s.failed ? nullptr : unfreed()) report(*forgotten, "tensor memory that nobody frees");
}

void prepare(const Launch &launch) {
  Scheduler &s = *scheduler;
  s.launch = &launch;
  s.failed = false;
  s.used = 0;
  s.idle.clear();
  s.ready.clear();
  s.random = launch.seed * 0x9E3779B97F4A7C15ull | 1;
  place.grid = {launch.grid[0], launch.grid[1], launch.grid[2]};
  place.block = {launch.block[0], launch.block[1], launch.block[2]};
  unsigned x = launch.block[0], y = launch.block[1], count = x * y * launch.block[2];
  s.threads.resize(count);
  s.copies.resize(count);
  s.knowledge.resize(count * WARP);
  s.warps.resize((count + WARP - 1) / WARP);
  s.warpgroups.resize((count + WARPGROUP - 1) / WARPGROUP);
  s.ready.reserve(count);
  for (unsigned i = 0; i < count; i++) {
    Thread &t = s.threads[i];
    t.index = {i % x, i / x % y, i / x / y};
    t.rank = i, t.lane = i % WARP, t.warp = i / WARP;
    t.copies = &s.copies[i], t.knows = &s.knowledge[i * WARP];
  }
}

}  // namespace

bool is_bookkeeping(const void *address) {
  const std::vector<Thread> &threads = scheduler->threads;
  return address >= threads.data() && address < threads.data() + threads.size();
}

const Fiber *current_fiber() { return scheduler->fiber; }

void fail(Site site, const char *format, ...) {
  va_list values;
  va_start(values, format);
  report(site, format, values);
  va_end(values);
  void *abandoned;
  emulator_switch(&abandoned, scheduler->caller);
  abort();
}

bool left_out(Site site) {
  const Launch &launch = *scheduler->launch;
  return launch.without_line && same(site, {launch.without_file, int(launch.without_line)});
}

bool planted(unsigned number) { return scheduler->launch->planted == number; }

void barrier(Site site) {
  if (left_out(site)) return;
  Scheduler &s = *scheduler;
  if (s.live != s.threads.size())
    fail(site, "divergent barrier: %zu threads of the block have exited", s.threads.size() - s.live);
  if (s.waiting && !same(s.waiting_at, site))
    fail(site, "divergent barrier: %u threads wait at %s:%d", s.waiting, s.waiting_at.file, s.waiting_at.line);
  s.waiting_at = site;
  if (++s.waiting < s.live) return wait(State::at_barrier, site);
  s.waiting = 0;
  block_met();
  if (s.launch->checked) counted_barrier(), barrier_passed();
  release(0, unsigned(s.threads.size()), [](Thread &t) { return t.state == State::at_barrier; });
}

int barrier_reduce(int predicate, int which, Site site) {
  if (left_out(site)) return predicate;
  Scheduler &s = *scheduler;
  if (!s.waiting) s.votes[0] = 0, s.votes[1] = 1, s.votes[2] = 0;
  s.votes[0] |= predicate != 0;
  s.votes[1] &= predicate != 0;
  s.votes[2] += predicate != 0;
  if (s.waiting + 1 == s.live) memcpy(s.verdict, s.votes, sizeof s.votes);
  barrier(site);
  return s.verdict[which];
}

unsigned meet(Meeting meeting, unsigned mask, Site site) {
  if (meeting == Meeting::sync && left_out(site)) return mask;
  Scheduler &s = *scheduler;
  Warp &warp = s.warps[thread->warp];
  unsigned self = 1u << thread->lane;
  if (!(mask & self)) fail(site, "lane %u calls with mask %08x, which leaves it out", thread->lane, mask);
  unsigned present = mask & warp.lanes;
  if (unsigned gone = present & ~warp.live)
    fail(site, "mask %08x names lane %d, which has exited", mask, __builtin_ctz(gone));
  unsigned at = warp.count;
  for (unsigned i = 0; i < warp.count; i++) {
    const Gathering &other = warp.gatherings[i];
    if (other.mask == mask) at = i;
    else if (other.arrived & mask)
      fail(site, "mask %08x names lanes that wait at %s:%d with mask %08x", mask, other.site.file, other.site.line,
           other.mask);
  }
  if (at == warp.count) warp.gatherings[warp.count++] = {meeting, mask, 0, site};
  Gathering &gathering = warp.gatherings[at];
  if (gathering.meeting != meeting)
    fail(site, "other lanes of mask %08x wait in another operation, at %s:%d", mask, gathering.site.file,
         gathering.site.line);
  gathering.arrived |= self;
  if (gathering.arrived == present) complete(warp, thread->warp * WARP, at);
  else wait(State::in_warp, site);
  return present;
}

void wait_for_phase(Site site) { wait(State::at_mbarrier, site); }

void phase_completed() {
  release(0, unsigned(scheduler->threads.size()), [](Thread &t) { return t.state == State::at_mbarrier; });
}

void gather(Site site, void (*together)(Thread *threads, Site site)) {
  Scheduler &s = *scheduler;
  unsigned number = thread->warp / 4, first = number * WARPGROUP;
  if (first + WARPGROUP > s.threads.size()) fail(site, "a warpgroup is 4 warps, and the block has no more of them");
  Gathered &group = s.warpgroups[number];
  if (group.count && !same(group.site, site))
    fail(site, "other threads of the warpgroup wait at %s:%d", group.site.file, group.site.line);
  group.site = site;
  if (++group.count < WARPGROUP) return wait(State::in_warpgroup, site);
  group.count = 0;
  together(&s.threads[first], site);
  release(first, WARPGROUP, [](Thread &t) { return t.state == State::in_warpgroup; });
}

}  // namespace emulator

using namespace emulator;

// What a launch needs in `stacks`; launches that run at a time need their own.  Null if there is no memory.
extern "C" __attribute__((visibility("default"))) char *emulator_stacks() { return make_stacks(); }

// 0, or 1 with a message in `launch.message`.
extern "C" __attribute__((visibility("default"))) int emulator_launch(const Launch *launch) {
  if (!scheduler) scheduler = new Scheduler{};
  Scheduler &s = *scheduler;
  prepare(*launch);
  if (launch->checked) begin_checks(*launch), begin_counts(*launch);
  uint64_t count = launch->last_block - launch->first_block;
  for (uint64_t i = 0; i < count && !s.failed; i++)
    run_block(launch->first_block + (launch->order == 1 ? count - 1 - i : i));
  thread = nullptr;
  if (launch->checked) end_counts(), end_checks();
  return s.failed;
}
