// Past and new keys (or values) one behind the other, [batch, kv_heads, past + fresh, head], and with ROTARY the new ones
// turned by their angles.
//
// defines  TYPE, VECTOR (elements of one access), ROTARY (0 if nothing is turned) and what attention_rotary.cuh asks for
// reads    both once
// writes   as much
#include "common.cuh"
#if ROTARY
#include "attention_rotary.cuh"
#endif

extern "C" __global__ void __launch_bounds__(256) attention_present(
    const TYPE* past, const TYPE* added, TYPE* present, const TYPE* cosines, const TYPE* sines,
    const long long* positions, long long batch_step, long long head_step, long long row_step,
    int kv_heads, int head, long long positions_known, long long count, int past_rows, int rows
) {
    const long long index = (static_cast<long long>(blockIdx.x) * 256 + threadIdx.x) * VECTOR;
    if (index >= count) return;
    const int column = static_cast<int>(index % head);
    const long long line = index / head, pair = line / rows, batch = pair / kv_heads;
    const int row = static_cast<int>(line % rows), fresh = row - past_rows;
    const TYPE* const from = fresh < 0 ? past + (pair * past_rows + row) * head
                                       : added + batch * batch_step + pair % kv_heads * head_step + fresh * row_step;
#if ROTARY
    if (fresh >= 0) {
        float value[VECTOR];
        Angles{cosines, sines, positions, positions_known}.load(value, from, column, batch * (rows - past_rows) + fresh);
        store_floats(present + index, value);
        return;
    }
#endif
    *reinterpret_cast<Vector<TYPE, VECTOR>*>(present + index) =
        *reinterpret_cast<const Vector<TYPE, VECTOR>*>(from + column);
}
