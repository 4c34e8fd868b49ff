"""Fused models in half precision: which nodes compute in it, which stay in float32, and the Casts between them."""
