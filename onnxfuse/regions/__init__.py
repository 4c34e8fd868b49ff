"""What no rule names is fused, too: regions of elementwise ops, moves of data and reductions of rows or one product,
each of which one kernel computes.

A region is a set of launches of one scope, taken from the nodes that the rules have written, after all strata.  It
becomes one node that calls a function of domain onnxfuse with the nodes as its body, so that any runtime runs it: on a
CPU the body, elsewhere a kernel that is generated from it (`kernels.of_region`).  The function is called after its
content, `Region_MulAddTranspose_1f2e3d4c`: equal regions are calls of one function, and share a kernel.  Views that
only relabel memory and arithmetic of shapes are no launches; they go into a body where it needs them.

legality     convex: no way from the region out and back in, which would wait for itself.  All outputs have one number
             of elements, proved for every size: one loop computes them; where rows are reduced, that of the rows or
             that of their results.  All reductions of a region are of the rows of one matrix: softmax, normalizations,
             sums, means, maxima and minima over the same axes; what is behind one needs the thread's own element or the
             row's own result alone.  What takes a second launch by itself, for sums over all rows, may take it as part
             of a region.  Behind one product of matrices, which lie in memory as they are multiplied, what
             needs the thread's own element of it alone, of further tensors too, and one reduction of its rows.  What is
             transcendental is not computed again for each of four or more elements that it is broadcast to.  The
             generator takes the body, and gives results of the types that the graph has (what it refuses stays as it
             is, with its reason).
order        producers go into their consumers where that saves the most bytes, of several the first in the graph; then
             what has several users is computed again in each of them; then siblings of one input become one kernel
             with several outputs; and consumers once more.  All that without products; then what makes one result
             of two of them goes into their launch; then each takes what is elementwise behind it and what reduces its
             rows, and what is turned before it.  Last, those of one tensor with constant weights that are still alone
             become one launch (`products`), each with its own weights, bias and result, and so do the updates of a
             training step (`updates`), each a loop of its own size.
cost         bytes read and written, once each by every kernel, symbols taken for `measure.NOMINAL`.  What has several
             users is computed again in each if a launch goes and no more bytes are moved, or fewer are; in two at most
             if it is transcendental, and never where it reduces rows or is a product.  Else it is kept.
left alone   one launch by itself: the provider, or a rule, has a kernel for it.

    scope, reading    which nodes are launches, what each reads and makes, which may be part of a region
    groups            sets of launches, what they read and write, and which waits for which
    legality          why two of them may not be one
    partition         the order above
    products          products of one tensor
    updates           what a training step gives back
    spelled           bodies, and what they are called
    batch_norm        batch normalization by known statistics, as the loop that it is
    gemm              a Gemm, as a product and a sum
    reductions        sums of squares and their like, as sums of what is computed of each element
    match, write      regions as nodes, and as the fusions that proofs, bisections and reports know
"""
