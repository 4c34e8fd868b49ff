"""How a report looks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from onnxfuse.reporting import phrases
from onnxfuse.reporting.layers import short
from onnxfuse.reporting.records import Estimate, Fusion, NearMiss, Report, Validation

from .held_text import print_held
from .quantities import human_bytes, human_flops, human_launches, human_nodes, human_seconds, human_traffic
from .sites_text import fusion_at, listed, print_conversion, print_fusions, print_near_misses, print_remaining

if TYPE_CHECKING:
    from onnxfuse.reporting.requirements import Finding


def print_optimized(
    out: Console, report: Report, *, written: Sequence[Path], verbose: bool, page: Path | None = None
) -> None:
    """What `optimize` did to one model; `written` is empty if it wrote nothing on purpose, `page` shows it all."""
    arrow = f" → {report.output}" if report.output else ""
    out.print(Text.assemble((report.model, "bold"), arrow))
    _print_sum(out, report)
    print_held(out, report.held, verbose=verbose)
    print_fusions(out, report.fusions, scopes=verbose, sites=verbose)
    if report.card is not None:
        out.print(Text(f"  weighed on {report.card}", style="dim"))
    for left in report.left_out:
        what = f"left out: {fusion_at(left.fusion)}: {left.reason}"
        out.print(Padding.indent(Text.assemble(("✗ ", "bold red"), what), 2))
    _print_placement(out, report)
    if report.conversion is not None:
        print_conversion(out, report.conversion, verbose=verbose)
    _print_verdict(out, report.validation)
    for extra in written[1:]:
        out.print(Text(f"  with its external data in {extra}", style="dim"))
    print_page(out, page)
    out.print(Text(f"  {'written' if written else 'nothing written'}, {report.seconds:.1f} s", style="dim"))
    _print_runs(out, report)
    if written:
        _print_line(out, phrases.advice(report), style="dim")
    out.print()


def print_report(out: Console, report: Report, *, verbose: bool, regions: bool = False) -> None:
    """What can be fused in one model and where, and what nearly could; where `regions` may be asked for, of what."""
    out.print(Text(report.model, style="bold"))
    _print_sum(out, report)
    print_held(out, report.held, verbose=verbose)
    print_fusions(out, report.fusions, scopes=True, sites=verbose)
    if not report.fusions:
        out.print()
    print_remaining(out, report.remaining, report.shares_on, verbose=verbose, regions=regions)
    _print_placement(out, report)
    if report.conversion is not None:
        print_conversion(out, report.conversion, verbose=verbose)
    _print_sources(out, report, verbose=verbose)
    _print_runs(out, report)
    print_near_misses(out, report.near_misses, verbose=verbose)
    if report.near_misses or not report.fusions:
        out.print()


def print_page(out: Console, page: Path | None) -> None:
    """Where the page was written, if one was."""
    if page is not None:
        out.print(Text(f"  page in {page}", style="dim"))


def _print_line(out: Console, text: str, style: str = "") -> None:
    """A line that stays indented where a terminal breaks it."""
    out.print(Padding.indent(Text(text, style=style), 2))


def _print_placement(out: Console, report: Report) -> None:
    """How many nodes onnxruntime's CUDA provider leaves to the CPU, and which."""
    if report.placement is None:
        return
    found = report.placement
    before, after = sum(found.before.values()), sum(found.after.values())
    out.print(
        Text(f"  nodes that fall back to the CPU: {before} → {after} (kernels of onnxruntime {found.onnxruntime})")
    )
    for op, count in found.after.items():
        out.print(Text(f"    {count} × {op}", style="dim"))
    if any(found.host):
        out.print(Text(f"    shape arithmetic, which belongs there: {found.host[0]} → {found.host[1]}", style="dim"))


def _print_runs(out: Console, report: Report) -> None:
    """What runs the fused model, in one line."""
    if report.runs is None:
        return
    _print_line(out, phrases.runs(report.runs), style="dim")


def print_estimates(out: Console, report: Report, *, verbose: bool) -> None:
    """How long the fused nodes take on a card; those alike together, the longest first."""
    if report.card is None:
        return
    groups: dict[tuple[str, Estimate], list[Fusion]] = defaultdict(list)
    for fusion in report.fusions:
        if fusion.estimate is not None:
            groups[fusion.op.removeprefix("onnxfuse."), fusion.estimate].append(fusion)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.add_column(f"predicted on {report.card}", overflow="fold")
    for heading in ("nodes", "time each", "bound by", "moves", "computes", "launches", "blocks", "runs from"):
        table.add_column(heading, justify="left" if heading in ("bound by", "runs from") else "right", no_wrap=True)
    for (op, e), group in sorted(
        groups.items(), key=lambda item: (-len(item[1]) * (item[0][1].seconds or 0), item[0][0])
    ):
        figures = [
            human_seconds(e.seconds) + (" measured" if e.measured else "") if e.seconds is not None else "?",
            e.bound or "?",
            human_bytes(e.bytes) if e.bytes is not None else "?",
            human_flops(e.flops) if e.flops is not None else "?",
            str(e.launches) if e.launches is not None else "?",
            str(e.resident) if e.resident is not None else "",
        ]
        table.add_row(Text(op, style="bold cyan"), str(len(group)), *figures, Text(e.source, style="dim"))
        for line in (*_kernels(e), *(fusion.node for fusion in group)) if verbose else ():
            table.add_row(Text(f"  {line}", style="dim"))
    if not groups:
        return
    out.print(Padding.indent(table, 2))
    times = [fusion.estimate.seconds for fusion in report.fusions if fusion.estimate is not None]
    known = [seconds for seconds in times if seconds is not None]
    total = f"{human_seconds(sum(known))} for {len(known)} fused nodes" if known else ""
    hosts = [fusion.estimate.host or 0.0 for fusion in report.fusions if fusion.estimate is not None]
    host = f"{human_seconds(sum(hosts))} of the processor where no CUDA graph replays them" if any(hosts) else ""
    rest = f"{len(times) - len(known)} of unknown shapes" if len(known) < len(times) else ""
    out.print(Text(f"  {', '.join(filter(None, (total, rest, host)))}", style="dim"))
    for refused in sorted({why for fusion in report.fusions if fusion.estimate for why in fusion.estimate.refused}):
        out.print(Text(f"  {refused}", style="dim"))
    out.print()


def _kernels(estimate: Estimate) -> Iterator[str]:
    """A line for each launch, and what its blocks need."""
    for launch in estimate.kernels:
        waves = f", {launch.waves:,} wave{'s' * (launch.waves != 1)}" if launch.waves is not None else ""
        executed = f", {launch.instructions:,} instructions of warps" if launch.instructions is not None else ""
        yield f"{launch.kernel}: {launch.blocks:,} × {launch.threads} threads{waves}{executed}"
        for on in launch.occupancy:
            shared = human_bytes(on.shared + launch.shared)
            yield f"  {on.architecture}: {on.registers} registers, {shared} shared, {on.resident} blocks at a time"


def print_why(out: Console, report: Report, rule: str) -> None:
    """Everything about one rule, or about regions: each place where it can fuse, and each where it nearly could."""
    of_rule = report.narrowed(lambda found: is_of(found, rule))
    out.print(Text(report.model, style="bold"))
    print_fusions(out, of_rule.fusions, scopes=True, sites=True)
    print_near_misses(out, of_rule.near_misses, verbose=True)
    if not of_rule.fusions and not of_rule.near_misses:
        out.print(f"  nothing in this model comes near {rule}")
    out.print()


def print_origin(out: Console, rule: str, replaced: Sequence[str]) -> None:
    """What a node that onnxfuse wrote stands for; empty what its file does not say."""
    out.print(f"  is fused already{f', by the rule {rule}' if rule else ''}")
    if replaced:
        out.print(Padding.indent(Text(f"it stands for: {', '.join(replaced)}", style="dim"), 4))


def print_explanation(
    out: Console, report: Report, names: frozenset[str], op: str, rules: Sequence[str] | None
) -> None:
    """Everything about one node, known by `names` (its own and its outputs').

    `rules` are those that call its op, None if any might.
    """
    of_node = report.narrowed(lambda found: concerns(found, names))
    for fusion in of_node.fusions:
        out.print(Text(f"  is one of {len(fusion.replaced)} nodes that become {fusion_at(fusion)}"))
        saving = f"    saves {human_launches(fusion.launches_saved)} and {human_traffic([fusion])} of traffic"
        out.print(Text(saving, style="dim"))
        if fusion.code:
            out.print(Text(f"    written in {fusion.code}", style="dim"))
        out.print(Padding.indent(Text(f"nodes: {', '.join(fusion.replaced)}", style="dim"), 4))
    for miss in of_node.near_misses:
        out.print(Text(f"  stopped {miss.rule}: {miss.reason}"))
        if told := ", ".join(filter(None, (miss.source, miss.code and f"written in {miss.code}"))):
            out.print(Text(f"    {told}", style="dim"))
    if not of_node.fusions and not of_node.near_misses:
        if rules is not None and not rules:
            out.print(f"  no rule has {op}: onnxfuse leaves it as it is")
        else:
            others = [rule for rule in rules or () if rule != op]
            out.print(f"  no rule came near it{f'; {op} is part of {listed(others)}' if others else ''}")


def is_of(found: Fusion | NearMiss, name: str) -> bool:
    """Whether a fusion or near miss is of a rule, or is a Region where that is asked for."""
    return name in ((found.rule, found.kind) if isinstance(found, Fusion) else (found.rule,))


def concerns(found: Fusion | NearMiss, names: frozenset[str]) -> bool:
    """Whether a fusion or near miss is about the node known by `names`."""
    replaced = found.replaced if isinstance(found, Fusion) else ()
    return found.node in names or not names.isdisjoint(replaced)


def print_findings(out: Console, findings: Iterable[Finding]) -> None:
    """Why a build fails, one line each, with the near misses that explain it; models that were not given together."""
    from onnxfuse.reporting.requirements import ADVICE

    findings = list(findings)
    absent = [finding for finding in findings if finding.kind == "not given"]
    if len(absent) > 1:
        places = {call.rpartition(":")[0] for finding in absent for call in finding.calls}
        names = listed([finding.model for finding in absent])
        told = f"{len(absent)} models of {', '.join(sorted(places))} were not checked: {names}: {ADVICE}"
        out.print(Text.assemble(("not given: ", "bold red"), told))
        findings = [finding for finding in findings if finding.kind != "not given"]
    for finding in findings:
        out.print(Text.assemble((f"{finding.model}: ", "bold"), (f"{finding.kind}: ", "bold red"), finding.message))
        if finding.near_misses:
            print_near_misses(out, finding.near_misses, verbose=False)
        elif finding.kind == "lost":
            code = f" ({short(finding.code)})" if finding.code else ""
            out.print(Text(f"  and nothing comes near it there{code}: {_ASK.format(finding.model)}", style="dim"))


def census(report: Report) -> str:
    """The fusions of a model in one line: ``12 Attention, 25 LayerNormalization``."""
    return ", ".join(f"{count} {rule}" for rule, count in sorted(report.census.items())) or "no fusions"


def _print_sum(out: Console, report: Report) -> None:
    """Nodes, launches and traffic of the whole model, before and after, and the sizes that these are for."""
    nodes = report.nodes_before, report.nodes_after
    nothing = "nothing fused" if report.left_out else "nothing to fuse"
    if not report.fusions and nodes[0] == nodes[1]:
        out.print(f"  {nothing}: {human_nodes(nodes[0])}, unchanged")
        if report.card is not None:
            _print_sizes(out, report)
        return
    before, after = report.before, report.after
    figures = [_change(f"{nodes[0]:,}", human_nodes(nodes[1]), *nodes)]
    if before.launches:
        figures.append(_change(f"{before.launches:,}", human_launches(after.launches), before.launches, after.launches))
    if before.bytes and after.bytes:
        traffic = f"{human_bytes(after.bytes)} of traffic"
        figures.append(_change(human_bytes(before.bytes), traffic, before.bytes, after.bytes))
    _print_line(out, f"{'' if report.fusions else f'{nothing}; '}{', '.join(figures)}")
    _print_sizes(out, report)
    others = before.launches - after.launches - sum(fusion.launches_saved for fusion in report.fusions)
    if others > 0 and report.fusions:
        _print_line(
            out, f"{human_launches(others)} fewer by what is dead, constant or written with fewer nodes", style="dim"
        )
    if before.unsized or after.unsized:
        unsized = _change(f"{before.unsized:,}", human_launches(after.unsized), before.unsized, after.unsized)
        _print_line(out, f"traffic is without {unsized} whose sizes nothing tells before it runs", style="dim")


def _print_sizes(out: Console, report: Report) -> None:
    """The sizes that nobody gave, and how to."""
    if report.assumed:
        _print_line(out, phrases.sizes(report), style="dim")


def _change(before: str, after: str, then: int, now: int) -> str:
    """``310 → 40 nodes (-87%)``, or ``40 nodes`` where nothing changes."""
    if then == now:
        return after
    return f"{before} → {after}" + (f" ({now / then - 1:+.0%})" if then else "")


def _print_sources(out: Console, report: Report, *, verbose: bool) -> None:
    """What the fused ops run from."""
    if report.kernels:
        kernels = (f"{op} ({source})" for op, source in sorted(report.kernels.items()))
        many = "one kernel is" if report.generated == 1 else f"{report.generated} kernels are"
        made = f"; {many} generated, compiled at the first run" if report.generated else ""
        out.print(Padding.indent(Text(f"kernels for {', '.join(kernels)}{made}", style="dim"), 2))
    if verbose:
        for op, reason in sorted(report.bodies.items()):
            out.print(Padding.indent(Text(f"{op} runs from its function body: {reason}", style="dim"), 2))
    elif report.bodies:
        out.print(Padding.indent(Text(f"from function bodies: {', '.join(sorted(report.bodies))}", style="dim"), 2))
    if report.kernels or report.bodies:
        out.print()


_ASK = "onnxfuse report {} --explain NODE says what became of a node"
_MARKS = {"equal": ("✓ ", "bold green"), "mismatch": ("✗ ", "bold red"), "not validated": ("! ", "bold yellow")}


def _print_verdict(out: Console, validation: Validation) -> None:
    out.print(Padding.indent(Text.assemble(_MARKS[validation.verdict], phrases.verdict(validation)), 2))
    if validation.verdict == "equal" and validation.note:
        out.print(Padding.indent(Text(validation.note, style="dim"), 4))
    if told := phrases.against_float64(validation):
        out.print(Text(f"    {told}", style="dim"))
