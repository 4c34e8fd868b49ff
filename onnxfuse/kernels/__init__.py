"""CUDA kernels of the fused ops, and the host side that launches them.

Device code is CUDA C++ in `*.cu` (shared parts in `*.cuh`), or generated; the host side of each op is a `Kernel`,
written once and run on any `Device`: CUDA by way of CuPy, or a CPU by way of the emulator.
"""
