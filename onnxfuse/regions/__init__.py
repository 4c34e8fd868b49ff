"""What no rule names is fused, too: regions of elementwise ops and moves of data, each of which one kernel computes.

A region is a set of launches of one scope, taken from the nodes that the rules have written, after all strata.  It
becomes one node that calls a function of domain onnxfuse with the nodes as its body, so that any runtime runs it: on a
CPU the body, elsewhere a kernel that is generated from it (`kernels.pointwise.region`).  The function is called after
its content, `Region_MulAddTranspose_1f2e3d4c`: equal regions are calls of one function, and share a kernel.  Views that
only relabel memory and arithmetic of shapes are no launches; they go into a body where it needs them.

legality     convex: no way from the region out and back in, which would wait for itself.  All outputs have one number
             of elements, proved for every size: one loop computes them.  What is transcendental is not computed again
             for each of four or more elements that it is broadcast to.  The generator takes the body (what it refuses
             stays as it is, with its reason).
order        producers go into their consumers where that saves the most bytes, of several the first in the graph; then
             what has several users is computed again in each of them; then siblings of one input become one kernel
             with several outputs; and consumers once more.
cost         bytes read and written, once each by every kernel, symbols taken for `measure.NOMINAL`.  A producer with
             several users is computed again in each if that does not move more bytes, and in two at most if it is
             transcendental; else it is kept.
left alone   one launch by itself: the provider has a kernel for it.

Room is left for what is to come: rows (one reduction with what is before it and behind it), products that take a region
as their epilogue, and packed operands are further kinds of `scope.Launch`, which `legality` lets meet, and further
kernels that a body is generated to; the partition asks neither what a launch computes nor how.
"""
