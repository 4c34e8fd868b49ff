// Between turns of an unrolled loop in which not all lanes take part: on a card each turn has instructions of its own.  The
// emulator, which has the same for all turns, counts those of lanes that vote together; a vote orders no memory.
__device__ __forceinline__ void abreast() {
#ifdef ONNXFUSE_EMULATOR
    __any_sync(0xffffffffu, 0);
#endif
}
