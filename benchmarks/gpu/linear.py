"""Linear layers that are timed: those of BERT, GPT-2, ViT and Llama-7B, with bias and activation as the models have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device import architectures
from onnxfuse.kernels.device.types import DTYPES
from onnxfuse.kernels.gemm.autotune import CUBLASLT, FORMS, OF_ONE_CARD
from onnxfuse.kernels.gemm.gemm import FusedMatMul
from onnxfuse.kernels.gemm.plan import FORM_TILES
from onnxfuse.kernels.gemm.proof import BY, proofs
from onnxfuse.kernels.gemm.tiles import has_warpgroups

from . import checks, expected, timing
from .contest import OURS, Contest, Own, Way, Ways
from .machine import Machine, Run
from .sizes import Operand, Timed
from .timing import Set

ROWS = (1, 16, 128, 2048, 8192)
PLACES, COLUMNS = 4, 512
"""Rows and columns whose results are compared with float64."""


class Layer(NamedTuple):
    """x [m, k] by a weight [k, n], a bias, and an activation of FusedMatMul ("" for none)."""

    models: str
    k: int
    n: int
    bias: bool = True
    activation: str = ""


LAYERS = (
    Layer("BERT-base up", 768, 3072, activation="Gelu"),
    Layer("Llama-7B gate", 4096, 11008, bias=False, activation="Swish"),
    Layer("GPT-2 up", 768, 3072, activation="FastGelu"),
    Layer("BERT-large, ViT-L up", 1024, 4096, activation="Gelu"),
    Layer("BERT-base qkv, out; GPT-2 out", 768, 768),
    Layer("BERT-base, GPT-2 down", 3072, 768),
    Layer("GPT-2 qkv", 768, 2304),
    Layer("BERT-large, ViT-L qkv, out", 1024, 1024),
    Layer("BERT-large, ViT-L down", 4096, 1024),
    Layer("Llama-7B qkv, out", 4096, 4096, bias=False),
    Layer("Llama-7B up", 4096, 11008, bias=False),
    Layer("Llama-7B down", 11008, 4096, bias=False),
)


def layer(found: Layer, rows: int, dtype: str = "float16") -> Timed:
    """A layer on so many rows."""
    bias = (Operand((found.n,)),) if found.bias else ()
    attributes = {"activation": found.activation} if found.activation else {}
    size = f"{rows}x{found.k}x{found.n}"
    label = f"{size} {found.activation}".strip() + f" ({found.models})"
    operands = (Operand((rows, found.k), batched=True), Operand((found.k, found.n)), *bias)
    return Timed("FusedMatMul", dtype, operands, attributes, label=label)


def telling() -> list[Timed]:
    """Those that tell most."""
    return [layer(found, rows) for rows in (2048, 1, 128) for found in LAYERS[:2]]


def timed() -> Iterator[Timed]:
    """All of them, the most telling first, each once."""
    grid = [layer(found, rows) for found in LAYERS for rows in ROWS]
    grid += [layer(found, rows, dtype) for dtype in ("bfloat16", "float32") for found in LAYERS[:2] for rows in ROWS]
    yield from {node.name: node for node in (*telling(), *grid)}.values()


def contest(node: Timed, modes: Sequence[dict[str, Any]] = ({},)) -> Contest:
    """The form that is chosen, each form by itself, and PyTorch's: op by op, and compiled in `modes`."""
    own: dict[str, Own] = {OURS: partial(_form, node, "")}
    own |= {form: partial(_form, node, form) for form in FORMS}
    return Contest(node, own, verify, partial(ways, node, modes), {"kind": "product"})


def _form(node: Timed, form: str, machine: Machine, every: Sequence[Set]) -> Callable[[int], Run]:
    """What launches one form, or the one that was measured to be the fastest; the first launch measures."""
    if form in OF_ONE_CARD:
        _proved(node, machine, form)
    if form == CUBLASLT and not _fuses(node, machine):
        raise KernelError(f"the library has no epilogue for {node.attributes.get('activation', 'a bias')}")
    launch = timing.ours(node, machine, every)

    def at(i: int) -> Run:
        def run() -> None:
            with checks.product_form(form):
                launch(i)()

        return run

    return at


def _proved(node: Timed, machine: Machine, form: str) -> None:
    """Raises KernelError where there is no such product, or where it was refused; another would run."""
    kernel, device = expected.kernel(node.op, node.attributes), machine.device
    assert isinstance(kernel, FusedMatMul)
    which, vendor = kernel.which(node.types), device.vendor
    itemsize, tile = DTYPES[node.dtype].itemsize, FORM_TILES[form][0]
    there = has_warpgroups(device.architecture, which.m, which.n, which.k, which.access, itemsize)
    if not there or tile.architecture != architectures.own(device.architecture):
        raise KernelError(f"no such product {BY[form]}, or none on this card")
    if tile.maps and not device.maps:
        raise KernelError("no tensor maps with this driver")
    if vendor is None or not proofs().holds(device, vendor, which, form):
        raise KernelError(f"products {BY[form]} are refused on this card")


def _fuses(node: Timed, machine: Machine) -> bool:
    """Whether the vendor's library has what is behind the product; another form would run in its place."""
    kernel, vendor = expected.kernel(node.op, node.attributes), machine.device.vendor
    assert isinstance(kernel, FusedMatMul)
    found = bool(kernel.which(node.types).epilogue)
    return found and vendor is not None and vendor.fuses(kernel.activation, DTYPES[node.dtype])


def ways(node: Timed, modes: Sequence[dict[str, Any]], module: Any) -> Ways:
    """As its users write a linear layer and its activation: the vendor's product, and an op of its own."""
    nn = module.nn.functional
    known: dict[str, Callable[[Any], Any]] = {
        "": lambda y: y,
        "Gelu": nn.gelu,
        "FastGelu": lambda y: nn.gelu(y, approximate="tanh"),
        "Swish": nn.silu,
    }
    activation = known[node.attributes.get("activation", "")]

    def written(x: Any, weight: Any, bias: Any = None) -> Any:
        return activation(nn.linear(x, weight.t(), bias))

    return {"eager": Way(written)} | {"compile" if not mode else mode["mode"]: Way(written, mode) for mode in modes}


def verify(node: Timed, machine: Machine, made: Set) -> str:
    """Why some rows and columns are wrong, empty if they are right; those of the vendor's form may be rounded twice."""
    (x, weight, *bias), y = made.inputs, made.outputs[0]
    assert x is not None
    assert weight is not None
    assert y is not None
    rng = np.random.default_rng(x.shape[0])
    rows = sorted({0, x.shape[0] - 1, *rng.integers(0, x.shape[0], PLACES - 2).tolist()})
    columns = rng.permutation(weight.shape[1])[:COLUMNS]
    lines = np.concatenate([machine.read(x.at(row)) for row in rows])
    inputs = [lines, np.ascontiguousarray(machine.read(weight)[:, columns])]
    inputs += [machine.read(array)[columns] for array in bias if array is not None]
    (wanted,) = expected.expected("FusedMatMul", node.attributes, inputs, "vendor")
    found = np.concatenate([machine.read(y.at(row)) for row in rows])[:, columns]
    reason, _ = expected.difference(found, wanted)
    return reason or ("written out of bounds" if machine.spoiled(y) else "")
