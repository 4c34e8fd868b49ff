// Past and new keys (or values) one behind the other: [batch, kv_heads, past + fresh, head].
//
// defines  TYPE, VECTOR (elements of one access)
// reads    both once
// writes   as much
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(256) attention_present(
    const TYPE* past, const TYPE* added, TYPE* present, long long batch_step, long long head_step, long long row_step,
    long long count, int kv_heads, int past_rows, int rows, int head
) {
    const long long index = (static_cast<long long>(blockIdx.x) * 256 + threadIdx.x) * VECTOR;
    if (index >= count) return;
    const int column = static_cast<int>(index % head);
    const long long line = index / head, pair = line / rows;
    const int row = static_cast<int>(line % rows);
    const TYPE* const from = row < past_rows ? past + (pair * past_rows + row) * head
                                             : added + pair / kv_heads * batch_step + pair % kv_heads * head_step
                                                   + (row - past_rows) * row_step;
    *reinterpret_cast<Vector<TYPE, VECTOR>*>(present + index) =
        *reinterpret_cast<const Vector<TYPE, VECTOR>*>(from + column);
}
