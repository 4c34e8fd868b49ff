// Products of warpgroups: wgmma.mma_async, as PTX has it (PTX ISA, "Asynchronous Warpgroup Level Matrix
// Multiply-Accumulate Instructions").
//
// A product is computed when it is begun, and its sums are kept here until a thread waits for the last product of the
// same registers; meanwhile these hold NaN.  From begin to wait nobody may write what it reads.
#include "warpgroup.h"

#include <cmath>
#include <vector>

#include "bulk.h"
#include "checker.h"
#include "launch.h"
#include "matrix.h"

#define KEPT __attribute__((section("emulator_state")))

namespace emulator {
namespace {

constexpr unsigned ROWS = 64;  // Of one product.
constexpr uint64_t USED = 0xc00e3fff3fff3fff;  // Bits of a descriptor that mean something.

struct Product {
  Site site;
  const void *code;
  unsigned group;
  float *d;                     // Of the first thread: which registers.
  std::vector<unsigned> pieces;  // Of dynamic shared memory, that it reads.
};

// What registers will hold when the last product of them is there.
struct Sums {
  unsigned n, group;
  float *d[WARPGROUP];
  std::vector<float> values;  // [ROWS, n]
};

struct Group {
  bool fenced;
  unsigned current;  // Number of the group that is not committed yet.
  std::vector<Product> products;
  std::vector<Sums> sums;
};

KEPT std::vector<Group> *groups = nullptr;

Group &own() { return (*groups)[thread->warp / 4]; }

// PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout", "Matrix Descriptor Format".
Matrix described(uint64_t descriptor, bool turned, Site site) {
  if (descriptor & ~USED) fail(site, "descriptor %016llx has bits that mean nothing", (unsigned long long)descriptor);
  if (descriptor >> 49 & 7) fail(site, "a descriptor with a base offset: patterns begin on multiples of their size here");
  constexpr unsigned PIECES[] = {1, 8, 4, 2};
  return Matrix(descriptor, PIECES[descriptor >> 62], turned);
}

void look(const Product &product, Thread *threads) {
  Thread *self = thread;
  for (unsigned warp = 0; warp < 2; warp++) {
    thread = &threads[warp * WARP];
    for (unsigned at : product.pieces) product_reads(emulator_dynamic_shared + at, PIECE, product.code);
  }
  thread = self;
}

const Wgmma &call_of(const Thread &t) {
  const Wgmma *call;
  memcpy(&call, t.sent, sizeof call);
  return *call;
}

// Where thread `rank` of a warpgroup has number i of its sums.
unsigned place(unsigned rank, unsigned i, unsigned n) {
  unsigned row = rank / WARP * 16 + rank % WARP / 4 + i / 2 % 2 * 8;
  return row * n + i / 4 * 8 + rank % 4 * 2 + i % 2;
}

// a [ROWS, DEPTH] as the threads have it in their registers.
std::vector<float> held(Thread *threads, bool bfloat) {
  std::vector<float> values(ROWS * DEPTH);
  for (unsigned rank = 0; rank < WARPGROUP; rank++) {
    const uint32_t *registers = call_of(threads[rank]).registers;
    for (unsigned i = 0; i < 8; i++) {
      unsigned row = rank / WARP * 16 + rank % WARP / 4 + i / 2 % 2 * 8, column = rank % 4 * 2 + i / 4 * 8 + i % 2;
      values[row * DEPTH + column] = number(reinterpret_cast<const char *>(registers) + 2 * i, bfloat);
    }
  }
  return values;
}

Sums &sums_of(Group &group, const Wgmma &call, Thread *threads, Site site) {
  for (Sums &sums : group.sums)
    if (sums.d[0] == call.d) {
      if (sums.n != call.n) fail(site, "products of two shapes have the same registers");
      return sums;
    }
  if (!group.fenced) fail(site, "wgmma.mma_async of registers that were used since, with no wgmma.fence between");
  Sums made{call.n, 0, {}, std::vector<float>(ROWS * call.n)};
  for (unsigned rank = 0; rank < WARPGROUP; rank++) {
    made.d[rank] = call_of(threads[rank]).d;
    for (unsigned i = 0; i < call.n / 2; i++) {
      made.values[place(rank, i, call.n)] = made.d[rank][i];
      made.d[rank][i] = NAN;
    }
  }
  group.sums.push_back(std::move(made));
  return group.sums.back();
}

void multiply(Thread *threads, Site site) {
  const Wgmma &call = call_of(threads[0]);
  for (unsigned rank = 1; rank < WARPGROUP; rank++) {
    const Wgmma &other = call_of(threads[rank]);
    if (!other.registers != !call.registers || other.a != call.a || other.b != call.b || other.n != call.n || other.adds != call.adds)
      fail(site, "threads %u and %u of a warpgroup ask for different products", threads[0].rank, threads[rank].rank);
  }
  Group &group = own();
  Product product{site, site.file, group.current, call.d, {}};
  memcpy(&product.code, threads[0].received, sizeof product.code);
  Matrix right = described(call.b, call.turned_b, site);
  std::vector<float> a;
  if (call.registers) {
    if (!group.fenced) fail(site, "wgmma.mma_async of registers that were used since, with no wgmma.fence between");
    a = held(threads, call.bfloat);
  } else {
    a = read(described(call.a, call.turned_a, site), ROWS, DEPTH, 1, call.bfloat, product.pieces, site);
  }
  std::vector<float> b = read(right, call.n, 1, call.n, call.bfloat, product.pieces, site);
  look(product, threads);
  for (unsigned at : product.pieces) product_holds(emulator_dynamic_shared + at, PIECE, 1);
  Sums &sums = sums_of(group, call, threads, site);
  sums.group = group.current;
  multiply_into(sums.values.data(), call.n, a.data(), b.data(), ROWS, call.n, call.adds);
  group.products.push_back(std::move(product));
}

void finish(Thread *threads, Site) {
  Group &group = own();
  unsigned under_way;
  memcpy(&under_way, threads[0].sent, sizeof under_way);
  auto done = [&](unsigned number) { return number + under_way < group.current; };
  std::vector<Product> left;
  for (Product &product : group.products) {
    if (!done(product.group)) {
      left.push_back(std::move(product));
      continue;
    }
    look(product, threads);
    for (unsigned at : product.pieces) {
      product_holds(emulator_dynamic_shared + at, PIECE, -1);
      product_left(thread->warp / 4, at);
    }
  }
  group.products = std::move(left);
  std::vector<Sums> kept;
  for (Sums &sums : group.sums) {
    if (!done(sums.group)) {
      kept.push_back(std::move(sums));
      continue;
    }
    for (unsigned rank = 0; rank < WARPGROUP; rank++)
      for (unsigned i = 0; i < sums.n / 2; i++) sums.d[rank][i] = sums.values[place(rank, i, sums.n)];
    group.fenced = false;
  }
  group.sums = std::move(kept);
}

}  // namespace

void begin_warpgroups(unsigned count) {
  if (!groups) groups = new std::vector<Group>;
  groups->assign(count, Group{});
}

const Site *unfinished() {
  for (const Group &group : *groups)
    if (!group.products.empty()) return &group.products[0].site;
  return nullptr;
}

void wgmma(const Wgmma &call, Site site) {
  const Wgmma *mine = &call;
  const void *code = __builtin_return_address(0);
  memcpy(thread->sent, &mine, sizeof mine);
  memcpy(thread->received, &code, sizeof code);
  gather(site, multiply);
}

void wgmma_fence(Site site) {
  gather(site, [](Thread *, Site) { own().fenced = true; });
}

void wgmma_commit(Site site) {
  gather(site, [](Thread *, Site) { own().current++; });
}

void wgmma_wait(unsigned under_way, Site site) {
  memcpy(thread->sent, &under_way, sizeof under_way);
  gather(site, finish);
}

}  // namespace emulator
