"""onnxfuse rules"""

from __future__ import annotations

import gc
import os
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from onnxfuse.errors import OnnxfuseError, OutputError, UsageError

from .options import PATH, rule_names
from .options import rules as more_rules

if TYPE_CHECKING:
    from onnxfuse.language.catalogue import Catalogue
    from onnxfuse.language.rule import Rule
    from onnxfuse.proof.rule_test import Outcome


_TITLE, _LINE = 40, 120
"""Columns for a rule's name, and of a line that goes to no terminal."""


@click.group()
def rules() -> None:
    """List, show, test and begin rules.

    \b
    Example:
      onnxfuse rules list
      onnxfuse rules new MyNorm && onnxfuse rules test MyNorm --rules .
    """


@rules.command(name="list", short_help="List the rules in the order in which they run.")
@more_rules
def list_rules(rules: tuple[Path, ...]) -> None:
    """List the rules in the order in which they run: folder, name (and op, where another is emitted), what is fused.

    A line each; `onnxfuse rules show NAME` has the whole.

    \b
    Example:
      onnxfuse rules list --rules my_rules/
    """
    from onnxfuse.language import lookup

    known = [rule for rule in lookup.catalogue(rules) if rule.blocks]
    # The op of some is one of several, and what stands for them says nothing.
    one = [rule.name == rule.op or (rule.op.isidentifier() and rule.op[0].islower()) for rule in known]
    titles = [rule.name if same else f"{rule.name} → {rule.op}" for rule, same in zip(known, one, strict=True)]
    most = shutil.get_terminal_size().columns if sys.stdout.isatty() else _LINE
    width = min(max(map(len, titles), default=0), _TITLE, most // 2 - 4)
    stratum = None
    for rule, title in zip(known, titles, strict=True):
        if rule.stratum != stratum:
            stratum = rule.stratum
            click.echo(f"{stratum}")
        line = f"  {title:{width}}  {_first_sentence(rule.doc)}".rstrip()
        click.echo(line if len(line) <= most else f"{line[: most - 1]}…")


def _first_sentence(text: str) -> str:
    """The first sentence of a rule's comment, in one line."""
    return re.split(r"(?<=[^.]\.)\s+(?=[A-Z])", " ".join(text.split()))[0]


@rules.command(name="show")
@click.argument("name", shell_complete=rule_names)
@more_rules
def show_rule(name: str, rules: tuple[Path, ...]) -> None:
    """Print the rule NAME as it stands in its file.

    \b
    Example:
      onnxfuse rules show LayerNormalization > my_rules/my_norm.rule
    """
    from onnxfuse.language import lookup

    for number, rule in enumerate(lookup.rules_named(name, rules)):
        click.echo(str(rule.path), err=True)
        if number:
            click.echo("\n---")
        click.echo(rule.text.rstrip())


@rules.command(name="grad", short_help="Print the gradient of an op, derived from its equations.")
@click.argument("name", shell_complete=rule_names)
@more_rules
def gradient_of(name: str, rules: tuple[Path, ...]) -> None:
    """Print the gradient of the op NAME with respect to each of its tensors, derived from the equations of its rule;
    equal spellings are parted by |.  NAME may say what attributes are.

    \b
    Example:
      onnxfuse rules grad Swish
      onnxfuse rules grad 'Gelu(approximate="tanh")'
    """
    from onnxfuse.language import gradients, lookup

    op, said = gradients.asked(name)
    lookup.check_rules([op], rules, or_ops=True)
    definitions = lookup.catalogue(rules).definitions
    if op not in definitions:
        raise UsageError(f"{op} defines no op: `onnxfuse rules show {op}` has what it says")
    click.echo(gradients.derived(op, definitions, said))


@rules.command(name="test", short_help="Prove what a rule claims of itself, or all rules.")
@click.argument("name", required=False, shell_complete=rule_names)
@more_rules
def test_rules(name: str | None, rules: tuple[Path, ...]) -> int:
    """Prove the rule NAME, or all: that every spelling is matched, and computes what the fused op computes.

    Says each claim about one rule, of all rules how many each makes and which do not hold.  Exits 1 if one does not.

    \b
    Example:
      onnxfuse rules test
      onnxfuse rules test MyNorm --rules my_rules/
    """
    from onnxfuse.cli import console
    from onnxfuse.language import lookup

    known = lookup.catalogue(rules)
    chosen = [rule for rule in (lookup.rules_named(name, rules) if name else known) if rule.blocks]
    shown = failed = 0
    for number, rule in enumerate(chosen):
        gc.collect(1)  # what the rule before it made
        with console.progress("testing") as progress:
            if progress:
                progress(rule.path, number, len(chosen))
            outcomes = _outcomes(rule, known)
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


def _outcomes(rule: Rule, known: Catalogue) -> list[Outcome]:
    """What is claimed of a rule; of one that makes no model that runs, that it cannot be tested."""
    from onnxfuse.proof import rule_test

    try:
        return list(rule_test.check(rule, known))
    except OnnxfuseError:
        raise
    except Exception as error:  # onnx and onnxruntime raise what they like about a model that makes no sense
        if os.environ.get("ONNXFUSE_TRACEBACK"):
            raise
        said = " ".join(str(error).split())[:300]
        return [rule_test.Outcome(rule.name, rule.path, "plain", "can be tested", False, said)]


@rules.command(name="new")
@click.argument("name")
@click.option(
    "--rules",
    "folder",
    type=PATH,
    default=".",
    metavar="DIR",
    help="Where to write it, made if need be.  [default: here]",
)
def new_rule(name: str, folder: Path) -> None:
    """Write a rule to begin with, which passes its test as it is.

    \b
    Example:
      onnxfuse rules new MyNorm --rules my_rules/
    """
    from onnxfuse.proof import rule_test
    from onnxfuse.system import atomic_write

    if not re.fullmatch(r"[A-Z][A-Za-z0-9]*", name):
        raise UsageError(f"{name!r} names no op: begin with a capital and use letters and digits, such as MyNorm")
    file = folder / f"{re.sub(r'(?<=[a-z0-9])(?=[A-Z])', '_', name).lower()}.rule"
    if file.exists():
        raise OutputError(f"{file} exists: give another name, or delete it first")
    with atomic_write.explained(folder, writing=True):
        folder.mkdir(parents=True, exist_ok=True)
    atomic_write.replace(file, [rule_test.template(name).encode()])
    click.echo(f"{file}\nedit it, then: onnxfuse rules test {name} --rules {folder}")
