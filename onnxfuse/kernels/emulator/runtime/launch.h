// What the loader hands over for one launch; library.py has the same structures for ctypes.
#pragma once
#include <cstddef>
#include <cstdint>

#pragma GCC visibility push(hidden)
namespace emulator {

struct Region {
  char *first;
  uint64_t bytes;
  unsigned char *written;       // One byte for each byte, set when it is written; null where all counts as written.
  uint32_t writable;
};

// What the accesses of one kind at one place in the code came to.
struct Counted {
  uint64_t code;                // Relative to the image.
  uint32_t kind, space;         // `Count` and `Space` of emulator.h.
  uint64_t requests, lanes, possible;  // Instructions of warps, lanes that took part, lanes that there were.
  uint64_t bytes;
  uint64_t units, ideal;        // Sectors of global memory, wavefronts of shared memory.
};

struct Counts {
  Counted *places;
  uint64_t room, used;
  uint64_t barriers;            // Passed by blocks.
  uint64_t moved, compulsory;   // Sectors: what each block read and wrote, and what all together did.
};

struct Launch {
  void (*kernel)(void **);
  void **arguments;
  unsigned grid[3], block[3];
  uint64_t first_block, last_block;
  char *stacks;                 // From emulator_stacks().
  char *shared;                 // The kernel's static shared memory.
  uint64_t shared_bytes;
  uint64_t dynamic_bytes;
  const char *image;            // What code addresses in messages are relative to.
  Region *regions;
  uint32_t region_count;
  uint32_t checked;
  uint32_t order;               // 0 forward, 1 reverse, 2 random.
  uint64_t seed;
  char *message;
  uint64_t message_bytes;
  Counts *counts;               // Null where nothing is counted.
  const char *without_file;     // Of the barrier that is left out.
  uint32_t without_line;        // 0 where none is.
  uint32_t planted;             // The number of the mistake that is made, 0 for none.
};

}  // namespace emulator
#pragma GCC visibility pop
