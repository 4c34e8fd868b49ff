"""A model → the model with fused ops, not proved yet."""
