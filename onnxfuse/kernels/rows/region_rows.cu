// A row kernel of a region: its `Fused` is written for arrays at any places, one element at a time.
//
// FAMILY   NORM, SOFTMAX_ROWS, REDUCTION: which of the files below computes a row
#include "pointwise.cuh"
#include "rows.cuh"

#define NORM 0
#define SOFTMAX_ROWS 1
#define REDUCTION 2

#if FAMILY == NORM
#include "row_norm.cu"
#elif FAMILY == SOFTMAX_ROWS
#include "softmax.cu"
#else
#include "row_reduce.cu"
#endif
