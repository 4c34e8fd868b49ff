// What accesses cost on a card, as the scheduler and the checker see it.
#pragma once
#include "../include/emulator.h"
#include "launch.h"

#pragma GCC visibility push(hidden)
namespace emulator {

// Launches whose `counts` is null are not counted, and nothing here does anything.
void begin_counts(const Launch &launch);
void begin_counted_block();
// All lanes of a warp have met: their next accesses are other instructions than those so far.
void counted_warp_met(unsigned warp);
void counted_barrier();
void end_counts();

}  // namespace emulator
#pragma GCC visibility pop
