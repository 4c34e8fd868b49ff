"""What several commands are asked: arguments and options, and what they mean."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from onnxfuse.errors import OnnxfuseError, UsageError

# onnx and numpy take longer to import than `onnxfuse --help` may take: the commands import what they need.
if TYPE_CHECKING:
    from onnxfuse.precision.wanted import Precision

_Command = TypeVar("_Command", bound=Callable[..., Any])


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


def _parsed_size(_: click.Context, option: click.Parameter, value: str | None) -> int | None:
    if value is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kMG]?)B?", value)
    if found is None:
        raise click.BadParameter(f"{value!r}: write bytes, such as 500kB, 20MB or 0", param_hint=option.opts[0])
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
        default=2,
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
    name, io = options.pop("precision"), options.pop("io_precision")
    if name is None and io != "keep":
        raise UsageError("--io-precision is for --precision")
    if name is None:
        return None
    from onnxfuse.precision.wanted import Precision

    return Precision(name, io=io == "half")


fold_limit = click.option(
    "--fold-limit",
    "growth",
    default="1MB",
    show_default=True,
    metavar="SIZE",
    callback=_parsed_size,
    help="Store what is computed from constants alone, as long as the file grows by no more than this.",
)
recompute = click.option(
    "--recompute",
    metavar="SIZE",
    callback=_parsed_size,
    help="Of a training step: keep at most so many bytes for backward, and compute the rest again (docs/gradients.md).",
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
