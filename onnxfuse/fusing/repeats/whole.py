"""Few blocks, fused → all of them: each block that was left out is the one before it under other names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

from onnxfuse.fusing.fused import Fused
from onnxfuse.fusing.naming import Naming, named
from onnxfuse.lifting.view import View
from onnxfuse.model.protobuf import part
from onnxfuse.model.schema import tensor
from onnxfuse.terms.blockwise import Families, Family

from .alike import DifferentError, Ref, Template, Written
from .few import LISTS, Few
from .moves import Moves
from .runs import HEAD
from .told import Telling


@dataclass(frozen=True)
class Line:
    """A node that is to be written."""

    node: NodeProto
    at: int
    """The node written for few blocks that it is, or that it is a copy of."""
    blocks: int = 0
    """How many blocks on."""


def whole(few: Few, fused: Fused, naming: Naming, view: View) -> tuple[Fused, list[list[NodeProto]]]:
    """The whole model fused, as few blocks of it were; also what of it each node stands for that was written for those.

    Raises DifferentError."""
    written, templates = alike(few, fused.model, naming, view.families)
    moves = Moves(few, templates, naming.given)
    writing = _Writing(written, moves, templates)
    lines = list(writing.lines())
    telling = Telling(fused, few, moves, templates, written, view)
    telling.annotate((line.node, line.at, line.blocks) for line in lines)
    model = _assembled(written, fused.model, lines, moves, templates)
    model.graph.initializer.extend(writing.constants())
    made = list(model.graph.node)
    copies: list[list[NodeProto]] = [[] for _ in written.nodes]
    names: dict[tuple[int, int], NodeProto] = {}
    for node, line in zip(made, lines, strict=True):
        copies[line.at].append(node)
        names[line.at, line.blocks] = node
    return named(telling.told(model, names), naming), copies


def alike(few: Few, model: ModelProto, naming: Naming, families: Families | None) -> tuple[Written, list[Template]]:
    """What few blocks became of which this is the model, and the block of each run that is to be written again.

    Raises DifferentError where they are not alike."""
    written = Written(few, model.graph, naming.given, families)
    templates = [written.template(run) for run in few.runs]
    if any(one.stop > two.first for one, two in pairwise(templates)):
        raise DifferentError("what is written of two runs is mixed")
    return written, templates


class _Writing:
    """Writes nodes: those of few blocks, and what stands between them."""

    def __init__(self, written: Written, moves: Moves, templates: Sequence[Template]) -> None:
        self.written, self.moves, self.codes = written, moves, written.few.codes
        self.templates = templates
        self._constants: dict[str, tuple[Family, int]] = {}

    def constants(self) -> Iterator[TensorProto]:
        """New constants of which each block has its own, computed of what it has."""
        for name, (family, block) in self._constants.items():
            yield tensor(family.at(block), name, self.written.types[family])

    def _constant(self, family: Family, block: int) -> str:
        """What a constant of a block is called until all have names."""
        name = _copy_of(f"onnxfuse/constant {family.number} of block", block)
        self._constants[name] = family, block
        return name

    def lines(self) -> Iterator[Line]:
        """All nodes in order."""
        at = 0
        for template in self.templates:
            yield from (Line(self._there(node), node) for node in range(at, template.stop))
            yield from self._copies(template)
            at = template.stop
        yield from (Line(self._there(node), node) for node in range(at, len(self.written.nodes)))

    def _there(self, at: int) -> NodeProto:
        """A node that was written for few blocks, under the names of the whole."""
        node = self.written.nodes[at]
        own = self.written.own(node)
        inputs = [self._value(name, at) for name in node.input]
        if own is not None:
            source = self.codes.nodes[self.moves.node_at(own, at)]
            return source if inputs == source.input else _with(source, inputs)
        return _with(node, inputs, [self._value(name, at) for name in node.output])

    def _value(self, name: str, at: int) -> str:
        made, own = self.written.made.get(name), self.written.constants.get(name)
        if own is not None and name not in self.written.place:
            return self._constant(*self.moves.constant_at(own, at))
        if made is None:
            return self.moves.value_at(name, at)
        for template in self.templates:
            if at >= template.stop > made[0] and name not in template.same:
                length = template.stop - template.first
                if made[0] >= template.first:
                    return _copy_of(name, template.run.gap)
                if made[0] >= template.first - length:
                    raise DifferentError(f"{name} is read far from where it is made", template.run)
        return name

    def _copies(self, template: Template) -> Iterator[Line]:
        """The blocks of a run that were left out."""
        run, nodes = template.run, self.written.nodes[template.first : template.stop]
        owned = [self.written.own(node) for node in nodes]
        steady = [
            own is not None and self._steady(own, refs[0], template)
            for own, refs in zip(owned, template.refs, strict=True)
        ]
        for blocks in range(1, run.gap + 1):
            for offset, (node, own, (read, given)) in enumerate(zip(nodes, owned, template.refs, strict=True)):
                if own is None:
                    made = _with(node, self._names(read, template, blocks), self._names(given, template, blocks))
                    made.name = self.moves.name_in(node.name, run, blocks) or _copy_of(node.name, blocks)
                else:
                    made = self.codes.nodes[self.moves.node_in(own, run, blocks)]
                    if not steady[offset]:
                        made = _with(made, self._names(read, template, blocks))
                yield Line(made, template.first + offset, blocks)

    def _steady(self, own: int, read: Sequence[Ref], template: Template) -> bool:
        """Does a node read just what it read in the original, in each block?"""
        run, place, node = template.run, self.codes.place, self.moves.node_in(own, template.run, 0)
        if any(name in self.codes.aliases for name in self.codes.nodes[node].input):
            return False
        for ref, edge in zip(read, self.codes.edges[node], strict=True):
            if ref.place is not None:
                if edge != (self.moves.node_in(ref.place[0], run, 0), ref.place[1]):
                    return False
            elif (
                ref.slot is not None
                or ref.own is not None
                or (edge is not None and (place.get(ref.name) != edge or edge[0] in run))
            ):
                return False
        return True

    def _names(self, refs: Sequence[Ref], template: Template, blocks: int) -> list[str]:
        return [self._name(ref, template, blocks) for ref in refs]

    def _name(self, ref: Ref, template: Template, blocks: int) -> str:
        """What a block reads or gives, so many blocks on."""
        run = template.run
        if ref.own is not None:
            return self._constant(ref.own.family, ref.own.block + blocks)
        if ref.place is not None:
            return self.codes.shifted((self.moves.node_in(ref.place[0], run, blocks), ref.place[1]), run, 0)
        if ref.slot is None:
            return ref.name
        before = ref.back > 0
        node = self.written.nodes[(template.stop if before else template.first) - ref.back]
        return _copy_of(str(node.output[ref.slot]), blocks - before)


def _copy_of(name: str, blocks: int) -> str:
    """What a new value is called until all have names."""
    return f"{name}\0{blocks}" if blocks else name


def _with(node: NodeProto, inputs: Sequence[str], outputs: Sequence[str] | None = None) -> NodeProto:
    copy = NodeProto()
    copy.CopyFrom(node)
    copy.input[:] = inputs
    if outputs is not None:
        copy.output[:] = outputs
    return copy


def _assembled(
    written: Written, small: ModelProto, lines: Sequence[Line], moves: Moves, templates: Sequence[Template]
) -> ModelProto:
    """The model of these nodes, with what the original has of it and what was added to few blocks."""
    few, source = written.few, written.few.source
    model = part(small, lambda number: number != ModelProto.GRAPH_FIELD_NUMBER)
    graph, own, before = model.graph, small.graph, source.graph
    listed = {own.DESCRIPTOR.fields_by_name[name].number for name in LISTS}
    part(own, lambda number: number not in listed, into=graph)
    graph.node.extend(line.node for line in lines)
    used = {name for line in lines for name in line.node.input} | {info.name for info in before.output}
    there = {name for line in lines for name in line.node.output} | used | {info.name for info in before.input}
    told = _Told(few, small, moves)
    graph.input.extend(told(info) or info for info in before.input)
    graph.output.extend(told(info) or info for info in before.output)
    graph.value_info.extend(info for each in before.value_info if each.name in there and (info := told(each)))
    kept, inputs = {t.name: t for t in own.initializer}, {info.name for info in before.input}
    known = few.codes.initializers
    for each in before.initializer:
        if each.name in used or each.name in inputs:
            graph.initializer.append(kept.get(each.name, each))
    for info in told.added:
        graph.value_info.append(info)
        for name in _copies_of(info.name, written, templates):
            graph.value_info.append(info)
            graph.value_info[-1].name = name
    for each in kept.values():
        if each.name not in known and (each.name in written.place or each.name not in written.constants):
            for name in (each.name, *_copies_of(each.name, written, templates)):
                graph.initializer.append(_called(name, each, written, moves))
    return model


def _called(name: str, like: TensorProto, written: Written, moves: Moves) -> TensorProto:
    """A new initializer under the name of a value of the original, with what is like it among those written."""
    own = written.constants.get(like.name)
    if own is not None:
        family, block = moves.constant_of(own, like.name, name)
        return tensor(family.at(block), name, like.data_type)
    made = TensorProto()
    made.CopyFrom(like)
    made.name = name
    return made


def _copies_of(name: str, written: Written, templates: Sequence[Template]) -> Iterator[str]:
    """What a value is called in the blocks left out, if it is one of the block before them."""
    place, few = written.place.get(name), written.few
    run = None if place is None else few.run_of(place[0])
    if place is not None and run is not None and run.block(place[0]) == HEAD - 1:
        yield from (few.codes.shifted(place, run, blocks) for blocks in range(1, run.gap + 1))
    at = written.made[name][0] if name in written.made else -1
    for template in templates:
        if template.first <= at < template.stop:
            yield from (_copy_of(name, blocks) for blocks in range(1, template.run.gap + 1))


class _Told:
    """What the model says of values' types, where fusing has changed it."""

    def __init__(self, few: Few, small: ModelProto, moves: Moves) -> None:
        self.few, self.place, self.moves = few, few.codes.place, moves
        before, after = few.model.graph, small.graph
        self.before, self.after = (
            {info.name: info for info in (*g.value_info, *g.input, *g.output)} for g in (before, after)
        )

    def __call__(self, info: ValueInfoProto) -> ValueInfoProto | None:
        """What becomes of a declaration of the original; None for nothing."""
        place = self.place.get(info.name)
        run = None if place is None else self.few.run_of(place[0])
        if place is None or run is None or place[0] not in run.left_out:
            return self._changed(info, info.name)
        block = (place[0] - run.start) // run.period
        return self._changed(info, self.few.codes.shifted(place, run, HEAD - 1 - block))

    def _changed(self, info: ValueInfoProto, like: str) -> ValueInfoProto | None:
        """What becomes of a declaration if what became of `like` does."""
        before, after = self.before.get(like), self.after.get(like)
        if before is None or after is None or before.type == after.type:
            return None if after is None else info
        copy = ValueInfoProto()
        copy.CopyFrom(info)
        own, was, now = (each.type.tensor_type.shape.dim for each in (copy, before, after))
        while len(own) < len(now):
            own.add()
        for at, dim in enumerate(now):
            if at >= len(was) or was[at] != dim:
                own[at].CopyFrom(dim)
        copy.type.tensor_type.elem_type = after.type.tensor_type.elem_type
        return copy

    @property
    def added(self) -> list[ValueInfoProto]:
        """Declarations that the original does not have."""
        return [info for name, info in self.after.items() if name not in self.before]
