// Warp matrix multiply-accumulate.  Lane l holds elements l*n to l*n+n-1; on the card, too, the layout is nobody's.
#pragma once
#include "cuda_emulator.h"

namespace nvcuda {
namespace wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };

template <class Use, int M, int N, int K> struct emulator_shape;
template <int M, int N, int K> struct emulator_shape<matrix_a, M, N, K> { enum { rows = M, columns = K }; };
template <int M, int N, int K> struct emulator_shape<matrix_b, M, N, K> { enum { rows = K, columns = N }; };
template <int M, int N, int K> struct emulator_shape<accumulator, M, N, K> { enum { rows = M, columns = N }; };

template <class Use, int M, int N, int K, class T, class Layout = void>
struct fragment {
  enum {
    rows = emulator_shape<Use, M, N, K>::rows,
    columns = emulator_shape<Use, M, N, K>::columns,
    num_elements = rows * columns / 32
  };
  using element_type = T;
  T x[num_elements];
};

namespace emulator_detail {

template <class T>
inline void check(const T *address, unsigned stride, ::emulator::Site site) {
  if (uintptr_t(address) % 32) ::emulator::fail(site, "a matrix fragment's address must be a multiple of 32 bytes");
  if (stride * sizeof(T) % 16) ::emulator::fail(site, "a matrix fragment's stride must be a multiple of 16 bytes");
}

template <class F, class Visit>
inline void each(const F &, Visit visit) {
  for (int i = 0; i < F::num_elements; i++) {
    int element = int(::emulator::thread->lane) * F::num_elements + i;
    visit(i, element / F::columns, element % F::columns);
  }
}

// How the card moves a fragment: matrices [8, 8] of halves by ldmatrix.x4, sums in pairs.
template <class T>
EMULATOR_UNCHECKED __attribute__((noinline)) inline void count_load(const T *from, unsigned stride) {
  using namespace ::emulator;
  unsigned l = thread->lane;
  count(Space::shared, from + l % 16 * stride + l / 16 * 8, 16, Count::read, __builtin_return_address(0));
}
template <class T>
EMULATOR_UNCHECKED __attribute__((noinline)) inline void count_store(const T *to, unsigned stride) {
  using namespace ::emulator;
  unsigned l = thread->lane;
  for (unsigned i = 0; i < 4; i++) {
    const T *pair = to + (l / 4 + i % 2 * 8) * stride + l % 4 * 2 + i / 2 * 8;
    count(Space::shared, pair, 2 * sizeof(T), Count::write, __builtin_return_address(0));
  }
}

template <class F>
inline void load(F &f, const typename F::element_type *from, unsigned stride, bool row, ::emulator::Site site) {
  check(from, stride, site);
  count_load(from, stride);
  {
    ::emulator::Uncounted counted_already;
    each(f, [&](int i, int r, int c) { f.x[i] = from[row ? r * stride + c : c * stride + r]; });
  }
  ::emulator::meet(::emulator::Meeting::vote, ~0u, site);
}

}  // namespace emulator_detail

template <class Use, int M, int N, int K, class T>
inline void load_matrix_sync(fragment<Use, M, N, K, T, row_major> &f, const T *from, unsigned stride, EMULATOR_SITE) {
  emulator_detail::load(f, from, stride, true, site);
}
template <class Use, int M, int N, int K, class T>
inline void load_matrix_sync(fragment<Use, M, N, K, T, col_major> &f, const T *from, unsigned stride, EMULATOR_SITE) {
  emulator_detail::load(f, from, stride, false, site);
}
template <int M, int N, int K, class T>
inline void load_matrix_sync(
    fragment<accumulator, M, N, K, T> &f, const T *from, unsigned stride, layout_t layout, EMULATOR_SITE) {
  emulator_detail::load(f, from, stride, layout == mem_row_major, site);
}
template <int M, int N, int K, class T>
inline void store_matrix_sync(
    T *to, const fragment<accumulator, M, N, K, T> &f, unsigned stride, layout_t layout, EMULATOR_SITE) {
  emulator_detail::check(to, stride, site);
  bool row = layout == mem_row_major;
  emulator_detail::count_store(to, stride);
  {
    ::emulator::Uncounted counted_already;
    emulator_detail::each(f, [&](int i, int r, int c) { to[row ? r * stride + c : c * stride + r] = f.x[i]; });
  }
  ::emulator::meet(::emulator::Meeting::vote, ~0u, site);
}
template <class F, class V>
inline void fill_fragment(F &f, V value) {
  for (auto &element : f.x) element = typename F::element_type(value);
}

// Each lane shows the others where its parts of A and B are, as floats, and computes its own part of D, which lies in
// one row: neighbours at once, each a sum over k in order.
template <int M, int N, int K, class D, class A, class LayoutA, class B, class LayoutB, class C>
EMULATOR_UNCHECKED inline void mma_sync(
    fragment<accumulator, M, N, K, D> &d, const fragment<matrix_a, M, N, K, A, LayoutA> &a,
    const fragment<matrix_b, M, N, K, B, LayoutB> &b, const fragment<accumulator, M, N, K, C> &c, EMULATOR_SITE) {
  using namespace emulator;
  constexpr int IN_A = M * K / 32, IN_B = K * N / 32, IN_D = M * N / 32, CHUNK = IN_B < IN_D ? IN_B : IN_D;
  static_assert(N % IN_D == 0 && IN_D % CHUNK == 0 && IN_B % CHUNK == 0, "parts are of one row");
  using Floats = floats<CHUNK>;
  float own_a[IN_A], own_b[IN_B];
  for (int i = 0; i < IN_A; i++) own_a[i] = float(a.x[i]);
  for (int i = 0; i < IN_B; i++) own_b[i] = float(b.x[i]);
  const float *mine[2] = {own_a, own_b};
  memcpy(thread->sent, mine, sizeof mine);
  meet(Meeting::vote, ~0u, site);
  int first = int(thread->lane) * IN_D, row = first / N, column = first % N;
  D result[IN_D];
  for (int i = 0; i < IN_D; i += CHUNK) {
    Floats sums;
    for (int j = 0; j < CHUNK; j++) sums[j] = float(c.x[i + j]);
    for (int k = 0; k < K; k++) {
      int at = row * K + k, bt = k * N + column + i;
      const float *parts[2];
      memcpy(&parts[0], lane(at / IN_A).sent, sizeof(void *));
      memcpy(&parts[1], lane(bt / IN_B).sent + sizeof(void *), sizeof(void *));
      Floats neighbours;
      memcpy(&neighbours, parts[1] + bt % IN_B, sizeof neighbours);
      sums += parts[0][at % IN_A] * neighbours;
    }
    for (int j = 0; j < CHUNK; j++) result[i + j] = D(sums[j]);
  }
  meet(Meeting::vote, ~0u, site);
  for (int i = 0; i < IN_D; i++) d.x[i] = result[i];
}

}  // namespace wmma
}  // namespace nvcuda
