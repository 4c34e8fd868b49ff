"""Tensors are found wherever a model can hold them."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxfuse.model.tensors import bodies, tensors
from tests import broken


def test_tensors_are_found_everywhere() -> None:
    def constant(name: str) -> onnx.NodeProto:
        tensor = numpy_helper.from_array(np.zeros(1, np.float32), name)
        return helper.make_node("Constant", [], [name], value=tensor)

    body = helper.make_graph([constant("in body")], "body", [], [broken.value("in body", (1,))])
    body.initializer.append(numpy_helper.from_array(np.zeros(1, np.float32), "of body"))
    branch = helper.make_node("If", ["c"], ["b"], then_branch=body, else_branch=body)
    model = broken.model([constant("in graph"), branch], initializers=broken.norm_constants())
    model.functions.append(
        helper.make_function("d", "F", [], ["in function"], [constant("in function")], [helper.make_opsetid("", 17)])
    )
    names = sorted(tensor.name for tensor in tensors(model))
    twice = ["in body", "of body"]
    assert names == sorted([*twice, *twice, "two", "eps", "gamma", "beta", "in graph", "in function"])


def named(name: str) -> onnx.TensorProto:
    return numpy_helper.from_array(np.zeros(1, np.float32), name)


def sparse(name: str) -> onnx.SparseTensorProto:
    indices = numpy_helper.from_array(np.zeros(1, np.int64), f"where {name}")
    return onnx.SparseTensorProto(values=named(name), indices=indices, dims=[4])


def test_values_and_indices_of_sparse_tensors_are_tensors() -> None:
    model = broken.model([helper.make_node("Constant", [], ["c"], sparse_value=sparse("of attribute"))])
    model.graph.sparse_initializer.append(sparse("of graph"))
    found = sorted(tensor.name for tensor in tensors(model))
    assert found == ["of attribute", "of graph", "where of attribute", "where of graph"]


def test_lists_of_tensors_in_attributes_are_found() -> None:
    node = helper.make_node("F", [], ["y"], domain="d", tables=[named("a"), named("b")])
    assert [tensor.name for tensor in tensors(broken.model([node]))] == ["a", "b"]


def test_training_graphs_are_bodies() -> None:
    model = broken.good()
    info = model.training_info.add()
    info.algorithm.initializer.append(named("rate"))
    info.initialization.initializer.append(named("start"))
    assert sorted(tensor.name for tensor in tensors(model)) == ["rate", "start", "w"]
    assert len(list(bodies(model))) == 3
