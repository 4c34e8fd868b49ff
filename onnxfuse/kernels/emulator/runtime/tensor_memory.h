// Products whose sums are in tensor memory, as the rest of the runtime sees them.
#pragma once
#include "../include/emulator.h"

#pragma GCC visibility push(hidden)
namespace emulator {

void begin_tensor_memory(unsigned threads);
// All threads of the block have met.
void tensor_block_met();
// A thread has been told that all products up to a number ended.
void products_told(uint32_t last);
// Where tensor memory was allocated that is not free at the end of its block, or null.
const Site *unfreed();

}  // namespace emulator
#pragma GCC visibility pop
