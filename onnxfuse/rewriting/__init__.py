"""A model with fused ops written in place of the nodes they stand for."""
