"""Which original nodes each fused node stands for, and which module of the exported program they came from.

Every original node that is gone belongs to one site at most: to one whose rules covered its value, else to the first
that made use of it (the views, casts and shape computations around a fused subgraph).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from onnx import ModelProto, NodeProto

from onnxfuse.lifting.launched import computes
from onnxfuse.lifting.view import View
from onnxfuse.matching.match import Match
from onnxfuse.matching.search import Found
from onnxfuse.model.graph import RULE_KEY, Graph, nodes_of_scopes
from onnxfuse.model.walk import name_of
from onnxfuse.terms.term import Term

from . import stack_traces
from .module_paths import ModulePaths

VERSION_KEY, REPLACED_KEY = "onnxfuse.version", "onnxfuse.replaced"


@dataclass(frozen=True)
class Written:
    """One live fused node: the matches behind it, the node, the value it computes, and that value's term."""

    matches: tuple[Match, ...]
    node: NodeProto
    value: str
    term: Term


@dataclass(frozen=True)
class Dead:
    """A node that is gone: what it computed, and whether a runtime launched something for it."""

    term: Term
    launched: bool

    @staticmethod
    def of(view: View, value: str, term: Term | None = None) -> Dead:
        """The node of a value of this scope; `term` is what it computed, if that is another than the value's."""
        node = view.graph.nodes[view.graph.producer[value]]
        return Dead(view.terms_of[value] if term is None else term, computes(view, node))


@dataclass(frozen=True)
class FusedNode:
    """One fused node that was written: the matches behind it, the node, and the value of the scope it computes."""

    matches: tuple[Match, ...]
    node: NodeProto
    value: str
    scope: str
    """Path of the graph it stands in; empty for the main graph."""
    module: str
    """Path of the module whose code it fuses; empty where the exporter did not say."""
    code: str
    """Line of the program that it fuses, ``model.py:436``; empty where the exporter did not say."""
    replaced: tuple[str, ...]
    """Names of the nodes that are gone for it."""
    term: Term
    dead: tuple[Dead, ...]
    """Those nodes."""


@dataclass(frozen=True)
class Vanished:
    """A match that no fused node stands for: what it emits was there already, or has cancelled against something."""

    match: Match
    scope: str

    @property
    def keys(self) -> list[tuple[str, str, str]]:
        """What must be banned for it not to come back."""
        return [(self.scope, self.match.rule.name, value) for value in self.match.values]


def vanished(found: Found, scope: str, own: Sequence[FusedNode]) -> list[Vanished]:
    """The matches of a scope that none of its sites stands for."""
    standing = {id(match) for site in own for match in site.matches}
    return [Vanished(match, scope) for match in found.rooted if id(match) not in standing]


def sites(
    view: View, found: Found, written: Sequence[Written], survivors: Collection[int], made: Collection[str]
) -> list[FusedNode]:
    """The sites of a scope, and on each fused node the metadata that says where it comes from.

    `survivors` are the indices of the original nodes that are kept, `made` the names of all values that the scope has
    now.
    """
    graph, modules = view.graph, ModulePaths(view.graph.nodes)
    owner: dict[int, int] = {}
    shared = set[int]()
    # What two sites made use of belongs to the one with fewer steps: a Softplus to itself, then to the Mish around it.
    for number, fused in sorted(enumerate(written), key=lambda item: len(item[1].matches)):
        roots = [name for match in fused.matches for name in found.rooted.get(match, ())]
        covered = [name for match in fused.matches for name in found.covered.get(match, ()) if name not in made]
        for name in [*fused.node.output, *roots, *covered]:
            index = graph.producer.get(name)
            if index is not None and index not in survivors and owner.setdefault(index, number) != number:
                shared.add(index)
    cores = _by_owner(owner, len(written))
    for number, core in enumerate(cores):
        stack = [name for i in core for name in graph.nodes[i].input]
        while stack:
            name = stack.pop()
            index = graph.producer.get(name)
            if index is None or index in owner or index in survivors or name in made:
                continue
            owner[index] = number
            stack.extend(graph.nodes[index].input)
    result = []
    for fused, core, indices in zip(written, cores, _by_owner(owner, len(written)), strict=True):
        replaced = [graph.nodes[i] for i in indices if not _stored(graph, graph.nodes[i])]
        names = tuple(map(name_of, replaced))
        rule = fused.matches[-1].rule
        for key, value in ((RULE_KEY, rule.name), (VERSION_KEY, rule.version), (REPLACED_KEY, " ".join(names))):
            fused.node.metadata_props.add(key=key, value=value)
        # A mask of all layers says nothing of the layer that is the first to use it.
        alone = [index for index in core if index not in shared] or core
        told = _computing(graph, alone, [fused.value, *found.rooted.get(fused.matches[-1], ())])
        trace = stack_traces.common(told)
        inherit(fused.node, replaced, trace)
        values = [n.output[0] for n in replaced if n.output and n.output[0]]
        result.append(
            FusedNode(
                fused.matches,
                fused.node,
                fused.value,
                graph.path,
                modules.of(told),
                stack_traces.place(trace),
                names,
                fused.term,
                tuple(Dead.of(view, value) for value in values),
            )
        )
    return result


def _computing(graph: Graph, core: Sequence[int], values: Sequence[str]) -> list[NodeProto]:
    """The nodes of a core, that which computes the first of the `values` last: a mask that layers share may bear the
    name of any of them.  If the core is another site's, the nodes of these values."""
    own = [index for value in values if (index := graph.producer.get(value)) is not None]
    last = next((index for index in own if index in core), None)
    return [graph.nodes[index] for index in sorted(core, key=lambda index: index == last) or own]


def merged(site: FusedNode, former: Mapping[str, FusedNode], original: Collection[str]) -> FusedNode:
    """A site of a later pass with what it stands for in the original.

    `former` are the fused nodes of earlier passes by name: one that is gone for the site leaves to it what it stood
    for.  Other nodes that are not `original` were written by those passes."""
    taken = [former[name] for name in site.replaced if name in former]
    names = [n for name in site.replaced for n in (former[name].replaced if name in former else (name,))]
    own = zip(site.replaced, site.dead, strict=False)
    dead = [each for name, each in own if name in original and name not in former]
    matches = dict.fromkeys(match for each in (*taken, site) for match in each.matches)
    told = [each for each in reversed(taken) if each.module]  # what an earlier pass wrote may not say it itself
    return replace(
        site,
        module=site.module or (told[0].module if told else ""),
        code=site.code or (told[0].code if told else ""),
        matches=tuple(matches),
        replaced=tuple(dict.fromkeys(name for name in names if name in original)),
        dead=(*(node for each in taken for node in each.dead), *dead),
    )


def adopted(sites: Sequence[FusedNode], views: Sequence[View], model: ModelProto) -> list[FusedNode]:
    """The sites of all passes with those nodes of the original too of which no pass could know: one wrote them in
    another way, and a later one fused that.  They belong to the first site that they lead to.

    `views` are those of the original, `model` is what all passes have made of it."""
    names, scopes = {site.node.name for site in sites}, {site.scope for site in sites}
    fused, kept = dict[str, NodeProto](), list[NodeProto]()
    for node in nodes_of_scopes(model):
        if node.name in names:
            fused[node.name] = node
        else:
            kept.append(node)
    left = {view.graph.path: _Left(view, sites, kept) for view in views if view.graph.path in scopes}
    result = []
    for site in sites:
        whole = left[site.scope].adopted_by(site) if site.scope in left else site
        if whole is not site:
            note_replaced(fused[site.node.name], whole.replaced)
        result.append(whole)
    return result


class _Left:
    """The nodes of a scope of the original that are gone, and belong to no site yet."""

    def __init__(self, view: View, sites: Iterable[FusedNode], kept: Sequence[NodeProto]) -> None:
        self.view, self.nodes, self.producer = view, view.graph.nodes, view.graph.producer
        self.index = {name_of(node): index for index, node in enumerate(self.nodes)}
        taken = {name for site in sites if site.scope == view.graph.path for name in site.replaced}
        self.free = {self.index[name] for name in self.index.keys() - taken - set(map(name_of, kept))}
        self.made = {name for node in kept for name in node.output}

    def adopted_by(self, site: FusedNode) -> FusedNode:
        """A site with what is left of all that leads to it."""
        own = {self.index[name] for name in site.replaced if name in self.index}
        stack, found = [*site.node.output, *(name for index in own for name in self.nodes[index].input)], set[int]()
        while stack:
            name = stack.pop()
            index = self.producer.get(name)
            if index in self.free and name not in self.made:
                self.free.discard(index)
                found.add(index)
                stack.extend(self.nodes[index].input)
        found = {index for index in found if not _stored(self.view.graph, self.nodes[index])}
        if not found:
            return site
        values = (next(filter(None, self.nodes[index].output)) for index in sorted(found))
        return replace(
            site,
            replaced=tuple(name_of(self.nodes[index]) for index in sorted(own | found)),
            dead=(*site.dead, *(Dead.of(self.view, value) for value in values)),
        )


def _stored(graph: Graph, node: NodeProto) -> bool:
    """Does a node give what is in the file?  An exporter keeps weights that are equal once, and names them by these."""
    return node.op_type == "Constant" or (node.op_type == "Identity" and node.input[0] in graph.initializers)


def note_replaced(node: NodeProto, names: Sequence[str]) -> None:
    """Note on a fused node which nodes it stands for."""
    for entry in node.metadata_props:
        if entry.key == REPLACED_KEY:
            entry.value = " ".join(names)


def origin(node: NodeProto) -> tuple[str, list[str]]:
    """The rule that made a fused node, and the names of the nodes that it stands for, as far as its metadata says."""
    told = {entry.key: entry.value for entry in node.metadata_props}
    return told.get(RULE_KEY, ""), told.get(REPLACED_KEY, "").split()


def keys(site: FusedNode, matches: Sequence[Match]) -> list[tuple[str, str, str]]:
    """What must be banned for these matches of a site not to come back: their rules, at the values they changed.

    Not at the site's own value: where views cancel, that is another than the one at which a rule matched."""
    return [(site.scope, match.rule.name, value) for match in matches for value in match.values]


def _by_owner(owner: Mapping[int, int], count: int) -> list[list[int]]:
    """The nodes of each site, in the order of the graph."""
    nodes: list[list[int]] = [[] for _ in range(count)]
    for index in sorted(owner):
        nodes[owner[index]].append(index)
    return nodes


def inherit(node: NodeProto, replaced: Sequence[NodeProto], trace: Sequence[stack_traces.Frame]) -> None:
    """What an exporter noted on the replaced nodes alike (a module path) holds for the fused one; of the calls that led
    to them, `trace` does."""
    if trace:
        node.metadata_props.add(key=stack_traces.TORCH_STACK, value=stack_traces.written(trace))
    noted = [{(entry.key, entry.value) for entry in each.metadata_props} for each in replaced]
    for entry in replaced[-1].metadata_props if replaced else ():
        if entry.key != stack_traces.TORCH_STACK and all((entry.key, entry.value) in each for each in noted):
            node.metadata_props.add(key=entry.key, value=entry.value)
