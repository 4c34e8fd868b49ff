"""What becomes of a draw: its expansion is fused, and should be one node again that computes the same."""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx

from benchmarks.random_graphs.build import Choices
from benchmarks.random_graphs.shrink import fused
from onnxfuse.errors import UsageError
from onnxfuse.model.graph import family_of
from onnxfuse.model.types import type_name
from onnxfuse.targets import runtimes
from onnxfuse.targets.target import Target

from . import attentions, elementwise, moves, rows
from .drawing import Draw, Drawing
from .expand import body_versions, expanded
from .oracle import RefusedError, oracle
from .table import DRAWERS

assert all((attentions, elementwise, moves, rows))
TARGETS = ("onnxfuse", "onnx")
GUARD = ("IsInf", "Max", "ReduceMax", "Where")
"""What floors a mask before Attention (rules/fusions/6_masks/lowest.rule), and sets rows that it hides to 0 behind it
(rules/targets/onnx/attention.rule)."""
COPIES = ("Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
"""What gives the elements of its input."""
FOLDED, LEFT, WRONG, IMPOSSIBLE, REFUSED = "folded", "not folded", "wrong", "impossible", "refused"


@dataclass
class Verdict:
    """What became of a draw, and why."""

    op: str
    opset: int
    outcome: str
    reason: str = ""
    nodes: list[str] = field(default_factory=list)


def draw(choices: Choices, op: str) -> Draw:
    """A random use of an op, at an opset at which the standard has a body for it."""
    opset = choices.integer(0, len(opsets := bodied(op)) - 1)
    drawing = Drawing(choices, op, opsets[-1 - opset])
    DRAWERS[op](drawing)
    return drawing.drawn(onnx.defs.get_schema(op, drawing.opset).since_version)


def bodied(op: str) -> list[int]:
    """The opsets at which the standard has a body for an op."""
    newest = onnx.defs.onnx_opset_version()
    found = []
    for opset in range(7, newest + 1):
        schema = onnx.defs.get_schema(op, opset) if onnx.defs.has(op, opset) else None
        if schema is not None and not schema.deprecated and any(version <= opset for version in body_versions(schema)):
            found.append(opset)
    return found


def judged(drawn: Draw, *, deep: bool) -> Verdict:
    """Expand, fuse for every target, count nodes and compare numbers."""
    verdict = Verdict(drawn.op, drawn.opset, FOLDED)
    try:
        model = expansion(drawn, deep)
        wrong = oracle(model, drawn, [expansion(drawn, deep=False)])
    except RefusedError as error:
        verdict.outcome, verdict.reason = REFUSED, str(error)
        return verdict
    for target in TARGETS:
        result = lowered(drawn, model, target)
        nodes, allowed = counted(result), max(1, len(counted(lowered(drawn, drawn.model, target))))
        if len(nodes) > allowed and verdict.outcome == FOLDED:
            reason = drawn.impossible or drawn.lacking.get(target, "") or withheld(drawn, target)
            verdict.outcome = IMPOSSIBLE if reason else LEFT
            verdict.reason, verdict.nodes = reason or f"{target}: {', '.join(nodes)}", nodes
        text = wrong(result)
        if text:
            verdict.outcome, verdict.reason, verdict.nodes = WRONG, f"{target}: {text}", nodes
            break
    return verdict


def expansion(drawn: Draw, deep: bool) -> onnx.ModelProto:
    """The draw's expansion, `deep` or not, or the other where a body or an op in it is no model for its types.  Raises
    RefusedError if neither is one of its opset."""
    try:
        return _expansion(drawn, deep)
    except RefusedError as refused:
        try:
            return _expansion(drawn, not deep)
        except RefusedError:
            raise refused from None


def _expansion(drawn: Draw, deep: bool) -> onnx.ModelProto:
    try:
        onnx.checker.check_model(drawn.model, full_check=True)
        model = expanded(drawn.model, deep=deep)
    except onnx.shape_inference.InferenceError as error:  # onnx expands some ops to infer their types
        raise RefusedError(f"the standard's body is wrong: {' '.join(str(error).split())}") from None
    if any(node.op_type == drawn.op for node in model.graph.node):
        raise RefusedError("the standard has no body for this use")
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception as error:
        raise RefusedError(f"the expansion is no model: {str(error).splitlines()[0]}") from None
    return model


def lowered(drawn: Draw, model: onnx.ModelProto, target: str) -> onnx.ModelProto:
    """What the engine alone makes of a draw's model.  An op that older versions of onnxruntime compute wrong is asked
    for by the newest, if that runs it: else its forms would be spelled out for those."""
    named = _by_the_newest(drawn, model, target)
    # Without regions, which would make one node of what does not fold.
    return fused(model, {"onnxfuse": "onnxfuse-O1"}.get(target, target)) if named is None else named


def withheld(drawn: Draw, target: str) -> str:
    """Why files for `onnx` do not have a use: no onnxruntime runs the op in its element type, or one that loads them
    computes it wrong, and it cannot be asked for by the newest, which does not run that type; "" for any other use."""
    if target != "onnx":
        return ""
    graph, node = drawn.model.graph, drawn.model.graph.node[0]
    known = {tensor.name: (list(tensor.dims), tensor.data_type) for tensor in graph.initializer}
    for kind, name in ((info.type.tensor_type, info.name) for info in graph.input):
        known[name] = [d.dim_param or d.dim_value for d in kind.shape.dim], kind.elem_type
    element = known[node.input[0]][1]
    dtype = type_name(element)
    if not Target(target).has_kernel(drawn.op, element, drawn.opset):
        return f"no onnxruntime runs {drawn.op} of this opset in {dtype}"
    if drawn.op not in runtimes.judged() or _by_the_newest(drawn, drawn.model, target) is not None:
        return ""
    shapes = [known[name][0] if name else None for name in node.input]
    said = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    like = "float16" if dtype == "bfloat16" else dtype  # half precision that no version was asked about
    features = runtimes.features(drawn.op, said, shapes, like, len(node.output))
    if features & {"mask", "nonpad_kv_seqlen"}:  # a row may be hidden throughout
        features |= {"mask", "masked rows"}
    right = runtimes.right_from(drawn.op, features)
    oldest = runtimes.loading(drawn.opset)
    if right is None or oldest is None or right <= oldest:
        return ""
    return f"an onnxruntime below {right} loads it and computes it wrong, and no newer one runs it in {dtype}"


def _by_the_newest(drawn: Draw, model: onnx.ModelProto, target: str) -> onnx.ModelProto | None:
    """What is made of a draw's model for the newest onnxruntime; None if that is not asked for, or does not run it."""
    if target != "onnx" or drawn.op not in runtimes.judged():
        return None
    try:
        return fused(model, target, f"onnxruntime=={runtimes.known()[-1]}")
    except UsageError:
        return None


def counted(model: onnx.ModelProto) -> list[str]:
    """The nodes of a model that compute something: no Constant, no copy of an input (a key that is a present key, too,
    with its heads apart or not), and none that keeps a mask from what onnxruntime would misread."""
    attends = any(family_of(node) == "Attention" for node in model.graph.node)
    guarded = any(family_of(node) == "IsInf" for node in model.graph.node)
    copies, guards = {info.name for info in model.graph.input}, set[str]()
    makers = {node.output[0]: node for node in model.graph.node}
    lines = [makers[n] for m in model.graph.node if family_of(m) == "Max" for n in m.input if n in makers]
    steps = [makers[n] for line in lines if family_of(line) == "Add" for n in line.input if n in makers]
    slopes = {step.output[0] for step in steps if family_of(step) == "Mul"}
    floors = slopes | {line.output[0] for line in lines if slopes.intersection(line.input)}
    found = list[str]()
    for node in model.graph.node:
        source, op = next(iter(node.input), ""), family_of(node)
        if op == "Identity" and source in copies:
            continue
        moved, falls = op in (*COPIES, "Cast") and source in guards, floors.issuperset(node.output)
        if attends and op in COPIES and source in copies:
            copies.update(node.output)
        elif attends and (op in GUARD or moved or falls):
            guards.update(node.output)
        elif op != "Constant":
            found.append(op)
            if guarded and op == "Attention":
                guards.update(node.output)  # a mask of each head is guarded with the heads apart
    return found
