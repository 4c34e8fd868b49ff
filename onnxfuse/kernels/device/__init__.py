"""Where kernels run, and what launches them."""
