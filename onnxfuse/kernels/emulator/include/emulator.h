// What a kernel's translation unit and the runtime know of each other.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

// The emulator's own accesses are not the kernel's: the checker does not see them.
#define EMULATOR_UNCHECKED __attribute__((no_sanitize("thread", "undefined")))
// Where a function was called from, as its last parameter.
#define EMULATOR_SITE ::emulator::Site site = {__builtin_FILE(), __builtin_LINE()}

struct uint3 {
  unsigned x, y, z;
};

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

#pragma GCC visibility push(hidden)
namespace emulator {

constexpr unsigned WARP = 32, WARPGROUP = 128;
constexpr unsigned char POISON = 0xff;  // As floats NaN, as integers -1.

struct Site {
  const char *file;
  int line;
};

struct Fiber;

enum class State : uint8_t { ready, at_barrier, in_warp, in_warpgroup, at_mbarrier, done };

// What lanes of a warp do together: meet only, hand each other a value, or count votes.
enum class Meeting : uint8_t { sync, exchange, vote };

// An asynchronous copy that was asked for; it happens when the thread waits for it, so that a missing wait shows.
struct Copy {
  char *to;
  const char *from;
  unsigned bytes, zeros;
};

struct Copies {
  static constexpr unsigned MOST = 128;
  Copy copy[MOST];
  unsigned count;
  unsigned group_end[MOST];
  unsigned groups;
};

struct Thread {
  uint3 index;
  unsigned rank, lane, warp;
  Fiber *fiber;
  State state;
  Site site;
  alignas(16) unsigned char sent[16];
  alignas(16) unsigned char received[16];
  unsigned source;
  Copies *copies;
  // Logical time for the race detector: `knows[l]` is the latest time of lane l whose accesses come before ours.
  uint32_t time;
  uint32_t *knows;
};

struct Place {
  dim3 grid, block;
  uint3 index;
  uint3 thread;
};

// Floats that are computed with at once, each as it would be by itself.
template <int n> using floats __attribute__((vector_size(n * sizeof(float)))) = float;

extern Thread *thread;
extern Place place;
extern "C" char emulator_dynamic_shared[];

[[noreturn]] void fail(Site site, const char *format, ...) __attribute__((format(printf, 2, 3)));
// Whether this launch is to do without the barrier at a place.
bool left_out(Site site);
// Whether it is to make the mistake of this number, which a test has planted.
bool planted(unsigned number);
void barrier(Site site);
int barrier_reduce(int predicate, int which, Site site);
// Wait for the other lanes of the mask; returns those of them that the block has.
unsigned meet(Meeting meeting, unsigned mask, Site site);
// A lane of the same warp: threads lie in the order of their ranks.
EMULATOR_UNCHECKED inline Thread &lane(unsigned lane) { return *(thread - thread->lane + lane); }
// What the checker is told of an access.
enum class Access : uint8_t { read, write, update, exchange };
void access(const void *address, size_t bytes, Access kind, const void *code);
// A copy to shared memory has begun, and until it is waited for nobody may look.
void under_way(const void *address, size_t bytes, Site site);
void fence(Site site);
// Writes of this thread before it are seen by the asynchronous proxy, which products of warpgroups read through.
void proxy_fence();
// What a thread of a warpgroup says of a product; see wgmma_instructions.h.
struct Wgmma {
  uint64_t a, b;              // Descriptors.
  const uint32_t *registers;  // Or, instead of that of a, this thread's share of it.
  float *d;
  unsigned n;
  bool turned_a, turned_b, adds, bfloat;
};
void wgmma(const Wgmma &call, Site site);
void wgmma_fence(EMULATOR_SITE);
void wgmma_commit(EMULATOR_SITE);
void wgmma_wait(unsigned under_way, EMULATOR_SITE);
// What one thread says of a product whose sums are in tensor memory; see tcgen05_instructions.h.
struct Tcgen05 {
  uint64_t a, b;         // Descriptors.
  bool a_there;          // Or, instead of that of a, where in tensor memory it is.
  uint32_t d;            // Where the sums are.
  uint32_t instruction;  // Its descriptor.
  bool adds;
};
void tensor_allocate(void *to, unsigned columns, Site site);
void tensor_relinquish(Site site);
void tensor_free(uint32_t address, unsigned columns, Site site);
void tensor_product(const Tcgen05 &call, Site site);
void tensor_commit(void *barrier, Site site);
// What lanes of a warp load and store of so many columns: a lane each, or 16 lanes as mma.sync has them, whose columns are
// floats or pairs of halves.
enum class TensorShape : uint8_t { s32x32b, s16x256b, s16x128b };
void tensor_load(float *to, uint32_t address, TensorShape shape, unsigned columns, Site site);
void tensor_wait_loads(Site site);
void tensor_store(uint32_t address, const float *from, TensorShape shape, unsigned columns, Site site);
void tensor_wait_stores(Site site);
void tensor_fence_before();
void tensor_fence_after();
// What a CUtensorMap of three dimensions says, in words of it; memory.py writes them.
struct TensorMapWords {
  uint64_t address, inner, outer, stride;  // Of a matrix of the tensor: elements of a row, rows, bytes from row to row.
  uint64_t count, step;                    // Matrices, bytes from one to the next.
  uint64_t box_inner, box_outer, element, swizzle;  // Bytes of an element, and of a row of the pattern, 0 without one.
};
// mbarriers and bulk copies; see bulk_instructions.h.
void barrier_init(void *where, unsigned count, Site site);
void barrier_arrive(void *where, unsigned bytes, Site site);
void barrier_wait(void *where, unsigned parity, Site site);
void bulk_copy(void *to, const TensorMapWords &map, int inner, int outer, int number, void *barrier, Site site);
// What the counter is told of an access, where it is one on the card, too; see runtime/counter.cpp.
enum class Space : uint8_t { global, shared };
enum class Count : uint8_t { read, write, atomic };
void count(Space space, const void *address, size_t bytes, Count kind, const void *code);
extern int uncounted;
// While it lives, accesses stand for none of the card's, or for others that are told.
struct Uncounted {
  EMULATOR_UNCHECKED Uncounted() { uncounted++; }
  EMULATOR_UNCHECKED ~Uncounted() { uncounted--; }
};

// Lanes of `mask` each give a value and get the one of their `source`.
template <class T>
EMULATOR_UNCHECKED inline T exchange(unsigned mask, T value, unsigned source, Site site) {
  static_assert(sizeof(T) <= sizeof(Thread::sent), "a shuffle moves 16 bytes at most");
  memcpy(thread->sent, &value, sizeof value);
  thread->source = source;
  meet(Meeting::exchange, mask, site);
  memcpy(&value, thread->received, sizeof value);
  return value;
}

// What all lanes of `mask` gave, seen by each: `combine(result, value)` over the lanes in order.
template <class T, class R, class Combine>
EMULATOR_UNCHECKED inline R over_lanes(unsigned mask, T value, R result, Combine combine, Site site) {
  static_assert(sizeof(T) <= sizeof(Thread::sent), "a warp operation moves 16 bytes at most");
  memcpy(thread->sent, &value, sizeof value);
  unsigned present = meet(Meeting::vote, mask, site);
  for (unsigned i = 0; i < WARP; i++) {
    if (!(present >> i & 1)) continue;
    T other;
    memcpy(&other, lane(i).sent, sizeof other);
    result = combine(result, other, i);
  }
  meet(Meeting::vote, mask, site);  // Nobody gives the next value before all have read this one.
  return result;
}

}  // namespace emulator
#pragma GCC visibility pop
