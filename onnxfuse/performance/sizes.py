"""The sizes at which a report counts bytes and predicts times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray
from onnx import ModelProto, helper

from onnxfuse.matching.work import Tensor
from onnxfuse.model.graph import declared
from onnxfuse.model.symbols import Apart
from onnxfuse.proof.inputs import assumed
from onnxfuse.rewriting.dims_apart import DimNames


@dataclass(frozen=True)
class Sizes:
    """What the symbols of dimensions are taken for.  They measure and never decide what is fused, so that the fused
    model runs at every shape."""

    shapes: Mapping[str, tuple[int, ...]]
    """Those of all inputs; empty where none can be generated."""
    known: Mapping[str, int]
    """Symbols → sizes."""
    assumed: str
    """Those that nobody gave: ``input_ids:3,7 attention_mask:3,7``, as --shape takes them."""

    @staticmethod
    def of(
        model: ModelProto,
        given: Mapping[str, Sequence[int]] | None = None,
        fed: Mapping[str, NDArray[Any]] | None = None,
    ) -> Sizes:
        """Inputs have the shapes of what is `fed`, or those that are given, and where none are, those that the proof
        feeds first.

        Raises UsageError for shapes that the model's inputs cannot have."""
        shapes, named = assumed(model, given, fed)
        types = {info.name: info.type for info in model.graph.input}
        known: dict[str, int] = {}
        for name, sizes in shapes.items():
            for axis, (dim, size) in enumerate(zip(declared(types[name], name)[1] or (), sizes, strict=False)):
                if not isinstance(dim, int):
                    # Where one name was given to two sizes, a mask's of past and new positions beside that of the new
                    # ones, the first input says what it means.
                    known.setdefault(str(dim), size)
                    known[Apart.labelled(str(dim), f"{name}.{axis}")] = size
        return Sizes(shapes, known, named)

    def renamed(self, names: DimNames) -> Sizes:
        """The same where dimensions of inputs have new names."""
        known = dict(self.known)
        for name, own in names.items():
            for axis in range(len(self.shapes.get(name, ()))):
                for old, new in own.items():
                    if (size := self.known.get(Apart.labelled(old, f"{name}.{axis}"))) is not None:
                        known[new] = known[Apart.labelled(new, f"{name}.{axis}")] = size
        return replace(self, known=known)


def sized(
    model: ModelProto, shapes: Mapping[str, Sequence[int]], values: Mapping[str, Tensor] | None = None
) -> ModelProto:
    """A copy whose inputs have these shapes; of other values nothing is declared but what `values` says."""
    copy = ModelProto()
    copy.CopyFrom(model)
    del copy.graph.value_info[:]
    told = {name: helper.make_tensor_value_info(name, *tensor) for name, tensor in (values or {}).items()}
    for info in copy.graph.output:
        if info.name in told:
            info.CopyFrom(told.pop(info.name))
        else:
            info.type.tensor_type.ClearField("shape")
    for info in copy.graph.input:
        for dim, size in zip(info.type.tensor_type.shape.dim, shapes.get(info.name, ()), strict=False):
            dim.dim_value = size
    copy.graph.value_info.extend(told.values())
    return copy
