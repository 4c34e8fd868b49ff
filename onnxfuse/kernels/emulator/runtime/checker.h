// The access checker, as the scheduler sees it.
#pragma once
#include "../include/emulator.h"
#include "fiber.h"
#include "launch.h"

#pragma GCC visibility push(hidden)
namespace emulator {

void begin_checks(const Launch &launch);
void begin_block();
void end_checks();
// All accesses before a barrier come before all after it.
void barrier_passed();
// The same among the lanes of a warp.
void warp_passed(Thread *first_lane, unsigned lanes);
// A product reads bytes of dynamic shared memory, whose writes it sees by a fence of their thread, or of
// its own behind a barrier; and so long as it `holds` them, nobody may write there.
void product_reads(const void *address, size_t bytes, const void *code);
void product_holds(const void *address, size_t bytes, int more);
// This thread is the first that knows of its end.
void product_ended(const void *address, size_t bytes, const void *code);
// When an mbarrier was initialised, by whom, and after how many of its fences.
struct Initialised {
  uint32_t epoch, thread, fences;
};
Initialised initialised();
bool ordered_behind(const Initialised &made);
bool fenced_for_copies(const Initialised &made);
uint32_t current_epoch();
// A bulk copy of this number is begun to dynamic shared memory.
void bulk_writes(const void *address, size_t bytes, uint32_t number, const void *code);
// The stack the current thread runs on.
const Fiber *current_fiber();
// Whether this is what the scheduler keeps of threads: shuffles and the like read it.
bool is_bookkeeping(const void *address);

}  // namespace emulator
#pragma GCC visibility pop
