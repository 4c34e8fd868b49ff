// Counts what accesses of a warp cost on a card.
//
// The nth access of each lane at one place in the code, since the lanes of its warp last met, is taken for one
// instruction: that is what it is where lanes walk the same way.  Of global memory it moves the sectors of 32 bytes
// that any lane touches; at least it would move as many as hold the different bytes.  Of shared memory it takes a
// wavefront for each word of 4 bytes of a bank that is wanted most, lanes in groups whose accesses make up 128 bytes;
// at least it would take one for each group (CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory" and
// "Shared Memory and Memory Banks").
#include "counter.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <vector>

#define KEPT __attribute__((section("emulator_state")))

namespace emulator {

KEPT int uncounted = 0;

namespace {

constexpr uint64_t SECTOR = 32, WORD = 4;
constexpr unsigned BANKS = 32, WIDEST = 16;

struct Request {
  uint64_t at[WARP];
  uint32_t lanes;
  uint32_t bytes;
};

struct Key {
  uint64_t code;
  uint32_t kind, space;
  bool operator==(const Key &other) const { return code == other.code && kind == other.kind && space == other.space; }
};

struct Hash {
  size_t operator()(const Key &k) const { return (k.code * 3 + k.kind) * 2 + k.space; }
};

// A place in the code, as one warp comes by it.
struct Visits {
  Counted *total;
  uint32_t seen[WARP];
  std::vector<Request> requests;
};

struct Warp {
  unsigned lanes;
  std::unordered_map<Key, Visits, Hash> visits;
};

// What a sector has seen: the last block, counted from 1, that read and wrote it.
struct Sector {
  uint32_t read_in, written_in;
};

struct Counter {
  const Launch *launch;
  std::vector<Warp> warps;
  std::unordered_map<Key, Counted, Hash> totals;
  std::vector<std::vector<Sector>> sectors;  // Of each region.
  uint64_t barriers, moved;
  uint32_t block;
};

KEPT Counter *counter = nullptr;

// Different numbers among the first `count`, which are sorted and put in front.
unsigned different(uint64_t *numbers, unsigned count) {
  std::sort(numbers, numbers + count);
  return unsigned(std::unique(numbers, numbers + count) - numbers);
}

// The units of `size` bytes that lanes `first` to `last` touch.
unsigned touched(const Request &r, unsigned first, unsigned last, uint64_t size, uint64_t *units) {
  unsigned count = 0;
  for (unsigned i = first; i < last; i++)
    if (r.lanes >> i & 1)
      for (uint64_t u = r.at[i] / size; u <= (r.at[i] + r.bytes - 1) / size; u++) units[count++] = u;
  return different(units, count);
}

void count_global(Counted &total, const Request &r) {
  uint64_t units[WARP * WIDEST];
  total.units += touched(r, 0, WARP, SECTOR, units);
  total.ideal += (touched(r, 0, WARP, 1, units) + SECTOR - 1) / SECTOR;
}

void count_shared(Counted &total, const Request &r) {
  unsigned group = r.bytes <= 4 ? 32 : r.bytes <= 8 ? 16 : 8;
  for (unsigned first = 0; first < WARP; first += group) {
    uint64_t words[WARP * WIDEST];
    unsigned count = touched(r, first, first + group, WORD, words), banks[BANKS] = {}, most = 0;
    for (unsigned i = 0; i < count; i++) most = std::max(most, ++banks[words[i] % BANKS]);
    total.units += most;
    total.ideal += count > 0;
  }
}

void count_requests(Warp &warp) {
  for (auto &[key, visits] : warp.visits) {
    if (visits.requests.empty()) continue;
    Counted &total = *visits.total;
    for (const Request &r : visits.requests) {
      unsigned lanes = unsigned(__builtin_popcount(r.lanes));
      total.requests++, total.lanes += lanes, total.possible += warp.lanes, total.bytes += uint64_t(lanes) * r.bytes;
      key.space == uint32_t(Space::global) ? count_global(total, r) : count_shared(total, r);
    }
    visits.requests.clear();
    memset(visits.seen, 0, sizeof visits.seen);
  }
}

// Where a byte of global memory would be on a card, whose allocations begin on multiples of 256: what the caller's memory
// is off by from a multiple of 16 is kept, as kernels ask for it.  The number of its region stands above.
constexpr unsigned ABOVE = 40;
uint64_t placed(uint64_t address) {
  const Launch &launch = *counter->launch;
  for (unsigned i = 0; i < launch.region_count; i++) {
    uint64_t first = uint64_t(launch.regions[i].first);
    if (address >= first && address < first + launch.regions[i].bytes)
      return uint64_t(i) << ABOVE | (address - first + first % 16);
  }
  return 0;
}

// What a block reads or writes of a sector again is taken to be in its cache.
void count_sectors(uint64_t place, size_t bytes, Count kind) {
  Counter &c = *counter;
  std::vector<Sector> &sectors = c.sectors[place >> ABOVE];
  uint64_t within = place & ((uint64_t(1) << ABOVE) - 1);
  for (uint64_t s = within / SECTOR; s <= (within + bytes - 1) / SECTOR; s++) {
    if (kind != Count::write && sectors[s].read_in != c.block) sectors[s].read_in = c.block, c.moved++;
    if (kind != Count::read && sectors[s].written_in != c.block) sectors[s].written_in = c.block, c.moved++;
  }
}

}  // namespace

void count(Space space, const void *where, size_t bytes, Count kind, const void *code) {
  if (!counter || uncounted || !thread) return;
  if (bytes > WIDEST) {  // Several instructions.
    for (size_t done = 0; done < bytes; done += WIDEST)
      count(space, static_cast<const char *>(where) + done, std::min<size_t>(WIDEST, bytes - done), kind, code);
    return;
  }
  Counter &c = *counter;
  Warp &warp = c.warps[thread->warp];
  Key key = {uint64_t(code) - 1 - uint64_t(c.launch->image), uint32_t(kind), uint32_t(space)};
  auto [found, first] = warp.visits.try_emplace(key);
  Visits &visits = found->second;
  if (first) {
    Counted &total = c.totals[key];  // Stays where it is: the table keeps its elements apart.
    total.code = key.code, total.kind = key.kind, total.space = key.space;
    visits.total = &total;
  }
  uint32_t at = visits.seen[thread->lane]++;
  if (at >= visits.requests.size()) visits.requests.resize(at + 1, Request{});
  Request &request = visits.requests[at];
  uint64_t place = space == Space::global ? placed(uint64_t(where)) : uint64_t(where);
  request.at[thread->lane] = place, request.lanes |= 1u << thread->lane, request.bytes = uint32_t(bytes);
  if (space == Space::global) count_sectors(place, bytes, kind);
}

void counted_warp_met(unsigned warp) {
  if (counter) count_requests(counter->warps[warp]);
}

void counted_barrier() {
  if (!counter) return;
  counter->barriers++;
  for (Warp &warp : counter->warps) count_requests(warp);
}

void begin_counted_block() {
  if (!counter) return;
  for (Warp &warp : counter->warps) count_requests(warp);
  counter->block++;
}

void begin_counts(const Launch &launch) {
  delete counter;  // Of a launch that failed.
  counter = nullptr, uncounted = 0;
  if (!launch.counts) return;
  counter = new Counter{};
  Counter &c = *counter;
  c.launch = &launch;
  unsigned threads = launch.block[0] * launch.block[1] * launch.block[2];
  c.warps.resize((threads + WARP - 1) / WARP);
  for (unsigned w = 0; w < c.warps.size(); w++) c.warps[w].lanes = std::min(WARP, threads - w * WARP);
  for (unsigned i = 0; i < launch.region_count; i++) c.sectors.emplace_back(launch.regions[i].bytes / SECTOR + 2);
}

void end_counts() {
  if (!counter) return;
  Counter &c = *counter;
  for (Warp &warp : c.warps) count_requests(warp);
  Counts &counts = *c.launch->counts;
  counts.barriers = c.barriers, counts.moved = c.moved;
  for (const std::vector<Sector> &sectors : c.sectors)
    for (const Sector &sector : sectors) counts.compulsory += (sector.read_in > 0) + (sector.written_in > 0);
  for (const auto &[key, total] : c.totals) {
    if (counts.used < counts.room) counts.places[counts.used] = total;
    counts.used++;
  }
  delete counter;
  counter = nullptr;
}

}  // namespace emulator
