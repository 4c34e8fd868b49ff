// The scores of a warp's rows as exponentials; names that are not here are those of attention.cu.
//
// Exponentials are taken against `top`, the greatest score of the first tile that shows the row a key, and of what comes
// later nothing is looked for: while the exponentials that a thread adds up stay below 2^(BOOST + SLACK), each is a number
// of TYPE.  Where they do not, all are scaled down and `top` is raised; where they are infinite, what they were is lost,
// and the block begins anew with the greatest score of each tile, as it does from the outset in ordinary arithmetic.
//
// source   Hong et al. 2023 (FlashDecoding++): softmax against one value, computed again where that was too small
#include "exponential.cuh"

struct Softmax {
    using Scores = float[KEYS / 8][4];
    using Output = float[HEAD_V / 8][4];
    static constexpr float SLACK = 7.0f, GROWN = NATURAL ? SLACK / LOG2_E : SLACK;
    static constexpr float MOST = 1 << static_cast<int>(Products::BOOST + SLACK);
    // Tops further from 0 than this are those of keys that a mask hides by a number: what comes is likely infinite then.
    static constexpr float NEAR = NATURAL ? 128.0f / LOG2_E : 128.0f;
    // Greater logarithms have no digits left for BOOST, nor for what one rounding less makes of a product.
    static constexpr float FAR = 1 << 20;
    bool bold;          // whether tiles may be taken without a look at their greatest scores,
    bool near = false;  // and whether all rows of the warp have a top that allows it
    float top[2] = {minus_infinity(), minus_infinity()};  // what exponentials are taken against, with its unit
    float sum[2] = {0.0f, 0.0f};  // of the thread's own keys

    // Scores become exponentials; `o` is scaled to go with them, which its `products` know where to find.
    __device__ __forceinline__ void add(const Products& products, Scores& s, Output& o, float unit) {
        float more[2];
        if (TENSOR && near) {
            take(s, more, top, unit);
            if (__any_sync(0xffffffffu, fmaxf(more[0], more[1]) > MOST)) lower(products, s, o, more);
        } else {
            look(products, s, o, more, unit);
        }
        sum[0] += more[0];
        sum[1] += more[1];
    }

    static __device__ __forceinline__ void take(Scores& s, float (&more)[2], const float (&base)[2], float unit) {
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float x = logarithm(s[n][i], base[i / 2], Products::BOOST, unit);
                s[n][i] = Products::multiplies(n) ? exponential_by_products(x) : exp2f(x);
                more[i / 2] = n == 0 && i % 2 == 0 ? s[n][i] : more[i / 2] + s[n][i];
            }
        }
    }

    // The same behind a look at the greatest scores, to which tops are raised where these are far above.
    __device__ __forceinline__ void
    look(const Products& products, Scores& s, Output& o, float (&more)[2], float unit) {
        float peak[2];
        greatest(peak, s, minus_infinity());
        bool grown = false;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float above = RAW ? __fmaf_rn(peak[half], unit, -top[half]) : peak[half] - top[half];
            grown |= above > GROWN;  // false of -inf twice
        }
        // Ordinary arithmetic has no registers left for two ways.
        if (!TENSOR || __any_sync(0xffffffffu, grown)) {
            float to[2], factor[2];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                to[half] = fmaxf(top[half], RAW ? __fmul_rn(peak[half], unit) : peak[half]);
            }
            raise(products, o, to, factor);
        }
        float base[2] = {base_of(top[0]), base_of(top[1])};
        // `top` is a rounded product, from which that of the greatest score must not be taken unrounded where it is far.
        if (RAW && __any_sync(0xffffffffu, fmaxf(fabsf(base[0]), fabsf(base[1])) > FAR)) {
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++) s[n][i] = __fmul_rn(s[n][i], unit) - base[i / 2];
            }
            fill(base, 0.0f);
            unit = 1.0f;
        }
        take(s, more, base, unit);
    }

    // Exponentials that have become too great are taken against greater tops, by whole powers of 2.
    __device__ __forceinline__ void lower(const Products& products, Scores& s, Output& o, float (&more)[2]) {
        float peak[2], to[2], factor[2];
        greatest(peak, s, 0.0f);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float by = fmaxf(ceilf(log2f(peak[half]) - Products::BOOST), 0.0f);
            to[half] = top[half] + (NATURAL ? by / LOG2_E : by);
        }
        raise(products, o, to, factor);
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) s[n][i] *= factor[i / 2];
        }
        more[0] *= factor[0];
        more[1] *= factor[1];
    }

    // What has been summed is taken against these tops from now on, for which it is multiplied by `factor`.
    __device__ __forceinline__ void
    raise(const Products& products, Output& o, const float (&to)[2], float (&factor)[2]) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            factor[half] = exp2f(logarithm(top[half], base_of(to[half]), 0.0f, 1.0f));
            top[half] = to[half];
            sum[half] *= factor[half];
        }
        products.scale(o, factor);
        if (TENSOR) near = __all_sync(0xffffffffu, bold && fmaxf(fabsf(top[0]), fabsf(top[1])) <= NEAR);
    }

    // Of each of the two rows, `least` at least.
    static __device__ __forceinline__ void greatest(float (&peak)[2], const Scores& s, float least) {
        fill(peak, least);
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) peak[i / 2] = fmaxf(peak[i / 2], s[n][i]);
        }
        warp_reduce<4>(peak, Max());
    }

    // To base 2, of the share of a score against a base, times 2^boost.
    static __device__ __forceinline__ float logarithm(float score, float base, float boost, float unit) {
        if (NATURAL) return (score - base) * LOG2_E + boost;
        if (RAW) return __fmaf_rn(score, unit, boost - base);
        return score + (boost - base);
    }

    // Whether exponentials may have been infinite that need not be.
    __device__ __forceinline__ bool lost() const { return !(sum[0] + sum[1] < -minus_infinity()); }

    // In units of log 2.
    __device__ __forceinline__ float top_of(int half) const { return NATURAL ? added(top[half]) : top[half]; }
};
