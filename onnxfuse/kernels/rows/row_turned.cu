// The same as row_passes.cu where elements lie across the rows in memory: a block's pass through shared memory.
#include "turned.cuh"
#include "row_passes.cu"
