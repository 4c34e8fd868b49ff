"""Elementwise ops and views as CUDA C++: nodes become values at coordinates, and these become source text.

`index` is arithmetic on coordinates, `scalars` on elements; `elementwise` has the formulas of the ops, `moves` the maps
of the views; `trace` reads nodes into values at coordinates, `source` writes them down.
"""
