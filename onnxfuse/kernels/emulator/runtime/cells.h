// What the checker remembers of memory: who touched each part of it last.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#pragma GCC visibility push(hidden)
namespace emulator {

// When: `epoch` counts barriers and blocks over a whole launch, `time` the meetings of a warp in between.
struct Write {
  uint32_t epoch, time, code;
  uint32_t fences;  // That the thread had made for the asynchronous proxy.
  uint16_t thread;
  bool atomic, by_several, under_way;
  uint32_t copy;  // The number of the bulk copy that writes it, 0 where a thread did.
};

struct Reads {
  uint32_t epoch, time, code, lanes;
  uint16_t warp;
  bool by_several_warps, by_earlier_block, by_product;
};

struct Cell {
  Write write;
  Reads reads;
  uint32_t products;  // Of warpgroups, that may still read it.
};

// Cells of some memory, one for each grain of bytes: as few as tell apart what was accessed so far.
class Cells {
 public:
  void reset(size_t bytes) {
    bytes_ = bytes, shift_ = 4;
    cells_.assign((bytes + 15) / 16, Cell{});
  }

  size_t bytes() const { return bytes_; }

  template <class Visit>
  void each(size_t offset, size_t bytes, Visit visit) {
    while ((offset | bytes) & ((size_t(1) << shift_) - 1)) halve();
    for (size_t at = offset; at < offset + bytes; at += size_t(1) << shift_) visit(cells_[at >> shift_], at);
  }

 private:
  void halve() {
    std::vector<Cell> finer(2 * cells_.size());
    for (size_t i = 0; i < finer.size(); i++) finer[i] = cells_[i / 2];
    cells_ = std::move(finer);
    shift_--;
  }

  std::vector<Cell> cells_;
  size_t bytes_;
  unsigned shift_;  // Of the grain, a power of two: an access must not cost a division.
};

}  // namespace emulator
#pragma GCC visibility pop
