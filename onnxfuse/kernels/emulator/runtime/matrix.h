// Matrices in dynamic shared memory that a descriptor tells of, as products read them.
#pragma once
#include <vector>

#include "../include/emulator.h"

#pragma GCC visibility push(hidden)
namespace emulator {

constexpr unsigned PIECE = 16, LANES = 8;  // Bytes that descriptors count by, and elements in them.
constexpr unsigned DEPTH = 16;             // Columns along k of one product.
constexpr unsigned DYNAMIC = 232448;       // Bytes of dynamic shared memory.

// Rows along m or n, DEPTH columns along k.
struct Matrix {
  unsigned start, leading, stride;  // Bytes.
  unsigned wide;                    // Pieces of a row of the swizzled pattern.
  bool turned;                      // Neighbours are along m or n.

  // Bits 0 to 13, 16 to 29 and 32 to 45 are the same in the descriptors of all architectures.
  Matrix(uint64_t descriptor, unsigned wide, bool turned) : wide(wide), turned(turned) {
    start = unsigned(descriptor & 0x3fff) * PIECE;
    leading = unsigned(descriptor >> 16 & 0x3fff) * PIECE;
    stride = unsigned(descriptor >> 32 & 0x3fff) * PIECE;
  }

  // Where the piece of 8 elements lies that has (row, k), of which one is a multiple of 8.
  unsigned piece(unsigned row, unsigned k) const {
    unsigned along = (turned ? row : k) / LANES, across = turned ? k : row, at;
    if (wide == 1) {
      unsigned other = turned ? stride : leading;
      at = start + across % 8 * PIECE + across / 8 * (turned ? leading : stride) + along * other;
    } else {
      at = start + across % 8 * wide * PIECE + across / 8 * stride + along % wide * PIECE + along / wide * leading;
    }
    return at ^ ((at >> 7 & (wide - 1)) << 4);  // The pattern: bits of the row in those of the piece.
  }
};

inline uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

inline float number(const char *at, bool bfloat) {
  uint16_t bits;
  memcpy(&bits, at, sizeof bits);
  if (bfloat) return of_bits(uint32_t(bits) << 16);
  // float16's exponent moved into place is off by 112; the product is exact, subnormals included.
  uint32_t sign = (bits & 0x8000u) << 16, rest = (bits & 0x7fffu) << 13;
  return of_bits(sign | (rest >= 0x7c00u << 13 ? rest | 0x7f800000u : bits_of(of_bits(rest) * 0x1p112f)));
}

// A matrix [rows, DEPTH] as floats, `row` and `depth` places from one to the next; its pieces are added to `pieces`.
inline std::vector<float> read(const Matrix &m, unsigned rows, unsigned row, unsigned depth, bool bfloat,
                               std::vector<unsigned> &pieces, Site site) {
  std::vector<float> values(rows * DEPTH);
  unsigned down = m.turned ? LANES : 1, across = m.turned ? 1 : LANES;
  for (unsigned r = 0; r < rows; r += down)
    for (unsigned k = 0; k < DEPTH; k += across) {
      unsigned at = m.piece(r, k);
      if (at + PIECE > DYNAMIC) fail(site, "a descriptor leads to byte %u of shared memory", at);
      pieces.push_back(at);
      for (unsigned i = 0; i < LANES; i++)
        values[(m.turned ? r + i : r) * row + (m.turned ? k : k + i) * depth] =
            number(emulator_dynamic_shared + at + 2 * i, bfloat);
    }
  return values;
}

// sums [rows, n] (+)= a [rows, DEPTH] x b [DEPTH, n].
inline void multiply_into(float *sums, size_t stride, const float *a, const float *b, unsigned rows, unsigned n, bool adds) {
  for (unsigned m = 0; m < rows; m++)
    for (unsigned i = 0; i < n; i += LANES) {
      floats<LANES> sum = {}, neighbours;
      float *at = sums + m * stride + i;
      if (adds) memcpy(&sum, at, sizeof sum);
      for (unsigned k = 0; k < DEPTH; k++) {
        memcpy(&neighbours, &b[k * n + i], sizeof neighbours);
        sum += a[m * DEPTH + k] * neighbours;
      }
      memcpy(at, &sum, sizeof sum);
    }
}

}  // namespace emulator
#pragma GCC visibility pop
