// Races, bounds, alignment, and reads of what nobody wrote.
//
// The kernel is compiled with -fsanitize=thread and -fsanitize=alignment,bounds,... but linked with neither runtime:
// the functions that the compiler calls for each access are here.  Shared memory and global buffers that can be written
// remember who touched each part last, and two accesses are a race unless a barrier orders them (happens-before:
// L. Lamport, CACM 21(7), 1978; as in FastTrack, C. Flanagan and S. Freund, PLDI 2009): so the order in which the
// emulator happens to run the threads does not matter.
#include "checker.h"
#include "bulk.h"
#include "cells.h"
#include "counter.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

#define KEPT __attribute__((section("emulator_state")))

namespace emulator {
namespace {

struct Checker {
  const Launch *launch;
  Cells statics, dynamics;
  std::vector<Cells> globals;
  std::vector<uint32_t> first_epochs;   // Of each block so far.
  std::vector<bool> published;          // Blocks that made their writes known by a fence and an atomic.
  std::vector<uint32_t> warp_times;
  std::vector<uint32_t> fences, fence_epochs;  // Of each thread: for the asynchronous proxy, and when the last was.
  uint32_t epoch, block_epoch;
  bool fenced, acquired, by_product;
  size_t last_region;
};

KEPT Checker *checker = nullptr;

Site at_code(const void *code) { return {static_cast<const char *>(code) - 1, 0}; }
uint32_t relative(const void *code) { return uint32_t(static_cast<const char *>(code) - 1 - checker->launch->image); }

bool in_block(uint32_t epoch) { return epoch >= checker->block_epoch; }

// Whether an access of another thread in this very epoch may be at the same time as ours.
bool unordered(uint32_t rank, uint32_t time) {
  return rank != thread->rank && (rank / WARP != thread->warp || thread->knows[rank % WARP] < time);
}

// Whether writes of an earlier block are known here: it published them, and this block asked.
bool handed_over(uint32_t epoch) {
  const std::vector<uint32_t> &firsts = checker->first_epochs;
  size_t block = size_t(std::upper_bound(firsts.begin(), firsts.end(), epoch) - firsts.begin()) - 1;
  return checker->acquired && checker->published[block];
}

bool checking() { return checker && checker->launch; }

struct Touch {
  const char *memory;
  size_t offset;
  bool read, write, atomic;
  const void *code;
};

[[noreturn]] void race(const Touch &touch, const char *ours, const char *theirs, uint32_t rank, uint32_t code) {
  fail(at_code(touch.code), "race: %s byte %zu of %s that thread %u of the block %s at @%x@, with no barrier between",
       ours, touch.offset, touch.memory, rank, theirs, code);
}

[[noreturn]] void race_of_blocks(const Touch &touch, const char *ours, const char *theirs, uint32_t code) {
  fail(at_code(touch.code), "race: %s byte %zu of %s that another block %s at @%x@", ours, touch.offset,
       touch.memory, theirs, code);
}

void check_against_write(const Write &last, const Touch &touch) {
  if (!last.epoch || (touch.atomic && last.atomic)) return;
  const char *ours = touch.write ? "writes" : "reads";
  if (!in_block(last.epoch)) {
    if (!handed_over(last.epoch)) race_of_blocks(touch, ours, "wrote", last.code);
    return;
  }
  if (last.epoch != checker->epoch) return;
  if (last.by_several || unordered(last.thread, last.time)) race(touch, ours, "wrote", last.thread, last.code);
}

void check_against_reads(const Reads &last, const Touch &touch) {
  if (!last.epoch || touch.atomic) return;
  if (last.by_earlier_block || !in_block(last.epoch)) race_of_blocks(touch, "writes", "read", last.code);
  if (last.epoch != checker->epoch) return;
  if (last.by_several_warps) race(touch, "writes", "read", last.warp * WARP, last.code);
  for (unsigned i = 0; i < WARP; i++)
    if (last.lanes >> i & 1 && unordered(last.warp * WARP + i, last.time))
      race(touch, "writes", "read", last.warp * WARP + i, last.code);
}

void record_read(Reads &reads, uint32_t code) {
  uint32_t self = 1u << thread->lane;
  reads.by_product = checker->by_product && (reads.by_product || reads.epoch != checker->epoch);
  if (reads.epoch && !in_block(reads.epoch)) reads.by_earlier_block = true;
  if (reads.epoch != checker->epoch) {
    reads.epoch = checker->epoch, reads.time = thread->time, reads.code = code;
    reads.lanes = self, reads.warp = uint16_t(thread->warp), reads.by_several_warps = false;
  } else if (reads.warp != thread->warp) {
    reads.by_several_warps = true;
  } else {
    // Readers that are ordered before this one need no remembering.  A thread knows nothing of its own time or later.
    if (reads.lanes & ~self && reads.time < thread->time)
      for (unsigned i = 0; i < WARP; i++)
        if (reads.lanes >> i & 1 && thread->knows[i] >= reads.time) reads.lanes &= ~(1u << i);
    reads.lanes |= self, reads.time = thread->time, reads.code = code;
  }
}

void touch_cell(Cell &cell, const Touch &touch) {
  check_against_write(cell.write, touch);
  uint32_t code = relative(touch.code);
  if (!touch.write) return record_read(cell.reads, code);
  // An mbarrier tells of the end of a product in tensor memory, and no other barrier is needed.
  if (!cell.reads.by_product || !product_known(touch.offset)) check_against_reads(cell.reads, touch);
  if (cell.products)
    fail(at_code(touch.code), "writes byte %zu of %s while a product that reads it is under way",
         touch.offset, touch.memory);
  bool again = touch.atomic && cell.write.atomic && cell.write.epoch == checker->epoch;
  bool several = again && (cell.write.by_several || cell.write.thread != thread->rank);
  uint32_t fences = checker->fences[thread->rank];
  cell.write = {checker->epoch, thread->time, code, fences, uint16_t(thread->rank), touch.atomic, several, false, 0};
}

void touch_shared(Cells &cells, Touch &touch, size_t bytes) {
  if (touch.offset + bytes > cells.bytes())
    fail(at_code(touch.code), "%s of %zu bytes at byte %zu of %s, which has %zu", touch.write ? "write" : "read", bytes,
         touch.offset, touch.memory, cells.bytes());
  cells.each(touch.offset, bytes, [&](Cell &cell, size_t offset) {
    touch.offset = offset;
    if (!in_block(cell.write.epoch)) cell = Cell{};  // What an earlier block did here is no matter.
    if (cell.write.copy && !knows_copy(cell.write.copy))
      fail(at_code(touch.code), "race: byte %zu of %s, to which a copy begun at @%x@ is on its way that this thread has "
           "not waited for", touch.offset, touch.memory, cell.write.code);
    if (touch.read && !cell.write.epoch)
      fail(at_code(touch.code), "reads byte %zu of %s, which no thread of the block has written", touch.offset,
           touch.memory);
    if (touch.read && cell.write.under_way)
      fail(at_code(touch.code), "reads byte %zu of %s while an asynchronous copy to it is under way", touch.offset,
           touch.memory);
    touch_cell(cell, touch);
  });
}

void touch_global(const Region &region, Cells &cells, Touch &touch, size_t bytes) {
  const char *verb = touch.write ? "write" : "read";
  if (touch.offset + bytes > region.bytes)
    fail(at_code(touch.code), "%s of %zu bytes at byte %zu of a buffer of %zu bytes", verb, bytes, touch.offset,
         size_t(region.bytes));
  if (touch.write && !region.writable)
    fail(at_code(touch.code), "write of %zu bytes at byte %zu of an input", bytes, touch.offset);
  if (region.written) {
    for (size_t i = touch.offset; i < touch.offset + bytes; i++) {
      if (touch.read && !region.written[i])
        fail(at_code(touch.code), "reads byte %zu of an output that nobody has written", i);
      if (touch.write) region.written[i] = 1;
    }
  }
  if (!region.writable) return;
  cells.each(touch.offset, bytes, [&](Cell &cell, size_t offset) {
    touch.offset = offset;
    touch_cell(cell, touch);
  });
  if (touch.atomic) {
    if (checker->fenced) checker->published.back() = true;
    checker->acquired = true;
  }
}

bool inside(const char *address, const char *first, size_t bytes) {
  return address >= first && address < first + bytes;
}

extern "C" char emulator_image_end[] __asm__("_end") __attribute__((visibility("hidden")));

}  // namespace

void access(const void *where, size_t bytes, Access kind, const void *code) {
  if (!checker || !checker->launch || !thread) return;
  Checker &c = *checker;
  const char *address = static_cast<const char *>(where);
  if (inside(address, current_fiber()->stack, STACK)) return;
  const Launch &launch = *c.launch;
  bool write = kind != Access::read, atomic = kind == Access::update || kind == Access::exchange;
  Count counted = atomic ? Count::atomic : write ? Count::write : Count::read;
  Touch touch = {"shared memory", 0, kind == Access::read || kind == Access::update, write, atomic, code};
  if (inside(address, launch.shared, launch.shared_bytes)) {
    touch.offset = size_t(address - launch.shared);
    count(Space::shared, where, bytes, counted, code);
    return touch_shared(c.statics, touch, bytes);
  }
  constexpr size_t DYNAMIC = 232448;
  if (inside(address, emulator_dynamic_shared, DYNAMIC)) {
    touch.memory = "dynamic shared memory";
    touch.offset = size_t(address - emulator_dynamic_shared);
    count(Space::shared, where, bytes, counted, code);
    return touch_shared(c.dynamics, touch, bytes);
  }
  if (address >= launch.image && address < emulator_image_end) return;  // Constants and built-in variables.
  touch.memory = "a buffer";
  for (size_t n = 0; n <= launch.region_count; n++) {  // The last one first.
    size_t i = n ? n - 1 : c.last_region;
    if (i >= launch.region_count) continue;
    const Region &region = launch.regions[i];
    if (!inside(address, region.first, region.bytes)) continue;
    c.last_region = i;
    touch.offset = size_t(address - region.first);
    count(Space::global, where, bytes, counted, code);
    return touch_global(region, c.globals[i], touch, bytes);
  }
  if (is_bookkeeping(address)) return;
  const char *verb = write ? "write" : "read";
  constexpr long NEAR = 1 << 16;
  for (size_t i = 0; i < launch.region_count; i++) {
    const Region &region = launch.regions[i];
    if (address >= region.first - NEAR && address < region.first + region.bytes + NEAR)
      fail(at_code(code), "%s of %zu bytes at byte %zd of a buffer of %zu bytes", verb, bytes, address - region.first,
           size_t(region.bytes));
  }
  fail(at_code(code), "%s of %zu bytes at address %p, where the kernel has nothing", verb, bytes, where);
}

void under_way(const void *where, size_t bytes, Site site) {
  if (!checker || !checker->launch) return;
  const char *address = static_cast<const char *>(where);
  const Launch &launch = *checker->launch;
  bool fixed = inside(address, launch.shared, launch.shared_bytes);
  if (!fixed && !inside(address, emulator_dynamic_shared, launch.dynamic_bytes))
    fail(site, "asynchronous copy to memory that is not shared");
  Cells &cells = fixed ? checker->statics : checker->dynamics;
  size_t offset = size_t(address - (fixed ? launch.shared : emulator_dynamic_shared));
  cells.each(offset, bytes, [](Cell &cell, size_t) { cell.write.under_way = true; });
}

void fence(Site site) {
  if (checker && checker->launch && !left_out(site)) checker->fenced = true;
}

void proxy_fence() {
  if (!checker || !checker->launch) return;
  checker->fences[thread->rank]++;
  checker->fence_epochs[thread->rank] = checker->epoch;
}

void product_reads(const void *where, size_t bytes, const void *code) {
  if (!checker || !checker->launch) return;
  Uncounted not_counted;
  checker->by_product = true;
  access(where, bytes, Access::read, code);
  checker->by_product = false;
  size_t offset = size_t(static_cast<const char *>(where) - emulator_dynamic_shared);
  checker->dynamics.each(offset, bytes, [&](Cell &cell, size_t) {
    const Write &last = cell.write;
    if (checker->fences[last.thread] == last.fences && checker->fence_epochs[thread->rank] <= last.epoch)
      fail(at_code(code), "a product reads byte %zu of dynamic shared memory, which thread %u wrote at "
           "@%x@, with no fence.proxy.async between", offset, unsigned(last.thread), last.code);
  });
}

void product_holds(const void *where, size_t bytes, int more) {
  if (!checker || !checker->launch) return;
  size_t offset = size_t(static_cast<const char *>(where) - emulator_dynamic_shared);
  checker->dynamics.each(offset, bytes, [=](Cell &cell, size_t) { cell.products += uint32_t(more); });
}

void product_ended(const void *where, size_t bytes, const void *code) {
  if (!checking()) return;
  checker->by_product = true;
  size_t offset = size_t(static_cast<const char *>(where) - emulator_dynamic_shared);
  checker->dynamics.each(offset, bytes, [&](Cell &cell, size_t) { record_read(cell.reads, relative(code)); });
  checker->by_product = false;
}

uint32_t current_epoch() { return checking() ? checker->epoch : 1; }

Initialised initialised() {
  return {current_epoch(), thread->rank, checking() ? checker->fences[thread->rank] : 0};
}

bool ordered_behind(const Initialised &made) {
  return !checking() || made.epoch < checker->epoch || made.thread == thread->rank;
}

bool fenced_for_copies(const Initialised &made) {
  return !checking() || checker->fences[made.thread] > made.fences || checker->fence_epochs[thread->rank] > made.epoch;
}

void bulk_writes(const void *where, size_t bytes, uint32_t number, const void *code) {
  if (!checking()) return;
  Touch touch = {"dynamic shared memory", size_t(static_cast<const char *>(where) - emulator_dynamic_shared), false, true,
                 false, code};
  if (touch.offset + bytes > checker->dynamics.bytes())
    fail(at_code(code), "a copy to byte %zu of dynamic shared memory, which has %zu", touch.offset,
         checker->dynamics.bytes());
  checker->dynamics.each(touch.offset, bytes, [&](Cell &cell, size_t at) {
    const Write &last = cell.write;
    touch.offset = at;
    if (!in_block(last.epoch)) cell = Cell{};
    if (cell.products)
      fail(at_code(code), "a copy to byte %zu of %s while a product that reads it is under way", at,
           touch.memory);
    if (last.copy) {
      if (!knows_copy(last.copy))
        fail(at_code(code), "a copy to byte %zu of %s, to which another is on its way", at, touch.memory);
    } else if (last.epoch) {
      check_against_write(last, touch);
      if (checker->fences[last.thread] == last.fences && checker->fence_epochs[thread->rank] <= last.epoch)
        fail(at_code(code), "a copy to byte %zu of %s, which thread %u wrote at @%x@, with no fence.proxy.async between",
             at, touch.memory, unsigned(last.thread), last.code);
    }
    if (!cell.reads.by_product) check_against_reads(cell.reads, touch);
    cell.write = {checker->block_epoch, 0, relative(code), ~0u, uint16_t(thread->rank), false, false, false, number};
    cell.reads = {};
  });
}

void begin_checks(const Launch &launch) {
  if (!checker) checker = new Checker{};
  Checker &c = *checker;
  c.launch = &launch;
  c.epoch = 0;
  c.by_product = false;
  c.last_region = 0;
  c.statics.reset(launch.shared_bytes);
  c.dynamics.reset(launch.dynamic_bytes);
  c.globals.clear();
  c.globals.resize(launch.region_count);
  for (size_t i = 0; i < launch.region_count; i++)
    if (launch.regions[i].writable) c.globals[i].reset(launch.regions[i].bytes);
  c.first_epochs.clear();
  c.published.clear();
  unsigned threads = launch.block[0] * launch.block[1] * launch.block[2];
  c.warp_times.assign((threads + WARP - 1) / WARP, 0);
  c.fences.assign(threads, 0);
  c.fence_epochs.assign(threads, 0);
}

void begin_block() {
  Checker &c = *checker;
  c.block_epoch = ++c.epoch;
  c.first_epochs.push_back(c.epoch);
  c.published.push_back(false);
  c.fenced = c.acquired = false;
  std::fill(c.warp_times.begin(), c.warp_times.end(), 0);
}

void end_checks() { checker->launch = nullptr; }

void barrier_passed() { checker->epoch++; }

void warp_passed(Thread *first, unsigned lanes) {
  uint32_t known[WARP] = {};
  uint32_t now = ++checker->warp_times[first->warp];
  for (unsigned i = 0; i < WARP; i++) {
    if (!(lanes >> i & 1)) continue;
    for (unsigned j = 0; j < WARP; j++) known[j] = std::max(known[j], first[i].knows[j]);
    known[i] = std::max(known[i], first[i].time);
  }
  for (unsigned i = 0; i < WARP; i++) {
    if (!(lanes >> i & 1)) continue;
    memcpy(first[i].knows, known, sizeof known);
    first[i].time = now + 1;
  }
}

}  // namespace emulator
