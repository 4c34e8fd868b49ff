"""What several commands share: options, and how models are gone through one by one."""

from __future__ import annotations

import gc
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from onnxfuse.errors import InternalError, ModelError, OnnxfuseError, OutputError, RuleError, UsageError
from onnxfuse.reporting.phrases import one_line
from onnxfuse.system.processes import Stopped

# onnx and numpy take longer to import than `onnxfuse --help` may take: the commands import what they need.
if TYPE_CHECKING:
    from onnx import ModelProto

    from onnxfuse.cli.settings import Settings
    from onnxfuse.model.spool import Spool
    from onnxfuse.precision.wanted import Precision
    from onnxfuse.reporting.records import Report
    from onnxfuse.system.isolation import Tell

_Command = TypeVar("_Command", bound=Callable[..., Any])
_Result = TypeVar("_Result")


def options(*options: Callable[[_Command], _Command]) -> Callable[[_Command], _Command]:
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


def _parsed_size(_: click.Context, __: click.Parameter, value: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kMG]?)B?", value)
    if found is None:
        raise click.BadParameter(f"{value!r}: write bytes, such as 500kB, 20MB or 0", param_hint="--fold-limit")
    return int(float(found[1]) * 1000 ** " kMG".index(found[2] or " "))


PATH = click.Path(path_type=Path)


def files_like(_: click.Context, __: click.Parameter, text: str) -> list[CompletionItem]:
    """What a shell completes a model with: the files that begin like it."""
    return [CompletionItem(text, type="file")]


def rule_names(context: click.Context, _: click.Parameter, text: str) -> list[str]:
    """What a shell completes a rule with: the catalogue's names, and those of the folders that --rules has named."""
    from onnxfuse.language import lookup

    try:
        known = lookup.catalogue(context.params.get("rules") or ())
    except OnnxfuseError:  # of a rule that is being written
        known = lookup.catalogue(())
    return [name for name in known.names if name.startswith(text)]


model = click.argument("model", type=PATH, metavar="MODEL", shell_complete=files_like)
models = click.argument("models", metavar="MODEL...", nargs=-1, required=True, shell_complete=files_like)
some_models = click.argument("models", metavar="[MODEL...]", nargs=-1, shell_complete=files_like)
"""Or those that the settings name."""
rules = click.option("--rules", type=PATH, multiple=True, metavar="DIR", help="More rules, beside the catalogue.")
shape = click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="NAME:DIMS",
    callback=_parsed_shapes,
    help="Shape of an input, such as input_ids:1,128.",
)
format_ = click.option("--format", "style", type=click.Choice(["text", "json"]), default="text", show_default=True)
selection = options(
    click.option(
        "--select",
        multiple=True,
        metavar="RULE",
        shell_complete=rule_names,
        help="Use this rule and no other (may be repeated).",
    ),
    click.option(
        "--ignore",
        multiple=True,
        metavar="RULE",
        shell_complete=rule_names,
        help="Do not use this rule (may be repeated).",
    ),
    rules,
    click.option(
        "-O",
        "level",
        type=click.IntRange(0, 3),
        default=1,
        show_default=True,
        metavar="LEVEL",
        help="-O0 folds alone, -O1 fuses what rules name, -O2 what lies between too, -O3 what --card lets pass.",
    ),
    click.option(
        "--target",
        type=click.Choice(["onnxfuse", "onnx", "ort"]),
        default="onnxfuse",
        show_default=True,
        help="Fused ops with function bodies, standard ops only, or what onnxruntime runs fastest.",
    ),
    click.option(
        "--provider", type=click.Choice(["cpu", "cuda"]), default="cpu", help="Where onnxruntime runs --target ort."
    ),
    click.option(
        "--runtime",
        metavar="onnxruntime==X.Y",
        help="Write what this version runs, or the one that is installed: onnxruntime.  [default: any]",
    ),
    click.option(
        "--keep-products",
        flag_value="all",
        help="Fuse around MatMul, Gemm and Conv, for a quantizer to find them (docs/quantization.md).",
    ),
    click.option(
        "--keep-weighted-products",
        is_flag=True,
        help="Around those with a weight only: attention is fused.",
    ),
)


def choose_target(options: dict[str, Any]) -> None:
    """Put the target that the options of `selection` name in their place."""
    from onnxfuse.targets import runtimes
    from onnxfuse.targets.target import Target

    named = options.pop("runtime")
    kind = options["target"], options.pop("provider")
    options["target"] = Target(*kind, runtimes.given(named), _kept(options))
    if note := runtimes.newer(named):
        click.echo(f"onnxfuse: {note}", err=True)


def _kept(options: dict[str, Any]) -> Literal["all", "weighted"] | None:
    """Which products are kept: one option's, or what the settings say."""
    weighted, keep = options.pop("keep_weighted_products"), options.pop("keep_products")
    source = click.get_current_context().get_parameter_source("keep_products")
    if weighted and keep and source is ParameterSource.COMMANDLINE:
        raise UsageError("--keep-products keeps those that --keep-weighted-products keeps, and more: give one of them")
    return "weighted" if weighted else keep


def card(text: str) -> Callable[[_Command], _Command]:
    """The option --card, which says `text` of itself."""
    return click.option("--card", metavar="CARD", help=text)


precision = options(
    click.option(
        "--precision",
        type=click.Choice(["fp16", "bf16", "mixed"]),
        help="Convert what was fused to half precision; mixed leaves in float32 what float16 does not do.",
    ),
    click.option(
        "--io-precision",
        type=click.Choice(["keep", "half"]),
        default="keep",
        show_default=True,
        help="With --precision: the type of inputs and outputs.",
    ),
)


def choose_precision(options: dict[str, Any]) -> Precision | None:
    """What the options of `precision` ask for, taken out of them.  Raises UsageError."""
    from onnxfuse.precision.wanted import Precision

    name, io = options.pop("precision"), options.pop("io_precision")
    if name is None and io != "keep":
        raise UsageError("--io-precision is for --precision")
    return Precision(name, io=io == "half") if name is not None else None


fold_limit = click.option(
    "--fold-limit",
    "growth",
    default="1MB",
    show_default=True,
    metavar="SIZE",
    callback=_parsed_size,
    help="Store what is computed from constants alone, as long as the file grows by no more than this.",
)
html = click.option(
    "--html", metavar="FILE.html", help="Write the report as a page, too; a folder gets NAME.html for each model."
)
given_inputs = click.option("--inputs", type=PATH, metavar="FILE.npz", help="What to feed.  [default: generated]")
provider = click.option(
    "--provider", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="Where onnxruntime runs."
)
seed = click.option("--seed", default=0, show_default=True, help="Seed of the generated inputs.")
timeout = click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="For each run of a model; 0 is no limit.  [default: 600; 0 where kernels run on the CPU]",
)
loudness = options(
    click.option("-q", "--quiet", is_flag=True, help="Print errors only."),
    click.option("-v", "--verbose", is_flag=True, help="Name every site."),
)


working_on: list[Callable[[Path], None]] = []
"""Who wants to know which model a command has come to."""
stopping: list[list[int]] = []
"""Filled with a signal's number when this process is asked to end; see `processes.raise_when_stopped`."""


def complain(error: OnnxfuseError, path: Path | None = None) -> int:
    """Prints the error, with the model's `path` in front if it does not name it, and returns its exit code."""
    lead = f"{path}: " if path and str(path) not in str(error) else ""
    text = f"onnxfuse: error: {lead}{error}"
    click.echo(text if isinstance(error, RuleError) else one_line(text), err=True)
    return error.exit_code


@contextmanager
def uncollected() -> Iterator[None]:
    """Without Python's cycle collector, which looks at every term and node again and again: a command is short, and
    once per model will do."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def one_thread() -> None:
    """numpy's OpenBLAS starts a thread for each CPU as it is imported: not for a command that multiplies nothing."""
    if "numpy" not in sys.modules:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def settled() -> Settings:
    """What pyproject.toml says, in a command that looks there."""
    from onnxfuse.cli.settings import Settings

    found = click.get_current_context().find_object(Settings)
    return found if found is not None else Settings()


def sizes(given: dict[str, tuple[int, ...]], settings: Settings, path: Path) -> dict[str, tuple[int, ...]] | None:
    """The shapes of a model's inputs that flags say, or else the settings."""
    return given or settings.shapes_of(path) or None


def page_places(html: str | None, sources: Sequence[Path], taken: Iterable[Path] = ()) -> dict[Path, Path]:
    """Where the page of each model goes, none where none is wanted; `taken` is where the command writes besides.

    Raises UsageError or OutputError, early, for what writing there would be refused for."""
    from onnxfuse.cli import paths
    from onnxfuse.system import atomic_write

    if html is None:
        return {}
    places = dict(zip(sources, paths.pages(sources, html), strict=True))
    others = {place.absolute() for place in taken}
    for place in places.values():
        if place.absolute() in others:
            raise UsageError(f"--html {place} is where something else is written: name another file")
        atomic_write.refuse(place, sources)
    return places


def write_page(found: Report, place: Path | None, rules: Sequence[Path]) -> Path | None:
    """Write the page of a report that has its nodes, where one is wanted; returns its place."""
    if place is not None:
        from onnxfuse.reporting.html.page import page
        from onnxfuse.system import atomic_write

        atomic_write.replace(place, [page(found, rules)])
    return place


def warn_of_unread(found: Report) -> None:
    """Say of which tensors a rule wanted the values, if their external data is missing."""
    if found.unread:
        first, more = found.unread[0], len(found.unread) - 1
        others = f" and of {more} more" if more else ""
        click.echo(
            f"onnxfuse: {found.model}: its external data is missing, and the values of {first!r}{others} were wanted: "
            "taken for unknown",
            err=True,
        )


def seconds(timeout: float | None, *, emulate: bool = False) -> float:
    """What --timeout says: the emulator takes as long as it takes, everything else has time to load some GB twice."""
    return timeout if timeout is not None else 0 if emulate else 600


def limited(work: Callable[[Tell], _Result], path: Path, seconds: float, tell: Tell | None = None) -> _Result:
    """What `work` returns, done in a process in which each step may take `seconds`.

    Raises ModelError, which names the model `path`, where one takes longer.
    """
    from onnxfuse.system.isolation import TookTooLongError, isolated

    try:
        return isolated(work, seconds, tell)
    except TookTooLongError as error:
        raise ModelError(f"{path}: {error}: give it more with --timeout") from None


def begin(path: Path) -> None:
    """Say that what follows is about this model."""
    for tell in working_on:
        tell(path)


def mistake(error: Exception) -> InternalError:
    """What nobody foresaw, in one line.  Raises `error` itself, traceback and all, if ONNXFUSE_TRACEBACK is set, and
    Stopped if this process was asked to end, of which the error may come."""
    for number in chain(*stopping):
        raise Stopped(number) from error
    if os.environ.get("ONNXFUSE_TRACEBACK"):
        raise error
    said = " ".join(str(error).split())
    return InternalError(
        f"{type(error).__name__}: {said}: a mistake in onnxfuse, not in the model, which is as it was; please report "
        "it with what ONNXFUSE_TRACEBACK=1 prints"
    )


def print_json(data: object) -> None:
    click.echo(to_json(data), nl=False)


def read_model(path: Path, *, weights: bool = True) -> ModelProto:
    """The model in a file, or the one that comes from stdin where that is called ``-``."""
    from onnxfuse.cli.paths import STREAM
    from onnxfuse.model import files

    return files.read(path, weights=weights, content=sys.stdin.buffer.read() if str(path) == STREAM else None)


def write_model(model: ModelProto, path: Path, source: Path, spool: Spool | None = None) -> list[Path]:
    """Writes a model to a file, or to stdout where that is called ``-``; returns the files written."""
    from onnxfuse.cli.paths import STREAM
    from onnxfuse.model import files

    if str(path) != STREAM:
        return files.write(model, path, source=source, spool=spool)
    if sys.stdout.isatty():
        raise OutputError("stdout is a terminal, which a model is not for: redirect it, or name a file with -o")
    for piece in files.one_piece(model):
        sys.stdout.buffer.write(piece)
    sys.stdout.flush()
    return [path]


def one_or_many(reports: Sequence[Report], asked: int) -> object:
    """An object if one model was asked for, an array if several were."""
    plain = [found.to_json() for found in reports]
    return plain[0] if asked == 1 and plain else plain


def to_json(data: object) -> str:
    return json.dumps(data, indent=2, allow_nan=False) + "\n"


def write_text(text: str, output: Path | None) -> None:
    """To a file at once, or to stdout, which is also called ``-``."""
    from onnxfuse.system import atomic_write

    if output is None or str(output) == "-":
        click.echo(text, nl=False)
    else:
        atomic_write.replace(output, [text.encode("utf-8", "backslashreplace")])
