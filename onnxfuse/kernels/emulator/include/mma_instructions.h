// The warp instructions mma.sync.m16n8k16 and ldmatrix.x4 as PTX lays their operands out over the lanes (PTX ISA,
// "Matrix fragments for mma.m16n8k16" and "ldmatrix"), for kernels that would use inline PTX on the card.
#pragma once
#include "cuda_emulator.h"

namespace emulator {

// Each lane's `own` 16 bytes are a row; see ldmatrix_x4.
template <bool TRANSPOSED>
EMULATOR_UNCHECKED inline void exchange_rows(unsigned (&into)[4], const uint16_t *own, Site site) {
  memcpy(thread->sent, &own, sizeof own);
  meet(Meeting::vote, ~0u, site);
  unsigned g = thread->lane / 4, t = thread->lane % 4;
  for (unsigned m = 0; m < 4; m++) {
    uint16_t pair[2];
    for (unsigned i = 0; i < 2; i++) {
      const uint16_t *row;
      memcpy(&row, lane(8 * m + (TRANSPOSED ? 2 * t + i : g)).sent, sizeof row);
      pair[i] = row[TRANSPOSED ? g : 2 * t + i];
    }
    memcpy(&into[m], pair, sizeof pair);
  }
  meet(Meeting::vote, ~0u, site);
}

EMULATOR_UNCHECKED __attribute__((noinline)) inline void count_row(const void *row) {
  count(Space::shared, row, 16, Count::read, __builtin_return_address(0));
}

// Four matrices of 8 rows of 16 bytes: lane l gives the address of row l % 8 of matrix l / 8, and gets of each matrix
// (l / 4, 2 * (l % 4)) and the element to its right; transposed, (2 * (l % 4), l / 4) and the one below.
template <bool TRANSPOSED>
__attribute__((always_inline)) inline void ldmatrix_x4(unsigned (&into)[4], const void *row, EMULATOR_SITE) {
  if (uintptr_t(row) % 16) fail(site, "a matrix row's address must be a multiple of 16 bytes");
  uint16_t own[8];
  count_row(row);
  {
    Uncounted counted_already;
    for (int i = 0; i < 8; i++) own[i] = static_cast<const uint16_t *>(row)[i];
  }
  exchange_rows<TRANSPOSED>(into, own, site);
}

// d [16, 8] += a [16, 16] x b [16, 8].  With g = lane / 4 and t = lane % 4, each register two neighbours of k or n:
// a: (g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8); b: (k 2t, n g), (k 2t + 8, n g);
// d: (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1).
// Each lane shows the others its parts as floats: of A [2, 2, 2] by half of k, half of m and neighbour, of B by the first
// and the last of these.
template <class T>
EMULATOR_UNCHECKED inline void mma_m16n8k16(
    float (&d)[4], const unsigned (&a)[4], const unsigned *b, EMULATOR_SITE) {
  T halves[12];
  float own[12];
  memcpy(halves, a, sizeof a);
  memcpy(halves + 8, b, 8);
  for (unsigned i = 0; i < 12; i++) own[i] = float(halves[i]);
  const float *mine = own;
  memcpy(thread->sent, &mine, sizeof mine);
  meet(Meeting::vote, ~0u, site);
  unsigned g = thread->lane / 4, t = thread->lane % 4;
  floats<4> sums = {d[0], d[1], d[2], d[3]};
  for (unsigned k = 0; k < 16; k++) {
    unsigned from = k % 8 / 2, high = k / 8, odd = k % 2;
    const float *x, *left, *right;
    memcpy(&x, lane(4 * g + from).sent, sizeof x);
    memcpy(&left, lane(8 * t + from).sent, sizeof left);
    memcpy(&right, lane(8 * t + 4 + from).sent, sizeof right);
    float upper = x[4 * high + odd], lower = x[4 * high + 2 + odd];
    float even = left[8 + 2 * high + odd], next = right[8 + 2 * high + odd];
    sums += floats<4>{upper, upper, lower, lower} * floats<4>{even, next, even, next};
  }
  meet(Meeting::vote, ~0u, site);
  for (unsigned i = 0; i < 4; i++) d[i] = sums[i];
}

}  // namespace emulator
