"""Terms, their types and shapes, and their values."""
