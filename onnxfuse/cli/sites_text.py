"""How a report tells of places: what was fused there, what nearly was, and what stays as it is."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from onnxfuse.reporting.conversion import Conversion, KeptCast
from onnxfuse.reporting.layers import collapsed, short
from onnxfuse.reporting.near_miss_groups import gain, grouped
from onnxfuse.reporting.records import NO_RULE, Fusion, NearMiss, Remaining, known_bytes

from .quantities import human_launches, human_nodes, human_traffic

_EXAMPLES = 3
_SMALL = 0.01
"""Of the time: ops that remain and take less are counted together."""
_NARROW, _NARROW_WITH_CODE = 80, 110
"""Columns: below, headings are broken and lines of code stand below their places, for names to have more."""
_TOP = "(top)"
"""The module path of what stands in none."""


def print_fusions(out: Console, fusions: Sequence[Fusion], *, scopes: bool, sites: bool) -> None:
    """A line for each rule, with `scopes` the modules it fuses, layers together, with `sites` each place."""
    if not fusions:
        return
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.add_column("fusion", overflow="fold")
    told = (scopes or sites) and any(fusion.code for fusion in fusions)
    beside = told and out.width >= _NARROW_WITH_CODE
    broken = out.width < (_NARROW_WITH_CODE if told else _NARROW)
    for heading in ("sites", "launches saved", "traffic saved"):
        table.add_column(heading.replace(" ", "\n") if broken else heading, justify="right", no_wrap=True)
    if beside:
        table.add_column("code", overflow="fold")
    groups: dict[str, list[Fusion]] = defaultdict(list)
    for fusion in fusions:
        groups[fusion.rule].append(fusion)
    for rule, group in sorted(groups.items(), key=lambda item: (-sum(f.launches_saved for f in item[1]), item[0])):
        launches = sum(fusion.launches_saved for fusion in group)
        table.add_row(Text(rule, style="bold cyan"), str(len(group)), f"{launches:,}", human_traffic(group))
        if sites:
            for fusion in group:
                node = fusion.node.removeprefix(f"{fusion.scope}/")
                where = f"{fusion.scope or _TOP}{_with(fusion)}: {node}, {human_nodes(len(fusion.replaced))}"
                saved = f"{fusion.launches_saved:,}"
                row: list[RenderableType] = ["", saved, human_traffic([fusion])]
                table.add_row(*_placed(where, row, fusion.code, beside=beside))
        elif scopes:
            places = (f"{fusion.scope or _TOP}{_with(fusion)}\n{short(fusion.code)}" for fusion in group)
            for place, count in collapsed(places):
                scope, code = place.split("\n")
                if place == f"{_TOP}\n" and count == len(group):
                    continue  # a model without modules: the line above says it
                row = [Text(str(count), style="dim"), "", ""]
                table.add_row(*_placed(scope, row, code, beside=beside))
    out.print()
    out.print(Padding.indent(table, 2))
    if not known_bytes(fusions)[1]:
        out.print(Text("  ? and >: a size depends on the data", style="dim"))
    out.print()


def _placed(place: str, figures: Sequence[RenderableType], code: str, *, beside: bool) -> list[RenderableType]:
    """The row of a place, with the line of the program in a column of its own, or below it where there is no room."""
    if beside:
        return [_inside(place), *figures, Text(code, style="dim")]
    return [Group(_inside(place), Padding.indent(Text(code, style="dim"), 4)) if code else _inside(place), *figures]


def _inside(text: str) -> RenderableType:
    """What stands below a rule, indented also where it is folded."""
    return Padding.indent(Text(text, style="dim"), 2)


def print_near_misses(out: Console, misses: Sequence[NearMiss], *, verbose: bool) -> None:
    """Near misses, those of one rule and reason together, what would save most first."""
    if not misses:
        return
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", style="yellow", no_wrap=True)
    table.add_column(overflow="fold")
    for group in grouped(misses):
        first, saved = group[0], gain(group)
        places = [place for place, _ in collapsed(miss.node for miss in group)]
        told = f" ({human_launches(saved)})" if saved else ""
        code = f", {short(first.code)}" if first.code else ""
        line = Text.assemble((first.rule, "bold"), f" at {listed(places)}{code}: {first.reason}", (told, "dim"))
        table.add_row(f"{len(group)} ×", line)
        if verbose:
            for miss in group if len(group) > 1 else ():
                table.add_row("", Text(f"{miss.node}  {miss.code}".rstrip(), style="dim"))
            if first.source:
                table.add_row("", Text(first.source, style="dim"))
    told = " (and the launches that would save)" if gain(misses) else ""
    out.print(Text(f"  nearly fused{told}", style="dim"))
    out.print(Padding.indent(table, 2))


def print_remaining(
    out: Console, remaining: Sequence[Remaining], card: str, *, verbose: bool, regions: bool = False
) -> None:
    """The ops that are launched one by one still, with their share of the time that is predicted on a card; where
    `regions` may be asked for, that these may take what no rule does."""
    shown = [each for each in remaining if verbose or each.share >= _SMALL]
    if not remaining:
        return
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.add_column("not fused", no_wrap=True)
    table.add_column("nodes", justify="right", no_wrap=True)
    table.add_column(f"time on {card}", justify="right", no_wrap=True)
    table.add_column("why", overflow="fold")
    for each in shown:
        table.add_row(Text(each.op, style="bold"), str(each.nodes), f"{each.share:.0%}", Text(each.reason, style="dim"))
    if rest := remaining[len(shown) :]:
        share = f"{sum(each.share for each in rest):.0%}"
        table.add_row(Text("others", style="dim"), str(sum(each.nodes for each in rest)), share)
    out.print(Padding.indent(table, 2))
    alone = sum(each.nodes for each in shown if each.reason == NO_RULE)
    if regions and alone > 1:
        out.print(Padding.indent(Text(f"{NO_RULE}: -O2 fuses neighbours that no rule names", style="dim"), 2))
    out.print()


def fusion_at(fusion: Fusion) -> str:
    """A fusion and its place in a few words."""
    return f"{fusion.rule} at {fusion.scope or fusion.node}"


def _with(fusion: Fusion) -> str:
    often = Counter(fusion.absorbed).items()
    return f" with {', '.join(f'{n} {name}' if n > 1 else name for name, n in often)}" if often else ""


def listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    shown = ", ".join(names[:_EXAMPLES])
    return shown if len(names) <= _EXAMPLES else f"{shown} and {len(names) - _EXAMPLES} more"


def print_conversion(out: Console, told: Conversion, *, verbose: bool) -> None:
    """What computes in half precision, and where Casts remain and why."""
    if not told.half:
        out.print(Padding.indent(Text(_unconverted(told)), 2))
    edges, inner = len(told.casts) - len(told.inner), told.inner
    counted = f"{told.type}: {told.half:,} nodes, {told.float32:,} in float32; Casts: {edges} of inputs and outputs"
    if told.half or told.casts:
        out.print(f"  {counted}, {len(inner)} inside")
    reasons: dict[str, list[KeptCast]] = {}
    for cast in inner:
        reasons.setdefault(cast.reason, []).append(cast)
    for reason, casts in reasons.items():
        nodes = list(dict.fromkeys(cast.node for cast in casts))  # one has Casts before and behind it
        shown = nodes if verbose else nodes[:_EXAMPLES]
        places = ", ".join(shown) + (" ..." if len(shown) < len(nodes) else "")
        out.print(Padding.indent(Text(f"{len(casts)} at {places}: {reason}", style="dim"), 4))
    out.print()


def _unconverted(told: Conversion) -> str:
    """Why nothing computes in half precision."""
    if not told.float32:
        return f"nothing in {told.type}: no node computes with floats"
    often = [f"{each.reason}{f' ({each.nodes:,} nodes)' * (each.nodes > 1)}" for each in told.kept]
    nodes = f"{told.float32:,} node{'s' * (told.float32 > 1)}"
    return f"nothing in {told.type}, {nodes} in float32: {listed(often)}"
