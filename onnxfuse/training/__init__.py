"""Training steps: graphs in which gradients, or parameters that were updated by them, stand beside a loss.

step        which nodes are forward and which backward
kept        the values that live from one to the other, and their bytes
fates       what became of each: it is saved, computed again, derived from what is saved, or not needed
restated    what is left of a normalization where something that it gives besides is kept, such as its statistics
recompute   backward computes values again, so that fewer of them live
"""
