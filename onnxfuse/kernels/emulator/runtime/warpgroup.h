// Products of warpgroups, as the scheduler sees them.
#pragma once
#include "../include/emulator.h"

#pragma GCC visibility push(hidden)
namespace emulator {

// Wait for all threads of the warpgroup to come to one place; the last does something for all of them.
void gather(Site site, void (*together)(Thread *threads, Site site));
void begin_warpgroups(unsigned count);
// Where a product of this block was begun for which no thread waited, or null.
const Site *unfinished();

}  // namespace emulator
#pragma GCC visibility pop
