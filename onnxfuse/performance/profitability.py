"""Which fusions pay on a card: one that is predicted to make the model slower is left out.

The model with a fusion is weighed against the model without it, both as `estimate` predicts them, so that whatever else
can be fused in its place counts, too.  Fusions that are alike are tried together.  Not tried is what cannot lose: a
function body, which is the nodes that it stands for, and a kernel that takes no more than its bytes do at the full rate
of the card.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from onnxfuse.reporting.records import Estimate, LeftOut
from onnxfuse.reporting.tell import fusion
from onnxfuse.rewriting.provenance import keys

from .estimate import FUNCTION_BODY, Prediction, predict
from .gpus import Card

if TYPE_CHECKING:
    from onnxfuse.fusing.fused import Banned, Fused, Progress
    from onnxfuse.rewriting.provenance import FusedNode

LEAST = 1e-9
"""Seconds of a difference that counts."""


def paying(
    fused: Fused,
    rebuild: Callable[[Banned], Fused],
    card: Card,
    shapes: Mapping[str, Sequence[int]],
    rules: Sequence[Path],
    base_dir: Path | None,
    *,
    progress: Progress,
) -> tuple[Fused, Banned, list[LeftOut]]:
    """The model with the fusions that pay at these `shapes` of its inputs, what is banned for that, and what it leaves
    out."""
    banned: Banned = frozenset()
    left_out: list[LeftOut] = []
    tried: set[Banned] = set()
    now = predict(fused.model, shapes, card, rules, base_dir)
    done = False
    while not done:
        done = True
        for group in _doubtful(fused, now, card):
            out = frozenset(key for site in group for key in keys(site, site.matches[-1:]))
            if out in tried:
                continue
            tried.add(out)
            progress(f"weigh on {card.name}", len(tried), 0)
            candidate = rebuild(banned | out)
            then = predict(candidate.model, shapes, card, rules, base_dir)
            slower = now.seconds - then.seconds
            if slower < LEAST or then.unknown > now.unknown:
                continue
            each = f"predicted to be {slower / len(group) * 1e6:.3g} µs slower on {card.name} than what it replaces"
            left_out += [LeftOut(fusion(site), None, each) for site in group]
            fused, now, banned, done = candidate, then, banned | out, False
            break
    return fused, banned, left_out


def _doubtful(fused: Fused, now: Prediction, card: Card) -> list[list[FusedNode]]:
    """Fusions that may lose, those alike together."""
    groups: dict[tuple[str, str, Estimate], list[FusedNode]] = defaultdict(list)
    for site in fused.sites:
        estimate = now.fused.get((site.scope, site.node.name))
        if estimate is None or estimate.source == FUNCTION_BODY or estimate.seconds is None:
            continue
        least = (estimate.bytes or 0) / card.bandwidth + min(2, len(site.replaced)) * card.launch
        if estimate.seconds > least:
            groups[site.node.op_type, site.matches[-1].rule.name, estimate].append(site)
    return list(groups.values())
