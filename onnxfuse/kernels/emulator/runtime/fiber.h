// Stacks that threads run on, and the switch between them.
#pragma once
#include <cstddef>

#pragma GCC visibility push(hidden)
namespace emulator {

struct Fiber {
  void *stack_pointer;
  char *stack;
  unsigned number;
};

constexpr size_t STACK = 256 << 10;

// A fiber ready to run `body`, which must not return.
Fiber *make_fiber(unsigned number);
// Forget what the fiber was doing.
void reset(Fiber *fiber, void (*body)());
// Go on with `to`; what called is at `*from`.
extern "C" void emulator_switch(void **from, void *to);

}  // namespace emulator
#pragma GCC visibility pop
