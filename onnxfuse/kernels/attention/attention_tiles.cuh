// What a block has of an attention, and how its tiles of keys and values come to shared memory; names that are not here are
// those of attention.cu.
#include "attention_rows.cuh"

// What a block has: rows from `first_row` on of a head of keys in a batch, and one share of the keys.  Where it is
// asked for `anew`, it is worked out from the block's number, and has no registers in between.
struct Place {
    int first_row, split, pair, batch, head;

    __device__ __forceinline__ Place(int tiles, int splits, int heads, bool anew = true) {
        int block = blockIdx.x;
        if (anew) keep(block);
        // The rows that see most keys come first: those behind fill the gaps that the last blocks leave.
        first_row = (tiles - 1 - block % tiles) * ROWS;
        split = block / tiles % splits;
        pair = block / tiles / splits;
        batch = pair / heads;
        head = pair % heads;
    }
};

// What threads have begun to copy is there for all, and for products that begin then.
template <class Products> __device__ __forceinline__ void arrived() {
    __pipeline_wait_prior(0);
    Products::meet();
}

// How tiles of rows come to shared memory, the rows of keys or of values, of `columns` elements.  Row 0 <= j < past is
// older()[j], each behind the other; j up to `limit` is newer()[j - past], and these are `step` elements apart.
//
// Where a tile is whole, a thread copies the same column of every APARTth row.  What its addresses start from stays in
// registers, and an address is one multiplication: to work it out for each tile is most of the copy.
template <int COLUMNS, int WIDTH> struct Rows {
    static constexpr int CHUNKS = COLUMNS / CHUNK, APART = CHUNKS < THREADS ? THREADS / CHUNKS : 1;
    // The slot of a sum is the sum of the slots where no bit of one is one of the other.
    static constexpr bool SUMS = !MASKED_BY_EIGHT || (CHUNKS & (CHUNKS - 1)) == 0;
    // Ordinary arithmetic takes so much longer that registers are worth more.
    static constexpr bool WHOLE = TENSOR && ROOM && CHUNKS <= THREADS && SUMS;
    const TYPE *past_rows, *new_rows, *aligned;
    int tiles, splits, heads;
    long long batch_step, head_step, step;
    int past, limit, columns;
    TYPE* tile;
    const char* start;    // where row 0 would be, and the thread's own column
    int apart, end, own;  // bytes between rows; whole tiles end here at the latest; the thread's first place in a tile

    __device__ __forceinline__ const TYPE* older() const {
        return past_rows + static_cast<long long>(Place(tiles, splits, heads, WHOLE).pair) * past * columns;
    }

    __device__ __forceinline__ const TYPE* newer() const {
        const Place place(tiles, splits, heads, WHOLE);
        return new_rows + place.batch * batch_step + place.head * head_step;
    }

    // Before the first copy.
    __device__ __forceinline__ void begin(int key) {
        own = place_of<WIDTH>(slot_of(threadIdx.x / CHUNKS), threadIdx.x % CHUNKS * CHUNK);
        keep(own);
        if (key < past) {
            read(older(), 0, columns, min(past, limit));
        } else {
            read(newer(), past, step, limit);
        }
    }

    // Begins to copy the tile whose first row is `key`, to one of the STAGES; later tiles have greater ones.
    __device__ __forceinline__ void copy(int key, int stage = 0) {
        TYPE* const to = tile + stage * KEYS * WIDTH;
        if (WHOLE && (key + KEYS <= end || goes_on(key))) {
            return copy_whole(to, start + static_cast<long long>(key) * apart);
        }
        // Tiles that are not whole are the few at an end.
        const TYPE *const from = older(), *const then = newer();
        copy_rows<KEYS, COLUMNS, WIDTH, true, WHOLE ? 1 : 4>(to, limit - key, columns, aligned, [&](int row) {
            const int j = key + row;
            return j < past ? from + static_cast<long long>(j) * columns : then + (j - past) * step;
        });
        __pipeline_commit();
    }

    // Whether the tile is whole among the newer rows, to which it goes on.
    __device__ __forceinline__ bool goes_on(int key) {
        if (end < limit && key >= past) read(newer(), past, step, limit);
        return key + KEYS <= end;
    }

    __device__ __forceinline__ void read(const TYPE* rows, int first, long long between, int until) {
        apart = static_cast<int>(between * sizeof(TYPE));
        start = reinterpret_cast<const char*>(rows + threadIdx.x / CHUNKS * between + threadIdx.x % CHUNKS * CHUNK)
            - static_cast<long long>(first) * apart;
        end = columns == COLUMNS ? until : -1;
        keep(start);
    }

    __device__ __forceinline__ void copy_whole(TYPE* to, const char* from) const {
        if (THREADS % CHUNKS == 0 || threadIdx.x < APART * CHUNKS) {
#pragma unroll
            for (int first = 0; first < KEYS; first += APART) {
                if (first + APART > KEYS && first + threadIdx.x / CHUNKS >= KEYS) break;
                __pipeline_memcpy_async(to + further<WIDTH>(own, slot_of(first)), from, 16);
                from += APART * static_cast<long long>(apart);
            }
        }
        __pipeline_commit();
    }
};
