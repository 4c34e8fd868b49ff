"""Exports an architecture with both of torch's exporters, and checks each file against PyTorch."""

from __future__ import annotations

import io
import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import torch
from torch import Tensor, nn

from models.architectures import ARCHITECTURES, Architecture
from models.blocks import count_blocks
from models.catalogue import Export

# Sizes (batch, length) that an export must work at: the one it was traced with and another.
TRACED, OTHER = (2, 11), (3, 17)


def write_export(
    export: Export, folder: Path, architectures: Mapping[str, Architecture] = ARCHITECTURES
) -> dict[str, int]:
    """Writes `folder/export.file` and returns the blocks its architecture, one of `architectures`, executes.

    Raises AssertionError if the file computes something else than PyTorch at either of the two sizes.
    """
    architecture = architectures[export.architecture]
    path = folder / export.file
    with _quiet(), torch.no_grad():
        module = architecture.build()
        if export.eager:
            module.set_attn_implementation("eager")
        if export.half:
            module = module.half()
        write = _write_torchscript if export.exporter == "ts" else _write_dynamo
        write(export, architecture, module, path)
    model = onnx.load(path)
    _drop_folder_names(model)
    onnx.save(model, path)
    for size in (TRACED, OTHER):
        _compare(path, module, _inputs(export, architecture, size))
    return count_blocks(module, _inputs(export, architecture, TRACED))


def _write_torchscript(export: Export, architecture: Architecture, module: nn.Module, path: Path) -> None:
    inputs = _inputs(export, architecture, TRACED)
    training = torch.onnx.TrainingMode
    with _narrowed(module, list(inputs), len(architecture.output_axes)):
        torch.onnx.export(
            module,
            tuple(inputs.values()),
            path,
            input_names=list(inputs),
            output_names=list(architecture.output_axes),
            dynamic_axes={**architecture.input_axes, **architecture.output_axes},
            opset_version=export.opset,
            # The module is in evaluation mode; PRESERVE only keeps the exporter from folding BatchNormalization.
            training=training.EVAL if export.folded else training.PRESERVE,
            do_constant_folding=export.folded,
            dynamo=False,
        )


@contextmanager
def _narrowed(module: nn.Module, names: list[str], outputs: int) -> Iterator[None]:
    """Narrows `module.forward` to these inputs, by position, and to its first `outputs`.

    The TorchScript exporter turns the default values of the other parameters into graph inputs.  A wrapper module
    would do too, but would put its own name in front of every scope.
    """
    forward = module.forward
    module.forward = lambda *inputs: forward(**dict(zip(names, inputs, strict=True)))[:outputs]
    try:
        yield
    finally:
        del module.forward


def _write_dynamo(export: Export, architecture: Architecture, module: nn.Module, path: Path) -> None:
    inputs = _inputs(export, architecture, TRACED)
    program = torch.onnx.export(
        module,
        (),
        kwargs=inputs,
        input_names=list(inputs),
        output_names=list(architecture.output_axes),
        dynamic_shapes={name: architecture.input_axes[name] for name in inputs},
        opset_version=export.opset,
        optimize=export.folded,
        dynamo=True,
    )
    assert program is not None
    program.save(path, external_data=False)


def _inputs(export: Export, architecture: Architecture, size: tuple[int, int]) -> dict[str, Tensor]:
    inputs = architecture.inputs(*size)
    if export.half:
        return {name: x.half() if x.is_floating_point() else x for name, x in inputs.items()}
    return inputs


def _drop_folder_names(model: onnx.ModelProto) -> None:
    """Shortens the file names in stack traces: they would tell where the packages lie, and change with it."""
    for node in model.graph.node:
        for prop in node.metadata_props:
            prop.value = re.sub(r'File "[^"]*/site-packages/', 'File "', prop.value)


def _compare(path: Path, module: nn.Module, inputs: dict[str, Tensor]) -> None:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    found = session.run(None, {name: x.numpy() for name, x in inputs.items()})
    with torch.no_grad():
        wanted = module(**inputs)[: len(found)]
    for got, tensor in zip(found, wanted, strict=True):
        want, tolerance = tensor.float().numpy(), 1e-5 if got.dtype == np.float32 else 2e-2
        error = float(np.abs(got.astype(np.float32) - want).max() / np.abs(want).max())
        assert error < tolerance, f"{path.name} differs from PyTorch by {error:.1e}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences what exporters print, log and warn about tracing; an exception still comes through."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
