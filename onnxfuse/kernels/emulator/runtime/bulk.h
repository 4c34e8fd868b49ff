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
// A product of a warpgroup is done with bytes of dynamic shared memory, and its warps say so when they arrive next.
void product_left(unsigned warpgroup, unsigned offset);

}  // namespace emulator
#pragma GCC visibility pop
