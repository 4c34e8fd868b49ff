"""What a node does besides computing its outputs: whether it may go if nothing reads them, and whether two are one.

ONNX says of its own ops that they are pure, save those that draw random numbers.  Of an op of a domain that nobody here
knows nothing is said: it may log, count or send, so that it stays, where it stands and as often as it stands there.  A
node with bodies, and the call of a local function, do what the nodes inside do.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from onnx import ModelProto, NodeProto

from onnxfuse.model.graph import DOMAIN, opset_of
from onnxfuse.model.onnxruntime_ops import IN_AI_ONNX
from onnxfuse.model.op_traits import RANDOM
from onnxfuse.model.standard import STANDARD, has_op, in_onnx
from onnxfuse.model.walk import Key, attribute_graphs, called_by, key_of, nodes

MICROSOFT = frozenset(
    """Attention BiasAdd BiasGelu BiasSoftmax BiasSplitGelu DequantizeLinear DynamicQuantizeLSTM DynamicQuantizeMatMul
    EmbedLayerNormalization FastGelu FusedConv FusedGemm FusedMatMul GatedRelativePositionBias GatherBlockQuantized
    Gelu GroupNorm MatMulBnb4 MatMulInteger16 MatMulIntegerToFloat MatMulNBits MoE MultiHeadAttention NhwcConv
    NhwcFusedConv QAttention QEmbedLayerNormalization QGemm QLinearAdd QLinearAveragePool QLinearConcat
    QLinearGlobalAveragePool QLinearLeakyRelu QLinearMul QLinearReduceMean QLinearSigmoid QLinearSoftmax QLinearWhere
    QMoE QuantizeLinear QuickGelu RelativePositionBias RotaryEmbedding SkipGroupNorm SkipLayerNormalization
    SkipSimplifiedLayerNormalization TransposeMatMul Trilu""".split()
)
"""Ops of com.microsoft that compute and nothing else (onnxruntime, docs/ContribOperators.md); others there write into
their inputs, draw random numbers, or talk to other processes."""


class Effect(IntEnum):
    """From what is always sound to change to what is never: two may be computed once; may go; stays."""

    NONE = 0
    RANDOM = 1
    UNKNOWN = 2


@dataclass
class Effects:
    """The effects of a model's nodes; `of_functions` are those of calls."""

    of_functions: dict[Key, Effect] = field(default_factory=dict)

    @staticmethod
    def of(model: ModelProto) -> Effects:
        """With those of all local functions, by way of others too."""
        found = Effects()
        bodies = {key_of(function): list(nodes(function)) for function in model.functions}
        opsets = {key_of(function): opset_of(function) for function in model.functions}
        callers: dict[Key, list[Key]] = {}
        for key, inside in bodies.items():
            for node in inside:
                if (called := called_by(node)) in bodies:
                    callers.setdefault(called, []).append(key)
            own = (_own(node, opsets[key]) for node in inside if called_by(node) not in bodies)
            found.of_functions[key] = max(own, default=Effect.NONE)
        pending = list(bodies)
        while pending:
            called = pending.pop()
            for key in callers.get(called, ()):
                if found.of_functions[key] < found.of_functions[called]:
                    found.of_functions[key] = found.of_functions[called]
                    pending.append(key)
        return found

    def __call__(self, node: NodeProto, opset: int) -> Effect:
        """The effect of a node at an opset, its bodies included."""
        own = self.of_functions.get(called_by(node)) if self.of_functions else None
        effect = _own(node, opset) if own is None else own
        if not node.attribute or effect is Effect.UNKNOWN:
            return effect
        return max((self(inner, opset) for _, body in attribute_graphs(node) for inner in body.node), default=effect)


def draws(node: NodeProto) -> bool:
    """Does a node of the standard draw random numbers?  A Dropout that is told whether it trains may."""
    told = node.op_type == "Dropout" and len(node.input) > 2 and bool(node.input[2])
    return node.domain in STANDARD and (node.op_type in RANDOM or told)


def _own(node: NodeProto, opset: int) -> Effect:
    """The effect of a node that calls no local function, without its bodies."""
    if draws(node):
        return Effect.RANDOM
    if node.domain in STANDARD:
        known = in_onnx(node.op_type, opset) or node.op_type in IN_AI_ONNX
    elif node.domain == "com.microsoft":
        known = node.op_type in MICROSOFT
    else:
        known = node.domain == DOMAIN or has_op(node.op_type, node.domain)
    return Effect.NONE if known else Effect.UNKNOWN
