"""Kernels that reduce rows: norms and softmax."""
