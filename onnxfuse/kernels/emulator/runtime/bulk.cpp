// mbarriers (PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier") and copies of boxes by tensor maps
// ("cp.async.bulk.tensor").
//
// A copy poisons where it goes when it is begun, and is made when its phase has all arrivals and exactly the bytes that it
// expects.  Threads know that it is there when they have waited for that phase, or by a barrier behind one that has; that
// a place is free again when the warps of all products that read it have arrived at an mbarrier that they have waited for.
#include "bulk.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "checker.h"
#include "tensor_memory.h"

#define KEPT __attribute__((section("emulator_state")))

namespace emulator {
namespace {

constexpr unsigned PIECE = 16, WARPGROUPS = 8, WARPS = 32, BARRIER_BYTES = 8;
constexpr size_t DYNAMIC = 232448, MOST_OF_ROW = 256;
constexpr unsigned NEVER = ~0u;

struct Box {
  TensorMapWords map;
  char *to;
  int inner, outer, number;
  Site site;
  const void *code;
  Thread *asked;
  size_t bytes() const { return map.box_inner * map.box_outer * map.element; }
};

// What a thread knows: phases of each mbarrier that are complete, when each warp last said that its products ended, and
// up to which number those ended whose sums are in tensor memory.
struct Knowledge {
  std::vector<unsigned> phases;
  uint32_t left[WARPS], products;

  void learn(const Knowledge &other) {
    if (phases.size() < other.phases.size()) phases.resize(other.phases.size());
    for (size_t i = 0; i < other.phases.size(); i++) phases[i] = std::max(phases[i], other.phases[i]);
    for (unsigned w = 0; w < WARPS; w++) left[w] = std::max(left[w], other.left[w]);
    products = std::max(products, other.products);
  }
};

struct Barrier {
  char *where;
  unsigned count, pending, phase;  // Phases that are complete.
  uint64_t expected;               // Bytes of this phase.
  Initialised made;
  std::vector<Box> boxes;          // Of this phase.
  Knowledge arriving, released;    // Of who arrived in this phase, and in those that are complete.
};

// A copy: which phase it is of, and the epoch in which a thread first knew that it was complete.
struct Copied {
  unsigned barrier, phase, known;
  Site site;
};

struct Read {
  uint32_t ended[WARPGROUPS];  // Ticks at which products of each warpgroup ended.
  unsigned epoch;
  uint32_t product;  // The last one of tensor memory.
};

struct Bulk {
  std::vector<Barrier> barriers;
  std::vector<Copied> copies;
  std::vector<Knowledge> threads;
  std::vector<Read> reads;  // Of each piece of dynamic shared memory.
  uint32_t tick, meetings;
};

KEPT Bulk *bulk = nullptr;

unsigned find(void *where, Site site) {
  for (unsigned i = 0; i < bulk->barriers.size(); i++)
    if (bulk->barriers[i].where == where) {
      if (!ordered_behind(bulk->barriers[i].made)) fail(site, "an mbarrier that is initialised with no barrier between");
      return i;
    }
  fail(site, "an mbarrier that was not initialised");
}

// The thread that asked for a box reads it.
void reads_for(const Box &box, const char *from, size_t bytes) {
  Uncounted not_counted;
  Thread *self = thread;
  thread = box.asked;
  access(from, bytes, Access::read, box.code);
  thread = self;
}

// A row of a box, zeros where the tensor has none.
void take_row(const Box &box, size_t line_number, char *line) {
  const TensorMapWords &m = box.map;
  int64_t row = int64_t(box.outer) + int64_t(line_number), first = std::max(box.inner, 0);
  int64_t last = std::min(int64_t(box.inner) + int64_t(m.box_inner), int64_t(m.inner));
  memset(line, 0, m.box_inner * m.element);
  if (row < 0 || row >= int64_t(m.outer) || first >= last || box.number < 0 || uint64_t(box.number) >= m.count) return;
  const char *matrix = reinterpret_cast<const char *>(m.address) + box.number * int64_t(m.step);
  const char *from = matrix + row * int64_t(m.stride) + first * int64_t(m.element);
  size_t bytes = size_t(last - first) * m.element;
  reads_for(box, from, bytes);
  memcpy(line + size_t(first - box.inner) * m.element, from, bytes);
}

void make(const Box &box) {
  char line[MOST_OF_ROW];
  size_t bytes = box.map.box_inner * box.map.element, to = size_t(box.to - emulator_dynamic_shared);
  for (size_t r = 0; r < box.map.box_outer; r++) {
    take_row(box, r, line);
    for (size_t i = 0; i < bytes; i += PIECE) {
      size_t at = to + r * bytes + i;
      if (box.map.swizzle) at ^= (at >> 7 & (box.map.swizzle / PIECE - 1)) << 4;
      memcpy(emulator_dynamic_shared + at, line + i, PIECE);
    }
  }
}

// Makes the copies of a phase that has all arrivals and bytes, and begins the next.
void complete(Barrier &b) {
  if (b.pending) return;
  uint64_t asked = 0;
  for (const Box &box : b.boxes) asked += box.bytes();
  if (asked > b.expected)
    fail(b.boxes.back().site, "copies of %llu bytes in a phase that expects %llu", (unsigned long long)asked,
         (unsigned long long)b.expected);
  if (asked < b.expected) return;
  for (const Box &box : b.boxes) make(box);
  b.boxes.clear();
  b.expected = 0, b.pending = b.count, b.phase++;
  b.released.learn(b.arriving);
  phase_completed();
}

// The bytes of a box may be written by this thread: nobody reads or has written them without its knowing.
void check_free(const Box &box, uint32_t number) {
  const Knowledge &own = bulk->threads[thread->rank];
  size_t first = size_t(box.to - emulator_dynamic_shared);
  for (size_t at = first; at < first + box.bytes(); at += PIECE) {
    const Read &read = bulk->reads[at / PIECE];
    if (own.products < read.product)
      fail(box.site, "race: a copy to byte %zu of dynamic shared memory, which a product read of whose end no mbarrier has "
           "told this thread", at);
    for (unsigned w = 0; w < WARPS && read.epoch == current_epoch(); w++)
      if (own.left[w] < read.ended[w / 4])
        fail(box.site, "race: a copy to byte %zu of dynamic shared memory, which a product read of whose end warp %u has not "
             "told this thread", at, w);
    bulk_writes(emulator_dynamic_shared + at, PIECE, number, box.code);
  }
  memset(box.to, POISON, box.bytes());
}

}  // namespace

void begin_bulk(unsigned threads) {
  if (!bulk) bulk = new Bulk;
  bulk->meetings = 0;
  if (bulk->barriers.empty() && bulk->threads.size() == threads) return;
  bulk->barriers.clear();
  bulk->copies.assign(1, Copied{0, 0, 0, {}});  // Numbers begin at 1.
  bulk->threads.assign(threads, Knowledge{});
  bulk->reads.clear();
  bulk->tick = 0;
}

const Site *unawaited() {
  for (const Barrier &b : bulk->barriers)
    if (!b.boxes.empty()) return &b.boxes[0].site;
  for (size_t i = 1; i < bulk->copies.size(); i++)
    if (bulk->copies[i].known == NEVER) return &bulk->copies[i].site;
  return nullptr;
}

void describe_waiting(char *text, size_t bytes) {
  for (const Barrier &b : bulk->barriers) {
    uint64_t asked = 0;
    for (const Box &box : b.boxes) asked += box.bytes();
    int used = snprintf(text, bytes, " (mbarrier at byte %td: phase %u lacks %u arrivals and %lld bytes)",
                        b.where - emulator_dynamic_shared, b.phase, b.pending, (long long)(b.expected - asked));
    if (used < 0 || size_t(used) >= bytes) return;
    text += used, bytes -= size_t(used);
  }
}

bool knows_copy(uint32_t number) {
  const Copied &copied = bulk->copies[number];
  const std::vector<unsigned> &phases = bulk->threads[thread->rank].phases;
  return (copied.barrier < phases.size() && phases[copied.barrier] > copied.phase) || copied.known < current_epoch();
}

void block_met() {
  bulk->meetings++;
  tensor_block_met();
  if (bulk->barriers.empty()) return;
  Knowledge all{};
  for (const Knowledge &own : bulk->threads) all.learn(own);
  std::fill(bulk->threads.begin(), bulk->threads.end(), all);
}

void warp_met(const Thread *first, unsigned lanes) {
  if (bulk->barriers.empty()) return;
  Knowledge all{};
  for (unsigned i = 0; i < WARP; i++)
    if (lanes >> i & 1) all.learn(bulk->threads[first[i].rank]);
  for (unsigned i = 0; i < WARP; i++)
    if (lanes >> i & 1) bulk->threads[first[i].rank].learn(all);
}

uint32_t meetings() { return bulk->meetings; }

void product_begins(uint32_t number, unsigned offset) {
  if (!bulk->reads.empty()) bulk->reads[offset / PIECE].product = number;
}

void products_arrive(void *where, uint32_t last, Site site) {
  Barrier &b = bulk->barriers[find(where, site)];
  if (!b.pending) fail(site, "more than %u arrivals at an mbarrier in one phase", b.count);
  b.pending--;
  // The products came behind the phases that their thread had waited for, and so comes their end.
  b.arriving.learn({bulk->threads[thread->rank].phases, {}, last});
  complete(b);
}

uint32_t products_known() { return bulk->threads[thread->rank].products; }

bool product_known(size_t offset) {
  if (bulk->reads.empty()) return false;
  uint32_t last = bulk->reads[offset / PIECE].product;
  return last && products_known() >= last;
}

uint32_t next_tick() { return ++bulk->tick; }

uint32_t told_by(unsigned warp) { return bulk->threads[thread->rank].left[warp]; }

void product_left(unsigned warpgroup, unsigned offset) {
  if (bulk->barriers.empty()) return;
  Read &read = bulk->reads[offset / PIECE];
  if (read.epoch != current_epoch()) read = Read{{}, current_epoch(), read.product};
  read.ended[warpgroup] = bulk->tick + 1;
}

void barrier_init(void *where, unsigned count, Site site) {
  char *at = static_cast<char *>(where);
  if (at < emulator_dynamic_shared || at + BARRIER_BYTES > emulator_dynamic_shared + DYNAMIC)
    fail(site, "an mbarrier lies in dynamic shared memory here");
  if (uintptr_t(at) % BARRIER_BYTES) fail(site, "an mbarrier begins on a multiple of 8 bytes");
  if (bulk->reads.empty()) bulk->reads.assign(DYNAMIC / PIECE, Read{});
  bulk->barriers.push_back({at, count, count, 0, 0, initialised(), {}, {}, {}});
}

void barrier_arrive(void *where, unsigned bytes, Site site) {
  Barrier &b = bulk->barriers[find(where, site)];
  if (!b.pending) fail(site, "more than %u arrivals at an mbarrier in one phase", b.count);
  b.pending--, b.expected += bytes;
  b.arriving.learn(bulk->threads[thread->rank]);
  b.arriving.left[thread->warp] = ++bulk->tick;
  complete(b);
}

void barrier_wait(void *where, unsigned parity, Site site) {
  unsigned number = find(where, site);
  while ((bulk->barriers[number].phase & 1) == parity) wait_for_phase(site);
  const Barrier &b = bulk->barriers[number];
  Knowledge &own = bulk->threads[thread->rank];
  own.learn(b.released);
  own.phases.resize(bulk->barriers.size());
  own.phases[number] = b.phase;
  products_told(own.products);
  for (size_t i = 1; i < bulk->copies.size(); i++) {
    Copied &copied = bulk->copies[i];
    if (copied.barrier == number && copied.phase < b.phase && copied.known == NEVER) copied.known = current_epoch();
  }
}

void bulk_copy(void *to, const TensorMapWords &map, int inner, int outer, int number_of, void *barrier, Site site) {
  unsigned number = find(barrier, site);
  Barrier &b = bulk->barriers[number];
  if (!fenced_for_copies(b.made)) fail(site, "a copy by an mbarrier that was initialised with no fence.proxy.async between");
  Box box = {map, static_cast<char *>(to), inner, outer, number_of, site, __builtin_return_address(0), thread};
  size_t row = map.box_inner * map.element;
  if (row % PIECE || (map.swizzle && row > map.swizzle) || row > MOST_OF_ROW)
    fail(site, "a box with rows of %zu bytes in a pattern of %zu", row, size_t(map.swizzle));
  if (map.address % PIECE || map.stride % PIECE || map.step % PIECE || uintptr_t(to) % 128)
    fail(site, "a box between addresses that are no multiples of 16 and of 128 bytes");
  if (box.to < emulator_dynamic_shared || box.to + box.bytes() > emulator_dynamic_shared + DYNAMIC)
    fail(site, "a copy to memory that is not dynamic shared memory");
  bulk->copies.push_back({number, b.phase, NEVER, site});
  check_free(box, uint32_t(bulk->copies.size() - 1));
  b.boxes.push_back(box);
  complete(b);
}

}  // namespace emulator
