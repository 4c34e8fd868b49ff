// mbarriers and bulk copies, as the rest of the runtime sees them.
#pragma once
#include "../include/emulator.h"

#pragma GCC visibility push(hidden)
namespace emulator {

// Let others run until a phase of some mbarrier is complete.
void wait_for_phase(Site site);
void phase_completed();
void begin_bulk(unsigned threads);
// Where a copy of this block was begun for which no thread waited, or null.
const Site *unawaited();
// What a thread that waits misses, for the message of a deadlock.
void describe_waiting(char *text, size_t bytes);
// Whether this thread knows that a copy, by its number, is there.
bool knows_copy(uint32_t number);
// All threads of the block, or these of a warp, have met: each knows what any of them knew.
void block_met();
void warp_met(const Thread *first_lane, unsigned lanes);
// How often the block has met.
uint32_t meetings();
// A product, by its number, of those that one thread begins and whose sums are in tensor memory, reads bytes of dynamic
// shared memory; the end of all up to a number arrives at an mbarrier; the last of which this thread knows that it ended.
void product_begins(uint32_t number, unsigned offset);
void products_arrive(void *where, uint32_t last, Site site);
uint32_t products_known();
// Whether this thread has been told of the end of the last product, of those in tensor memory, that read a place.
bool product_known(size_t offset);
// Counts on; and when a warp last arrived at an mbarrier, as far as this thread knows.
uint32_t next_tick();
uint32_t told_by(unsigned warp);
// A product of a warpgroup is done with bytes of dynamic shared memory, and its warps say so when they arrive next.
void product_left(unsigned warpgroup, unsigned offset);

}  // namespace emulator
#pragma GCC visibility pop
