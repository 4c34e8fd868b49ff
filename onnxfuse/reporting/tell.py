"""What a report says of the fusions made, and of those that were nearly made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence

from onnxfuse.language.rule import Rule
from onnxfuse.lifting.view import View
from onnxfuse.matching.binding import Failure
from onnxfuse.matching.cost import launches, launches_of
from onnxfuse.matching.match import Match
from onnxfuse.matching.search import FORCED, Found
from onnxfuse.model.graph import family_of
from onnxfuse.model.op_traits import COMMON, NEUTRAL
from onnxfuse.model.standard import STANDARD
from onnxfuse.rewriting.module_paths import ModulePaths
from onnxfuse.rewriting.provenance import FusedNode
from onnxfuse.rewriting.stack_traces import frames, place
from onnxfuse.terms.term import Term

from .records import Fusion, NearMiss

NEAR = 0.6
"""A failed match is worth telling from this share of its pattern on."""
_SUMS = frozenset({"ReduceSum", "ReduceMean"})
SMALL = 4
"""A pattern of fewer ops says something only where all of them are there and a condition fails."""


def worth_telling(site: FusedNode) -> bool:
    """A node that a target merely writes in another way is no fusion."""
    return len(site.replaced) > 1 or any(not match.rule.lowers for match in site.matches)


def launches_saved(site: FusedNode) -> int:
    """How many launches a site saves: a node is one, or two, however many steps its term has."""
    return max(sum(each.launched for each in site.dead) - launches_of(site.node), 0)


def fusion(site: FusedNode, bytes_saved: int | None = None) -> Fusion:
    """A site as plain data; None where what it saves was not measured."""
    domain = "" if site.node.domain in STANDARD else f"{site.node.domain}."
    fused = [match.rule.name for match in site.matches if not match.rule.lowers]
    inner = dict.fromkeys((match.rule.name, i) for match in site.matches for i in match.inner)
    often = Counter(i.rule.name for outer, i in inner if i.rule.name != outer)
    rule = (fused or [match.rule.name for match in site.matches])[-1]
    paths = (i.rule.path for match in site.matches for i in (*reversed(match.inner), match))
    return Fusion(
        rule=rule,
        op=f"{domain}{family_of(site.node)}",
        scope=f"{site.scope}{site.module}",
        node=site.node.name,
        replaced=site.replaced,
        absorbed=tuple(name for name in dict.fromkeys(fused) if name != rule for _ in range(often[name] or 1)),
        launches_saved=launches_saved(site),
        bytes_saved=bytes_saved,
        code=site.code,
        sources=tuple(dict.fromkeys(filter(None, paths))),
    )


def near_misses(view: View, found: Found, sites: Sequence[FusedNode], why: str | None) -> list[NearMiss]:
    """Failed matches that got far, at places that no fusion covers: of those that share a place, the furthest.

    Of rules that got equally far, the one that asks for the least besides is the nearest.  Of the rule `why` those too
    where other rules have fused instead."""
    covered, own = _covered(sites), _covered([s for s in sites if why in {match.rule.name for match in s.matches}])
    names: dict[int, str] = {}
    modules = ModulePaths(view.graph.nodes)
    definitions = view.catalogue.definitions if view.catalogue is not None else {}
    for name, term in view.terms_of.items():
        if name in view.graph.producer:
            names.setdefault(term.id, name)
    result: list[NearMiss] = []
    told = {term.id for match, _ in found.mistaken.values() for term in match.cover}
    matched = {(each.match.rule.name, each.match.root.id) for each in found.unprofitable if each.survivors}
    open_roots = names.keys() - (covered if why is None else own)
    order = sorted(
        found.failures(open_roots), key=lambda f: (-f.matched, -f.matched / f.size, len(f.rule.where), f.root.id)
    )
    for failure in order:
        root = view.graph.nodes[view.graph.producer[names[failure.root.id]]]
        if failure.rule.name != why and (failure.root.id in covered or family_of(root) == failure.rule.name):
            continue  # it is fused, or what the rule would write
        if (failure.rule.name, failure.root.id) in matched:
            continue  # another spelling of the rule matches there, and it is told why that is not made
        if not _telling(failure, why, definitions) or failure.root.id in told or failure.at.id in told:
            continue  # a smaller rule stops at the same step, or inside what a larger one has matched
        steps = {i: view.terms_of[names[i]] for i in failure.covered if i in names}
        if failure.rule.name != why and failure.strays and all(_says_nothing(step) for step in steps.values()):
            continue  # sums and products of other things
        done = covered & {i for i, term in steps.items() if launches(term)}
        if failure.rule.name != why and 2 * len(done) > sum(1 for term in steps.values() if launches(term)):
            continue  # most of it is fused already, and what is there is in the way of the rest
        told |= failure.covered | {failure.at.id}
        value = names.get(failure.at.id) or names[failure.root.id]
        node = view.graph.nodes[view.graph.producer[value]]
        scope = f"{view.graph.path}{modules.of([node])}"
        source = f"{failure.rule.path}:{failure.line}"
        alone = sum(min(launches(term), 1) for i, term in steps.items() if i not in covered)
        saved = max(alone + sum(1 for site in sites if done & _covered([site])) - 1, 0)
        code = place(frames(node))
        result.append(NearMiss(failure.rule.name, source, scope, node.name or value, failure.reason(), saved, code))
    result += _not_made(view, found, names, covered, modules)
    result += [_endless(view, index, modules) for index in sorted(view.endless)]
    return sorted(set(result), key=lambda miss: miss.order)


def _endless(view: View, index: int, modules: ModulePaths) -> NearMiss:
    """A node of which a mistake in the normal form keeps all rules away."""
    node, equation = view.graph.nodes[index], view.endless[index]
    reason = f"a law turns in a circle here, {equation or 'one of shapes'}: nothing is known of it; report this model"
    scope, code = f"{view.graph.path}{modules.of([node])}", place(frames(node))
    return NearMiss(family_of(node), "", scope, node.name or node.output[0], reason, launches_of(node), code)


def _not_made(
    view: View, found: Found, names: Mapping[int, str], covered: Container[int], modules: ModulePaths
) -> Iterator[NearMiss]:
    """Matches that would have cost something; `names` are the values of terms."""
    graph = view.graph

    def told(match: Match, reason: str, kept: str, saved: int = 0) -> NearMiss:
        node = graph.nodes[graph.producer[names.get(match.root.id, kept)]]
        scope, code = f"{graph.path}{modules.of([node])}", place(frames(node))
        source = f"{match.rule.path}:{match.rule.emit[0].lineno}"
        return NearMiss(match.rule.name, source, scope, node.name or kept, reason, saved, code)

    for match, index in found.slower.items():
        node = graph.nodes[index]
        if match.root.id in names and match.root.id not in covered and not match.rule.lowers:
            reason = f"{node.name or node.output[0]} runs on integers, in onnxruntime's {view.integer[index]}"
            yield told(match, reason, names[match.root.id])
    for match, reason in found.mistaken.values():
        if match.root.id in names and match.root.id not in covered:
            saved = max(sum(min(launches(term), 1) for term in match.cover) - 1, 0)
            yield told(match, reason, names[match.root.id], saved)
    for candidate in found.unprofitable:
        root = candidate.match.root
        if root.id in names and root.id not in covered and candidate.survivors:
            kept = next((names[t.id] for t in candidate.survivors if t.id in names), "an intermediate")
            yield told(candidate.match, f"fusing saves nothing: {kept} is needed elsewhere as well", kept)
    for match, op in found.hiding:
        value = min(match.values & graph.producer.keys(), default="")
        if value and not match.rule.lowers:
            saved = max(sum(min(launches(term), 1) for term in match.cover) - 1, 0)
            yield told(match, f"left for a quantizer to find the {op}, as --keep-products wants it", value, saved)


def _makes_ready(rule: Rule, definitions: Mapping[str, Rule]) -> bool:
    """Whether what a rule makes is only made ready for another rule: its cost is that of another op than of its own,
    as scores whose mask is spelled otherwise are a Softmax still, and pay as part of an Attention."""
    own = definitions.get(rule.op)
    return own is not None and rule.cost not in ("", "fold", *FORCED, own.cost)


def _covered(sites: Sequence[FusedNode]) -> set[int]:
    """The terms that fused nodes stand for."""
    return {term.id for site in sites for term in (*(each.term for each in site.dead), site.term)}


def _telling(failure: Failure, why: str | None, definitions: Mapping[str, Rule]) -> bool:
    """Whether a failed match is worth a user's time."""
    if failure.rule.lowers and failure.rule.name != why:
        return False
    if failure.rule.name == why:
        return failure.size > 1 and failure.matched / failure.size >= NEAR
    if failure.other or _makes_ready(failure.rule, definitions):
        return False
    if failure.size < SMALL or failure.rule.cost == "fold":
        if failure.strays:
            return False
        return failure.matched == failure.size > 1 and failure.root.op not in COMMON and not _is_residual(failure)
    return failure.matched / failure.size >= NEAR


def _says_nothing(step: Term) -> bool:
    """Is a step arithmetic, or a sum or mean of elements, of which many ops are made?"""
    return step.op in COMMON or step.op in _SUMS


def _is_residual(failure: Failure) -> bool:
    """Is what should be a constant one of two tensors of a shape that are summed or multiplied before the root?  It is
    no shift or factor that could be folded."""
    sums = [arg for arg in failure.root.args if arg.op in NEUTRAL and failure.at in arg.args]
    return any(arg.shape is not None and failure.at.shape == arg.shape for arg in sums)
