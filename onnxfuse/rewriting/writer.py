"""Terms → graph: writes what the search found back into the scope it came from.

A value whose term no rule touched keeps the node that computes it, byte for byte.  A touched value is computed anew
from its term (`realize`).  Then what nobody uses goes, and the rest is put into topological order, as close to the
original as possible.  Outputs of the scope, and values that bodies of control flow read, keep their names.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection

from onnx import NodeProto

from onnxfuse.language.catalogue import GROWTH
from onnxfuse.language.functions import Functions
from onnxfuse.lifting.view import View
from onnxfuse.matching.search import Found
from onnxfuse.matching.state import reachable
from onnxfuse.model.graph import Graph, Names, captured_names, read_by
from onnxfuse.model.op_traits import REMOVABLE, VIEWS
from onnxfuse.model.standard import STANDARD
from onnxfuse.terms.normal.views import is_reshape
from onnxfuse.terms.term import SMALL, Term, static

from .assemble import assemble, tidy
from .duplicates import Duplicates, is_signed_step
from .plan import Draft, Plan, UnrealisableError
from .provenance import FusedNode
from .realize import realize
from .simplify import simpler
from .stored import Room, stored


class Writer:
    """Edits one scope in place."""

    def __init__(
        self,
        view: View,
        found: Found,
        names: Names,
        functions: Functions,
        kept: Collection[str] = (),
        room: Room | None = None,
    ) -> None:
        self.view, self.found, self.kept = view, found, kept
        self.room = room or Room(GROWTH)
        self.graph: Graph = view.graph
        self.draft = Draft(view, found, names, functions)
        self.alias = self.draft.alias
        self.duplicates = Duplicates(self.alias)
        self.pinned: set[str] = set()
        """Values that must keep their name: outputs, and what bodies of control flow read."""
        self.decides: set[str] = set()
        """Values that say which branch of an If runs.  They are not folded: a runtime would inline the branch, and hold
        it to checks that it escapes while the condition is open."""
        self.read: set[str] = set()
        """Values that something reads by name; other touched values are built only if a term needs them."""
        self.anew: set[int] = set()
        """Nodes all of whose values must be computed anew."""
        self.visited: set[int] = set()
        self.simplified: set[str] = set()
        """Values that are computed anew though no fusion touched them; never those in `kept`."""
        self.stored: set[str] = set()
        """Values that are constants of the file to be, however large."""
        self.anchors: dict[int, int] = {}
        """Fused ops with several outputs → position of the last value they compute."""
        self.first: dict[int, int] = {}
        """Terms → position of the first value that is one."""

    # ------------------------------------------------------------------------------------- the scope

    def write(self) -> list[FusedNode]:
        """Rewrite the scope; returns the fused nodes that are live.  Raises UnrealisableError."""
        graph, current = self.graph, self.found.current
        moved = set(self.found.touched)
        for node in graph.nodes:
            if len(node.output) != 1 or not moved.intersection(node.input):
                continue
            term = current.get(node.output[0])
            # What follows a value that is computed anew may do nothing, or be a view that has cancelled against it.
            same = any(name in moved and current.get(name) is term for name in node.input)
            if same or (node.op_type in VIEWS and node.input[0] in moved):
                moved.add(node.output[0])
        self._touch(moved - self.found.stale)
        self.pinned = set(graph.outputs)
        for node in graph.nodes:
            if node.op_type == "If":
                self._keep_open(node.input[0])
        live_nodes, reads = self._demand()
        anew = self.anew
        self.simplified = simpler(self.draft, live_nodes - anew, live_nodes & anew, reads, self.pinned, self.room)
        self.simplified |= {name for name in self.view.counted if graph.producer[name] in live_nodes - self.anew}
        self.simplified -= set(self.kept) | self.decides
        self.simplified |= {self.view.counted[name] for name in self.simplified & self.view.counted.keys()}
        if self.simplified:
            self._touch(self.simplified)
            live_nodes, reads = self._demand()
        self.stored = stored(
            self.view, self.found, live_nodes - self.anew, reads, self.pinned | self.decides, self.room
        )
        for index in live_nodes:
            node = graph.nodes[index]
            if index in graph.captures:
                self.pinned |= captured_names(node)
            if index not in self.anew:
                self.read.update(node.input)
        self.read |= self.pinned
        if self._stays(live_nodes):
            tidy(self.draft)
            return []
        for name, term in current.items():
            if name not in graph.producer:
                self.draft.register(term, -1.0, name, self.view.dtypes[name])
        terms = reachable(self.view, current)[0]
        alive = {term.id for term in terms}
        uses = Counter(arg.id for term in terms for arg in term.args)
        self.draft.once = {term for term, count in uses.items() if count == 1}
        for term in terms:
            if term.op == "Output":
                self.draft.parts.setdefault(term.args[0].id, set()).add(term.attr("index"))
        for name, index in sorted(graph.producer.items(), key=lambda item: item[0] not in self.pinned):
            bound = current.get(name)
            if bound is not None and bound.op == "Output" and name in self.found.touched and bound.id in alive:
                whole = bound.args[0].id
                self.anchors[whole] = max(index, self.anchors.get(whole, -1))
                self.draft.outputs_of.setdefault(whole, []).append(name)
        for name, index in graph.producer.items():
            if index in self.anew and name and name not in self.read:
                self.draft.vacant.setdefault(current[name].id, []).append(name)
        for index in sorted(live_nodes):
            self._visit(index)
        return assemble(self.draft, self.duplicates, self.pinned)

    def _stays(self, live_nodes: Collection[int]) -> bool:
        """Does every node of the scope stay as it is?  So it is in a last pass, which has nothing to write."""
        nodes = self.graph.nodes
        if self.anew or self.stored or len(live_nodes) < len(nodes):
            return False
        return not any(self._small_constant(node) or self._again(node, index) for index, node in enumerate(nodes))

    def _touch(self, values: set[str]) -> None:
        """These values are to be computed anew."""
        touched = self.found.touched
        touched |= values
        self.anew = {
            index
            for index, node in enumerate(self.graph.nodes)
            if any(node.output) and all(name in touched for name in node.output if name)
        }

    def _demand(self) -> tuple[set[int], list[str]]:
        """The nodes that the scope's outputs need: of a touched value, what its new term is built from.

        Also the values that are read by name or by a touched value's term."""
        graph, current = self.graph, self.found.current
        first: dict[int, str] = {}
        reshaped: dict[int, str] = {}
        for name in sorted(current, key=lambda name: graph.producer.get(name, -1)):
            term = current[name]
            first.setdefault(term.id, name)
            if is_reshape(term):
                reshaped.setdefault(term.args[0].id, name)
        # What a Gemm that is kept gives is needed for what is the same in another shape.
        kept = self.draft.functions.catalogue.target.keeps_products
        gemms = {node.output[0] for node in graph.nodes if kept and node.op_type == "Gemm"}
        wanted: set[int] = set()
        looked: set[int] = set()
        stack = [name for name in graph.outputs if name in graph.producer]
        reads = list(stack)
        for lasting in self.view.lasting:
            if lasting not in self.anew:
                wanted.add(lasting)
                stack += read_by(graph.nodes[lasting])
        while stack:
            index = graph.producer.get(stack.pop())
            if index is None or index in wanted:
                continue
            wanted.add(index)
            node = graph.nodes[index]
            if index not in self.anew:
                stack += read_by(graph.nodes[index])
                continue
            made = [current[name] for name in node.output if name]
            stack += [name for term in made if (name := reshaped.get(term.id, "")) in gemms]
            # What control flow gives is only where that stands, under whatever name its result goes on.
            standing = [name for term in made if (name := first.get(term.id, "")) and name not in node.output]
            stack += [name for name in standing if graph.producer.get(name) in graph.captures]
            terms = [a for term in made for a in term.args or (term,)]  # what an opaque node computes has no arguments
            limit = len(graph.nodes) if any(term.op == "Output" for term in made) else index
            while terms:
                term = terms.pop()
                if term.id in looked:
                    continue
                looked.add(term.id)
                known = first.get(term.id)
                if known is not None and graph.producer.get(known, -1) < limit:  # what follows may be made of this
                    stack.append(known)
                    reads.append(known)
                else:
                    terms.extend(term.args)
                    if term.id in reshaped:  # may come too late
                        stack.append(reshaped[term.id])
        return wanted, reads

    def _keep_open(self, condition: str) -> None:
        """Keep the nodes that a condition is computed by."""
        stack = [condition]
        while stack:
            name = stack.pop()
            index = self.graph.producer.get(name)
            if index is not None and name not in self.decides:
                self.decides.add(name)
                stack.extend(i for i in self.graph.nodes[index].input if i)

    def _visit(self, index: int) -> None:
        """Deal with one node of the original, and make its values known."""
        node = self.graph.nodes[index]
        self.visited.add(index)
        lazy = index in self.anew and not any(name in self.read for name in node.output)
        if lazy:
            self.visited.discard(index)
            return
        if not self._replaced(node, index):
            self.draft.named.update(node.output)
            for name in node.input:
                self._require(name)
            self.draft.nodes.append((index, 0, node))
        for name in node.output:
            if name:  # what nothing is known of is the duplicate that it has
                standing = self.alias.get(name, name)
                self.draft.register(self.found.current[name], index, standing, self.view.dtypes[name])

    def _require(self, name: str) -> None:
        """See to it that a value is there, though nothing asked for it before."""
        source = self.graph.producer.get(name)
        if source is not None and source not in self.visited:
            self.read.add(name)
            self._visit(source)

    def _replaced(self, node: NodeProto, index: int) -> bool:
        """Deal with a node that does not stay: computed anew, constant, nothing to do, or a duplicate."""
        outputs = [name for name in node.output if name]
        if index in self.anew:
            if len(outputs) == 1 and outputs[0] not in self.pinned:
                # Computed for both at the place of the first: what is computed at the second is too late for it.
                same = self._unchanged(node, self.found.current[outputs[0]], outputs[0])
                if same is not None:
                    self._require(same)
                    self.alias[outputs[0]] = self.alias.get(same, same)
                    return True
            renewed = [self._renew(name, index) for name in outputs if name in self.read]
            return all(renewed)
        if self.stored.intersection(outputs):
            for name in self.stored.intersection(outputs):
                self._store(name)
            return True
        if name := self._small_constant(node):
            self._store(name)
            return True
        same = self._again(node, index)
        if same is not None:
            self._require(same)
            self.alias[outputs[0]] = self.alias.get(same, same)
            return True
        return False

    def _small_constant(self, node: NodeProto) -> str:
        """The value of a node that is a small constant of the file to be; the empty string for any other node."""
        name = self._renamable(node)
        if not name or name in self.pinned or name in self.decides:
            return ""
        term = self.found.current[name]
        return name if term.op == "Constant" and _element_count(term) <= SMALL else ""

    def _again(self, node: NodeProto, index: int) -> str | None:
        """The value of another node that is the same as that of a node that would stay otherwise."""
        name = self._renamable(node)
        if not name or name in self.pinned:
            return None
        return self._unchanged(node, self.found.current[name], name) or self._duplicate(node, index)

    def _renamable(self, node: NodeProto) -> str:
        """The value of a node that another one may stand for; the empty string for a node that is not known."""
        if node.domain not in STANDARD or node.op_type == "Constant":
            return ""
        outputs = [name for name in node.output if name]
        return outputs[0] if len(outputs) == 1 else ""

    def _store(self, name: str) -> None:
        """A value becomes an initializer."""
        plan = Plan(self.draft)
        plan.constant(self.found.current[name], self.view.dtypes[name], name)
        self.draft.commit(plan)

    def _renew(self, name: str, index: int) -> bool:
        """Compute a touched value from its new term.  False if that cannot be done here: then its node stays."""
        term, dtype = self.found.current[name], self.view.dtypes[name]
        limit = self._place(term, index)
        try:
            source = self.draft.commit(realize(self.draft, term, dtype, limit, "" if term.constant else name))
        except UnrealisableError:
            return False
        if source != name:
            if name in self.pinned:
                passed_on = Plan(self.draft)
                passed_on.node("Identity", [source], {}, limit, name)
                self.draft.commit(passed_on)
            else:
                self.alias[name] = source
        return True

    def _place(self, term: Term, index: int) -> int:
        """Where a value is computed: at the place of its node, or behind it at that of an op with several outputs that
        it is made of, which before that would be computed once more."""
        if term.op == "Output":
            return self.anchors.get(term.args[0].id, index)
        if self.anchors and not self.first:
            for name, at in self.graph.producer.items():
                if (known := self.found.current.get(name)) is not None:
                    self.first[known.id] = min(at, self.first.get(known.id, at))
        place, stack, seen = index, [*term.args], {term.id}
        while stack and self.anchors:
            part = stack.pop()
            if part.op == "Output":
                place = max(place, self.anchors.get(part.args[0].id, index))
            elif part.id not in seen and self.first.get(part.id, index) >= index:
                stack += part.args
            seen.add(part.id)
        return place

    def _unchanged(self, node: NodeProto, term: Term, name: str) -> str | None:
        """The input that the node passes on as it is, if it is one that does nothing here."""
        if node.op_type not in REMOVABLE:
            return None
        for source in node.input:
            same = bool(source) and self.found.current.get(source) is term
            same = same and (self.view.terms_of[source] is term or name in self.found.touched)
            if same and term.shape is not None and self.view.dtypes.get(source) == self.view.dtypes[name]:
                return str(source)
        return None

    def _duplicate(self, node: NodeProto, index: int) -> str | None:
        """The output of an earlier node that computes the same from the same inputs."""
        if self.view.effects[index] or node.op_type == "Dropout" or index in self.graph.captures:
            return None
        return None if is_signed_step(self.view, node) else self.duplicates.first(node)


def _element_count(term: Term) -> int:
    dims = static(term.shape)
    return SMALL + 1 if dims is None else math.prod(dims)
