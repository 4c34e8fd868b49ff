"""Repeated blocks are fused once: a model is one block many times, and of each run of them a few are enough to work on.

A *run* is a stretch of nodes that is the same again after `period` nodes, `count` times: node i + period has the code
of node i (`codes`: op, domain, attributes, declared types, what its leaves hold), and reads what lies `period` nodes
further on, or the very same value where that is computed before the run.  Let S be the renaming that sends each value
of a block to its counterpart one block on, and leaves all others as they are.  Then

    blocks  b0 b1 b2 [b3 ... bn-3] bn-2 bn-1      S(b1) = b2, S(b2) = b3, ...
    few     b0 b1 b2               bn-2 bn-1      `few`: those in brackets are left out, bn-2 reads b2
    fused   f0 f1 f2               fn-2 fn-1      by all the passes there are, as if this were the model
    whole   f0 f1 f2 [S f2 ... ]   fn-2 fn-1      `whole`, if S(f1) = f2 and S(f2) = fn-2 (`alike`)

Why this is what fusing all blocks gives: what becomes of a block depends on what enters it from the block before
(terms, element types, shapes), on who uses what leaves it, and on what is common to all blocks.  f1, f2 and fn-2 stand
in a row and are equal up to S, so what enters and leaves any of them is what enters and leaves the next, and so on for
the blocks between.  What is decided for the whole model at once is made a matter of the block, or looked at:

    names            given by what is written, not by how it came about (`onnxfuse.fusing.naming`); names of dimensions
                     are told by where they are first declared, as values are by the node that computes them (`codes`)
    order            nodes of equal rank come in the order of the file, never in that of names; the weights of each
                     block have to lie in the file in the same order, or the run ends there (`codes`)
    equal constants  are one, the first in the file is read: it is kept, though its block is not (`few`); one that
                     Identities name anew is itself (`codes`)
    contents         small ones are in the code of a node, unless nothing else in the model equals them.  Of others
                     (`weights`) nobody sees the elements of one block: what is asked of them is asked of all blocks,
                     and must be answered alike; what is computed of them is computed for each when it is written
                     (`onnxfuse.terms.blockwise`)
    room             bytes by which constants may enlarge the file must be enough for what all blocks would take of them
    outputs          whether a value is one is in the code; nothing behind a run reads a block left out
    bans             which rules are banned at a value is in the code: a run ends at the one block they concern

Everything else is compared: nodes with their attributes and what they read, initializers, declarations, the nodes that
each fused one stands for, near misses, what was simplified, and what vanished (`vanished`).  Where anything differs,
the run is fused as a whole, block by block (`DifferentError`).  What is not handled at all: models with bodies of
control flow or local functions, sparse tensors, annotations of quantization.
"""
