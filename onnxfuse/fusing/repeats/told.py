"""What is said of few blocks, said of all: fused nodes with what they stand for, near misses, what vanished."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from copy import copy
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from onnx import ModelProto, NodeProto

from onnxfuse.fusing.fused import SIMPLIFY, Fused
from onnxfuse.lifting.view import View
from onnxfuse.matching.match import Match
from onnxfuse.model.graph import LAUNCHES_KEY, RULE_KEY
from onnxfuse.model.walk import name_of
from onnxfuse.reporting.records import NearMiss
from onnxfuse.rewriting.provenance import REPLACED_KEY, VERSION_KEY, Dead, FusedNode, note_replaced
from onnxfuse.rewriting.stack_traces import frames, place

from .alike import DifferentError, Template, Written
from .few import Few
from .modules import Modules
from .moves import Moves
from .notes import code_of, noted_of, said
from .runs import HEAD, Run
from .vanished import everywhere

_KEPT, _NEEDED = "fusing saves nothing: ", " is needed elsewhere as well"


@dataclass(frozen=True)
class _Target:
    """What a site stands for."""

    before: list[int]
    """The nodes of a site that is like it."""
    after: list[int]
    """Their counterparts, which it stands for itself."""
    like: FusedNode
    """That site."""
    near: list[int]
    """The nodes by which it is told where that one is, see `Telling._places`."""
    there: list[int]
    """Their counterparts."""

    @property
    def more(self) -> bool:
        """Does it stand for nodes of blocks that were left out besides?"""
        return len(self.before) < len(self.after)

    def other(self, site: FusedNode) -> bool:
        """Is it to be said of other nodes than it was?"""
        return self.like is not site or self.near != self.there


class Telling:
    """Says of a whole model what was found in few blocks of it.  Raises DifferentError where that says too little."""

    def __init__(
        self,
        fused: Fused,
        few: Few,
        moves: Moves,
        templates: Sequence[Template],
        written: Written,
        view: View,
    ) -> None:
        """`view` is that of few blocks."""
        at = {node.name: at for at, node in enumerate(written.nodes)}
        self.view = view
        self.fused, self.few, self.moves, self.templates = fused, few, moves, templates
        self.nodes = few.codes.nodes
        self.sites = {at[site.node.name]: site for site in fused.sites}
        self._written = written.nodes
        self._new = {node.name: at for at, node in enumerate(written.nodes) if written.own(node) is None}
        """Where each node was written that is none of the original's."""
        self._modules = Modules(few)
        self._indices = {at: [moves.index(name) for name in site.replaced] for at, site in self.sites.items()}
        self._like: dict[int, list[int]] = {}
        """Of a site in the block before one to be copied, the nodes that it would stand for if it were like that."""
        self._targets: dict[tuple[int, int], _Target] = {}
        for template in templates:
            self._check(template)

    def _check(self, template: Template) -> None:
        """Is the block's every site that of the block before, and of the one behind?"""
        run, length = template.run, template.stop - template.first
        for at in range(template.first, template.stop):
            row = [self.sites.get(n) for n in (at - length, at, at + length)]
            sites = [site for site in row if site is not None]
            if not sites:
                continue
            rules = {tuple(match.rule.name for match in site.matches) for site in sites}
            if len(sites) < len(row) or len(rules) > 1:
                raise DifferentError(f"{sites[0].node.name} was made by other rules than others", run)
            one, two, three = (self._indices[n] for n in (at - length, at, at + length))
            like = self._like[at - length] = [self._back(node, run) for node in two]
            # What the first block leaves to others is left to none of the blocks between.
            if [self._back(node, run) for node in three] != two or any(run.block(n) > 0 for n in {*one} ^ {*like}):
                raise DifferentError(f"{sites[0].node.name} stands for other nodes than {sites[1].node.name} does", run)
            before = self._places(at - length, run)
            for site, behind, blocks in ((sites[1], at, 1), (sites[2], at + length, run.gap + 2)):
                after = [self.moves.node_in(node, run, blocks) for node in before]
                # What stands for nodes on both sides of the gap is in no module, and looks like the others elsewhere.
                if after == self._places(behind, run) and self._said(sites[0], before, after) != said(site):
                    raise DifferentError(f"other things are noted of {site.node.name} than of others", run)

    def _places(self, at: int, run: Run) -> list[int]:
        """The nodes by which it is told where a site is: those that it stands for; of one that stands for none, the one
        whose value its own is, or is called after."""
        indices = self._like.get(at, self._indices[at])
        if indices or not self.sites[at].module:
            return indices
        node = self._node_of(self.sites[at].value)
        return [node] if node in run else []

    def _back(self, node: int, run: Run) -> int:
        """The counterpart of a node in the block before, of those that are worked on."""
        before = node - run.period * (1 + run.gap * (run.block(node) == HEAD))
        if node not in run or before not in run:
            raise DifferentError("a block stands for what is outside it", run)
        return before

    def _said(self, site: FusedNode, before: Sequence[int], after: Sequence[int]) -> tuple[object, ...]:
        """What is noted of a site if it stands for the nodes `after` instead of those `before`."""
        pairs = self._pairs(before, after)
        return self._modules.of(site.module, before, after), code_of(site.code, pairs), self._metadata(site.node, pairs)

    def _pairs(self, before: Sequence[int], after: Sequence[int]) -> list[tuple[NodeProto, NodeProto]]:
        return [(self.nodes[a], self.nodes[b]) for a, b in zip(before, after, strict=True)]

    def _metadata(self, node: NodeProto, pairs: Sequence[tuple[NodeProto, NodeProto]]) -> list[tuple[str, str]]:
        result = []
        for entry in node.metadata_props:
            key, value = entry.key, entry.value
            if key == REPLACED_KEY:
                value = " ".join(name_of(after) for _, after in pairs) if value else ""
            elif key not in (RULE_KEY, VERSION_KEY, LAUNCHES_KEY):
                value = noted_of(key, value, pairs)
            result.append((key, value))
        return result

    def annotate(self, lines: Iterable[tuple[NodeProto, int, int]]) -> None:
        """Note on each fused node, written `at` and so many blocks on, what it stands for."""
        for node, at, blocks in lines:
            site = self.sites.get(at)
            if site is None:
                continue
            target = self._targets[at, blocks] = self._nodes_of(at, blocks)
            if target.other(site):
                if target.more:
                    note_replaced(node, self.moves.names(target.after))
                    continue
                noted = self._metadata(target.like.node, self._pairs(target.near, target.there))
                del node.metadata_props[:]
                for key, value in noted:
                    node.metadata_props.add(key=key, value=value)

    def _nodes_of(self, at: int, blocks: int) -> _Target:
        """What a site stands for."""
        for template in self.templates:
            length, run = template.stop - template.first, template.run
            if template.first <= at < template.stop + length:
                behind = at >= template.stop
                like = at - length * (1 + behind)  # there is no gap in the block that this one is in
                before, shift = self._like.get(like, self._indices[like]), run.gap + 2 if behind else blocks + 1
                near = self._places(like, run)
                after, there = ([self.moves.node_in(node, run, shift) for node in nodes] for nodes in (before, near))
                return _Target(before, after, self.sites[like], near, there)
        before = self._indices[at]
        after = self._everywhere(before, at)
        return _Target(before, after, self.sites[at], before, after)

    def told(self, model: ModelProto, made: Mapping[tuple[int, int], NodeProto]) -> Fused:
        """What became of the whole model, each fused node `made` where it was written, and so many blocks on."""
        runs = {at: t.run for t in self.templates for at in range(t.first, t.stop)}
        sites = []
        slots = {at: list(site.node.output).index(site.value) for at, site in self.sites.items()}
        for (at, blocks), target in self._targets.items():
            site = self.sites[at]
            module, replaced, code = site.module, site.replaced, site.code
            if target.more:
                site, replaced = self._with_more(site, target.before, target.after), self.moves.names(target.after)
            elif target.other(site):
                module = self._modules.of(target.like.module, target.near, target.there)
                replaced = self.moves.names(target.after)
                code = code_of(target.like.code, self._pairs(target.near, target.there))
            mover = self._mover(runs.get(at), at, blocks)
            matches = tuple([self._named(match, mover, at, place, blocks) for place, match in enumerate(site.matches)])
            node = made[at, blocks]
            value = node.output[slots[at]]
            sites.append(FusedNode(matches, node, value, site.scope, module, code, replaced, site.term, site.dead))
        return replace(
            self.fused,
            model=model,
            sites=sites,
            near_misses=list(self._misses(made)),
            simplified=frozenset(self._simplified()),
            vanished=list(everywhere(self.fused.vanished, self.moves)),
            lifted=None,
        )

    def _named(self, match: Match, mover: Callable[[str], str], at: int, place: int, blocks: int) -> Match:
        """The match that is that `place` of the site written `at`, so many blocks on."""
        moved = _moved(match, mover)
        template = next((t for t in self.templates if at < t.stop), None)
        if len(match.values) == 1 or template is None:
            return moved
        length = template.stop - template.first
        step = -1 if at >= template.first else 1
        site = self.sites.get(at + step * length)
        near = site.matches[place].values if site is not None and place < len(site.matches) else ()
        return _moved(moved, str, self.moves.to_the_end(match.values, near, step, blocks))

    def _everywhere(self, before: Sequence[int], at: int) -> list[int]:
        """The nodes that a site stands for which is there once for all blocks: what some of these compute, it does."""
        groups: list[tuple[Run | None, int, list[int]]] = []
        for (run, block), some in groupby(before, self._block):
            groups.append((run, block, list(some)))
        again = {
            number: run
            for number, ((run, block, nodes), (_, _, behind)) in enumerate(pairwise(groups))
            if run is not None and block == HEAD - 1 and self._offsets(behind, run, HEAD) == _offsets(nodes, run)
        }
        result: list[int] = []
        for number, (run, _, nodes) in enumerate(groups):
            result += nodes if run in again.values() else [self.moves.node_at(node, at) for node in nodes]
            for blocks in range(1, again[number].gap + 1 if number in again else 1):
                result += [node + blocks * again[number].period for node in nodes]
        return result

    def _block(self, node: int) -> tuple[Run | None, int]:
        run = self.few.run_of(node)
        return run, -1 if run is None else run.block(node)

    def _offsets(self, nodes: Sequence[int], run: Run, block: int) -> list[int]:
        """Where in their block nodes stand, if they are of this one."""
        return _offsets([node for node in nodes if self._block(node) == (run, block)], run)

    def _with_more(self, site: FusedNode, before: Sequence[int], after: Sequence[int]) -> FusedNode:
        """A site that stands for nodes of all blocks, with what those left out compute."""
        new = [node for node in after if node not in before]
        values = []
        for node in new:
            run = self.few.run_of(node)
            if run is not None and self.nodes[node].output and self.nodes[node].output[0]:
                block = (node - run.start) // run.period
                values.append(self.few.codes.shifted((node, 0), run, HEAD - 1 - block))
        return replace(site, dead=(*site.dead, *(Dead.of(self.view, value) for value in values)))

    def _mover(self, run: Run | None, at: int, blocks: int) -> Callable[[str], str]:
        """How values of a site are called: so many blocks on, or where it stands."""
        if blocks and run is not None:
            return lambda name: self._copied(name, run, blocks)
        return lambda name: self._in_place(name, at)

    def _copied(self, name: str, run: Run, blocks: int) -> str:
        value, added = self.moves.told(name)
        if self.few.codes.place[value][0] in run:
            value = self.moves.value_in(value, run, blocks)
        return value + added

    def _in_place(self, name: str, at: int) -> str:
        value, added = self.moves.told(name)
        return self.moves.value_at(value, at) + added

    # ------------------------------------------------------------------------------------- what left no node

    def _spread(self, values: Iterable[tuple[Hashable, int]], run: Run) -> set[tuple[Hashable, int, int]]:
        """What is told of the middle blocks (what, offset in the block, block)."""
        found = {(what, (node - run.start) % run.period, run.block(node)) for what, node in values if node in run}
        rows = [{(what, offset) for what, offset, block in found if block == n} for n in (HEAD - 2, HEAD - 1, HEAD)]
        if rows[0] != rows[1] or rows[1] != rows[2]:
            raise DifferentError("other things are told of one block than of the next", run)
        return found

    def _misses(self, made: Mapping[tuple[int, int], NodeProto]) -> Iterator[NearMiss]:
        known = [(miss, self._nearest(miss.node)) for miss in self.fused.near_misses]
        for run in self.few.runs:
            values = (
                (m.rule, m.source, m.launches_saved, self._reason(m, n, run), self._scope(m, n)) for m, n in known
            )
            self._spread(zip(values, (node for _, node in known), strict=True), run)
        for miss, node in known:
            own = self.few.run_of(node)
            yield self._miss(miss, node, own, None)
            if own is not None and own.block(node) == HEAD - 1:
                for blocks in range(1, own.gap + 1):
                    other = self.moves.node_in(node, own, blocks)
                    if miss.node not in self._new:
                        yield self._miss(miss, other, own, blocks)
                    elif (copied := made.get((self._new[miss.node], blocks))) is not None:
                        scope = self._modules.of(miss.scope, [node], [other])
                        code = code_of(miss.code, self._pairs([node], [other]))
                        yield replace(miss, node=copied.name, scope=scope, code=code)
                    else:
                        raise DifferentError(f"{miss.node} is written once for all", own)

    def _nearest(self, name: str) -> int:
        """The node of the original that a node is, or whose value it computes, or is called after."""
        if name not in self._new:
            return self.moves.index(name)
        return self._node_of(next(filter(None, self._written[self._new[name]].output)))

    def _miss(self, miss: NearMiss, node: int, run: Run | None, blocks: int | None) -> NearMiss:
        """A near miss at another node; at its own, what its reason names is called as in the whole."""
        kept, source = _kept(miss), self.nodes[node]
        if kept and run is not None:
            if blocks is None:
                behind = run.block(node) >= HEAD
                template = next(t for t in self.templates if t.run == run)
                name = self.moves.value_at(kept, template.stop if behind else template.first)
            else:
                name = self._copied(kept, run, blocks)
            miss = replace(miss, reason=f"{_KEPT}{name}{_NEEDED}")
        if blocks is None:
            return replace(miss, scope=self._modules.of(miss.scope, [node], [node])) if miss.node in self._new else miss
        return replace(
            miss,
            node=name_of(source),
            scope=self._modules.paths.of([source]),
            code=place(frames(source)),
        )

    def _scope(self, miss: NearMiss, node: int) -> object:
        """Where the module of a near miss is told, of one that is not told by the node itself."""
        return self._modules.place(miss.scope, node) if miss.node in self._new else None

    def _reason(self, miss: NearMiss, node: int, run: Run) -> object:
        """A reason, with no names of values."""
        kept = self.few.codes.place.get(_kept(miss))
        if kept is None:
            return miss.reason
        return (kept[0] - run.start) % run.period, kept[1], run.block(kept[0]) - run.block(node)

    def _simplified(self) -> Iterator[tuple[str, str, str]]:
        weights = self.few.codes.alias_place
        places = [
            (value, weights[value][0] if value in weights else self._node_of(value))
            for _, _, value in self.fused.simplified
        ]
        for run in self.few.runs:
            self._spread((("", node) for _, node in places), run)
        for value, node in places:
            yield "", SIMPLIFY, value
            run_of = self.few.run_of(node)
            if run_of is not None and run_of.block(node) == HEAD - 1:
                for blocks in range(1, run_of.gap + 1):
                    if value in weights:  # which is called in each block as the exporter pleased
                        other = self.nodes[self.moves.node_in(node, run_of, blocks)]
                        yield "", SIMPLIFY, other.input[~weights[value][1]]
                    else:
                        yield "", SIMPLIFY, self._copied(value, run_of, blocks)

    def _node_of(self, value: str) -> int:
        return self.few.codes.place[self.moves.told(value)[0]][0]


def _offsets(nodes: Sequence[int], run: Run) -> list[int]:
    return [(node - run.start) % run.period for node in nodes]


def _kept(miss: NearMiss) -> str:
    """The value that is needed elsewhere, if that is the reason of a near miss."""
    text = miss.reason
    return text[len(_KEPT) : -len(_NEEDED)] if text.startswith(_KEPT) and text.endswith(_NEEDED) else ""


def _moved(match: Match, mover: Callable[[str], str], further: AbstractSet[str] = frozenset()) -> Match:
    """A match of other values, and of further ones."""
    values = {mover(name) for name in match.values} | further
    if values == match.values:
        return match
    other = copy(match)
    other.values = values
    return other
