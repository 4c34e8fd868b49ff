"""The IR version of a model: what it lets an initializer be, and how a model gets a higher one."""

from __future__ import annotations

from onnx import ModelProto

from . import protobuf

DEFAULTS = 4
"""Before, each initializer is an input, too, and a constant; from here on such an input is a default, which a caller
may override."""
FUNCTIONS = 8
"""From here on a model may have local functions."""


def raise_to(model: ModelProto, version: int) -> None:
    """Give a model this IR version, if its own is lower.  What was a constant stays one: inputs that would become
    defaults go, which onnxruntime neither folds nor packs, and would take other numbers for than those that are folded
    into the constants beside them."""
    if model.ir_version < DEFAULTS <= version:
        constants = {tensor.name for tensor in model.graph.initializer}
        protobuf.remove(model.graph.input, lambda info: info.name in constants)
    model.ir_version = max(model.ir_version, version)
