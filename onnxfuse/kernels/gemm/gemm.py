"""FusedMatMul: a product, its scale and bias, an activation and a residual, by the fastest of its forms.

"tiled" is a kernel of ours, gemm.cu: nothing but the result is written, rounded once; where there are too few tiles,
sums in float are, and a second launch puts them together.  "wgmma" is the same for large products in half precision on
cards of compute capability 9.0, multiplied by warpgroups (gemm_warpgroup.cuh), "tma" that with operands that come by
tensor maps (gemm_bulk.cuh); "tcgen05" that for those of 10.0, with sums in tensor memory (gemm_tensor_memory.cuh).
"vendor" is the vendor's product and one pass over it in place, gemm_epilogue.cu: the product is rounded to the op's
element type before that, as it is where the ops are separate.  "cublaslt" is the vendor's product with an epilogue of
its own, for the few that it has (cublaslt.py).  `autotune` knows which is the fastest.

No norm or gate is applied while A is read.  It would be repeated for each tile of columns, and take A through registers
on its way; what it saves is one trip of A through memory and a launch.  For 2,048 rows of 4,096 by 11,008 in half
precision on an H200 that is 7 of some 240 us.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, ClassVar

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device import cublaslt
from onnxfuse.kernels.device.access import vector_of
from onnxfuse.kernels.device.device import (
    After,
    Array,
    Device,
    Product,
    TensorType,
    Vendor,
    nbytes,
)
from onnxfuse.kernels.device.kernel import Parameter, Signature, Work
from onnxfuse.kernels.device.products import multiplications, products, result
from onnxfuse.kernels.device.replay import Arrays, Capture, Writing, record

from .autotune import CUBLASLT, VENDOR, Class
from .forms import ByForms, Forms, Products, Run
from .plan import Pass, Plan, Result, Vectors, plan
from .source import Attributes, epilogue

MOST = 2**30
"""Rows and columns are counted in 32 bits."""


class FusedMatMul(ByForms):
    """com.microsoft FusedMatMul with the bias and activation of its FusedGemm, and a residual;
    rules/ops/linear.rule has the meaning.

    A residual has the shape of Y, or one that repeats along Y's first dimensions.
    """

    name: ClassVar[str] = "gemm"
    signature: ClassVar[Signature] = Signature(
        "FusedMatMul",
        (Parameter("A"), Parameter("B"), Parameter("bias", optional=True), Parameter("residual", optional=True)),
        (Parameter("Y"),),
    )

    def __init__(self, attributes: Mapping[str, Any]) -> None:
        known: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in attributes.items()}
        self.transposed, self.scale = bool(known.get("transB", 0)), float(known.get("alpha", 1.0))
        self.activation = str(known.get("activation", ""))
        self.attributes: Attributes = tuple(sorted(known.items()))
        other = known.keys() - {"activation", "activation_params", "alpha", "transB"}
        if other:
            raise KernelError(f"{self.signature.op} has no attribute {min(other)}")
        epilogue(self.signature.op, self.attributes, True, True)
        self._run = Products(self._forms)

    def outputs(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        a, b, bias, residual = _four(inputs)
        assert a is not None
        assert b is not None
        shape = result(a.shape, b.shape, self.transposed)
        if bias is not None:
            if bias.shape[-1:] not in ((), shape[-1:]) or math.prod(bias.shape) != shape[-1]:
                raise KernelError(f"bias of shape {list(bias.shape)} is not one row for a product {list(shape)}")
            shape = (*(1,) * (len(bias.shape) - len(shape)), *shape)
        if residual is not None:
            if not _repeats(residual.shape, shape):
                raise KernelError(f"residual of shape {list(residual.shape)} does not repeat in {list(shape)}")
            shape = (*(1,) * (len(residual.shape) - len(shape)), *shape)
        return (TensorType(a.dtype, shape),)

    def _forms(self, device: Device, inputs: Arrays, outputs: Arrays) -> Forms | None:
        a, b, bias, residual = _four(inputs)
        y = outputs[0]
        found = None if a is None or y is None else self._planned(device, a, b, bias, residual, y)
        if found is None:
            return None
        made, which = found

        def tiled(device: Device, inputs: Arrays, outputs: Arrays) -> None:
            with device.scratch(made.scratch) if made.scratch else nullcontext() as sums:
                for one in made.tiled:
                    _pass(device, one, inputs, outputs, sums)

        def launching(passes: Sequence[Pass]) -> Writing:
            def run(device: Device | Capture, inputs: Arrays, outputs: Arrays) -> None:
                for one in passes:
                    _pass(device, one, inputs, outputs)

            return run

        def others(device: Device, vendor: Vendor, inputs: Arrays, outputs: Arrays) -> dict[str, Run]:
            a, b, bias, residual = _four(inputs)
            y = outputs[0]
            assert y is not None

            def vendors() -> None:
                for product in made.products:
                    vendor.product(product, a, b, y)
                _pass(device, made.after, inputs, outputs)

            def fused() -> None:
                after = After(bias, residual, self.activation)
                with device.scratch(cublaslt.WORKSPACE) as workspace:
                    for product in made.products:
                        vendor.fused(product, a, b, y, after, workspace)

            forms: dict[str, Run] = {VENDOR: vendors}
            if which.epilogue and vendor.fuses(self.activation, a.dtype):
                forms[CUBLASLT] = fused
            return forms

        return Forms(
            which,
            record(tiled, device, inputs, outputs),
            others,
            {form: record(launching(own), device, inputs, outputs) for form, own in made.warpgroups.items()},
        )

    def work(self, inputs: Sequence[TensorType | None]) -> Work:
        a, b, bias, residual = _four(inputs)
        assert a is not None
        assert b is not None
        (y,) = self.outputs(inputs)
        after = epilogue(self.signature.op, self.attributes, bias is not None, residual is not None)
        return Work(
            read=sum(nbytes(x) for x in (a, b, bias, residual) if x is not None),
            written=nbytes(y),
            flops=2 * multiplications(a.shape, b.shape, self.transposed) + after.flops * math.prod(y.shape),
        )

    def which(self, inputs: Sequence[TensorType | None]) -> Class:
        """The class of shapes, for arrays that are aligned."""
        a, b, bias, residual = _four(inputs)
        assert a is not None
        assert b is not None
        found, itemsize = products(a.shape, b.shape, self.transposed), a.dtype.itemsize
        one = found[0] if found else Product(0, 0, 0)
        columns = (one.k, one.k if self.transposed else one.n, one.n)
        access = min(vector_of(itemsize, [n], ()) for n in columns) * itemsize
        (y,) = self.outputs(inputs)
        return Class.of(one, len(found), a.dtype.name, access, self._vendors(bias, residual, y))

    def _planned(
        self, device: Device, a: Array, b: Array, bias: Array | None, residual: Array | None, y: Array
    ) -> tuple[Plan, Class] | None:
        found = products(a.shape, b.shape, self.transposed, self.scale)
        if not found:
            return None
        one, dtype = found[0], a.dtype
        if max(one.m, one.n, one.k) > MOST:
            raise KernelError(f"{self.signature.op}: more than 2^30 rows or columns, {one.m} by {one.k} by {one.n}")
        period = 1 if residual is None else math.prod(residual.shape[:-1])
        if period > MOST:
            raise KernelError(f"{self.signature.op}: a residual of more than 2^30 rows")
        vectors = Vectors.of(one, a, b, vector_of(dtype.itemsize, [one.n], [y, bias, residual]))
        half = dtype.itemsize == 2
        after = epilogue(self.signature.op, self.attributes, bias is not None, residual is not None, half)
        y_as_one = Result(dtype, math.prod(y.shape[:-1]), one.n, period, after)
        access = min(vectors) * dtype.itemsize
        which = Class.of(one, len(found), dtype.name, access, self._vendors(bias, residual, y))
        return plan(found, y_as_one, vectors, device.multiprocessors, device.architecture, device.maps), which

    def _vendors(self, bias: object, residual: Array | TensorType | None, y: Array | TensorType) -> str:
        """The epilogue of the vendor's own, which adds to each element one of another matrix; empty if it has none."""
        if residual is not None and math.prod(residual.shape) != math.prod(y.shape):
            return ""
        return cublaslt.name(self.activation, bias is not None, residual is not None)


def _pass(device: Device | Capture, one: Pass, inputs: Arrays, outputs: Arrays, sums: Array | None = None) -> None:
    given = dict(zip(("a", "b", "bias", "residual"), _four(inputs), strict=True)) | {"y": outputs[0], "sums": sums}
    device.launch(one.launch, one.arguments(given))


def _four(given: Sequence[Any]) -> tuple[Any, Any, Any, Any]:
    """A, B, bias and residual, None for what is left out."""
    a, b, bias, residual, *_ = (*given, None, None)
    return a, b, bias, residual


def _repeats(shape: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Whether an array of this shape lies in one of the whole shape once or several times, one behind the other."""
    rank = max(len(shape), len(whole))
    padded, full = ((1,) * (rank - len(x)) + x for x in (shape, whole))
    return any(padded == (*(1,) * i, *full[i:]) for i in range(rank))
