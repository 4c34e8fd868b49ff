// Which keys a thread's scores are of, and what a mask says of them; names that are not here are those of attention.cu.
//
// What a tile of 64 keys takes of a thread, which has 32 of its scores, beyond the products and exponentials:
// read     4 accesses of 8 neighbours and as many addresses, whichever lengths: keys behind the mask's last are hidden
//          by where they end
// looked   that it says nothing: a boolean mask as 32 bits (7 instructions), one that is added as words (8); a tile of
//          which that is so for all rows of the warp is done with
// shown    where it is not: of a boolean mask 32 choices, and 11 instructions that make the bits predicates; of an added
//          one a number and a sum for each score, in which log2(e) and the scale are one factor
// edges    where rows end or begin inside the tile a comparison of a number with the row's limit, and a choice

// -inf of a type, twice; and whether its lowest number, divided by what scores are multiplied by, is a number still.
template <class T> struct Lowest {
    static constexpr bool HIGH = false;
    static constexpr unsigned INFINITE = 0xff80ff80u;
};
template <> struct Lowest<__half> {
    static constexpr bool HIGH = true;
    static constexpr unsigned INFINITE = 0xfc00fc00u;
};

// In what scores are kept: as the product gives them (times `unit` they are logarithms to base 2), as natural logarithms,
// to which a mask is added as it is, or as logarithms to base 2.  What a mask of float16 adds is divided by the unit first,
// where the lowest number of other types might no longer be one.
constexpr bool NATURAL = MASK == ADDED && !(TENSOR && !CAPPED && Lowest<MASK_TYPE>::HIGH);
constexpr bool RAW = TENSOR && !NATURAL && !CAPPED;

template <class T> __device__ __forceinline__ T bits_of(unsigned short bits);
template <> __device__ __forceinline__ __half bits_of(unsigned short bits) { return __ushort_as_half(bits); }
template <> __device__ __forceinline__ __nv_bfloat16 bits_of(unsigned short bits) { return __ushort_as_bfloat16(bits); }

// The key of element i of accumulator n of a thread's scores, counted from the first of the tile; see slot_of.
__device__ __forceinline__ int key_of(int n, int i) {
    const int t = threadIdx.x % 4;
    return MASKED_BY_EIGHT ? n / 4 * 32 + 8 * t + n % 4 * 2 + i % 2 : 8 * n + 2 * t + i % 2;
}

// Hides the keys for which `hidden(j, half)` is true, j counted from the thread's first key of the tile: a number that is
// compared as it is.
template <class Hidden> __device__ __forceinline__ void hide(float (&s)[KEYS / 8][4], Hidden hidden) {
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int j = MASKED_BY_EIGHT ? n / 4 * 32 + n % 4 * 2 + i % 2 : 8 * n + i % 2;
            if (hidden(j, i / 2)) s[n][i] = minus_infinity();
        }
    }
}

#if MASK
// What the mask says of the scores of a thread, those of two rows: of a tile of 64 keys or fewer all before it is asked, of
// others 32 keys at a time, for which there are registers.
struct Mask {
    static constexpr int TOLD = KEYS < 128 ? KEYS : 32;
    static constexpr bool BEFORE = TOLD == KEYS;
    using Scores = float[TOLD / 8][4];
    const MASK_TYPE* rows[2];
    long long step;
    int keys;  // those behind are hidden
#if MASK_VECTOR == 8
    static_assert(TOLD % 32 == 0 && sizeof(MASK_TYPE) <= 2, "");
    static constexpr int WORDS = 2 * sizeof(MASK_TYPE);
    using Eight = Vector<unsigned, WORDS>;  // of a boolean mask four in a word, of which one is a test of its bits
    Eight told[TOLD / 32][2];

    // From now on rows begin at the thread's first key; the number of keys is a multiple of 8.
    __device__ __forceinline__ void begin() {
        rows[0] += threadIdx.x % 4 * 8;
        rows[1] += threadIdx.x % 4 * 8;
        keys -= threadIdx.x % 4 * 8 + 8;
        keep(rows[0]);
        keep(rows[1]);
        keep(keys);
    }

    // Of keys behind the last it reads what is said of others: they are hidden besides.
    __device__ __forceinline__ void load(int first) {
#pragma unroll
        for (int block = 0; block < TOLD / 32; block++) {
            const int key = min(first + 32 * block, keys);
#pragma unroll
            for (int half = 0; half < 2; half++) {
#ifndef ONNXFUSE_EMULATOR
                __builtin_assume(__isGlobal(rows[half]));  // which compilers forget of what is kept
#endif
                told[block][half] = *reinterpret_cast<const Eight*>(rows[half] + key);
            }
        }
    }

#if MASK == BOOLEAN
    // One bit for each score: word `place` of bytes that are 0 or 1 gives bit `place` of each byte.
    static constexpr int PLACES = TOLD / 32 * 2 * WORDS;
    static constexpr unsigned ALL = 0x01010101u * ((1u << PLACES) - 1);
    static_assert(PLACES <= 8, "");

    __device__ __forceinline__ unsigned gathered() const {
        int bits = 0;
#pragma unroll
        for (int place = PLACES - 1; place >= 0; place--) {
            bits = static_cast<int>(2u * bits + told[place / WORDS / 2][place / WORDS % 2].at[place % WORDS]);
            keep(bits);  // or else it becomes sums of sums, which are more
        }
        return bits;
    }

    // Bits in their order: seven of them become predicates by one instruction.
    __device__ __forceinline__ void apply(Scores& s, float fill, float) const {
        const unsigned bits = gathered();
#pragma unroll
        for (int bit = 0; bit < 32; bit++) {
            const int place = bit % 8, j = place % WORDS * 4 + bit / 8;
            if (place >= PLACES) continue;
            float& score = s[place / WORDS / 2 * 4 + j / 2][place / WORDS % 2 * 2 + j % 2];
            score = bits & 1u << bit ? score : fill;
        }
    }
#else
    __device__ __forceinline__ MASK_TYPE of(int n, int i) const {
        const int j = n % 4 * 2 + i % 2;
        const unsigned pair = told[n / 4][i / 2].at[j / 2];
        return bits_of<MASK_TYPE>(static_cast<unsigned short>(j % 2 ? pair >> 16 : pair));
    }
#endif

    // Whether the mask shows all keys of the tile to all rows of the warp, and adds nothing: of masks that hide what comes
    // later, or what fills a batch up, most tiles are so or are hidden.
    __device__ __forceinline__ bool nothing() const {
        if (!TENSOR || NATURAL) return false;  // natural logarithms take their unit from what a mask is added by
#if MASK == BOOLEAN
        return __all_sync(0xffffffffu, gathered() == ALL);
#else
        unsigned differ = 0;
#pragma unroll
        for (int block = 0; block < TOLD / 32; block++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
#pragma unroll
                for (int j = 0; j < WORDS; j++) differ |= told[block][half].at[j];
            }
        }
        return __all_sync(0xffffffffu, differ == 0);
#endif
    }
#else
    Vector<MASK_TYPE, MASK_VECTOR> told[TOLD / 8][4 / MASK_VECTOR];

    __device__ __forceinline__ void begin() {}

    __device__ __forceinline__ void load(int first) {
#pragma unroll
        for (int n = 0; n < TOLD / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i += MASK_VECTOR) {
                const int key = first + key_of(n, i);
                const long long place = MASK_VECTOR == 2 ? key : key * step;
                Vector<MASK_TYPE, MASK_VECTOR>& into = told[n][i / MASK_VECTOR];
                if (key < keys) {
                    into = *reinterpret_cast<const Vector<MASK_TYPE, MASK_VECTOR>*>(rows[i / 2] + place);
                } else {
#pragma unroll
                    for (int j = 0; j < MASK_VECTOR; j++) hide(into.at[j]);
                }
            }
        }
    }

    __device__ __forceinline__ MASK_TYPE of(int n, int i) const {
        return told[n][i / MASK_VECTOR].at[i % MASK_VECTOR];
    }

    static __device__ __forceinline__ bool nothing() { return false; }
#endif

    // What it says of a tile, whose first key is `key`.
    __device__ __forceinline__ void tell(float (&s)[KEYS / 8][4], int key, float fill, float unit) {
#pragma unroll
        for (int part = 0; part < KEYS / TOLD; part++) {
            if (!BEFORE) load(key + part * TOLD);
            if (!nothing()) apply(*reinterpret_cast<Scores*>(&s[part * (TOLD / 8)]), fill, unit);
        }
    }

    static __device__ __forceinline__ void hide(bool& shown) { shown = false; }
    template <class T> static __device__ __forceinline__ void hide(T& added) { assign(added, minus_infinity()); }

#if MASK == ADDED || MASK_VECTOR != 8
    // `unit` is that of the scores, or where they are as the product gives them, what one of the mask is in theirs.
    __device__ __forceinline__ void apply(Scores& s, float fill, float unit) const {
#pragma unroll
        for (int n = 0; n < TOLD / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const MASK_TYPE said = of(n, i);
                if constexpr (MASK == BOOLEAN) {
                    s[n][i] = said ? s[n][i] : fill;
                } else if constexpr (RAW) {
                    s[n][i] = __fmaf_rn(to_float(said), unit, s[n][i]);
                } else {
                    s[n][i] = s[n][i] * unit + to_float(said);
                }
            }
        }
    }
#endif
};
#endif
