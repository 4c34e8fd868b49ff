"""Groups → nodes: each group of several launches becomes a call of a function, and what nobody reads any more goes.

guarantees   the model computes the same; what is not part of a region stays as it is, byte for byte and in its order
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, helper

from onnxfuse.kernels.rows.fused import SECOND
from onnxfuse.lifting.lifted import Lifted
from onnxfuse.lifting.view import View
from onnxfuse.matching.match import Match
from onnxfuse.model import ir_version, protobuf, toposort
from onnxfuse.model.graph import DOMAIN, LAUNCHES_KEY, REGION, RULE_KEY, Names, family_of, read_by
from onnxfuse.model.op_traits import FREE
from onnxfuse.model.standard import STANDARD
from onnxfuse.model.walk import name_of
from onnxfuse.reporting.records import NearMiss
from onnxfuse.rewriting import stack_traces
from onnxfuse.rewriting.assemble import import_domains
from onnxfuse.rewriting.inline import expand
from onnxfuse.rewriting.module_paths import ModulePaths
from onnxfuse.rewriting.provenance import REPLACED_KEY, VERSION_KEY, Dead, FusedNode, inherit
from onnxfuse.terms.term import Term

from .generic import untyped
from .groups import Group, Groups
from .legality import placed
from .match import match
from .partition import partition, separated
from .products import together
from .reading import read
from .scope import Launch, Scope
from .spelled import body, content, refusal, words

ONE_OP = 17
"""The opset from which on ai.onnx has LayerNormalization."""
Bans = Collection[tuple[str, str, str]]
"""(scope, words, value) of regions that must not be made."""


@dataclass(frozen=True)
class Asked:
    """What is not to be made, and what was fused before."""

    banned: Bans = frozenset()
    barred: Collection[str] = frozenset()
    """Scopes that have no regions."""
    former: Mapping[str, Match] = field(default_factory=dict)
    """Fused nodes by name → the last match behind each."""
    products: bool = True
    """Whether products may be part of regions: a quantizer finds them by themselves alone."""
    read: Mapping[str, Collection[str]] = field(default_factory=dict)
    """What the nodes of each scope read, and the bodies of those."""


@dataclass
class Regions:
    """A model with regions, and what became of what."""

    model: ModelProto
    sites: list[FusedNode]
    near_misses: list[NearMiss]


@dataclass(frozen=True)
class _Region:
    """A group that becomes a node."""

    group: Group
    node: NodeProto
    match: Match


def regions(lifted: Lifted, asked: Asked) -> Regions:
    """A copy of a model in which regions are nodes."""
    model, views = lifted.copy()
    plain = expand(lifted.model)
    written_out = lifted if plain is lifted.model else lifted.again(plain)
    told = {view.graph.path: view for view in written_out.views}
    known = {f.name: f for f in model.functions if f.domain == DOMAIN}
    names = Names.of(view.graph for view in views)
    inside = {view.graph.path: {name for node in view.graph.nodes for name in read_by(node)} for view in views}
    asked = replace(asked, read=inside)
    sites: list[FusedNode] = []
    near: list[NearMiss] = []
    for view in reversed(views):  # inner scopes first: the nodes around them are copied
        if view.graph.path not in asked.barred:
            own = _Scoped(view, read(view, told[view.graph.path], known, asked.products), known, names, asked)
            own.write(inside=bool(sites))
            sites, near = own.sites + sites, own.near + near
    if sites:
        before = {f.name for f in model.functions if f.domain == DOMAIN}
        model.functions.extend(known[name] for name in sorted(known.keys() - before))
        import_domains(model, [site.node for site in sites])
        ir_version.raise_to(model, ir_version.FUNCTIONS)
        toposort.sort(model)
    return Regions(model, sites, near)


def standing(lifted: Lifted, nodes: Collection[str], banned: Bans = ()) -> set[str]:
    """Those of some nodes of the main graph, by name, that would be a launch of their own or of several of these, or of
    a region that is `banned`."""
    plain = expand(lifted.model)
    told = lifted if plain is lifted.model else lifted.again(plain)
    known = {f.name: f for f in lifted.model.functions if f.domain == DOMAIN}
    groups = partition(read(lifted.views[0], told.views[0], known))
    path, found = lifted.views[0].graph.path, set[str]()
    for group in groups:
        own = {launch.node.name for launch in group.launches}
        if own.issubset(nodes) or any((path, _words(group), name) in banned for name in groups.written(group)):
            found |= own.intersection(nodes)
    return found


class _Scoped:
    """The regions of one scope."""

    def __init__(
        self, view: View, scope: Scope, functions: dict[str, FunctionProto], names: Names, asked: Asked
    ) -> None:
        self.view, self.scope, self.functions, self.names, self.asked = view, scope, functions, names, asked
        self.graph = view.graph
        self.modules = ModulePaths(self.graph.nodes)
        self.before = asked.read.get(self.graph.path, frozenset())
        self.sites: list[FusedNode] = []
        self.near: list[NearMiss] = []
        self.real = ""
        """A number that tells bodies the type of real numbers which nothing else does; empty if none asks."""

    def write(self, *, inside: bool) -> None:
        """Put the regions in their places; `inside`: bodies of nodes may read less than they did."""
        groups = partition(self.scope)
        found = [region for group in groups if (region := self._region(groups, group)) is not None]
        self.near += self._apart(groups)
        if found or inside:
            live = self._splice(found)
            self._tell(found, live)

    def _region(self, groups: Groups, group: Group) -> _Region | None:
        """A group of several launches as a node; None where it stays as it is."""
        outputs = groups.written(group)
        if len(group.launches) < 2 or not outputs:
            return None
        said = _words(group)
        if any((self.graph.path, said, name) in self.asked.banned for name in outputs):
            return None
        indices = [launch.index for launch in group.launches]
        written = body(self.scope, indices, outputs)
        reason = refusal(self.scope, written, whole=True, placed=placed(group), most=group.most)
        if reason:
            self.near.append(self._miss(group, f"{said}: {reason}", len(indices) - 1))
            return None
        if not written.inputs:
            return None  # the same in every run
        kinds = [self.scope.kind(name) for name in written.inputs]
        if untyped(written.nodes, self.graph.opset, kinds, [self.scope.kind(name) for name in outputs]):
            self.real = self.real or self.names.unique(f"{DOMAIN}/real")
            written, kinds = replace(written, inputs=(*written.inputs, self.real)), [*kinds, "float32"]
        function = self._function(content(written, self.graph.opset, kinds))
        node = NodeProto(op_type=function.name, domain=DOMAIN, name=self.names.unique(f"onnxfuse/{REGION}"))
        if group.most > 1:
            node.metadata_props.add(key=LAUNCHES_KEY, value=str(group.most))
        node.input.extend(written.inputs)
        node.output.extend(outputs)
        terms = [self.scope.term(name) for launch in group.launches for name in launch.makes]
        former, fused = self.asked.former, [launch.node.name for launch in group.launches]
        inner = [former[name] for name in fused if name in former]
        made = {name: self.scope.term(name) for name in outputs}
        return _Region(group, node, match(said, made[outputs[0]], terms, made, inner, products=group.product))

    def _function(self, made: FunctionProto) -> FunctionProto:
        """The function, under a name that no other has."""
        name, number = made.name, 1
        while made.name in self.functions and self.functions[made.name].node != made.node:
            number += 1
            made.name = f"{name}_{number}"
        return self.functions.setdefault(made.name, made)

    def _splice(self, found: Sequence[_Region]) -> set[int]:
        """Replace the nodes of the scope; returns the indices of those that stay."""
        proto, nodes = self.graph.proto, self.graph.nodes
        entries = [(float(index), node) for index, node in enumerate(nodes)]
        entries += [(region.group.last + 0.5, region.node) for region in found]
        maker: dict[str, int] = {}
        for at, (_, node) in enumerate(entries):  # what a region writes is the region's
            maker |= {name: at for name in node.output if name}
        pending = [maker[name] for name in self.graph.outputs if name in maker] + list(self.view.lasting)
        live: set[int] = set()
        while pending:
            at = pending.pop()
            if at not in live:
                live.add(at)
                pending += [maker[name] for name in read_by(entries[at][1]) if name in maker]
        for at, node in ((at, entries[at][1]) for at in live):
            for i, name in enumerate(node.output):
                if maker.get(name, at) != at:  # one of several outputs, of which another's shape is asked for
                    node.output[i] = self.names.unique(name)
        dead = [node for at, (_, node) in enumerate(entries[: len(nodes)]) if at not in live]
        kept = [node for _, node in sorted((entries[at] for at in live), key=lambda entry: entry[0])]
        read = {name for node in kept for name in read_by(node)} | {*self.graph.outputs, *self.graph.inputs}
        unread = set(self.before) - read - self.graph.named_elsewhere()
        del proto.node[:]
        proto.node.extend(kept)
        if isinstance(proto, GraphProto):
            protobuf.remove(proto.initializer, lambda tensor: tensor.name in unread)
            gone = {name for node in dead for name in node.output} - {name for node in kept for name in node.output}
            protobuf.remove(proto.value_info, lambda info: info.name in gone | unread)
            self._declare(proto, found)
        else:
            import_domains(proto, kept)
        if self.real:
            self._store(proto)
        return {at for at in live if at < len(nodes)}

    def _store(self, proto: GraphProto | FunctionProto) -> None:
        """Add the number that is of the type of real numbers."""
        one = helper.make_tensor(self.real, TensorProto.FLOAT, (), [1.0])
        if isinstance(proto, GraphProto):
            proto.initializer.append(one)
        else:
            proto.node.insert(0, helper.make_node("Constant", [], [self.real], value=one))

    def _declare(self, proto: GraphProto, found: Sequence[_Region]) -> None:
        """Say what outputs of regions are, where nothing did and all is known, and of which element type what they read
        of ops that onnx does not know: a quantizer or a kernel asks."""
        read = dict.fromkeys(name for region in found for name in region.node.input)
        foreign = [name for name in read if self._foreign(name) and self.graph.known_type(name) is None]
        proto.value_info.extend(helper.make_tensor_value_info(n, self.scope.dtype(n), None) for n in foreign)
        for name in (name for region in found for name in region.node.output):
            shape = self.scope.term(name).shape
            if name not in self.graph.types and shape is not None and all(isinstance(dim, int) for dim in shape):
                sizes = [dim for dim in shape if isinstance(dim, int)]
                proto.value_info.append(helper.make_tensor_value_info(name, self.scope.dtype(name), sizes))

    def _foreign(self, name: str) -> bool:
        """Does an op of a domain that onnx does not know make a value?"""
        index = self.graph.producer.get(name)
        return index is not None and self.graph.nodes[index].domain not in (*STANDARD, DOMAIN)

    def _tell(self, found: Sequence[_Region], live: set[int]) -> None:
        """Say of each region what it stands for."""
        nodes, proto = self.graph.nodes, self.graph.proto
        owner: dict[int, int] = {}
        for number, region in enumerate(found):
            for launch in region.group.launches:
                if launch.index not in live:
                    owner.setdefault(launch.index, number)
        for index, node in enumerate(nodes):
            made = next((name for name in node.output if name in self.scope.root_of), "")
            source = self.graph.producer.get(self.scope.root(made)) if made and index not in live else None
            if source in owner:
                owner.setdefault(index, owner[source])
        written = {node.name: node for node in proto.node if node.domain == DOMAIN}
        replaced: list[list[NodeProto]] = [[] for _ in found]
        for index in sorted(owner):
            replaced[owner[index]].append(nodes[index])
        for region, own in zip(found, replaced, strict=True):
            self.sites.append(self._site(region, written[region.node.name], own))

    def _site(self, region: _Region, node: NodeProto, replaced: Sequence[NodeProto]) -> FusedNode:
        names = tuple(map(name_of, replaced))
        rule = region.match.rule
        for key, value in ((RULE_KEY, rule.name), (VERSION_KEY, rule.version), (REPLACED_KEY, " ".join(names))):
            node.metadata_props.add(key=key, value=value)
        told = self._named([launch.node for launch in region.group.launches]) or self._around(region.node)
        trace = stack_traces.common(told)
        inherit(node, replaced, trace)
        values = {next(filter(None, each.output)): each.op_type in FREE for each in replaced}
        terms = {value: self._computed(value, view=view) for value, view in values.items()}
        return FusedNode(
            (region.match,),
            node,
            node.output[0],
            self.graph.path,
            self.modules.of(told),
            stack_traces.place(trace),
            names,
            region.match.root,
            tuple(Dead.of(self.view, value, term) for value, term in terms.items()),
        )

    def _computed(self, value: str, *, view: bool) -> Term:
        """The term of a value; behind views, which the normal form takes outwards, unless it is a `view` itself."""
        term = self.scope.term(value)
        while not view and term.op in FREE and term.args:
            term = term.args[0]
        return term

    def _named(self, nodes: Sequence[NodeProto]) -> list[NodeProto]:
        """Those of the nodes whose names are an exporter's: ours say nothing of a module."""
        return [node for node in nodes if not node.name.startswith(f"{DOMAIN}/")]

    def _around(self, node: NodeProto) -> list[NodeProto]:
        """What reads the results of a region, else what makes its operands."""
        after = [each for each in self.graph.nodes if not set(node.output).isdisjoint(each.input)]
        before = [self.graph.nodes[i] for name in node.input if (i := self.graph.producer.get(name)) is not None]
        return self._named(after) or self._named(before)

    def _apart(self, groups: Groups) -> Iterator[NearMiss]:
        """What kept two groups from being one."""
        for pair in separated(groups):
            above = words([op for launch in pair.producer.launches for op in _said(launch)])
            reason = f"not with {above} before it: {pair.reason}"
            if SECOND in reason and self.graph.opset < ONE_OP and any(map(_normalizes, pair.consumer.launches)):
                reason += f", unless LayerNormalization is one op: --opset {ONE_OP}"
            yield self._miss(pair.consumer, reason, 1)

    def _miss(self, group: Group, reason: str, saved: int) -> NearMiss:
        node = group.launches[0].node
        told = self._named([launch.node for launch in group.launches])[:1] or self._around(node)
        scope = f"{self.graph.path}{self.modules.of(told)}"
        code = stack_traces.place(stack_traces.frames(node))
        return NearMiss(REGION, "", scope, name_of(node), reason, saved, code)


def _words(group: Group) -> str:
    """What reports call a region."""
    ops = [op for launch in group.launches for op in _said(launch)]
    several = sum(launch.kind == "product" for launch in group.launches) > 1
    return together(group, ops) if several else words(ops)


def _normalizes(launch: Launch) -> bool:
    """Does its body reduce rows twice, for a mean and a variance, where ai.onnx has no op for that?"""
    return family_of(launch.node) in ("LayerNormalization", "SkipLayerNormalization")


def _said(launch: Launch) -> Sequence[str]:
    """What reports call a launch: a fused op by its name."""
    return [family_of(launch.node)]
