"""Terms → graph: writes what the search found back into the scope it came from.

A value whose term no rule touched keeps the node that computes it, byte for byte.  A touched value is computed anew:
its term is built from values that the graph has already, new nodes only where there is none.  Then what nobody uses
goes, and the rest is put into topological order as close to the original as possible.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from .bodies import Use, asks_for_shapes, function, is_standard, output_count, real_dtype
from .canonical import integers_as_input, make_attribute, tensor
from .graph import DOMAIN, STANDARD, Graph, captured_names
from .language import Catalogue
from .lift import RANDOM, View
from .match import Match
from .search import Found
from .shape_data import END
from .symbolic import Dim, Sym, exact, product
from .terms import REAL, SMALL, Term, is_number, static, value_of

MOVEMENT = frozenset(
    """Identity Cast Reshape Squeeze Unsqueeze Flatten Transpose Expand Tile Slice Concat Pad Split Gather GatherND
    Dropout Where Add Sub Mul Div Sum""".split()
)
"""Ops that may turn out to do nothing."""

VIEW_OPS = frozenset("Identity Reshape Squeeze Unsqueeze Flatten Transpose Expand Slice".split())

RULE_KEY, VERSION_KEY, REPLACED_KEY = "onnxfuse.rule", "onnxfuse.version", "onnxfuse.replaced"


@dataclass(frozen=True)
class Site:
    """One fused node that was written: the matches behind it, the node, and the value of the scope it computes."""

    matches: tuple[Match, ...]
    node: NodeProto
    value: str
    scope: str
    replaced: tuple[str, ...]
    term: Term
    dead: tuple[Term, ...]


@dataclass
class Names:
    """Hands out names that nothing in the model has."""

    taken: set[str]
    last: dict[str, int] = field(default_factory=dict)

    @staticmethod
    def of(model: ModelProto) -> Names:
        taken: set[str] = set()
        stack: list[Any] = [model.graph, *model.functions]
        while stack:
            graph = stack.pop()
            taken.update(i if isinstance(i, str) else i.name for i in graph.input)
            if isinstance(graph, GraphProto):
                taken.update(t.name for t in graph.initializer)
            for node in graph.node:
                taken.add(node.name)
                taken.update(node.output)
                for attribute in node.attribute:
                    if attribute.HasField("g"):
                        stack.append(attribute.g)
                    stack.extend(attribute.graphs)
        return Names(taken)

    def unique(self, base: str) -> str:
        name, n = base, self.last.get(base, 1)
        while name in self.taken:
            n += 1
            name = f"{base}_{n}"
        self.last[base] = n
        self.taken.add(name)
        return name


@dataclass
class Functions:
    """The functions that the fused nodes of one model call, one per use."""

    catalogue: Catalogue
    overloads: dict[tuple[int, Use], str] = field(default_factory=dict)
    per_op: dict[str, int] = field(default_factory=dict)

    def overload(self, use: Use, opset: int) -> str:
        known = self.overloads.get((opset, use))
        if known is None:
            self.per_op[use.op] = count = self.per_op.get(use.op, 0) + 1
            known = self.overloads[opset, use] = "" if count == 1 else str(count)
        return known

    def attach(self, model: ModelProto) -> None:
        """Add the functions, the domain's import, and the IR version that allows them (functions 8, overloads 10)."""
        if not self.overloads:
            return
        for (opset, use), overload in self.overloads.items():
            model.functions.append(function(use, overload, self.catalogue, opset))
        if all(entry.domain != DOMAIN for entry in model.opset_import):
            model.opset_import.add(domain=DOMAIN, version=1)
        least = 10 if any(self.overloads.values()) else 8
        model.ir_version = max(model.ir_version, least)


class Writer:
    """Edits one scope in place."""

    def __init__(self, view: View, found: Found, names: Names, functions: Functions, target: str) -> None:
        self.view, self.found, self.names, self.functions, self.target = view, found, names, functions, target
        self.graph: Graph = view.graph
        self.opset = self.graph.opset
        self.known: dict[int, list[tuple[float, str, int]]] = {}
        self.nodes: list[tuple[float, int, NodeProto]] = []
        self.constants: dict[str, TensorProto] = {}
        self.alias: dict[str, str] = {}
        self.sites: list[tuple[tuple[Match, ...], NodeProto, str, Term]] = []
        self._dims: dict[Dim, tuple[float, str, int]] = {}
        self._seen: dict[tuple[Any, ...], NodeProto] = {}
        self.pinned: set[str] = set()
        """Values that must keep their name: outputs, and what bodies of control flow read."""
        self.read: set[str] = set()
        """Values that something reads by name; other touched values are built only if a term needs them."""
        self.visited: set[int] = set()
        self.outputs_of: dict[int, list[str]] = {}
        """Fused ops with several outputs → the values that are such an output, in order."""
        self.anchors: dict[int, int] = {}
        """Fused ops with several outputs → position of the last value they compute."""

    # ------------------------------------------------------------------------------------- the scope

    def write(self) -> list[Site]:
        """Rewrite the scope; returns the fused nodes that are live."""
        graph, current = self.graph, self.found.current
        moved = set(self.found.touched)
        for node in graph.nodes:
            # A view of what is computed anew may have cancelled against it.
            if node.op_type in VIEW_OPS and len(node.output) == 1 and node.input[0] in moved:
                moved.add(node.output[0])
        self.found.touched |= moved - self.found.stale
        self.pinned = set(graph.outputs)
        live_nodes = self._demand()
        for index in live_nodes:
            node = graph.nodes[index]
            captured = captured_names(node) if has_bodies(node) else set()
            self.pinned |= captured
            if not self._all_touched(node):
                self.read.update(name for name in node.input)
        self.read |= self.pinned
        for name, term in current.items():
            if name not in graph.producer:
                self._register(term, -1.0, name, self.view.dtypes[name])
        for name, index in graph.producer.items():
            bound = current.get(name)
            if bound is not None and bound.op == "Output" and name in self.found.touched:
                whole = bound.args[0].id
                self.anchors[whole] = max(index, self.anchors.get(whole, -1))
                self.outputs_of.setdefault(whole, []).append(name)
        for index in sorted(live_nodes):
            self._visit(index)
        return self._assemble()

    def _demand(self) -> set[int]:
        """The nodes that the scope's outputs need: of a touched value, what its new term is built from."""
        graph, current = self.graph, self.found.current
        first: dict[int, str] = {}
        for name in sorted(current, key=lambda name: graph.producer.get(name, -1)):
            first.setdefault(current[name].id, name)
        wanted: set[int] = set()
        stack = [name for name in graph.outputs if name in graph.producer]
        while stack:
            index = graph.producer.get(stack.pop())
            if index is None or index in wanted:
                continue
            wanted.add(index)
            node = graph.nodes[index]
            if not self._all_touched(node):
                stack.extend(name for name in node.input if name)
                stack.extend(captured_names(node) if has_bodies(node) else ())
                continue
            terms = [a for name in node.output if name for a in current[name].args]
            while terms:
                term = terms.pop()
                if term.id in first:
                    stack.append(first[term.id])
                else:
                    terms.extend(term.args)
        return wanted

    def _visit(self, index: int) -> None:
        """Deal with one node of the original, and make its values known."""
        node = self.graph.nodes[index]
        self.visited.add(index)
        lazy = self._all_touched(node) and not any(name in self.read for name in node.output)
        if lazy:
            self.visited.discard(index)
            return
        if not self._replaced(node, index):
            for name in node.input:
                source = self.graph.producer.get(name)
                if source is not None and source not in self.visited:
                    self.read.add(name)
                    self._visit(source)
            self.nodes.append((index, 0, node))
        for name in node.output:
            if name and name not in self.alias:
                self._register(self.found.current[name], index, name, self.view.dtypes[name])

    def _replaced(self, node: NodeProto, index: int) -> bool:
        """Deal with a node that does not stay: computed anew, constant, nothing to do, or a duplicate."""
        outputs = [name for name in node.output if name]
        if outputs and self._all_touched(node):
            renewed = [self._renew(name, index) for name in outputs if name in self.read]
            return all(renewed)
        if len(outputs) != 1 or node.op_type == "Constant":
            return False
        name = outputs[0]
        term = self.found.current[name]
        if node.domain not in STANDARD:
            return False
        if term.op == "Constant" and name not in self.pinned and _element_count(term) <= SMALL:
            self._constant(term, self.view.dtypes[name], name)
            return True
        if name not in self.pinned:
            same = self._unchanged(node, term, name) or self._duplicate(node)
            if same is not None:
                self.alias[name] = same
                return True
        return False

    def _all_touched(self, node: NodeProto) -> bool:
        return any(node.output) and all(name in self.found.touched for name in node.output if name)

    def _renew(self, name: str, index: int) -> bool:
        """Compute a touched value from its new term.  False if that cannot be done here: then its node stays."""
        term, dtype = self.found.current[name], self.view.dtypes[name]
        limit = self.anchors.get(term.args[0].id, index) if term.op == "Output" else index
        try:
            source = self._realise(term, dtype, limit, "" if term.constant else name)
        except UnrealisableError:
            return False
        if source != name:
            if name in self.pinned:
                self._node("Identity", [source], {}, limit, name)
            else:
                self.alias[name] = source
        return True

    def _unchanged(self, node: NodeProto, term: Term, name: str) -> str | None:
        """The input that the node passes on as it is, if it is one that does nothing here."""
        if node.op_type not in MOVEMENT:
            return None
        for source in node.input:
            same = bool(source) and self.found.current.get(source) is term and self.view.terms_of[source] is term
            if same and term.shape is not None and self.view.dtypes.get(source) == self.view.dtypes[name]:
                return str(self.alias.get(source, source))
        return None

    def _duplicate(self, node: NodeProto) -> str | None:
        """The output of an earlier node that computes the same from the same inputs."""
        if node.op_type in RANDOM or node.op_type == "Dropout" or has_bodies(node):
            return None
        inputs = tuple(self.alias.get(i, i) for i in node.input)
        attrs = tuple(sorted(a.SerializeToString(deterministic=True) for a in node.attribute))
        earlier = self._seen.setdefault((node.op_type, node.domain, inputs, attrs), node)
        return None if earlier is node else str(self.alias.get(earlier.output[0], earlier.output[0]))

    # ------------------------------------------------------------------------------------- values

    def _register(self, term: Term, position: float, name: str, dtype: int) -> None:
        self.known.setdefault(term.id, []).append((position, name, dtype))
        for axis, dim in enumerate(term.shape or ()):
            if isinstance(dim, Sym) and dim not in self._dims:
                self._dims[dim] = (position, name, axis)

    def _lookup(self, term: Term, dtype: int, limit: float) -> tuple[str, int] | None:
        """A value with this term that is computed before `limit`, of the wanted dtype if there is one."""
        other = None
        for position, name, kind in self.known.get(term.id, ()):
            if position < limit and name not in self.alias:
                if kind == dtype or dtype not in REAL:
                    return name, kind
                other = other or (name, kind)
        return other

    def _realise(self, term: Term, dtype: int, limit: float, name: str = "") -> str:
        """The name of a value with this term and dtype, made before `limit` if there is none yet."""
        if term.op == "Absent":
            return ""
        if term.dtype not in REAL:
            dtype = term.dtype
        known = self._lookup(term, dtype, limit)
        if known is not None and (known[1] == dtype or known[1] not in REAL):
            return known[0]
        if term.constant:
            return self._constant(term, dtype, name)
        if known is not None:
            return self._node("Cast", [known[0]], {"to": dtype}, limit, name or f"{known[0]}_cast")
        made = self._build(term, dtype, limit, name)
        self._register(term, limit - 0.5, made, dtype)
        return made

    def _operand(self, term: Term, dtype: int, limit: float) -> str:
        """An operand of an op with a result of this dtype: of the same real type, or of its own if one is not real."""
        return self._realise(term, dtype if dtype in REAL and term.dtype in REAL else term.dtype, limit)

    def _constant(self, term: Term, dtype: int, name: str = "", base: str = "") -> str:
        if term.dtype not in REAL:
            dtype = term.dtype
        known = self._lookup(term, dtype, 0) if not name else None
        if known is not None and known[1] == dtype:
            return known[0]
        array = value_of(term)
        name = name or self.names.unique(base or f"onnxfuse/constant_{len(self.constants)}")
        self.constants[name] = tensor(array, name, dtype)
        self._register(term, -1.0, name, dtype)
        return name

    def _integers(self, values: Sequence[int], scalar: bool = False) -> str:
        array = np.array(values[0] if scalar else list(values), np.int64)
        return self._constant(self.view.terms.constant(array, TensorProto.INT64), TensorProto.INT64)

    def _node(
        self, op: str, inputs: Sequence[str], attrs: Mapping[str, Any], limit: float, name: str = "", domain: str = ""
    ) -> str:
        output = name if name and name in self.graph.producer else self.names.unique(name or f"onnxfuse/{op}")
        node = NodeProto(op_type=op, domain=domain, input=inputs, output=[output])
        node.name = self.names.unique(self._node_name(output, op))
        node.attribute.extend(make_attribute(k, v) for k, v in sorted(attrs.items()))
        self.nodes.append((limit - 0.5, len(self.nodes), node))
        return output

    def _node_name(self, output: str, op: str) -> str:
        """The module scope of the value's own node, and the op."""
        index = self.graph.producer.get(output)
        if index is None:
            return f"onnxfuse/{op}"
        own = self.graph.nodes[index].name
        return f"{own.rsplit('/', 1)[0]}/{op}" if "/" in own else (f"{own}_{op}" if own else op)

    # ------------------------------------------------------------------------------------- nodes

    def _build(self, term: Term, dtype: int, limit: float, name: str) -> str:
        """New nodes for one term."""
        op = term.op
        if op == "Output":
            return self._outputs(term, dtype, limit)
        if op in ("Add", "Mul") and dtype in REAL:
            return self._chain(term, dtype, limit, name)
        if op == "Integers":
            assert term.data is not None
            return self._shape_vector(term, limit, name)
        inputs = [self._operand(a, dtype, limit) for a in term.args]
        attrs = dict(term.attrs)
        if term.id in self.found.origins:
            return self._fused(term, inputs, attrs, dtype, limit, name)
        writer = getattr(self, f"_write_{op.lower()}", None)
        if writer is not None and "." not in op:
            return str(writer(term, inputs, attrs, limit, name))
        return self._plain(op, inputs, attrs, dtype, limit, name)

    def _plain(self, op: str, inputs: list[str], attrs: dict[str, Any], dtype: int, limit: float, name: str) -> str:
        domain, _, kind = op.rpartition(".")
        moved = integers_as_input(op, self.opset)
        if moved is not None and moved[1] in attrs:
            inputs = [*inputs, self._integers(attrs.pop(moved[1]))]
        if op == "Cast":
            attrs["to"] = dtype
        if op in ("Softmax", "LogSoftmax"):
            attrs.setdefault("axis", -1)
        return self._node(kind, inputs, attrs, limit, name, domain)

    def _fused(
        self,
        term: Term,
        inputs: list[str],
        attrs: dict[str, Any],
        dtype: int,
        limit: float,
        name: str,
        outputs: int = 1,
    ) -> str:
        matches = self.found.origins[term.id]
        rule = matches[-1].rule
        plain = term.op not in self.functions.catalogue.definitions or rule.rank < 2
        if plain or (self.target == "onnx" and is_standard(term.op, attrs, self.opset)):
            output = self._plain(term.op, inputs, attrs, dtype, limit, name)
            node = self.nodes[-1][2]
        else:
            output = self._node(term.op, inputs, attrs, limit, name, DOMAIN)
            node = self.nodes[-1][2]
            kinds = real_dtype([dtype, *(a.dtype for a in term.args)])
            shapes: tuple[tuple[int | None, ...] | None, ...] = ()
            if asks_for_shapes(self.functions.catalogue.definitions[term.op]):
                shapes = tuple(_static_dims(a) for a in term.args)
            use = Use(term.op, tuple(bool(i) for i in inputs), tuple(sorted(attrs.items())), outputs, kinds, shapes)
            node.overload = self.functions.overload(use, self.opset)
        self.sites.append((matches, node, output, term))
        return output

    def _outputs(self, term: Term, dtype: int, limit: float) -> str:
        """One output of a fused op with several: the node is written once, with every output that a value waits for."""
        whole, current = term.args[0], self.found.current
        wanted: dict[int, str] = {}
        for name in self.outputs_of.get(whole.id, ()):
            wanted.setdefault(current[name].attr("index"), name)
        index = term.attr("index")
        wanted.setdefault(index, "")
        inputs = [self._operand(a, dtype, limit) for a in whole.args]
        last = max(wanted)
        total = output_count(self.functions.catalogue, whole.op)
        first = self._fused(whole, inputs, dict(whole.attrs), dtype, limit, wanted.get(0, ""), max(total, last + 1))
        node = self.nodes[-1][2]
        names = [wanted.get(i, "") for i in range(max(total, last + 1))]
        names[0] = wanted.get(0) or first
        del node.output[:]
        node.output.extend(names)
        for i, name in enumerate(names):
            if name:
                part = self.view.terms.raw("Output", [whole], (("index", i),), shape=None, dtype=dtype)
                self._register(part, limit - 0.5, name, dtype)
        return str(names[index])

    def _chain(self, term: Term, dtype: int, limit: float, name: str) -> str:
        """A flat sum or product as binary nodes; differences and quotients as Sub and Div."""
        inverse, minus = ("Div", "Reciprocal") if term.op == "Mul" else ("Sub", "")
        result = ""
        operands = sorted(term.args, key=lambda a: a.op == "Reciprocal" or _negated(a) is not None)
        for i, operand in enumerate(operands):
            last = name if i == len(operands) - 1 else ""
            if result and minus and operand.op == minus and self._lookup(operand, dtype, limit) is None:
                below = self._realise(operand.args[0], dtype, limit)
                result = self._node(inverse, [result, below], {}, limit, last)
            elif result and not minus and _negated(operand) is not None and self._lookup(operand, dtype, limit) is None:
                positive = _negated(operand)
                assert positive is not None
                result = self._node(inverse, [result, self._realise(positive, dtype, limit)], {}, limit, last)
            else:
                value = self._realise(operand, dtype, limit)
                result = self._node(term.op, [result, value], {}, limit, last) if result else value
        return result

    def _write_reshape(self, term: Term, inputs: list[str], attrs: dict[str, Any], limit: float, name: str) -> str:
        if len(inputs) > 1:
            return self._plain("Reshape", inputs, attrs, term.dtype, limit, name)
        target, source = attrs["shape"], term.args[0].shape or ()
        dims: list[Dim] = [
            0 if i < len(source) and d == source[i] and isinstance(d, Sym) else d for i, d in enumerate(target)
        ]
        open_dims = [i for i, d in enumerate(dims) if isinstance(d, Sym)]
        if len(open_dims) == 1:
            i = open_dims[0]
            rest = product(d for j, d in enumerate(target) if j != i)
            if exact(product(source), rest) == target[i]:
                dims[i] = -1
                open_dims = []
        shape = (
            self._integers([d for d in dims if not isinstance(d, Sym)])
            if not open_dims
            else self._dims_of(target, limit)
        )
        return self._node("Reshape", [inputs[0], shape], {}, limit, name)

    def _write_expand(self, term: Term, inputs: list[str], attrs: dict[str, Any], limit: float, name: str) -> str:
        if len(inputs) > 1:
            return self._plain("Expand", inputs, attrs, term.dtype, limit, name)
        target, source = attrs["shape"], term.args[0].shape or ()
        offset = len(target) - len(source)
        dims = [1 if i >= offset and d == source[i - offset] else d for i, d in enumerate(target)]
        return self._node("Expand", [inputs[0], self._dims_of(dims, limit)], {}, limit, name)

    def _write_transpose(self, term: Term, inputs: list[str], attrs: dict[str, Any], limit: float, name: str) -> str:
        return self._node("Transpose", inputs, {"perm": attrs["perm"]} if "perm" in attrs else {}, limit, name)

    def _write_slice(self, term: Term, inputs: list[str], attrs: dict[str, Any], limit: float, name: str) -> str:
        if "start" not in attrs:
            return self._plain("Slice", inputs, attrs, term.dtype, limit, name)
        bounds = [attrs["start"], attrs["stop"]]
        if self.opset < 10:
            plain = {"starts": (bounds[0],), "ends": (bounds[1],), "axes": (attrs["axis"],)}
            return self._node("Slice", inputs, plain, limit, name)
        vectors = [self._dims_of([END if b is None else b], limit) for b in bounds]
        steps = [self._integers([attrs["step"]])] if attrs["step"] != 1 else []
        return self._node("Slice", [*inputs, *vectors, self._integers([attrs["axis"]]), *steps], {}, limit, name)

    def _write_repeat(self, term: Term, inputs: list[str], attrs: dict[str, Any], limit: float, name: str) -> str:
        x, axis, n = term.args[0], attrs["axis"], attrs["n"]
        shape = x.shape or ()
        terms = self.view.terms
        split = terms.raw(
            "Reshape",
            [x],
            (("shape", (*shape[: axis + 1], 1, *shape[axis + 1 :])),),
            shape=(*shape[: axis + 1], 1, *shape[axis + 1 :]),
            dtype=x.dtype,
        )
        wide = (*shape[: axis + 1], n, *shape[axis + 1 :])
        expanded = terms.raw("Expand", [split], (("shape", wide),), shape=wide, dtype=x.dtype)
        dtype = self.view.dtypes.get(inputs[0], x.dtype)
        source = self._realise(expanded, dtype, limit)
        merged = terms.raw("Reshape", [expanded], (("shape", term.shape),), shape=term.shape, dtype=x.dtype)
        return self._write_reshape(merged, [source], dict(merged.attrs), limit, name)

    def _write_concat(self, term: Term, inputs: list[str], attrs: dict[str, Any], limit: float, name: str) -> str:
        axis = attrs["axis"]
        if axis < 0 and self.opset < 11 and term.shape is not None:
            axis += len(term.shape)
        return self._node("Concat", inputs, {"axis": axis}, limit, name)

    # ------------------------------------------------------------------------------------- dimensions

    def _shape_vector(self, term: Term, limit: float, name: str) -> str:
        assert term.data is not None
        vector = self._dims_of(list(term.data.ravel()), limit)
        if term.data.ndim == 0:
            return self._node("Squeeze", [vector], {}, limit, name)
        return vector

    def _dims_of(self, dims: Sequence[Dim], limit: float) -> str:
        """A vector of dimensions: a constant where all are known, else gathered from shapes of existing values."""
        if not any(isinstance(d, Sym) for d in dims):
            return self._integers([d for d in dims if not isinstance(d, Sym)])
        parts = [self._dim(d, limit) for d in dims]
        return parts[0] if len(parts) == 1 else self._node("Concat", parts, {"axis": 0}, limit)

    def _dim(self, dim: Dim, limit: float) -> str:
        """One dimension as a vector of length 1."""
        if not isinstance(dim, Sym):
            return self._integers([dim])
        place = self._dims.get(dim)
        if place is not None and place[0] < limit:
            _, name, axis = place
            shape = self._node("Shape", [self.alias.get(name, name)], {}, limit)
            return self._node("Gather", [shape, self._integers([axis])], {"axis": 0}, limit)
        total = ""
        for monomial, coefficient in dim.terms:
            factors = [self._symbol(s, limit) for s in monomial]
            if coefficient != 1 or not factors:
                factors.append(self._integers([coefficient]))
            value = factors[0]
            for factor in factors[1:]:
                value = self._node("Mul", [value, factor], {}, limit)
            total = self._node("Add", [total, value], {}, limit) if total else value
        return total

    def _symbol(self, name: str, limit: float) -> str:
        place = self._dims.get(Sym((((name,), 1),)))
        if place is None or place[0] >= limit:
            raise UnrealisableError(f"dimension {name} is not the size of any value at this place")
        shape = self._node("Shape", [self.alias.get(place[1], place[1])], {}, limit)
        return self._node("Gather", [shape, self._integers([place[2]])], {"axis": 0}, limit)

    # ------------------------------------------------------------------------------------- assembling

    def _assemble(self) -> list[Site]:
        """Drop what nobody uses, order the rest, and put it into the proto."""
        graph = self.graph
        producer: dict[str, int] = {}
        entries = self.nodes
        for i, (_, _, node) in enumerate(entries):
            for name in node.output:
                if name:
                    producer[name] = i
        reads = [self._reads(node) for _, _, node in entries]
        live_nodes: set[int] = set()
        stack = [producer[o] for o in (self.alias.get(o, o) for o in graph.outputs) if o in producer]
        while stack:
            i = stack.pop()
            if i not in live_nodes:
                live_nodes.add(i)
                stack.extend(producer[r] for r in reads[i] if r in producer)
        ordered = _sort(entries, live_nodes, reads, producer)
        made = {name for i in live_nodes for name in entries[i][2].output}
        sites = self._provenance({id(entries[i][2]) for i in live_nodes}, made)
        for i in ordered:
            node = entries[i][2]
            if any(name in self.alias for name in node.input):
                inputs = [self.alias.get(name, name) for name in node.input]
                del node.input[:]
                node.input.extend(inputs)
        used = {r for i in ordered for r in reads[i]} | set(graph.outputs)
        self._splice([entries[i][2] for i in ordered], used)
        return sites

    def _reads(self, node: NodeProto) -> set[str]:
        names = {self.alias.get(name, name) for name in node.input if name}
        if has_bodies(node):
            names |= captured_names(node)
        return names

    def _splice(self, nodes: list[NodeProto], used: set[str]) -> None:
        proto = self.graph.proto
        kept = {name for node in nodes for name in node.output}
        constants = [self.constants[n] for n in sorted(self.constants) if n in used]
        if isinstance(proto, GraphProto):
            inputs = {i.name for i in proto.input}
            gone = [t.name for t in proto.initializer if t.name not in used and t.name not in inputs]
            del proto.node[:]
            proto.node.extend(nodes)
            for i in reversed(range(len(proto.initializer))):
                if proto.initializer[i].name in set(gone) or proto.initializer[i].name in self.constants:
                    del proto.initializer[i]
            proto.initializer.extend(constants)
            kept |= inputs | {t.name for t in proto.initializer}
            for i in reversed(range(len(proto.value_info))):
                if proto.value_info[i].name not in kept:
                    del proto.value_info[i]
        else:
            heads = []
            for constant in constants:
                heads.append(NodeProto(op_type="Constant", output=[constant.name]))
                heads[-1].attribute.append(helper.make_attribute("value", constant))
            del proto.node[:]
            proto.node.extend([*heads, *nodes])
            if any(node.domain == DOMAIN for node in nodes) and all(o.domain != DOMAIN for o in proto.opset_import):
                proto.opset_import.add(domain=DOMAIN, version=1)

    def _provenance(self, alive: set[int], made: set[str]) -> list[Site]:
        """Which original nodes each live fused node stands for: those behind its outputs, as far as values are gone.

        `alive` are the nodes that are written (by id), `made` the values that they compute."""
        result = []
        for matches, node, output, term in self.sites:
            if id(node) not in alive:
                continue
            stack = [name for name in node.output if name in self.graph.producer]
            seen: set[int] = set()
            while stack:
                index = self.graph.producer.get(stack.pop())
                if index is not None and index not in seen:
                    seen.add(index)
                    stack.extend(name for name in self.graph.nodes[index].input if name not in made)
            replaced = [self.graph.nodes[i] for i in sorted(seen) if self.graph.nodes[i].op_type != "Constant"]
            names = tuple(n.name or n.output[0] for n in replaced)
            rule = matches[-1].rule
            for key, value in ((RULE_KEY, rule.name), (VERSION_KEY, rule.version), (REPLACED_KEY, " ".join(names))):
                node.metadata_props.add(key=key, value=value)
            self._inherit(node, replaced)
            dead = tuple(self.view.terms_of[n.output[0]] for n in replaced if n.output and n.output[0])
            result.append(Site(matches, node, output, self.graph.path, names, term, dead))
        return result

    @staticmethod
    def _inherit(node: NodeProto, replaced: Sequence[NodeProto]) -> None:
        """What an exporter noted on the replaced nodes alike (module path, source line) holds for the fused one."""
        for entry in replaced[-1].metadata_props if replaced else ():
            if all(any(e.key == entry.key and e.value == entry.value for e in r.metadata_props) for r in replaced):
                node.metadata_props.add(key=entry.key, value=entry.value)


class UnrealisableError(Exception):
    """A term that cannot be computed from the values at hand; the fusion behind it is left out."""


def has_bodies(node: NodeProto) -> bool:
    return any(a.HasField("g") or a.graphs for a in node.attribute)


def _sort(
    entries: Sequence[tuple[float, int, NodeProto]],
    live_nodes: set[int],
    reads: Sequence[set[str]],
    producer: Mapping[str, int],
) -> list[int]:
    """Topological order that follows the original positions wherever it can.  Raises UnrealisableError on a cycle."""
    waiting: dict[int, int] = {}
    users: dict[int, list[int]] = {}
    for i in live_nodes:
        sources = {producer[r] for r in reads[i] if r in producer} & live_nodes
        waiting[i] = len(sources)
        for s in sources:
            users.setdefault(s, []).append(i)
    heap = [(entries[i][0], entries[i][1], i) for i, count in waiting.items() if not count]
    heapq.heapify(heap)
    ordered = []
    while heap:
        _, _, i = heapq.heappop(heap)
        ordered.append(i)
        for user in users.get(i, ()):
            waiting[user] -= 1
            if not waiting[user]:
                heapq.heappush(heap, (entries[user][0], entries[user][1], user))
    if len(ordered) < len(live_nodes):
        raise UnrealisableError("the fused nodes would wait for each other")
    return ordered


def _negated(term: Term) -> Term | None:
    """x of (-1) * x, else None."""
    if term.op == "Mul" and len(term.args) == 2 and is_number(term.args[1]) and term.args[1].scalar == -1:
        return term.args[0]
    return None


def _static_dims(term: Term) -> tuple[int | None, ...] | None:
    return None if term.shape is None else tuple(None if isinstance(d, Sym) else d for d in term.shape)


def _element_count(term: Term) -> int:
    dims = static(term.shape)
    return SMALL + 1 if dims is None else int(np.prod(dims, dtype=np.int64))
