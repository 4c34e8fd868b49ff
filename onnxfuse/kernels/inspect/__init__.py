"""What the compiler makes of a kernel, and what it launches, without a GPU."""
