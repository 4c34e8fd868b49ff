"""The forms of attention ops, for `ort_versions` to ask each onnxruntime about: which one runs them, and rightly.

A form is a set of features that a node may have.  One of ai.onnx Attention is right where every model of it gives the
numbers of the op's own function (the schema's body, from ai.onnx's primitives), whose ops the newest onnxruntime
computes; one of another op, where it gives those of the newest onnxruntime.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import FunctionProto, ModelProto, TensorProto, TypeProto, defs, helper

Form = frozenset[str]
SINCE = 23
"""The first opset with the op."""
MODELS = 6
"""Of a form."""
BATCH, HEADS, KEYS, SIZE, PAST = 2, 4, 5, 8, 2
TOLERANCE = {np.dtype(np.float32): 1e-4, np.dtype(np.float16): 2e-2}
"""Of a difference to 1 + |value|."""


@dataclass(frozen=True)
class Case:
    """One model: `mask` is "", or its kind; `rank` its rank; `dead` whether it masks whole rows; `mode` is what the
    fourth output shows, -1 if there is none."""

    packed: bool
    groups: bool
    mask: str
    rank: int
    dead: bool
    causal: bool
    past: bool
    softcap: bool
    nonpad: bool
    half: bool
    mode: int
    short: bool
    window: bool
    op = "Attention"

    @property
    def form(self) -> Form:
        said = {
            "grouped": self.groups,
            "mask": bool(self.mask),
            "mask of each head": self.rank == 3,
            "masked rows": self.dead,
            "is_causal": self.causal,
            "past_key": self.past,
            "softcap": self.softcap,
            "nonpad_kv_seqlen": self.nonpad,
            "float16": self.half,
            f"qk_matmul_output_mode {self.mode}": self.mode >= 0,
            "window": self.window,
        }
        return frozenset(name for name, there in said.items() if there)

    def feeds(self, rng: np.random.Generator) -> dict[str, np.ndarray[Any, Any]]:
        """Input name → array, in the order of the op's inputs."""
        real = np.float16 if self.half else np.float32
        queries, heads = 3 if self.short else KEYS, HEADS // 2 if self.groups else HEADS

        def drawn(*shape: int) -> np.ndarray[Any, Any]:
            return rng.standard_normal(shape).astype(real)

        def heads_of(count: int, length: int) -> np.ndarray[Any, Any]:
            return drawn(BATCH, length, count * SIZE) if self.packed else drawn(BATCH, count, length, SIZE)

        feeds = {"Q": heads_of(HEADS, queries), "K": heads_of(heads, KEYS), "V": heads_of(heads, KEYS)}
        if self.mask:
            total = KEYS + PAST * self.past
            lead = {2: (), 3: (HEADS,), 4: (BATCH, 1)}[self.rank]
            seen = rng.random((*lead, queries, total)) < 0.7
            seen[..., 0] = True
            if self.dead:
                seen[..., 1, :] = False
            hidden, bias = (np.finfo(real).min, drawn(*seen.shape)) if self.mask == "lowest" else (-np.inf, real(0))
            feeds["attn_mask"] = seen if self.mask == "bool" else np.where(seen, bias, hidden).astype(real)
        if self.past:
            feeds |= {name: drawn(BATCH, heads, PAST, SIZE) for name in ("past_key", "past_value")}
        if self.nonpad:
            feeds["nonpad_kv_seqlen"] = np.array([KEYS, 3])
        return feeds

    def model(self, feeds: Mapping[str, np.ndarray[Any, Any]]) -> ModelProto:
        names = [p.name for p in defs.get_schema("Attention", 24, "").inputs]
        inputs = [name if name in feeds else "" for name in names]
        while not inputs[-1]:
            inputs.pop()
        outputs = ["Y", *(["present_key", "present_value"] if self.past else ["", ""] if self.mode >= 0 else [])]
        attributes: dict[str, Any] = {"is_causal": int(self.causal), "softcap": 2.0 * self.softcap}
        if self.packed:
            attributes |= {"q_num_heads": HEADS, "kv_num_heads": HEADS // 2 if self.groups else HEADS}
        if self.window:
            attributes |= {"left_window_size": 1, "right_window_size": 2}
        if self.mode >= 0:
            outputs.append("qk_matmul_output")
            attributes["qk_matmul_output_mode"] = self.mode
        node = helper.make_node("Attention", inputs, outputs, "attention", **attributes)
        real = TensorProto.FLOAT16 if self.half else TensorProto.FLOAT
        graph = helper.make_graph(
            [node],
            "g",
            [
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
                for name, array in feeds.items()
            ],
            [helper.make_tensor_value_info(name, real, None) for name in outputs if name],
        )
        opset = 25 if self.window else 24 if self.nonpad else 23
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


@dataclass(frozen=True)
class ContribCase:
    """One model of com.microsoft's Attention or MultiHeadAttention, in float32; `mask` is what of its attention_bias
    broadcasts, "" if there is none."""

    op: str
    mask: str
    causal: bool

    @property
    def form(self) -> Form:
        said = {"mask": bool(self.mask), "mask for all heads": self.mask == "heads", "is_causal": self.causal}
        return frozenset(name for name, there in said.items() if there)

    def feeds(self, rng: np.random.Generator) -> dict[str, np.ndarray[Any, Any]]:
        width = HEADS * SIZE
        shapes = {"input": (BATCH, KEYS, width), "weights": (width, 3 * width), "bias": (3 * width,)}
        if self.op.endswith("MultiHeadAttention"):
            shapes = dict.fromkeys(("query", "key", "value"), (BATCH, KEYS, width))
        if self.mask:
            lead = {"nothing": (BATCH, HEADS), "batch": (1, HEADS), "heads": (BATCH, 1), "both": (1, 1)}[self.mask]
            shapes["attention_bias"] = (*lead, KEYS, KEYS)
        return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}

    def model(self, feeds: Mapping[str, np.ndarray[Any, Any]]) -> ModelProto:
        domain, _, op = self.op.rpartition(".")
        inputs = [name for name in feeds if name != "attention_bias"]
        inputs += ["", "", "attention_bias"] if self.mask else []
        node = helper.make_node(
            op, inputs, ["Y"], "attention", domain=domain, num_heads=HEADS, unidirectional=int(self.causal)
        )
        values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape) for name, array in feeds.items()]
        graph = helper.make_graph([node], "g", values, [helper.make_tensor_value_info("Y", TensorProto.FLOAT, None)])
        imports = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=8)


@dataclass(frozen=True)
class RotaryCase:
    """One model of ai.onnx RotaryEmbedding."""

    packed: bool
    partial: bool
    interleaved: bool
    positions: bool
    op = "RotaryEmbedding"

    @property
    def form(self) -> Form:
        said = {"rotary_embedding_dim": self.partial, "interleaved": self.interleaved, "position_ids": self.positions}
        return frozenset(name for name, there in said.items() if there)

    def feeds(self, rng: np.random.Generator) -> dict[str, np.ndarray[Any, Any]]:
        half = SIZE // 4 if self.partial else SIZE // 2
        caches = (8, half) if self.positions else (BATCH, KEYS, half)
        shapes: dict[str, tuple[int, ...]] = {
            "X": (BATCH, KEYS, HEADS * SIZE) if self.packed else (BATCH, HEADS, KEYS, SIZE)
        }
        shapes |= dict.fromkeys(("cos_cache", "sin_cache"), caches)
        feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
        return feeds | ({"position_ids": rng.integers(0, 8, (BATCH, KEYS))} if self.positions else {})

    def model(self, feeds: Mapping[str, np.ndarray[Any, Any]]) -> ModelProto:
        attributes: dict[str, Any] = {"interleaved": int(self.interleaved), "num_heads": HEADS * self.packed}
        if self.partial:
            attributes["rotary_embedding_dim"] = SIZE // 2
        node = helper.make_node("RotaryEmbedding", list(feeds), ["Y"], "rotary", **attributes)
        values = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in feeds.items()
        ]
        graph = helper.make_graph([node], "g", values, [helper.make_tensor_value_info("Y", TensorProto.FLOAT, None)])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", SINCE)], ir_version=8)


def other_forms() -> Iterator[tuple[Any, Any]]:
    """Each case of com.microsoft's ops and of RotaryEmbedding."""
    rng = np.random.default_rng(0)
    ops, masks = ("Attention", "MultiHeadAttention"), ("", "nothing", "batch", "heads", "both")
    for op, mask, causal in itertools.product(ops, masks, (False, True)):
        case = ContribCase(f"com.microsoft.{op}", mask, causal)
        feeds = case.feeds(rng)
        yield ("form", case), (case.model(feeds).SerializeToString(), feeds)
    for options in itertools.product((False, True), repeat=4):
        rotary = RotaryCase(*options)
        feeds = rotary.feeds(rng)
        yield ("form", rotary), (rotary.model(feeds).SerializeToString(), feeds)


def cases() -> Iterator[Case]:
    """Of every form a few models, one of those that show a fourth output."""
    masks: list[tuple[str, int, bool]] = [("", 0, False)]
    masks += [(kind, rank, False) for kind in ("bool", "infinite", "lowest") for rank in (2, 3, 4)]
    masks += [(kind, rank, True) for kind in ("bool", "infinite") for rank in (2, 3, 4)]
    either = (False, True)
    rows: Iterable[Any] = itertools.product(either, either, masks, *[either] * 5, (-1, 0, 1, 2, 3), either, either)
    by_form: dict[Form, list[Case]] = {}
    for packed, groups, (mask, rank, dead), causal, past, softcap, nonpad, half, mode, short, window in rows:
        if not (past and nonpad):
            case = Case(packed, groups, mask, rank, dead, causal, past, softcap, nonpad, half, mode, short, window)
            by_form.setdefault(case.form, []).append(case)
    rng = random.Random(0)
    for same in by_form.values():
        yield from rng.sample(same, min(len(same), MODELS if same[0].mode < 0 else 1))


def forms() -> Iterator[tuple[Any, Any]]:
    """Each case twice: as the op, and as a call of its function."""
    rng = np.random.default_rng(0)
    for case in cases():
        feeds = case.feeds(rng)
        model = case.model(feeds)
        yield ("form", case), (model.SerializeToString(), feeds)
        yield ("function", case), (_as_function(model).SerializeToString(), feeds)


def _as_function(model: ModelProto) -> ModelProto:
    """The one node as a call of a local function, which is the body that the op's schema has for it."""
    node, opset = model.graph.node[0], model.opset_import[0].version
    declared = {info.name: info.type.SerializeToString() for info in model.graph.input}
    types = [declared.get(name, TypeProto().SerializeToString()) for name in node.input]
    schema: Any = defs.get_schema("Attention", opset, "")  # the type stubs lack its functions
    body = schema.get_context_dependent_function_with_opset_version(opset, node.SerializeToString(), types)
    function = FunctionProto.FromString(body)
    for formal, actual in ((function.input, node.input), (function.output, node.output)):
        pairs = [(a, b) for a, b in zip(formal, actual, strict=False) if a and b]
        del formal[:], actual[:]
        formal.extend(a for a, _ in pairs)
        actual.extend(b for _, b in pairs)
    for i, inner in enumerate(function.node):
        inner.name = f"n{i}"
    function.domain, function.name = node.domain, node.op_type = "function", "A"
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("function", 1))
    return model


def wrong_forms(answers: Mapping[str, Mapping[Any, Any]], op: str) -> list[list[Any]]:
    """[onnxruntime version, features]: nodes with all these features are refused or computed wrongly before it.

    Only the smallest sets: one that holds another stands there if it takes a later version still."""
    versions = list(answers)
    newest = answers[versions[-1]]
    right: dict[Form, list[bool]] = {}
    for key in newest:
        if key[0] == "form" and key[1].op == op:
            want = newest.get(("function", key[1]), newest[key])
            told = [_same(found[("form", key[1])], want) for found in answers.values()]
            so_far = right.setdefault(key[1].form, [True] * len(versions))
            right[key[1].form] = [a and b for a, b in zip(so_far, told, strict=True)]
    since = {form: _since(told) for form, told in right.items()}
    start = min(since.values())
    kept: dict[Form, int] = {}
    for form in sorted(since, key=lambda form: (len(form), sorted(form))):
        if since[form] > max([start, *(kept[smaller] for smaller in kept if smaller < form)]):
            kept[form] = since[form]
    named = [[versions[at] if at < len(versions) else "", *sorted(form)] for form, at in kept.items()]
    return sorted(named)


def _since(right: list[bool]) -> int:
    """The index from which on all are right."""
    return next((at + 1 for at in reversed(range(len(right))) if not right[at]), 0)


def _same(found: Any, want: Any) -> bool:
    if isinstance(found, str):
        return False
    for one, other in zip(found, want, strict=True):
        if one.shape != other.shape:
            return False
        a, b = one.astype(np.float64), other.astype(np.float64)
        with np.errstate(invalid="ignore"):
            near = np.abs(a - b) <= TOLERANCE[one.dtype] * (1 + np.abs(b))
        if not (near | (a == b) | (np.isnan(a) & np.isnan(b))).all():
            return False
    return True
