// Products whose sums are in tensor memory, 128 lanes of 512 columns of 32 bits (PTX ISA, "TensorCore 5th Generation Family
// Instructions").
//
// A product is computed when it is begun.  Who reads its sums must know that it ended: from an mbarrier at which the end
// arrived by tcgen05.commit, and by a tcgen05.fence::after_thread_sync behind that.  Until some thread knows it, nobody may
// write what it reads.  Loads give NaN until they are waited for, and what is stored is NaN.
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

// When a warp had a load of a column, or a store: after how many meetings of the block, of its ticks, and of its fences.
struct Moved {
  uint32_t meetings, tick, fences;
  bool there;
};

struct Column {
  uint32_t product, read;  // The last one that wrote it, and that read it, 0 for none.
  Moved loaded[WARPS], stored[WARPS];
};

struct Allocation {
  unsigned first, columns, warp;
  uint32_t meetings, fences;
  Site site;
};

struct Load {
  float *to;
  std::vector<float> values;
  unsigned first, columns;
};

struct Store {
  std::vector<float *> to;
  std::vector<float> values;
  unsigned first, columns;
};

// Of one thread: its fences before others go on, also when the block last met, and what it knew at its last fence behind
// others.
struct Own {
  uint32_t fences, fences_met, meetings, products;
  uint32_t told[WARPS];  // Tick of each warp's last load or store that it knew of.
  std::vector<Load> loads;
  std::vector<Store> stores;
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

// This thread knows that other warps have loaded, or stored, what they do of these columns.
void check_moved(Moved (Column::*which)[WARPS], const char *what, unsigned first, unsigned count, Site site) {
  for (unsigned c = first; c < first + count; c++)
    for (unsigned w = 0; w < WARPS; w++) {
      const Moved &moved = (tensor->columns[c].*which)[w];
      if (!moved.there || w == thread->warp) continue;
      const Own &other = tensor->threads[w * WARP];
      bool met = moved.meetings < own().meetings && other.fences_met > moved.fences;
      if (!met && (own().told[w] <= moved.tick || other.fences <= moved.fences))
        fail(site, "race: column %u of tensor memory, which warp %u %s, with no barrier and tcgen05.fence on both sides of "
             "it between", c, w, what);
    }
}

void check_others(unsigned first, unsigned count, Site site) {
  check_moved(&Column::loaded, "loads", first, count, site);
  check_moved(&Column::stored, "stores", first, count, site);
}

template <class T> bool waited(const std::vector<T> &moves, unsigned first, unsigned count) {
  for (const T &one : moves)
    if (one.first < first + count && first < one.first + one.columns) return false;
  return true;
}

// Nobody has a load or store of these columns that is still to be waited for.
void check_waited(unsigned first, unsigned count, Site site) {
  for (const Own &one : tensor->threads)
    if (!waited(one.loads, first, count) || !waited(one.stores, first, count))
      fail(site, "tensor memory of which a load or store is not waited for");
}

// [128, DEPTH] of 16-bit numbers, two in a column of 32 bits.
std::vector<float> read_columns(unsigned first, bool bfloat, Site site) {
  check_columns(first, DEPTH / 2, site);
  check_products(first, DEPTH / 2, site);
  check_moved(&Column::stored, "stores", first, DEPTH / 2, site);
  check_waited(first, DEPTH / 2, site);
  std::vector<float> values(size_t(ROWS) * DEPTH);
  for (unsigned c = 0; c < DEPTH / 2; c++) {
    tensor->columns[first + c].read = tensor->number;
    for (unsigned row = 0; row < ROWS; row++) {
      const char *both = reinterpret_cast<const char *>(&tensor->values[row * COLUMNS + first + c]);
      for (unsigned half = 0; half < 2; half++) values[row * DEPTH + 2 * c + half] = number(both + 2 * half, bfloat);
    }
  }
  return values;
}

// Where register i of a lane is (PTX ISA, "Data Movement Shape").
struct Cell {
  unsigned row, column;
};

Cell cell(TensorShape shape, unsigned i) {
  unsigned g = thread->lane / 4, t = thread->lane % 4;
  if (shape == TensorShape::s32x32b) return {thread->lane, i};
  if (shape == TensorShape::s16x256b) return {g + i / 2 % 2 * 8, i / 4 * 8 + 2 * t + i % 2};
  return {g + i % 2 * 8, i / 2 * 4 + t};
}

unsigned registers(TensorShape shape, unsigned columns) { return shape == TensorShape::s32x32b ? columns : columns / 2; }

// Lanes of a warp's quarter, all or a half of them.
void check_rows(const char *what, TensorShape shape, unsigned row, Site site) {
  unsigned quarter = thread->warp % 4 * QUARTER, lanes = shape == TensorShape::s32x32b ? QUARTER : QUARTER / 2;
  if (row < quarter || row + lanes > quarter + QUARTER || row % lanes)
    fail(site, "warp %u %s lanes %u to %u of tensor memory: lanes from %u on are its own", thread->warp, what, row,
         row + lanes - 1, quarter);
}

// Marks what a warp has moved of these columns.
void moved(Moved (Column::*which)[WARPS], unsigned first, unsigned columns) {
  if (thread->lane) return;
  Moved now = {meetings(), next_tick(), own().fences, true};
  for (unsigned c = first; c < first + columns; c++) (tensor->columns[c].*which)[thread->warp] = now;
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
    check_others(address, columns, site);
    check_waited(address, columns, site);
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
  check_others(call.d, shape.n, site);
  check_waited(call.d, shape.n, site);
  Matrix right = described(call.b, shape.turned_b, site);
  Product product{++t.number, __builtin_return_address(0), {}};
  std::vector<float> a =
      call.a_there ? read_columns(unsigned(call.a), shape.bfloat, site)
                   : read(described(call.a, shape.turned_a, site), ROWS, DEPTH, 1, shape.bfloat, product.pieces, site);
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

void tensor_load(float *to, uint32_t address, TensorShape shape, unsigned columns, Site site) {
  together("tcgen05.ld", uint64_t(columns) << 32 | address, site);
  unsigned first = address & 0xffff, row = address >> 16;
  check_rows("loads", shape, row, site);
  check_columns(first, columns, site);
  check_products(first, columns, site);
  for (unsigned c = first; c < first + columns; c++)
    if (!tensor->columns[c].product) fail(site, "loads column %u of tensor memory, which nobody has written", c);
  Load load{to, {}, first, columns};
  for (unsigned i = 0; i < registers(shape, columns); i++) {
    Cell at = cell(shape, i);
    load.values.push_back(tensor->values[(row + at.row) * COLUMNS + first + at.column]);
    to[i] = NAN;
  }
  own().loads.push_back(std::move(load));
}

void tensor_wait_loads(Site site) {
  together("tcgen05.wait::ld", 0, site);
  for (const Load &load : own().loads) {
    memcpy(load.to, load.values.data(), load.values.size() * sizeof(float));
    moved(&Column::loaded, load.first, load.columns);
  }
  own().loads.clear();
}

void tensor_store(uint32_t address, const float *from, TensorShape shape, unsigned columns, Site site) {
  together("tcgen05.st", uint64_t(columns) << 32 | address, site);
  unsigned first = address & 0xffff, row = address >> 16;
  check_rows("stores", shape, row, site);
  check_columns(first, columns, site);
  check_products(first, columns, site);
  if (!waited(own().loads, first, columns)) fail(site, "stores to tensor memory of which a load is not waited for");
  for (unsigned c = first; c < first + columns; c++)
    if (tensor->columns[c].read > own().products)
      fail(site, "race: column %u of tensor memory, which a product reads whose end no mbarrier and "
           "tcgen05.fence::after_thread_sync have told this thread", c);
  Store store{{}, {from, from + registers(shape, columns)}, first, columns};
  for (unsigned i = 0; i < registers(shape, columns); i++) {
    Cell at = cell(shape, i);
    store.to.push_back(&tensor->values[(row + at.row) * COLUMNS + first + at.column]);
    *store.to.back() = NAN;
  }
  own().stores.push_back(std::move(store));
}

void tensor_wait_stores(Site site) {
  together("tcgen05.wait::st", 0, site);
  for (const Store &store : own().stores) {
    for (size_t i = 0; i < store.to.size(); i++) *store.to[i] = store.values[i];
    moved(&Column::stored, store.first, store.columns);
  }
  own().stores.clear();
}

void tensor_fence_before() { own().fences++; }

void tensor_fence_after() {
  Own &o = own();
  o.meetings = meetings();
  o.products = products_known();
  for (unsigned w = 0; w < WARPS; w++) o.told[w] = told_by(w);
}

}  // namespace emulator
