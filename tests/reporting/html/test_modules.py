"""The tree of modules: what is in it, what is joined, what is alike."""

from __future__ import annotations

from onnxfuse.reporting.html.modules import DEEPEST, Module, tree
from onnxfuse.reporting.records import Node, Nodes

from .made import layered, node


def of(*after: Node, before: tuple[Node, ...] = ()) -> Module:
    return tree(Nodes("h200", before, after))


def outline(module: Module) -> object:
    """Names, with the numbers of nodes."""
    return module.name, module.nodes, [outline(child) for child in module.children]


def test_nodes_stand_in_their_modules() -> None:
    found = of(node("a", "Add"), node("b", "Mul", "/enc"), node("c", "Mul", "/enc/norm"), node("d", "Add", "/head"))
    assert outline(found) == ("", [0], [("enc", [1], [("norm", [2], [])]), ("head", [3], [])])


def test_a_module_with_nothing_but_another_is_one_with_it() -> None:
    found = of(node("a", "Add", "/bert/encoder/layer"), node("b", "Add", "/head"))
    assert outline(found) == ("", [], [("bert/encoder/layer", [0], []), ("head", [1], [])])
    assert found.children[0].path == "/bert/encoder/layer"


def test_layers_that_are_alike_are_one() -> None:
    after = [node("a", op, f"/enc/layer.{i}/{part}") for i in range(12) for part, op in (("q", "Add"), ("k", "Mul"))]
    (encoder,) = of(*after).children
    (layers,) = encoder.children
    assert (encoder.name, layers.name, layers.path) == ("enc", "layer.0-11", "/enc/layer.0-11")
    assert (layers.alike, len(layers.children)) == (True, 12)
    assert layers.nodes == []
    assert outline(layers.children[3]) == ("layer.3", [], [("q", [6], []), ("k", [7], [])])


def test_a_layer_that_is_different_stands_by_itself() -> None:
    """One that was not fused is what a reader looks for."""
    after = [node("a", "Swish", f"/layer.{i}", fusion=None if i == 2 else 0) for i in range(5)]
    assert [child.name for child in of(*after).children] == ["layer.0-1,3-4", "layer.2"]
    gone = node("g", "Cast", "/layer.3")
    found = of(*(node("a", "Swish", f"/layer.{i}") for i in range(5)), before=(gone,))
    assert [child.name for child in found.children] == ["layer.0-2,4", "layer.3"]
    assert found.children[1].gone == [0]


def test_what_became_something_is_not_gone() -> None:
    before = (node("a", "Add", "/x", becomes=0), node("b", "Cast", "/x"))
    assert of(node("a", "Add", "/x"), before=before).children[0].gone == [1]


def test_a_name_of_nothing_but_slashes_is_no_deep_tree() -> None:
    found, depth = of(node("a", "Add", "/x" * 5000), node("b", "Add", "/x" * 5001)), 0
    while found.children:
        (found,), depth = found.children, depth + 1
    assert (found.nodes, found.path) == ([0, 1], "/x" * DEEPEST)
    assert depth == 1, "modules with nothing but another are one"


def test_plain_data_has_nothing_empty() -> None:
    found = of(node("a", "Add", "/x.0"), node("a", "Add", "/x.1")).to_json()
    members = [{"name": f"x.{i}", "path": f"/x.{i}", "nodes": [i]} for i in range(2)]
    assert found == {
        "name": "",
        "path": "",
        "children": [{"name": "x.0-1", "path": "/x.0-1", "children": members, "alike": True}],
    }


def test_every_node_is_in_the_tree_once() -> None:
    found = layered(6, 40)
    assert found.nodes is not None
    seen: list[int] = []

    def visit(module: Module) -> None:
        seen.extend(module.nodes)
        for child in module.children:
            visit(child)

    visit(tree(found.nodes))
    assert sorted(seen) == list(range(len(found.nodes.after)))
