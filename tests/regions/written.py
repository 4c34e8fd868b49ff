"""Graphs as ONNX text, and what becomes of them at -O2."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from onnx import ModelProto, parser

import onnxfuse
from onnxfuse.language.catalogue import load
from onnxfuse.lifting.lifted import Lifted
from onnxfuse.model.graph import DOMAIN, REGION, family_of
from onnxfuse.regions.groups import Group, Groups
from onnxfuse.regions.partition import partition
from onnxfuse.regions.reading import read
from onnxfuse.regions.scope import Scope


def model(text: str, opset: int = 20) -> ModelProto:
    """A model of a graph as text."""
    return parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]>\n{text}')


def scope(text: str, opset: int = 20) -> Scope:
    """The main graph as regions see it."""
    view = Lifted.of(model(text, opset), None, load()).views[0]
    return read(view, view, {})


def groups(text: str) -> Groups:
    """Its partition."""
    return partition(scope(text))


def ops(group: Group) -> str:
    """What a group computes, in order."""
    return " ".join(launch.node.op_type for launch in group.launches)


def parts(text: str) -> list[str]:
    """The ops of each group of a graph."""
    return [ops(group) for group in groups(text)]


def fused(text: str, opset: int = 20, **options: object) -> onnxfuse.Optimized:
    """The graph at -O2, proved."""
    return onnxfuse.optimize(model(text, opset), level=2, **options)  # type: ignore[arg-type]


def calls(made: ModelProto) -> list[str]:
    """The ops of a model's nodes, Constants apart."""
    return [family_of(node) for node in made.graph.node if node.op_type != "Constant"]


def regions(made: ModelProto) -> list[onnx.NodeProto]:
    """The nodes that are regions."""
    return [node for node in made.graph.node if node.domain == DOMAIN and family_of(node) == REGION]


def run(made: ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs in onnxruntime, with its optimizations off."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))
