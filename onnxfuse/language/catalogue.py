"""The rule language: folders of .rule files → `Catalogue`.  rules/README.md teaches it.

A catalogue that loads is consistent: every rule is well formed (`parse`), and every op that one mentions is an op of
ai.onnx, is defined by a rule, or belongs to a domain of its own.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path

from onnx import FunctionProto

from onnxfuse.errors import UsageError
from onnxfuse.targets.target import DEFAULT, FOLDERS, FUSING, Target

from . import rule_cache
from .builtins import BUILTINS
from .check import unknown
from .rule import OWN, Function, Rule, Source, op_name

CATALOGUE = next(
    (p / "rules" for p in Path(__file__).parents[1:3] if (p / "rules").is_dir()),
    Path(__file__).parents[1] / "rules",
)
"""The shipped rules: inside the wheel, or beside the package in a source tree."""
GROWTH = 1_000_000
"""Bytes by which constants may make a file larger where nothing else is said."""
LEVELS = range(4)
RULES, REGIONS, MEASURED = LEVELS[1:]
"""-O1 fuses what rules name, -O2 makes regions, too, -O3 leaves out what a card is predicted to be slower by."""
FOREIGN = "ops/"
"""The folder in whose folders, called by their domains, stands what ops of other domains mean."""


@dataclass(eq=False)
class Bodies:
    """Function bodies that were written once (`functions`), for the next model that has such a use."""

    definitions: Mapping[str, Rule]
    """What they are bodies of."""
    written: dict[tuple[object, ...], FunctionProto] = field(default_factory=dict)
    """Nobody changes them."""


@dataclass
class Catalogue:
    """All rules, in the order in which their strata run, and the definition of each op they can emit."""

    rules: list[Rule]
    definitions: dict[str, Rule]
    foreign: Mapping[str, Rule] = field(default_factory=dict)
    """For ops of other domains, by their full names, what they mean."""
    target: Target = DEFAULT
    """For whom rules are tried; what they emit may depend on it."""
    growth: int = GROWTH
    """Bytes by which constants that are computed when a file is written may make it larger."""
    bodies: Bodies = field(default_factory=lambda: Bodies({}), compare=False, repr=False)
    """Other rules, and other targets, share them; other definitions do not."""
    level: int = RULES
    """How much is fused; what is not said to be more is what these rules name."""

    def __post_init__(self) -> None:
        if self.bodies.definitions is not self.definitions:
            self.bodies = Bodies(self.definitions)

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)

    def __len__(self) -> int:
        return len(self.rules)

    @property
    def names(self) -> list[str]:
        return sorted({rule.name for rule in self.rules})

    @property
    def matched_ops(self) -> frozenset[str]:
        """The ops that the patterns of fusions have."""
        return frozenset(op for rule in self.rules if not rule.lowers for op in rule.matched_ops)

    @cached_property
    def phases(self) -> tuple[tuple[Rule, ...], ...]:
        """All that run, in order: the strata of the fusions, then those of the target's lowerings."""
        return tuple(map(tuple, (*self.strata(), *self.lowerings())))

    @cached_property
    def order(self) -> Mapping[int, int]:
        """The place of each rule (by its id) among all."""
        return {id(rule): place for place, rule in enumerate(self.rules)}

    def strata(self) -> list[list[Rule]]:
        """The fusions by the number that their folder begins with: folders of one number run together.

        For a target without function bodies only those that lead to an op it has: a standard one, one of another
        domain, or one that such a rule matches."""
        fusions = [rule for rule in self.rules if not rule.target]
        return _strata(fusions if self.target.functions else self._leading(fusions))

    def _leading(self, fusions: Sequence[Rule]) -> list[Rule]:
        wanted = {op for rules in self.lowerings() for rule in rules for op in rule.matched_ops}
        known = standard_ops()
        kept: set[Rule] = set()
        while True:
            more = {r for r in fusions if r not in kept and (r.op in known or r.op in wanted or "." in r.op)}
            if not more:
                return [r for r in fusions if r in kept or r.op not in self.definitions]
            kept |= more
            wanted |= {op for rule in more for op in rule.matched_ops}

    def lowerings(self) -> list[list[Rule]]:
        """The rules of the target's folders, which run after all fusions: those of the most general folder before the
        others, whose strata run together; strata 0 come first."""
        general, *own = self.target.folders
        strata = _strata([rule for rule in self.rules if rule.target == general])
        strata += _strata([rule for rule in self.rules if rule.target in own])
        return sorted(strata, key=lambda stratum: stratum[0].rank > 0)

    def named(self, name: str) -> list[Rule]:
        """The rules of a name. Raises UsageError, with a suggestion, if there are none."""
        found = [rule for rule in self.rules if rule.name == name]
        if not found:
            import difflib  # a mistake is rare

            close = difflib.get_close_matches(name, self.names, 1)
            advice = f"did you mean {close[0]}?" if close else "`onnxfuse rules list` names them all"
            raise UsageError(f"no rule is called {name}; {advice}")
        return found

    def choose(self, select: Sequence[str] = (), ignore: Sequence[str] = ()) -> Catalogue:
        """The rules named by `select` (all, if empty) but not by `ignore`; definitions stay."""
        for name in (*select, *ignore):
            self.named(name)
        kept = [r for r in self.rules if (not select or r.name in select) and r.name not in ignore]
        return replace(self, rules=kept)

    def serving(self, target: Target, growth: int | None = None, level: int = RULES) -> Catalogue:
        """The same rules for a target, whose files may grow by so many bytes; at level 0 those alone that fold.

        Raises UsageError for a level that there is not."""
        if level not in LEVELS:
            raise UsageError(f"-O{level}: it is {', '.join(map(str, LEVELS[:-1]))} or {LEVELS[-1]}")
        rules = self.rules if level else [rule for rule in self.rules if not rule.rank]
        return replace(self, rules=rules, target=target, growth=self.growth if growth is None else growth, level=level)


@cache
def standard_ops() -> frozenset[str]:
    """Names of all ops of ai.onnx."""
    from onnx import defs

    return frozenset(s.name for s in defs.get_all_schemas_with_history() if s.domain == "")


def _strata(rules: Sequence[Rule]) -> list[list[Rule]]:
    return [[rule for rule in rules if rule.rank == rank] for rank in sorted({rule.rank for rule in rules})]


@cache
def _shipped() -> tuple[Rule | Function, ...]:
    from .parse import read

    return tuple(made for path in sorted(CATALOGUE.rglob("*.rule")) for made in read(path, CATALOGUE))


@cache
def _finished() -> tuple[Rule, ...]:
    """The shipped rules, written out and checked, which those of users only add to."""
    read_rules, functions = _apart(_shipped())
    rules = _complete(read_rules, functions, define(read_rules))
    _check(rules, functions, _catalogue(rules), functions)
    return rules


def load(directories: Iterable[Path] = ()) -> Catalogue:
    """The shipped catalogue and the .rule files below further directories.

    Raises RuleError for a mistake in a rule, UsageError for a directory that is none or holds no rule."""
    return _load(directories) if (directories := tuple(directories)) else _plain()


@cache
def _plain() -> Catalogue:
    """The shipped catalogue alone, which is checked once and then kept."""
    file = rule_cache.place(CATALOGUE)
    found = rule_cache.read(file) if file is not None else None
    if found is not None:
        return _sorted(*found)
    catalogue = _load(())
    if file is not None:
        rule_cache.write(file, [*catalogue.rules, *catalogue.foreign.values()], catalogue.definitions)
    return catalogue


def _load(directories: Sequence[Path]) -> Catalogue:
    from .parse import read  # rules that are kept are not read again

    shipped = list(_finished())
    own: list[Rule | Function] = []
    for directory in directories:
        if not directory.is_dir():
            raise UsageError(f"{directory} is not a folder; --rules wants a folder of .rule files")
        found = sorted(directory.rglob("*.rule"))
        if not found:
            raise UsageError(f"{directory} holds no .rule file; `onnxfuse rules new NAME` writes a first one")
        own += [made for path in found for made in read(path, directory)]
    read_rules, functions = _apart([*_shipped(), *own])
    more, added = _apart(own)
    written = _complete(more, functions, define(read_rules))
    catalogue = _catalogue([*shipped, *written])
    _check(written, added, catalogue, functions)
    return catalogue


def _catalogue(rules: Sequence[Rule]) -> Catalogue:
    return _sorted(rules, define([rule for rule in rules if not rule.stratum.startswith(FOREIGN)]))


def _check(
    rules: Iterable[Rule], functions: Mapping[str, Function], catalogue: Catalogue, names: Iterable[str]
) -> None:
    """Raises RuleError where one of these rules or functions calls an op or a function that there is not; `names` are
    those of all functions."""
    known = standard_ops() | set(catalogue.definitions) | {"Repeat"}  # numpy.repeat along an axis
    for function in functions.values():
        _check_ops(function.source, [*(s.value for s in function.equations), *function.results], known, function, ())
    for rule in rules:
        statements = [*(s for b in rule.blocks for s in b), *rule.emit, *rule.meaning, *rule.standard, *rule.let]
        _check_ops(rule.source, [*(s.value for s in statements), *rule.where], known, rule, names)


def _sorted(rules: Sequence[Rule], definitions: dict[str, Rule]) -> Catalogue:
    """The rules that are tried, and those that say what ops of other domains mean."""
    foreign = {f"{r.stratum.removeprefix(FOREIGN)}.{r.name}": r for r in rules if r.stratum.startswith(FOREIGN)}
    return Catalogue([rule for rule in rules if not rule.stratum.startswith(FOREIGN)], definitions, foreign)


def _apart(made: Iterable[Rule | Function]) -> tuple[list[Rule], dict[str, Function]]:
    """Rules, and functions by name."""
    rules, functions = list[Rule](), dict[str, Function]()
    for one in made:
        if isinstance(one, Rule):
            rules.append(one)
        elif one.name in BUILTINS or one.name in functions:
            raise one.source.error(f"there is a function called {one.name} already", 1, "give it another name")
        else:
            functions[one.name] = one
    return rules, functions


def _complete(
    rules: Iterable[Rule], functions: Mapping[str, Function], definitions: Mapping[str, Rule]
) -> tuple[Rule, ...]:
    """The rules written out, each with what its folder makes it."""
    from .parse import finished

    written = (finished(rule, functions, definitions) for rule in rules)
    placed = (r if r.target in ("", *FOLDERS) else replace(r, stratum=OWN) for r in written)
    return tuple(replace(r, lowers=r.target not in ("", *FUSING)) for r in placed)


def define(rules: Sequence[Rule]) -> dict[str, Rule]:
    """For each op, the rule whose equations are its meaning: the one with a `meaning`, else the first that emits it
    from its own parameters."""
    definitions: dict[str, Rule] = {}
    for rule in rules:
        if rule.meaning and not rule.stratum.startswith(FOREIGN):
            definitions[rule.name] = rule
    for rule in rules:
        call = rule.call
        if call is None or op_name(call) != rule.name or rule.name in definitions or not rule.blocks:
            continue
        # filled(Scale, ...) is the parameter Scale, or a constant in its place.
        arguments = [a.args[0] if isinstance(a, ast.Call) and op_name(a) == "filled" else a for a in call.args]
        positional = [a.id for a in arguments if isinstance(a, ast.Name)]
        if len(positional) == len(arguments) and positional == [p.name for p in rule.tensors][: len(positional)]:
            definitions[rule.name] = rule
    return definitions


def _check_ops(
    source: Source,
    expressions: Iterable[ast.expr],
    known: frozenset[str] | set[str],
    head: Rule | Function,
    functions: Iterable[str],
) -> None:
    parameters = {p.name for p in head.parameters}
    for expression in expressions:
        for node in ast.walk(expression):
            if isinstance(node, ast.Call):
                name = op_name(node)
                if "." not in name and name not in known and name not in BUILTINS and name not in parameters:
                    if name[:1].islower():
                        unknown(source, "function", name, sorted([*BUILTINS, *functions]), node)
                    unknown(source, "op", name, sorted(known), node)
    for parameter in head.parameters:
        for name in parameter.ops:
            if name not in known:
                unknown(source, "op", name, sorted(known), parameter.line)
