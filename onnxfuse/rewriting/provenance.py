"""Which original nodes each fused node stands for, and which module of the exported program they came from.

Every original node that is gone belongs to one site at most: to one whose rules covered its value, else to the first
that made use of it (the views, casts and shape computations around a fused subgraph).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from onnx import NodeProto

from onnxfuse.lifting.view import View
from onnxfuse.matching.match import Match
from onnxfuse.matching.search import Found
from onnxfuse.model.graph import RULE_KEY, Graph
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
    dead: tuple[Term, ...]
    """What those nodes computed."""
    gone: tuple[Term, ...]
    """Those of `dead` whose values no longer exist."""


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
    # What two sites made use of belongs to the one with fewer steps: a Softplus to itself, then to the Mish around it.
    for number, fused in sorted(enumerate(written), key=lambda item: len(item[1].matches)):
        roots = [name for match in fused.matches for name in found.rooted.get(match, ())]
        covered = [name for match in fused.matches for name in found.covered.get(match, ()) if name not in made]
        for name in [*fused.node.output, *roots, *covered]:
            index = graph.producer.get(name)
            if index is not None and index not in survivors:
                owner.setdefault(index, number)
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
        replaced = [graph.nodes[i] for i in indices if graph.nodes[i].op_type != "Constant"]
        names = tuple(n.name or n.output[0] for n in replaced)
        rule = fused.matches[-1].rule
        for key, value in ((RULE_KEY, rule.name), (VERSION_KEY, rule.version), (REPLACED_KEY, " ".join(names))):
            fused.node.metadata_props.add(key=key, value=value)
        told = _computing(graph, core, [fused.value, *found.rooted.get(fused.matches[-1], ())])
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
                tuple(view.terms_of[value] for value in values),
                tuple(view.terms_of[value] for value in values if value not in made),
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
    dead = [term for name, term in own if name in original and name not in former]
    kept = {id(term) for term in dead}
    matches = dict.fromkeys(match for each in (*taken, site) for match in each.matches)
    told = [each for each in reversed(taken) if each.module]  # what an earlier pass wrote may not say it itself
    return replace(
        site,
        module=site.module or (told[0].module if told else ""),
        code=site.code or (told[0].code if told else ""),
        matches=tuple(matches),
        replaced=tuple(dict.fromkeys(name for name in names if name in original)),
        dead=(*(term for each in taken for term in each.dead), *dead),
        gone=(*(term for each in taken for term in each.gone), *(term for term in site.gone if id(term) in kept)),
    )


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
