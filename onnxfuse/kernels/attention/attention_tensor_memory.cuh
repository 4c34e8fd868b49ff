// The two products of attention with sums in tensor memory (sm_100f), for the 128 rows of a block: queries, keys and values are
// in shared memory, in panels, and one thread begins all products.  TYPE is __half or __nv_bfloat16.
//
// Scores of a tile of keys come from tensor memory to registers, where they lie as those of mma.sync do, so that nothing else
// of attention differs: a warp has 16 rows, half of a quarter of the lanes.  Shares go back to where the scores were, and are
// multiplied from there.  What values add up to stays, and is scaled where it is, which is rare (attention_softmax.cuh).
//
// The scores of the next tile are begun together with the product of this one's shares and values.  Meanwhile the other block
// of the multiprocessor takes its softmax, as the two halves of a block do in FlashAttention-4 (Zadouri et al. 2026).
#include "attention_tensor.cuh"
#include "tensor_memory_registers.cuh"

constexpr int PANEL = PATTERN_ROW / sizeof(TYPE);  // columns

struct TensorMemory {
    static_assert(ROWS == TENSOR_LANES && KEYS == 128 && HEAD % PANEL == 0 && HEAD_V % PANEL == 0, "whole panels");
    static constexpr bool AHEAD = true;
    static constexpr float BOOST = Tensor::BOOST;
    static constexpr int INSTRUCTION = 16;              // of k in a product
    static constexpr int FURTHER = 16;                  // descriptors count by so many bytes
    static constexpr int COLUMNS = 256;                 // of tensor memory: KEYS of scores, HEAD_V of sums
    static constexpr int LOADED = 4;                    // of 8 columns of the sums at a time
    static_assert(KEYS + HEAD_V <= COLUMNS, "");

    const TYPE *queries, *keys, *values;
    Mbarrier* done;  // of the products that were begun last; the address of tensor memory is behind it
    unsigned at = 0, parity = 0;
    bool summed = false;  // whether there are sums

    // What is in shared memory; the barrier of `arrived` is behind it.
    __device__ __forceinline__ TensorMemory(const TYPE* queries, const TYPE* keys, const TYPE* values)
        : queries(queries), keys(keys), values(values),
          done(const_cast<Mbarrier*>(reinterpret_cast<const Mbarrier*>(values + KEYS * STRIDE_V))) {
        if (threadIdx.x == 0) mbarrier_init(done, 1);
        if (warp() == 0) tensor_allocate<COLUMNS>(reinterpret_cast<unsigned*>(done + 1));
    }

    // Products of heads of 64 take half of the time that exponentials do, of which three in 16 are taken otherwise: as many
    // as make the unit that has them, and the schedulers, equally busy.
    static __device__ __forceinline__ constexpr bool multiplies(int n) { return HEAD + HEAD_V <= 2 * PANEL && n % 5 == 4; }

    static __device__ __forceinline__ int warp() { return __shfl_sync(0xffffffffu, threadIdx.x / 32, 0); }
    static __device__ __forceinline__ int first_row() { return threadIdx.x / 32 % 4 * 32 + threadIdx.x / 128 * 16; }
    static __device__ __forceinline__ int column(int n, int i) { return Tensor::column(n, i); }

    static __device__ __forceinline__ void meet() {
        fence_proxy_async();
        tensor_fence_before();
        __syncthreads();
        tensor_fence_after();
    }

    // Queries are multiplied where they are.
    __device__ __forceinline__ void hold(const TYPE*) {
        meet();
        at = *reinterpret_cast<const unsigned*>(done + 1);
        summed = false;
    }

    __device__ __forceinline__ unsigned own(int column) const { return at + (first_row() << 16) + column; }

    // What `ahead` has begun is done.
    __device__ __forceinline__ void wait() {
        mbarrier_wait(done, parity);
        parity ^= 1;
        tensor_fence_after();
    }

    // See Tensor.
    __device__ __forceinline__ void scores(float (&s)[KEYS / 8][4], const TYPE*, const TYPE*) {
        wait();
        tensor_load(s, own(0));
        tensor_wait(s);
    }

    // Shares, rounded to TYPE, are where they are multiplied; `ahead` adds them up.
    __device__ __forceinline__ void add_values(float (&)[HEAD_V / 8][4], const float (&p)[KEYS / 8][4], const TYPE*) const {
        unsigned shares[KEYS / 8][2];
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
            for (int half = 0; half < 2; half++) shares[n][half] = rounded<TYPE>(p[n][2 * half], p[n][2 * half + 1]);
        }
        tensor_store(own(0), shares);
        tensor_stored();
    }

    // Begins the products of shares and values, and those of queries and the next keys.
    __device__ __forceinline__ void ahead(bool shared, bool next) {
        if (warp() == 0 && elected()) {
            if (shared) {
                constexpr unsigned instruction = instruction_descriptor<TYPE, HEAD_V, true>();
                const unsigned long long right = tensor_descriptor(values, KEYS * PATTERN_ROW, PATTERN);
#pragma unroll
                for (int step = 0; step < KEYS / INSTRUCTION; step++) {
                    const unsigned long long further = step * INSTRUCTION * PATTERN_ROW / FURTHER;
                    tensor_multiply(at + KEYS, at + step * INSTRUCTION / 2, right + further, instruction, step || summed);
                }
            }
            if (next) {
                constexpr unsigned instruction = instruction_descriptor<TYPE, KEYS, false>();
                const unsigned long long left = tensor_descriptor(queries, 0, PATTERN);
                const unsigned long long right = tensor_descriptor(keys, 0, PATTERN);
#pragma unroll
                for (int step = 0; step < HEAD / INSTRUCTION; step++) {
                    const int column = step * INSTRUCTION, bytes = column % PANEL * static_cast<int>(sizeof(TYPE));
                    const unsigned long long of_rows = (column / PANEL * ROWS * PATTERN_ROW + bytes) / FURTHER;
                    const unsigned long long of_keys = (column / PANEL * KEYS * PATTERN_ROW + bytes) / FURTHER;
                    tensor_multiply(at, left + of_rows, right + of_keys, instruction, step != 0);
                }
            }
            tensor_arrive(done);
        }
        __syncwarp();
        summed |= shared;
    }

    // Of what has been summed, each row is multiplied by its factor.
    __device__ __forceinline__ void scale(float (&)[HEAD_V / 8][4], const float (&factor)[2]) const {
        if (!summed) return;
#pragma unroll 1
        for (int column = 0; column < HEAD_V; column += 8 * LOADED) {
            float some[LOADED][4];
            tensor_load(some, own(KEYS + column));
            tensor_wait(some);
#pragma unroll
            for (int n = 0; n < LOADED; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++) some[n][i] *= factor[i / 2];
            }
            tensor_store(own(KEYS + column), some);
        }
        tensor_stored();
    }

    // What has been summed comes to registers, if there is any.
    __device__ __forceinline__ void finish(float (&o)[HEAD_V / 8][4]) {
        if (summed) {
            wait();
#pragma unroll
            for (int n = 0; n < HEAD_V / 8; n += LOADED) {
                float(&some)[LOADED][4] = *reinterpret_cast<float(*)[LOADED][4]>(&o[n]);
                tensor_load(some, own(KEYS + 8 * n));
                tensor_wait(some);
            }
        }
        tensor_fence_before();
    }

    // Behind a barrier, when all have what they need of it.
    __device__ __forceinline__ void release() const {
        tensor_fence_after();
        if (warp() == 0) tensor_free<COLUMNS>(at);
    }
};
