"""The command line: options, exit codes, and which function of the package each command is."""

from __future__ import annotations

import gc
import json
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from onnxfuse import __version__
from onnxfuse.errors import NumericsError, OnnxfuseError, OutputError, UsageError

# onnx and numpy take longer to import than `onnxfuse --help` may take: the commands import what they need.
if TYPE_CHECKING:
    from onnxfuse.records import Report

INTERRUPTED = 130

_Command = TypeVar("_Command", bound=Callable[..., Any])
_Result = TypeVar("_Result")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; what goes wrong becomes one line on stderr.

    0 done, 1 findings, 2 bad usage or an unreadable model, 3 the numbers changed, 130 interrupted.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A terminal that has no arrow gets a question mark, not a UnicodeEncodeError.
            stream.reconfigure(errors="replace")
    try:
        code = onnxfuse.main(arguments, prog_name="onnxfuse", standalone_mode=False)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "onnxfuse"
        return _complain(UsageError(f"{error.format_message().rstrip('.')} (see {command} --help)"))
    except click.ClickException as error:
        return _complain(UsageError(error.format_message()))
    except OnnxfuseError as error:
        return _complain(error)
    except (click.Abort, KeyboardInterrupt):
        click.echo("onnxfuse: interrupted", err=True)
        return INTERRUPTED
    return int(code or 0)


def _complain(error: OnnxfuseError, path: Path | None = None) -> int:
    """Prints the error, with the model's `path` in front if it does not name it, and returns its exit code."""
    lead = f"{path}: " if path and str(path) not in str(error) else ""
    click.echo(f"onnxfuse: error: {lead}{error}", err=True)
    return error.exit_code


def _options(*options: Callable[[_Command], _Command]) -> Callable[[_Command], _Command]:
    """One decorator for several options, shown in --help in this order."""

    def decorate(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _parsed_shapes(_: click.Context, __: click.Parameter, values: Iterable[str]) -> dict[str, tuple[int, ...]]:
    shapes = {}
    for value in values:
        # The name may have a colon in it, as TensorFlow's have; the dimensions have none.
        name, _colon, dims = value.rpartition(":")
        if not name or not re.fullmatch(r"(\d+([,x]\d+)*)?", dims):
            raise click.BadParameter(f"{value!r}: write NAME:DIMS, such as input_ids:1,128", param_hint="--shape")
        shapes[name] = tuple(int(size) for size in re.findall(r"\d+", dims))
    return shapes


_PATH = click.Path(path_type=Path)

_models = click.argument("models", metavar="MODEL...", nargs=-1, required=True)
_rules = click.option("--rules", type=_PATH, multiple=True, metavar="DIR", help="More rules, beside the catalogue.")
_shape = click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="NAME:DIMS",
    callback=_parsed_shapes,
    help="Shape of an input, such as input_ids:1,128.",
)
_format = click.option("--format", "style", type=click.Choice(["text", "json"]), default="text", show_default=True)
_selection = _options(
    click.option("--select", multiple=True, metavar="RULE", help="Use this rule and no other (may be repeated)."),
    click.option("--ignore", multiple=True, metavar="RULE", help="Do not use this rule (may be repeated)."),
    _rules,
    click.option(
        "--target",
        type=click.Choice(["onnxfuse", "onnx", "ort"]),
        default="onnxfuse",
        show_default=True,
        help="Fused ops with function bodies, standard ops only, or what onnxruntime runs fastest.",
    ),
    click.option("--provider", type=click.Choice(["cpu"]), expose_value=False, help="What --target ort is for."),
)
_loudness = _options(
    click.option("-q", "--quiet", is_flag=True, help="Print errors only."),
    click.option("-v", "--verbose", is_flag=True, help="Name every site."),
)


@click.group(name="onnxfuse", context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="%(prog)s %(version)s")
def onnxfuse() -> None:
    """Find every subgraph of an ONNX model that one kernel could run, fuse it, and prove the numbers unchanged.

    \b
    Example:
      onnxfuse report model.onnx          what can be fused, and what nearly can
      onnxfuse optimize model.onnx        write model.fused.onnx
      onnxfuse check model.onnx --expect 'Attention>=12'
    """


@onnxfuse.command()
@_models
@click.option("-o", "--output", metavar="OUT", help="File or folder to write to.  [default: NAME.fused.onnx]")
@_selection
@click.option(
    "--opset", type=click.IntRange(min=7), metavar="N", help="Raise the model to this opset.  [default: what pays]"
)
@click.option("--inputs", type=_PATH, metavar="FILE.npz", help="Validate with these inputs.")
@_shape
@click.option("--seed", default=0, show_default=True, help="Seed of the generated inputs.")
@click.option("--rtol", type=click.FloatRange(min=0), help="Relative tolerance.  [default: by dtype]")
@click.option("--atol", type=click.FloatRange(min=0), help="Absolute tolerance.  [default: by dtype]")
@click.option(
    "--on-mismatch",
    type=click.Choice(["bisect", "fail"]),
    default="bisect",
    show_default=True,
    help="Leave the guilty fusion out, or exit 3.",
)
@click.option(
    "--validate",
    type=click.Choice(["onnxruntime", "reference"]),
    help="Compare in onnxruntime, or also with float64.  [default: onnxruntime]",
)
@click.option("--no-validate", is_flag=True, help="Write without comparing.")
@click.option("--dry-run", is_flag=True, help="Do everything but write the model.")
@click.option("--report", "report_file", type=_PATH, metavar="FILE.json", help="Write what was done, as JSON.")
@_loudness
def optimize(
    models: tuple[str, ...],
    output: str | None,
    shapes: dict[str, tuple[int, ...]],
    inputs: Path | None,
    validate: Literal["onnxruntime", "reference"] | None,
    no_validate: bool,
    dry_run: bool,
    report_file: Path | None,
    quiet: bool,
    verbose: bool,
    **options: Any,
) -> int:
    """Fuse each MODEL, prove that it computes the same, and write it.

    \b
    Example:
      onnxfuse optimize bert.onnx                       write bert.fused.onnx
      onnxfuse optimize exports/*.onnx -o fused/        write fused/NAME.onnx for each
      onnxfuse optimize bert.onnx --shape input_ids:1,128 --ignore Gelu --report fusions.json
    """
    from onnxfuse import display, files, names, paths, pipeline

    if validate and no_validate:
        raise UsageError("--validate and --no-validate exclude each other: give one")
    if report_file and not report_file.absolute().parent.is_dir():
        raise OutputError(f"{report_file}: there is no folder {report_file.parent}: make it first")
    names.check_rules((*options["select"], *options["ignore"]), options["rules"])
    options |= {"shapes": shapes or None, "inputs": files.read_inputs(inputs) if inputs else None}
    options["validate"] = "off" if no_validate else validate or "onnxruntime"
    out = display.console()
    sources = paths.expand(models)
    places = dict(zip(sources, paths.destinations(sources, output, make_folder=not dry_run), strict=True))
    for path, place in list(places.items()):
        if place != path and place in places:
            # A glob finds the files that a former run of the same command wrote.
            click.echo(f"onnxfuse: {place} is what becomes of {path} here: not itself fused", err=True)
            del places[place]

    def one(path: Path) -> Report:
        start = time.perf_counter()
        model = files.read(path)
        with display.progress(path.name, quiet=quiet) as progress:
            optimized = pipeline.optimize(model, base_dir=path.parent, progress=progress, **options)
        report, written = optimized.report, list[Path]()
        report.model = str(path)
        if report.validation.verdict == "mismatch":
            note = report.validation.note or "the outputs differ"
            raise NumericsError(f"{path}: nothing written, the fused model computes something else: {note}")
        if not dry_run:
            written = files.write(optimized.model, places[path], source=path)
            report.output = str(places[path])
        report.seconds = time.perf_counter() - start
        if not quiet:
            display.print_optimized(out, report, written=written, verbose=verbose)
        return report

    reports, code = _each(places, one)
    if report_file:
        files.replace(report_file, _json(_one_or_many(reports, len(sources))).encode())
    return code


@onnxfuse.command()
@_models
@_selection
@_shape
@_format
@click.option("--why", metavar="RULE", help="Every place where this rule fuses or nearly does.")
@click.option("--explain", metavar="NODE", help="What becomes of this node, and why.")
@click.option("-v", "--verbose", is_flag=True, help="Name every site.")
def report(
    models: tuple[str, ...],
    shapes: dict[str, tuple[int, ...]],
    style: str,
    why: str | None,
    explain: str | None,
    verbose: bool,
    **options: Any,
) -> int:
    """Say what can be fused in each MODEL, what that saves, and why the rest cannot.

    Loads no external data and runs nothing.  JSON is one object for one model, an array of them for several.

    \b
    Example:
      onnxfuse report bert.onnx --shape input_ids:1,128
      onnxfuse report bert.onnx --why LayerNormalization
      onnxfuse report bert.onnx --explain /encoder/layer.3/Div
      onnxfuse report bert.onnx --format json | jq .census
    """
    from onnxfuse import display, files, names, paths, pipeline

    names.check_rules((*options["select"], *options["ignore"], *filter(None, [why])), options["rules"])
    out = display.console()

    def one(path: Path) -> Report:
        start = time.perf_counter()
        model = files.read(path)
        node = names.node_named(explain, model) if explain else None
        with display.progress(path.name) as progress:
            found = pipeline.report(
                model, shapes=shapes or None, why=why, base_dir=path.parent, progress=progress, **options
            )
        found.model, found.seconds = str(path), time.perf_counter() - start
        known_as = frozenset((node.name, *node.output)) - {""} if node else frozenset[str]()
        if style == "json":
            found = found.narrowed(lambda fusion: not why or fusion.rule == why)
            return found.narrowed(lambda fusion: not node or display.concerns(fusion, known_as))
        if node:
            users = names.rules_with(node.op_type, options["rules"])
            out.print(f"{explain} ({node.op_type}) in {path}")
            display.print_explanation(out, found, known_as, node.op_type, users)
        elif why:
            display.print_why(out, found, why)
        else:
            display.print_report(out, found, verbose=verbose)
        return found

    sources = paths.expand(models)
    reports, code = _each(sources, one)
    if style == "json":
        _print_json(_one_or_many(reports, len(sources)))
    return code


@onnxfuse.command()
@_models
@click.option("--expect", multiple=True, metavar="COUNT", help="Such as 'Attention>=12' (also <= == > <; repeatable).")
@click.option("--baseline", type=_PATH, metavar="FILE", help="Fail where a fusion that this file counts is gone.")
@click.option("--update-baseline", is_flag=True, help="Write what is found to the baseline, and do not compare.")
@_selection
@_shape
@_format
@click.option("-q", "--quiet", is_flag=True, help="Print findings and errors only.")
def check(
    models: tuple[str, ...],
    expect: tuple[str, ...],
    baseline: Path | None,
    update_baseline: bool,
    shapes: dict[str, tuple[int, ...]],
    style: str,
    quiet: bool,
    **options: Any,
) -> int:
    """Fail if a MODEL lacks fusions that it should have: a step for the CI of an export pipeline.

    Loads no external data, runs nothing, needs no GPU.  Exits 1 if there are findings.

    \b
    Example:
      onnxfuse check bert.onnx --expect 'Attention>=12' --expect 'LayerNormalization==25'
      onnxfuse check exports/*.onnx --baseline fusions.json --update-baseline
      onnxfuse check exports/*.onnx --baseline fusions.json
    """
    from onnxfuse import demands, display, files, names, paths, pipeline

    if update_baseline and not baseline:
        raise UsageError("--update-baseline needs --baseline FILE")
    expectations = [demands.parse(text) for text in expect]
    names.check_rules((*options["select"], *options["ignore"]), options["rules"])
    names.check_rules([expected.name for expected in expectations], options["rules"], or_ops=True)
    sources = paths.expand(models)
    before: dict[str, demands.Sites] = {}
    if baseline:
        demands.refuse_namesakes(sources)
        if not update_baseline or baseline.exists():
            before = demands.read_baseline(baseline)
    elif not expectations and not quiet:
        click.echo("onnxfuse: nothing is demanded: give --expect or --baseline", err=True)
    out = display.console()
    new = 0

    def one(path: Path) -> tuple[Report, list[demands.Finding]]:
        nonlocal new
        model = files.read(path)
        with display.progress(path.name, quiet=quiet) as progress:
            found = pipeline.report(model, shapes=shapes or None, base_dir=path.parent, progress=progress, **options)
        found.model = str(path)
        findings = demands.disappointed(found, expectations)
        if update_baseline:
            before[path.name] = demands.sites(found)
        elif baseline:
            findings += demands.lost(found, before.get(path.name))
            new += demands.gained(found, before.get(path.name))
        if style == "text":
            if not quiet:
                out.print(f"{path}: {display.census(found)}")
            display.print_findings(out, findings)
        return found, findings

    results, code = _each(sources, one)
    if baseline and update_baseline:
        files.replace(baseline, demands.baseline_text(before).encode())
    elif baseline and new and not quiet:
        click.echo(f"onnxfuse: {new} new since the baseline: keep with --update-baseline", err=True)
    if style == "json":
        checked = [
            {
                "model": found.model,
                "census": dict(found.census),
                "findings": [finding.to_json() for finding in findings],
            }
            for found, findings in results
        ]
        _print_json({"schema": 1, "models": checked})
    return max(code, int(any(findings for _, findings in results)))


@onnxfuse.group()
def rules() -> None:
    """List, show, test and begin rules.

    \b
    Example:
      onnxfuse rules list
      onnxfuse rules new MyNorm && onnxfuse rules test MyNorm --rules .
    """


@rules.command(name="list")
@_rules
def list_rules(rules: tuple[Path, ...]) -> None:
    """List the rules in the order in which they run: folder, name (and op, where another is emitted), what is fused.

    \b
    Example:
      onnxfuse rules list --rules my_rules/
    """
    from onnxfuse import names

    known = [rule for rule in names.catalogue(rules) if rule.blocks]
    titles = [rule.name if rule.name == rule.op else f"{rule.name} → {rule.op}" for rule in known]
    width = max(map(len, titles), default=0)
    stratum = None
    for rule, title in zip(known, titles, strict=True):
        if rule.stratum != stratum:
            stratum = rule.stratum
            click.echo(f"{stratum}")
        line = f"  {title:{width}}  {' '.join(rule.doc.split())}".rstrip()
        click.echo(line if not sys.stdout.isatty() else line[: shutil.get_terminal_size().columns])


@rules.command(name="show")
@click.argument("name")
@_rules
def show_rule(name: str, rules: tuple[Path, ...]) -> None:
    """Print the rule NAME as it stands in its file.

    \b
    Example:
      onnxfuse rules show LayerNormalization > my_rules/my_norm.rule
    """
    from onnxfuse import names

    for rule in names.rules_named(name, rules):
        click.echo(str(rule.path), err=True)
        click.echo(rule.text.rstrip())


@rules.command(name="test")
@click.argument("name", required=False)
@_rules
def test_rules(name: str | None, rules: tuple[Path, ...]) -> int:
    """Prove the rule NAME, or all: that every spelling is matched, and computes what the fused op computes.

    Says each claim about one rule, of all rules how many each makes and which do not hold.  Exits 1 if one does not.

    \b
    Example:
      onnxfuse rules test
      onnxfuse rules test MyNorm --rules my_rules/
    """
    from onnxfuse import display, names, rule_test

    known = names.catalogue(rules)
    chosen = [rule for rule in (names.rules_named(name, rules) if name else known) if rule.blocks]
    shown = failed = 0
    for number, rule in enumerate(chosen):
        with display.progress("testing") as progress:
            if progress:
                progress(rule.path, number, len(chosen))
            outcomes = list(rule_test.check(rule, known))
        broken = [outcome for outcome in outcomes if not outcome.passed]
        for outcome in outcomes if name else broken:
            click.echo(outcome.text)
        if not outcomes:
            click.echo(f"-      {rule.name} ({rule.path}): has no `test:` line")
        elif not name and not broken:
            click.echo(f"ok     {rule.name} ({rule.path}): {len(outcomes)} claims")
        shown, failed = shown + len(outcomes), failed + len(broken)
    click.echo(f"{shown - failed:,} of {shown:,} claims hold")
    return int(failed > 0)


@rules.command(name="new")
@click.argument("name")
@click.option("--rules", "folder", type=_PATH, default=".", metavar="DIR", help="Where to write it.  [default: here]")
def new_rule(name: str, folder: Path) -> None:
    """Write a rule to begin with, which passes its test as it is.

    \b
    Example:
      onnxfuse rules new MyNorm --rules my_rules/
    """
    from onnxfuse import files, rule_test

    if not re.fullmatch(r"[A-Z][A-Za-z0-9]*", name):
        raise UsageError(f"{name!r} names no op: begin with a capital and use letters and digits, such as MyNorm")
    file = folder / f"{re.sub(r'(?<=[a-z0-9])(?=[A-Z])', '_', name).lower()}.rule"
    if file.exists():
        raise OutputError(f"{file} exists: give another name, or delete it first")
    files.replace(file, rule_test.template(name).encode())
    click.echo(f"{file}\nedit it, then: onnxfuse rules test {name} --rules {folder}")


def _each(paths: Iterable[Path], work: Callable[[Path], _Result]) -> tuple[list[_Result], int]:
    """What `work` makes of each path, and the worst exit code: one that fails does not stop the others."""
    # A command is short, and the cycle collector looks at every term and node again and again: once per model will do.
    gc.disable()
    results, code = [], 0
    for number, path in enumerate(paths):
        if number:
            gc.collect()
        try:
            results.append(work(path))
        except OnnxfuseError as error:
            code = max(code, _complain(error, path))
    return results, code


def _print_json(data: object) -> None:
    click.echo(_json(data), nl=False)


def _one_or_many(reports: Sequence[Report], asked: int) -> object:
    """An object if one model was asked for, an array if several were."""
    plain = [found.to_json() for found in reports]
    return plain[0] if asked == 1 and plain else plain


def _json(data: object) -> str:
    return json.dumps(data, indent=2, allow_nan=False) + "\n"
