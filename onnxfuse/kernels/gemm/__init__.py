"""The kernels of matrix products."""
