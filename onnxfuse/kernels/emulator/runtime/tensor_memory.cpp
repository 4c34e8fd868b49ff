// Products whose sums are in tensor memory, 128 lanes of 512 columns of 32 bits (PTX ISA, "TensorCore 5th Generation Family
// Instructions").
//
// A product is computed when it is begun.  Who reads its sums must know that it ended: from an mbarrier at which the end
// arrived by tcgen05.commit, and by a tcgen05.fence::after_thread_sync behind that.  Until some thread knows it, nobody may
// write what it reads.  Loads give NaN until they are waited for.
#include "tensor_memory.h"

#include <cmath>
#include <vector>

#include "bulk.h"
#include "checker.h"
#include "matrix.h"

#define KEPT __attribute__((section("emulator_state")))

namespace emulator {
namespace {

constexpr unsigned ROWS = 128, COLUMNS = 512, LEAST = 32, WARPS = 32, QUARTER = 32;
constexpr uint64_t USED = 0xe00e7fff3fff3fff | 7ull << 46;  // Bits of a matrix's descriptor that may be set.
constexpr uint32_t UNUSED = 0xe080004f;                     // Bits of an instruction's descriptor that are 0 here.

struct Product {
  uint32_t number;
  const void *code;
  std::vector<unsigned> pieces;  // Of dynamic shared memory, that it reads.
};

// When a warp had a load of a column: after how many meetings of the block, of its ticks, and of its fences.
struct Loaded {
  uint32_t meetings, tick, fences;
  bool there;
};

struct Column {
  uint32_t product;  // The last one that wrote it, 0 for none.
  Loaded loaded[WARPS];
};

struct Allocation {
  unsigned first, columns, warp;
  uint32_t meetings, fences;
  Site site;
};

struct Load {
  float *to;
  std::vector<float> values;
  unsigned first;
};

// Of one thread: its fences before others go on, also when the block last met, and what it knew at its last fence behind
// others.
struct Own {
  uint32_t fences, fences_met, meetings, products;
  uint32_t told[WARPS];  // Tick of each warp's last load that it knew of.
  std::vector<Load> loads;
};

struct TensorMemory {
  std::vector<float> values;  // [ROWS, COLUMNS]
  std::vector<Column> columns;
  std::vector<Allocation> allocations;
  std::vector<Own> threads;
  std::vector<Product> under_way;
  const Thread *issuer;
  uint32_t number;
  bool relinquished, used;
};

KEPT TensorMemory *tensor = nullptr;

Own &own() { return tensor->threads[thread->rank]; }

// What all lanes of a warp do, with the same operand.
void together(const char *what, uint64_t operand, Site site) {
  memcpy(thread->sent, &what, sizeof what);
  memcpy(thread->sent + sizeof what, &operand, sizeof operand);
  if (meet(Meeting::vote, ~0u, site) != ~0u) fail(site, "%s is of all 32 lanes of a warp", what);
  if (memcmp(thread->sent, lane(0).sent, sizeof thread->sent))
    fail(site, "lanes of a warp do %s with different operands, or other things", what);
  meet(Meeting::vote, ~0u, site);
}

struct Instruction {
  unsigned n;
  bool bfloat, turned_a, turned_b;
};

// PTX ISA, "Instruction descriptor", of kind::f16.
Instruction instruction(uint32_t bits, Site site) {
  if (bits & UNUSED) fail(site, "instruction descriptor %08x has bits that mean nothing here", bits);
  if ((bits >> 4 & 3) != 1) fail(site, "an instruction descriptor of sums that are not float32");
  if ((bits >> 7 & 7) > 1 || (bits >> 7 & 7) != (bits >> 10 & 7))
    fail(site, "an instruction descriptor of operands that are not both float16 or both bfloat16");
  if (bits >> 13 & 3) fail(site, "an instruction descriptor that negates an operand");
  unsigned m = (bits >> 24 & 31) * 16, n = (bits >> 17 & 63) * 8;
  if (m != ROWS || n < 16 || n > 256 || n % 16) fail(site, "an instruction descriptor of %u x %u, which has no such product", m, n);
  return {n, bool(bits >> 7 & 1), bool(bits >> 15 & 1), bool(bits >> 16 & 1)};
}

// PTX ISA, "Shared memory descriptor".
Matrix described(uint64_t descriptor, bool turned, Site site) {
  if (descriptor & ~USED || (descriptor >> 46 & 7) != 1)
    fail(site, "descriptor %016llx has bits that mean nothing", (unsigned long long)descriptor);
  if (descriptor >> 49 & 7) fail(site, "a descriptor with a base offset: patterns begin on multiples of their size here");
  constexpr unsigned PIECES[] = {1, 0, 8, 0, 4, 0, 2, 0};
  if (!PIECES[descriptor >> 61]) fail(site, "a descriptor of a pattern that is not emulated, %u", unsigned(descriptor >> 61));
  return Matrix(descriptor, PIECES[descriptor >> 61], turned);
}

// Columns that are allocated, by this warp or by one whose fence, a meeting and a fence are between.
void check_columns(unsigned first, unsigned count, Site site) {
  for (const Allocation &a : tensor->allocations) {
    if (first < a.first || first >= a.first + a.columns) continue;
    if (first + count > a.first + a.columns) break;
    if (a.warp == thread->warp) return;
    if (own().meetings <= a.meetings || tensor->threads[a.warp * WARP].fences_met <= a.fences)
      fail(site, "tensor memory that warp %u allocated, with no barrier and tcgen05.fence on both sides of it between", a.warp);
    return;
  }
  fail(site, "columns %u to %u of tensor memory, which are not allocated", first, first + count - 1);
}

// This thread knows that products of these columns ended.
void check_products(unsigned first, unsigned count, Site site) {
  for (unsigned c = first; c < first + count; c++)
    if (tensor->columns[c].product > own().products)
      fail(site, "race: column %u of tensor memory, of whose product's end no mbarrier and tcgen05.fence::after_thread_sync "
           "have told this thread", c);
}

// This thread knows that other warps have loaded what they load of these columns.
void check_loads(unsigned first, unsigned count, Site site) {
  for (unsigned c = first; c < first + count; c++)
    for (unsigned w = 0; w < WARPS; w++) {
      const Loaded &loaded = tensor->columns[c].loaded[w];
      if (!loaded.there || w == thread->warp) continue;
      const Own &other = tensor->threads[w * WARP];
      bool met = loaded.meetings < own().meetings && other.fences_met > loaded.fences;
      if (!met && (own().told[w] <= loaded.tick || other.fences <= loaded.fences))
        fail(site, "race: column %u of tensor memory, which warp %u loads, with no barrier and tcgen05.fence on both sides of "
             "it between", c, w);
    }
}

}  // namespace

void begin_tensor_memory(unsigned threads) {
  if (!tensor) tensor = new TensorMemory;
  TensorMemory &t = *tensor;
  if (!t.used && t.threads.size() == threads) return;
  t.values.assign(size_t(ROWS) * COLUMNS, NAN);
  t.columns.assign(COLUMNS, Column{});
  t.threads.assign(threads, Own{});
  t.allocations.clear(), t.under_way.clear();
  t.issuer = nullptr, t.number = 0;
  t.relinquished = t.used = false;
}

const Site *unfreed() { return tensor->allocations.empty() ? nullptr : &tensor->allocations[0].site; }

void tensor_block_met() {
  if (!tensor->used) return;
  for (Own &one : tensor->threads) one.fences_met = one.fences;
}

void products_told(uint32_t last) {
  std::vector<Product> left;
  for (Product &product : tensor->under_way) {
    if (product.number > last) {
      left.push_back(std::move(product));
      continue;
    }
    for (unsigned at : product.pieces) {
      product_holds(emulator_dynamic_shared + at, PIECE, -1);
      product_ended(emulator_dynamic_shared + at, PIECE, product.code);
    }
  }
  tensor->under_way = std::move(left);
}

// Columns are given from the end, so that nobody takes the first for granted.
void tensor_allocate(void *to, unsigned columns, Site site) {
  together("tcgen05.alloc", columns, site);
  if (columns < LEAST || columns > COLUMNS || columns & (columns - 1))
    fail(site, "%u columns of tensor memory: a power of two from 32 to 512 can be allocated", columns);
  if (thread->lane) return;
  TensorMemory &t = *tensor;
  t.used = true;
  if (t.relinquished) fail(site, "tcgen05.alloc behind tcgen05.relinquish_alloc_permit");
  unsigned first = COLUMNS;
  auto taken = [&](unsigned from) {
    for (const Allocation &a : t.allocations)
      if (from < a.first + a.columns && a.first < from + columns) return true;
    return false;
  };
  do {
    if (first < columns) fail(site, "deadlock: %u columns of tensor memory are never free", columns);
    first -= columns;
  } while (taken(first));
  for (unsigned c = first; c < first + columns; c++) t.columns[c] = Column{};
  t.allocations.push_back({first, columns, thread->warp, meetings(), own().fences, site});
  access(to, sizeof first, Access::write, __builtin_return_address(0));
  memcpy(to, &first, sizeof first);
}

void tensor_relinquish(Site site) {
  together("tcgen05.relinquish_alloc_permit", 0, site);
  tensor->relinquished = tensor->used = true;
}

void tensor_free(uint32_t address, unsigned columns, Site site) {
  together("tcgen05.dealloc", uint64_t(columns) << 32 | address, site);
  if (thread->lane) return;
  std::vector<Allocation> &all = tensor->allocations;
  for (size_t i = 0; i < all.size(); i++) {
    if (all[i].first != address || all[i].columns != columns) continue;
    check_columns(address, columns, site);
    check_products(address, columns, site);
    check_loads(address, columns, site);
    for (const Own &one : tensor->threads)
      for (const Load &load : one.loads)
        if (load.first >= address && load.first < address + columns) fail(site, "tensor memory of which a load is not waited for");
    all.erase(all.begin() + ptrdiff_t(i));
    return;
  }
  fail(site, "tcgen05.dealloc of %u columns from %u on, which were not allocated so", columns, address);
}

void tensor_product(const Tcgen05 &call, Site site) {
  TensorMemory &t = *tensor;
  if (t.issuer && t.issuer != thread) fail(site, "products of a second thread: here one of a block begins them");
  t.issuer = thread;
  Instruction shape = instruction(call.instruction, site);
  if (call.d >> 16) fail(site, "sums of 128 rows begin in lane 0 of tensor memory");
  check_columns(call.d, shape.n, site);
  check_loads(call.d, shape.n, site);
  Matrix left = described(call.a, shape.turned_a, site), right = described(call.b, shape.turned_b, site);
  Product product{++t.number, __builtin_return_address(0), {}};
  std::vector<float> a = read(left, ROWS, DEPTH, 1, shape.bfloat, product.pieces, site);
  std::vector<float> b = read(right, shape.n, 1, shape.n, shape.bfloat, product.pieces, site);
  for (unsigned at : product.pieces) {
    product_reads(emulator_dynamic_shared + at, PIECE, product.code);
    product_holds(emulator_dynamic_shared + at, PIECE, 1);
    product_begins(product.number, at);
  }
  for (unsigned c = call.d; c < call.d + shape.n; c++) {
    if (call.adds && !t.columns[c].product) fail(site, "a product is added to column %u of tensor memory, which has no sums", c);
    t.columns[c].product = product.number;
  }
  multiply_into(&t.values[call.d], COLUMNS, a.data(), b.data(), ROWS, shape.n, call.adds);
  t.under_way.push_back(std::move(product));
}

void tensor_commit(void *barrier, Site site) {
  products_arrive(barrier, tensor->issuer == thread ? tensor->number : 0, site);
}

void tensor_load(float *to, uint32_t address, unsigned columns, Site site) {
  together("tcgen05.ld", uint64_t(columns) << 32 | address, site);
  unsigned first = address & 0xffff, row = address >> 16;
  if (row != thread->warp % 4 * QUARTER)
    fail(site, "warp %u loads lanes %u to %u of tensor memory: lanes from %u on are its own", thread->warp, row, row + QUARTER - 1,
         thread->warp % 4 * QUARTER);
  check_columns(first, columns, site);
  check_products(first, columns, site);
  Load load{to, std::vector<float>(columns), first};
  for (unsigned i = 0; i < columns; i++) {
    if (!tensor->columns[first + i].product) fail(site, "loads column %u of tensor memory, which nobody has written", first + i);
    load.values[i] = tensor->values[(row + thread->lane) * COLUMNS + first + i];
    to[i] = NAN;
  }
  own().loads.push_back(std::move(load));
}

void tensor_wait_loads(Site site) {
  together("tcgen05.wait::ld", 0, site);
  for (const Load &load : own().loads) {
    memcpy(load.to, load.values.data(), load.values.size() * sizeof(float));
    if (thread->lane) continue;
    Loaded now = {meetings(), next_tick(), own().fences, true};
    for (size_t i = 0; i < load.values.size(); i++) tensor->columns[load.first + i].loaded[thread->warp] = now;
  }
  own().loads.clear();
}

void tensor_fence_before() { own().fences++; }

void tensor_fence_after() {
  Own &o = own();
  o.meetings = meetings();
  o.products = products_known();
  for (unsigned w = 0; w < WARPS; w++) o.told[w] = told_by(w);
}

}  // namespace emulator
