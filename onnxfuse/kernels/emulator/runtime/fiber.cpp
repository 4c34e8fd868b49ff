#include "fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

// Callee-saved registers of the System V (x86-64) and AAPCS64 calling conventions.
#if defined(__x86_64__)
asm(R"(
.text
.globl emulator_switch
.hidden emulator_switch
.type emulator_switch, @function
emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
#elif defined(__aarch64__)
asm(R"(
.text
.globl emulator_switch
.hidden emulator_switch
.type emulator_switch, %function
emulator_switch:
  sub sp, sp, #160
  stp x19, x20, [sp]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x2, sp
  str x2, [x0]
  mov sp, x1
  ldp x19, x20, [sp]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
)");
#else
#error "the emulator switches stacks on x86-64 and aarch64 only"
#endif

namespace emulator {

constexpr size_t GUARD = 4096;  // An overflow must stop the program, not run into the next thread's stack.
constexpr size_t MOST_THREADS = 1024;

char *make_stacks() {
  constexpr size_t bytes = MOST_THREADS * (GUARD + STACK);
  void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  char *stacks = static_cast<char *>(memory);
  for (size_t i = 0; i < MOST_THREADS; i++)
    if (mprotect(stacks + i * (GUARD + STACK), GUARD, PROT_NONE)) return nullptr;
  return stacks;
}

void give_stack(Fiber *fiber, char *stacks) { fiber->stack = stacks + fiber->number * (GUARD + STACK) + GUARD; }

void reset(Fiber *fiber, void (*body)()) {
  // Tops at one and the same offset in a page would all compete for the same lines of the cache.
  size_t stagger = fiber->number * 320 % 8192;
  char *top = fiber->stack + STACK - 64 - stagger;
  top -= reinterpret_cast<uintptr_t>(top) % 64;
  void **stack = reinterpret_cast<void **>(top);
#if defined(__x86_64__)
  *--stack = nullptr;
  *--stack = reinterpret_cast<void *>(body);
  stack -= 6;
  memset(stack, 0, 6 * sizeof *stack);
#else
  stack -= 20;
  memset(stack, 0, 20 * sizeof *stack);
  stack[11] = reinterpret_cast<void *>(body);
#endif
  fiber->stack_pointer = stack;
}

}  // namespace emulator
