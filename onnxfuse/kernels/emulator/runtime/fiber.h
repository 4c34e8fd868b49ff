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

// Stacks for all threads of a block.
char *make_stacks();
// The fiber has one of them.
void give_stack(Fiber *fiber, char *stacks);
// Let the fiber run `body`, which must not return, whatever it was doing.
void reset(Fiber *fiber, void (*body)());
// Go on with `to`; what called is at `*from`.
extern "C" void emulator_switch(void **from, void *to);

}  // namespace emulator
#pragma GCC visibility pop
