// What the scheduler keeps of a block.
#pragma once
#include <vector>

#include "../include/emulator.h"
#include "fiber.h"
#include "launch.h"

#pragma GCC visibility push(hidden)
namespace emulator {

struct Gathering {
  Meeting meeting;
  unsigned mask, arrived;
  Site site;
};

struct Warp {
  unsigned lanes, live, count;
  Gathering gatherings[WARP];
};

// Threads of a warpgroup that wait for the others, and where.
struct Gathered {
  unsigned count;
  Site site;
};

struct Scheduler {
  const Launch *launch;
  void *caller;  // Stack pointer of who launched.
  std::vector<Thread> threads;
  std::vector<Copies> copies;       // Of each thread, and apart from it: what is used at every step should lie close.
  std::vector<uint32_t> knowledge;  // WARP for each thread.
  std::vector<Warp> warps;
  std::vector<Thread *> ready;  // The next is the last.
  std::vector<Fiber *> fibers, idle;
  Fiber *fiber;
  unsigned used;  // Of the fibers, those that have a stack of this launch's.
  unsigned live, waiting;
  Site waiting_at;
  std::vector<Gathered> warpgroups;
  int votes[3], verdict[3];
  bool failed;
  uint64_t random;
};

}  // namespace emulator
#pragma GCC visibility pop
