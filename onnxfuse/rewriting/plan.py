"""What is to be added to a scope: a draft of the scope to be, and plans, of which nothing is in it before `commit`.

    draft --realize(term)--> plan --commit--> draft

So a plan is also the answer to what a value would cost: nobody has to count beside it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto

from onnxfuse.language.functions import Functions
from onnxfuse.lifting.constants import reader
from onnxfuse.lifting.view import View
from onnxfuse.matching.match import Match
from onnxfuse.matching.search import Found
from onnxfuse.model.graph import DOMAIN, Names, family
from onnxfuse.model.op_traits import CASTS
from onnxfuse.model.schema import make_attribute, tensor
from onnxfuse.terms.blockwise import Blockwise
from onnxfuse.terms.fold import folded
from onnxfuse.terms.term import HALF, REAL, SMALL, Array, Term, UnknownValueError

from .available import Available


class UnrealisableError(Exception):
    """A term that cannot be computed from the values at hand; the fusion behind it is left out."""


class Draft:
    """A scope as it is to be: its own nodes that stay, and new ones."""

    def __init__(
        self,
        view: View,
        found: Found,
        names: Names,
        functions: Functions,
        usable: Callable[[str], bool] | None = None,
    ) -> None:
        self.view, self.found, self.names, self.functions = view, found, names, functions
        self.graph = view.graph
        self.opset = self.graph.opset
        self.ops = {node.op_type for node in self.graph.nodes}
        """The ops that the scope has already."""
        self.nodes: list[tuple[float, int, NodeProto]] = []
        """(position, tie-break, node) of everything that is to be in the scope."""
        self.constants: dict[str, TensorProto] = {}
        self.alias: dict[str, str] = {}
        """Values that are gone → the value that stands for each."""
        self.fused: list[tuple[tuple[Match, ...], NodeProto, str, Term]] = []
        """(matches, node, output, term) of every fused node."""
        self.outputs_of: dict[int, list[str]] = {}
        """Fused ops with several outputs → the values that are such an output, in order."""
        self.parts: dict[int, set[int]] = {}
        """Fused ops with several outputs → which of them something needs."""
        self.declared: dict[str, tuple[Term, int]] = {}
        """Values that have to be declared → (term, element type): onnx's shape inference of Attention-23 takes an
        unknown size of V for 0, and sees nothing behind an op of another domain."""
        self.vacant: dict[int, list[str]] = {}
        """Terms → values whose own nodes are gone: where a new node computes the same, it takes their name."""
        self.named: set[str] = set()
        """Values that some node of the scope to be gives: their own, or a new one."""
        self.once: set[int] = set()
        """Terms that a single other one is computed from."""
        gone = self.alias  # not by way of the draft: with what it holds, it goes as soon as nobody asks for it
        self.available = Available(usable or (lambda name: name not in gone))

    @cached_property
    def rounded(self) -> frozenset[tuple[int, int]]:
        """The terms (ids) of values that the scope has in half precision, whatever it has them in besides, each with
        that type."""
        current = self.found.current
        return frozenset((current[n].id, kind) for n, kind in self.view.dtypes.items() if kind in HALF and n in current)

    @cached_property
    def casts(self) -> Mapping[str, int]:
        """Values → how many Casts of the scope read each."""
        return Counter(name for node in self.graph.nodes if node.op_type in CASTS for name in node.input)

    def register(self, term: Term, position: float, name: str, dtype: int) -> None:
        """A value with this term is computed at this position."""
        self.available.add(term, position, name, dtype)
        self.named.add(name)

    def commit(self, plan: Plan) -> str:
        """Add what was planned; the name of the value it was planned for.

        Raises UnrealisableError, with nothing added, if the elements of a constant are not known."""
        try:
            constants = {name: initializer(term, name, dtype) for name, (term, dtype) in plan.constants.items()}
        except UnknownValueError as error:
            raise UnrealisableError(str(error)) from error
        self.constants |= constants
        protos = {id(node): node.proto() for node in plan.nodes}
        self.nodes += [(n.position, len(self.nodes) + i, protos[id(n)]) for i, n in enumerate(plan.nodes)]
        self.fused += [(matches, protos[id(node)], value, term) for matches, node, value, term in plan.fused]
        self.declared |= plan.declared
        self.named |= plan.named
        for term, name in plan.occupied:
            self.vacant[term.id].remove(name)
        plan.available.keep()
        plan.names.keep()
        return plan.value


def initializer(term: Term, name: str, dtype: int) -> TensorProto:
    """What a constant term is stored as; where each block has its own, it is noted how that is computed."""
    value = folded(term)
    if not isinstance(value, Blockwise):
        return tensor(value, name, dtype)
    own = value.written(dtype, lambda array: reader(tensor(array, "", dtype), None)())
    made = tensor(own.here, name, dtype)
    small = math.prod(made.dims) <= SMALL  # and read again as what it holds
    made.doc_string = (own.family.families.small(own) if small else own).tag
    return made


@dataclass
class NewNode:
    """A node to be added just before a position."""

    op: str
    inputs: list[str]
    attrs: dict[str, Any]
    outputs: list[str]
    name: str
    domain: str
    position: float

    def proto(self) -> NodeProto:
        node = NodeProto(op_type=self.op, domain=self.domain, input=self.inputs, output=self.outputs, name=self.name)
        node.attribute.extend(make_attribute(k, v) for k, v in sorted(self.attrs.items()))
        return node


@dataclass
class Plan:
    """Nodes and initializers to be added to a draft, which it reads and does not change."""

    draft: Draft
    value: str = ""
    """The value that all is planned for."""
    nodes: list[NewNode] = field(default_factory=list)
    constants: dict[str, tuple[Term, int]] = field(default_factory=dict)
    """Initializers to be → (constant term, element type)."""
    fused: list[tuple[tuple[Match, ...], NewNode, str, Term]] = field(default_factory=list)
    declared: dict[str, tuple[Term, int]] = field(default_factory=dict)
    named: set[str] = field(default_factory=set)
    occupied: list[tuple[Term, str]] = field(default_factory=list)
    """Vacant names that are taken."""

    def __post_init__(self) -> None:
        self.available = self.draft.available.over()
        self.names = self.draft.names.tentative()

    @property
    def sources(self) -> set[str]:
        """The values of the draft that it reads."""
        own = {name for node in self.nodes for name in node.outputs} | self.constants.keys()
        read = {name for node in self.nodes for name in node.inputs}
        return (read | {self.value}) - {""} - own

    def register(self, term: Term, position: float, name: str, dtype: int) -> None:
        """A value with this term is computed at this position."""
        self.available.add(term, position, name, dtype)
        self.named.add(name)

    def find(self, term: Term, dtype: int, limit: float) -> tuple[str, int] | None:
        """A value with this term, see `Available.find`."""
        return self.available.find(term, dtype, limit)

    def node(
        self, op: str, inputs: Sequence[str], attrs: dict[str, Any], limit: float, name: str = "", domain: str = ""
    ) -> str:
        """A new node just before `limit`; the name of its output, which is `name` if that is a value of the scope.

        Raises UnrealisableError for an op that the graph does not have and the target has no kernel for."""
        draft = self.draft
        if domain == "" and op not in draft.ops and not draft.functions.catalogue.target.has_edition(op, draft.opset):
            raise UnrealisableError(f"the provider has no kernel for {op} at opset {draft.opset}")
        kind = family(op) if domain == DOMAIN else op
        output = name if name and name in draft.graph.producer else self.names.unique(name or f"onnxfuse/{kind}")
        own = self.names.unique(self._node_name(output, kind))
        self.nodes.append(NewNode(op, list(inputs), attrs, [output], own, domain, limit - 0.5))
        return output

    def _node_name(self, output: str, op: str) -> str:
        """The module scope of the value's own node, and the op."""
        index = self.draft.graph.producer.get(output)
        if index is None:
            return f"onnxfuse/{op}"
        own = self.draft.graph.nodes[index].name
        return f"{own.rsplit('/', 1)[0]}/{op}" if "/" in own else (f"{own}_{op}" if own else op)

    def constant(self, term: Term, dtype: int, name: str = "") -> str:
        """The name of an initializer with the elements of a constant term."""
        if term.dtype not in REAL:
            dtype = term.dtype
        known = self.find(term, dtype, 0) if not name else None
        if known is not None and known[1] == dtype:
            return known[0]
        name = name or self.names.unique(f"onnxfuse/constant_{len(self.draft.constants) + len(self.constants)}")
        self.constants[name] = (term, dtype)
        self.register(term, -1.0, name, dtype)
        return name

    def integers(self, values: Sequence[int]) -> str:
        """The name of an initializer with these integers."""
        array: Array = np.array(list(values), np.int64)
        return self.constant(self.draft.view.terms.constant(array, TensorProto.INT64), TensorProto.INT64)

    def vacant_name(self, term: Term, dtype: int) -> str:
        """A name that the term had, for this element type; "" if there is none."""
        draft = self.draft
        names: Iterable[str] = draft.vacant.get(term.id, ())
        taken = {name for _, name in self.occupied}
        name = next((n for n in names if n not in taken and draft.view.dtypes[n] == dtype), "")
        if name:
            self.occupied.append((term, name))
        return name
