"""The standard as its own oracle: random uses of its function ops, expanded by its bodies, fold back to one node."""
