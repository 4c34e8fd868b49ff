"""What onnxruntime is known to do wrong, whatever the numbers are: models that it crashes on or refuses."""

from __future__ import annotations

from collections import Counter

import onnx

from onnxfuse.model.graph import family_of
from onnxfuse.model.walk import nodes_of


def crashing(model: onnx.ModelProto) -> int:
    """How many nodes it has, also in the bodies of functions, that crash onnxruntime (1.31) on some empty tensors."""
    ops = Counter(family_of(node) for node in nodes_of(model))  # fused ops have names of their own
    return sum(ops[op] for op in ("Attention", "MultiHeadAttention", "InstanceNormalization"))


def reads_scores(model: onnx.ModelProto) -> bool:
    """Does a node read scores or weights of an Attention?  onnxruntime (1.23 to 1.32) infers 0 for their last dim where
    it does not know that of the keys, and may refuse the model for it."""
    attentions = [node for node in nodes_of(model) if family_of(node) == "Attention" and len(node.output) > 1]
    shown = {name for node in attentions for name in node.output[1:]}
    return any(shown.intersection(node.input) for node in nodes_of(model))
