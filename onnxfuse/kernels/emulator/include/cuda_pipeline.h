// Asynchronous copies from global to shared memory.  A copy is made when its thread waits for it, not before.
#pragma once
#include "cuda_emulator.h"

namespace emulator {
// One instruction, that reads global and writes shared memory.
EMULATOR_UNCHECKED __attribute__((noinline)) inline void count_copy(
    const void *to, const void *from, size_t bytes, size_t read) {
  const void *code = __builtin_return_address(0);
  if (read) count(Space::global, from, read, Count::read, code);
  count(Space::shared, to, bytes, Count::write, code);
}

EMULATOR_UNCHECKED inline void begin_copy(void *to, const void *from, size_t bytes, size_t zeros, Site site) {
  Copies &copies = *thread->copies;
  if ((bytes != 4 && bytes != 8 && bytes != 16) || zeros > bytes)
    fail(site, "asynchronous copy of %zu bytes, %zu of them zeros: 4, 8 or 16 bytes can be copied", bytes, zeros);
  if (uintptr_t(to) % bytes || uintptr_t(from) % bytes)
    fail(site, "asynchronous copy of %zu bytes between addresses that are not aligned to it", bytes);
  if (copies.count == Copies::MOST) fail(site, "more than %u asynchronous copies under way", Copies::MOST);
  {
    Uncounted counted_already;
    access(to, bytes, Access::write, __builtin_return_address(0));
  }
  under_way(to, bytes, site);
  memset(to, POISON, bytes);
  copies.copy[copies.count++] = {(char *)to, (const char *)from, unsigned(bytes), unsigned(zeros)};
}
}  // namespace emulator

// Part of who calls it, so that what is counted is counted there.
__attribute__((always_inline)) inline void __pipeline_memcpy_async(
    void *to, const void *from, size_t bytes, size_t zeros = 0, EMULATOR_SITE) {
  emulator::begin_copy(to, from, bytes, zeros, site);
  emulator::count_copy(to, from, bytes, bytes - zeros);
}

EMULATOR_UNCHECKED inline void __pipeline_commit(EMULATOR_SITE) {
  using namespace emulator;
  Copies &copies = *thread->copies;
  if (copies.groups == Copies::MOST) fail(site, "more than %u groups of asynchronous copies under way", Copies::MOST);
  copies.group_end[copies.groups++] = copies.count;
}

EMULATOR_UNCHECKED inline void __pipeline_wait_prior(unsigned under_way, EMULATOR_SITE) {
  using namespace emulator;
  if (left_out(site)) return;
  Copies &copies = *thread->copies;
  if (copies.groups <= under_way) return;
  Uncounted counted_when_begun;
  unsigned done = copies.groups - under_way, end = copies.group_end[done - 1];
  for (unsigned i = 0; i < end; i++) {
    Copy copy = copies.copy[i];
    unsigned bytes = copy.bytes - copy.zeros;
    if (bytes) access(copy.from, bytes, Access::read, __builtin_return_address(0));
    access(copy.to, copy.bytes, Access::write, __builtin_return_address(0));
    memcpy(copy.to, copy.from, bytes);
    memset(copy.to + bytes, 0, copy.zeros);
  }
  copies.count -= end;
  copies.groups -= done;
  memmove(copies.copy, copies.copy + end, copies.count * sizeof(Copy));
  for (unsigned i = 0; i < copies.groups; i++) copies.group_end[i] = copies.group_end[i + done] - end;
}
