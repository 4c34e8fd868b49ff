"""Generated kernels of elementwise ops and views."""
