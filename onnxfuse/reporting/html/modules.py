"""The modules of a model as a tree, with the nodes of both its forms in them, layers that are alike as one."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from onnxfuse.reporting.layers import together, words
from onnxfuse.reporting.records import Node, Nodes

DEEPEST = 60
"""Modules in each other; no program has as many, but a name may have any number of slashes."""


@dataclass
class Module:
    """A module, or several that are alike: then these are its children, and it has no nodes of its own."""

    name: str
    """Its last part; several where nothing else stands in the outer ones: ``bert/encoder``."""
    path: str
    children: list[Module] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    """Those of the output, in order."""
    gone: list[int] = field(default_factory=list)
    """Those of the original that nothing in the output has to stand for."""
    alike: bool = False
    """Whether it stands for its children, which differ in numbers alone."""

    def to_json(self) -> dict[str, Any]:
        """As plain data, without what is empty."""
        found: dict[str, Any] = {"name": self.name, "path": self.path}
        if self.children:
            found["children"] = [child.to_json() for child in self.children]
        return found | {key: value for key in ("nodes", "gone", "alike") if (value := getattr(self, key))}


def tree(nodes: Nodes) -> Module:
    """All nodes of the output, and those of the original that are gone, by module path."""
    found = {"": Module("", "")}
    for index, node in enumerate(nodes.after):
        _at(found, _bounded(node.scope)).nodes.append(index)
    for index, node in enumerate(nodes.before):
        if node.becomes is None:
            _at(found, _bounded(node.scope)).gone.append(index)
    return _collapsed(_joined(found[""]), nodes)[0]


def _bounded(path: str) -> str:
    """A path with no more than DEEPEST modules in each other."""
    return "/".join(path.split("/")[: DEEPEST + 1])


def _at(found: dict[str, Module], path: str) -> Module:
    """The module of a path, made with those around it."""
    if path not in found:
        outer, _, name = path.rpartition("/")
        found[path] = Module(name, path)
        _at(found, outer).children.append(found[path])
    return found[path]


def _joined(module: Module) -> Module:
    """With modules that have nothing but one other as one with it; the root stays by itself."""
    module.children = [_joined(child) for child in module.children]
    if module.path and len(module.children) == 1 and not module.nodes and not module.gone:
        (only,) = module.children
        only.name = f"{module.name}/{only.name}"
        return only
    return module


def _collapsed(module: Module, nodes: Nodes) -> tuple[Module, object]:
    """With children that are alike as one, and what has to be the same for two modules to be alike."""
    groups: dict[object, list[Module]] = defaultdict(list)
    for child in module.children:
        made, form = _collapsed(child, nodes)
        groups[words(made.name), form].append(made)
    module.children = [_group(members) for members in groups.values()]
    after = tuple(_kind(nodes.after[index]) for index in module.nodes)
    before = tuple(sorted(_kind(nodes.before[index]) for index in module.gone))
    return module, (after, before, tuple((form, len(members)) for form, members in groups.items()))


def _kind(node: Node) -> tuple[str, int, bool]:
    return node.op, node.launches, node.fusion is None


def _group(members: list[Module]) -> Module:
    if len(members) == 1:
        return members[0]
    outer = members[0].path[: len(members[0].path) - len(members[0].name)]
    name = together([member.name for member in members])
    return Module(name, outer + name, members, alike=True)
