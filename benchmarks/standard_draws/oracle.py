"""Whether a fused model computes what the expansion of a draw does, by the first of three engines that has all ops.

onnxruntime, with noise to tell rounding from mistakes (`random_graphs.judge`), in single and half precision;
onnxruntime alone, in other types; the standard's reference evaluator.  An engine has to run the op itself, too: where
it has no kernel of an op in a type, the proof of `onnxfuse optimize` would leave that op out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import inliner, shape_inference
from onnx.reference import ReferenceEvaluator

from benchmarks.random_graphs.feeds import Feed
from benchmarks.random_graphs.judge import Original
from onnxfuse.model.walk import nodes_of
from onnxfuse.proof.float64 import to_float64
from onnxfuse.runtime.quiet import Session, SessionError

from .drawing import FLOAT, HALF, INT32, INT64, Draw
from .expand import expanded

NEWEST_OPSETS = {"ALLOW_RELEASED_ONNX_OPSET_ONLY": "0"}
"""Environment in which onnxruntime reads the newest opset although it does not know it: who runs draws sets it."""
Engine = Callable[[onnx.ModelProto, Feed], list[Any]]
NEAR = {"float64": 1e-9, "float32": 1e-4, "float16": 5e-3, "bfloat16": 4e-2}
"""How far apart results may be, relatively; of what is large beside them, too."""


MISSING = "NOT_IMPLEMENTED"
"""What onnxruntime says where it has no kernel."""


class RefusedError(Exception):
    """A draw that says nothing: nobody accepts or runs its expansion."""


class Runs:
    """What one engine computes of the expansion of a draw, in float64 too, and of the op itself; where it does not run
    that expansion, of another one.

    Raises what the engine does."""

    def __init__(self, engine: Engine, drawn: Draw, model: onnx.ModelProto, *others: onnx.ModelProto) -> None:
        self.engine, self.feeds = engine, drawn.feeds
        self.near = max(NEAR.get(kind, 0.0) for kind in _types(model))
        self.expected = [[engine(drawn.model, feed)] for feed in drawn.feeds]
        self.expanded = True
        """Does the engine run the expansion?  The reference's Loop gives what it repeats another shape, and fails."""
        for body in (model, *others):
            try:
                results = [engine(body, feed) for feed in drawn.feeds]
            except Exception as error:
                if engine is in_onnxruntime:
                    raise
                if body is model:
                    self.expanded, self.fails = False, f"{type(error).__name__}: {str(error)[:120]}"
                continue
            if engine is in_onnxruntime or not _loops(body):
                self.expected = [[result, *own] for result, own in zip(results, self.expected, strict=True)]
                break
        try:
            wide = to_float64(model)
            for wanted, feed in zip(self.expected, drawn.feeds, strict=True):
                wide_feed = Feed(feed.name, {name: _widened(array) for name, array in feed.inputs.items()})
                wanted.append(engine(wide, wide_feed))
        except Exception:  # few kernels are there in float64
            return

    def difference(self, result: onnx.ModelProto) -> str:
        """How a result differs from all that is right, if it does; its types are checked as they are declared."""
        try:
            onnx.checker.check_model(result, full_check=True)
        except Exception as error:
            return f"is no model: {str(error).splitlines()[0]}"
        if self.engine is in_reference and _loops(result):
            return ""  # its Loop gives what it repeats another shape, here as in the expansion
        for feed, expected in zip(self.feeds, self.expected, strict=True):
            try:
                got = self.engine(result, feed)
            except Exception as error:
                if not self.expanded:
                    return ""
                return f"cannot be computed: {type(error).__name__}: {str(error)[:200]} ({feed.name})"
            for index, (a, *right) in enumerate(zip(got, *expected, strict=True)):
                if not _right(a, right, self.near):
                    return f"output {index} is {_shown(a)} instead of {_shown(right[0])} ({feed.name})"
        return ""


def _loops(model: onnx.ModelProto) -> bool:
    return any(node.op_type == "Loop" for node in nodes_of(model))


def _shown(a: Any) -> str:
    return f"{a.dtype}{list(a.shape)} {a.ravel()[:3]}"


def _widened(array: Any) -> Any:
    return array.astype(np.float64) if array.dtype.kind not in "iub" else array


def _right(a: Any, right: list[Any], near: float) -> bool:
    """Is a result as near to one that is right as rounding leaves it: as those are to each other, where they differ?"""
    alike = [b for b in right if _kind(b) == _kind(a) and b.shape == a.shape]
    if not alike or a.dtype.kind in "iub":
        return any(np.array_equal(a, b) for b in alike)
    wide = [b.astype(float) for b in alike]
    with np.errstate(invalid="ignore"):  # of two infinities
        apart = max(float(np.nan_to_num(np.abs(b - wide[0]), posinf=0).max(initial=0.0)) for b in wide)
    return any(_close(a.astype(float), b, near, apart) for b in wide)


def _kind(a: Any) -> str:
    """Real types may be others, where one result was computed in float64."""
    return a.dtype.kind if a.dtype.kind in "iub" else "f"


def _unless_missing(text: str) -> str:
    """What is wrong, unless it is that onnxruntime has no kernel: the proof leaves such a fusion out."""
    return "" if MISSING in text else text


def oracle(
    model: onnx.ModelProto, drawn: Draw, others: Sequence[onnx.ModelProto] = ()
) -> Callable[[onnx.ModelProto], str]:
    """A function that says what a model computes otherwise than the expansion: nothing, or a text.  Where an engine
    does not run that, one of the `others`, which the same op was expanded to, says what is right.

    Raises RefusedError where no engine runs both the expansion and the op."""
    if drawn.impossible:
        return lambda result: ""
    kinds = {info.type.tensor_type.elem_type for info in drawn.model.graph.input}
    if kinds <= {FLOAT, HALF, INT32, INT64}:
        try:
            Session(drawn.model, optimize=False)
            original = Original(model, drawn.feeds)
            if len(original.expected) == len(drawn.feeds):
                return lambda result: _unless_missing(str(original.wrong(result) or ""))
        except SessionError:
            pass
    engines, reasons = list[Runs](), list[str]()
    for engine in (in_onnxruntime, in_reference):
        try:
            engines.append(Runs(engine, drawn, model, *others))
        except Exception as error:
            reasons.append(f"{engine.__name__}: {type(error).__name__}: {str(error)[:120]}")
    if not engines:
        raise RefusedError(f"no engine runs it: {'; '.join(reasons)}")
    if not any(runs.expanded for runs in engines) and not _loops(model):
        raise RefusedError(f"no engine runs the standard's body, though the op: {engines[-1].fails}")

    def wrong(result: onnx.ModelProto) -> str:
        for runs in engines:
            text = runs.difference(result)
            if MISSING not in text:
                return text
        return ""

    return wrong


def in_onnxruntime(model: onnx.ModelProto, feed: Feed) -> list[Any]:
    """What onnxruntime computes."""
    return list(Session(model, optimize=False, threads=1).run(feed.inputs))


def in_reference(model: onnx.ModelProto, feed: Feed) -> list[Any]:
    """What the reference evaluator computes, which wants the types of what it expands itself."""
    model = inliner.inline_local_functions(model)
    if any(map(_shows_capped, model.graph.node)):
        model = expanded(model, deep=False)
    model = shape_inference.infer_shapes(model)
    with np.errstate(all="ignore"):
        return list(ReferenceEvaluator(model).run(None, dict(feed.inputs)))


def _shows_capped(node: onnx.NodeProto) -> bool:
    """Would the evaluator's own Attention show squashed scores where its body shows those before?"""
    said = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    shown = node.op_type == "Attention" and len(node.output) > 3
    return shown and bool(said.get("softcap")) and not said.get("qk_matmul_output_mode")


def _types(model: onnx.ModelProto) -> Iterator[str]:
    """The types of what a model is given, and of what it casts to: rounding to one of them may be left out."""
    kinds = {info.type.tensor_type.elem_type for info in (*model.graph.input, *model.graph.output)}
    kinds |= {a.i for node in nodes_of(model) for a in node.attribute if node.op_type == "Cast" and a.name == "to"}
    yield from (str(np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind))) for kind in kinds)


def _close(a: Any, b: Any, near: float, apart: float) -> bool:
    finite = np.abs(b[np.isfinite(b)])
    return bool(np.allclose(a, b, rtol=near, atol=near * float(finite.max(initial=0.0)) + apart, equal_nan=True))
