"""Equations of a rule → patterns: trees in the same normal form that terms have, one per variant and spelling.

A parameter with a default is an optional step: `scale=1` gives a variant in which 1 stands in its place and the algebra
simplifies.  `A | B` gives a pattern for each spelling.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NoReturn

from .builtins import Value
from .expressions import Backend, Call, Compiled, compiled
from .outline import Outline
from .pattern import Pattern, normal, number
from .registry import Builtin
from .rule import ANY, LeftOut, Parameter, Rule, form_values, literal, targets

SPELLINGS = 2_000
"""Ways to choose among the spellings and optional parameters of a rule; shipped rules have 200 at most."""

NODES, DEPTH = 2_000, 200
"""Of a pattern, each step counted as often as it stands in it."""


@dataclass(frozen=True, eq=False)
class Variant:
    """One pattern of a rule: which block, which optional parameters were left out, which spelling."""

    rule: Rule
    block: int
    dropped: Mapping[str, ast.expr]
    root: Pattern
    spelling: tuple[int, ...]
    operators: Mapping[str, str] = field(default_factory=dict)
    """Which op each parameter stands for that may be one of several."""

    @cached_property
    def values(self) -> dict[str, tuple[str, ...]]:
        """``activation_params``: the constants that an op is called with, in order, for those it stands for."""
        several = [p for p in self.rule.parameters if any(p.forms) and p.name in self.operators]
        return {f"{p.name}_params": form_values(p.form(self.operators[p.name])) for p in several}

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """Values of the parameters left out, but for those that the block states itself."""
        stated = {name for s in self.rule.blocks[self.block] for name in targets(s)}
        values = {name: literal(default) for name, default in self.dropped.items() if name not in stated}
        neutral = {p.name for p in self.rule.tensors if isinstance(values.get(p.name), int | float)}
        return {name: LeftOut(value) if name in neutral else value for name, value in values.items()}

    @cached_property
    def outline(self) -> Outline:
        """What a term must look like from outside."""
        return Outline.of(self.root)

    @cached_property
    def size(self) -> int:
        """Ops of the pattern, one that stands in several places counted once."""
        return len({p.key for p in self.root.walk() if p.kind == "op"})


def variants_of(rule: Rule) -> Sequence[Variant]:
    """The rule's variants, made once, those that cover most first."""
    if rule not in _MADE:
        _MADE[rule] = sorted(variants(rule), key=lambda v: -v.size)
    return _MADE[rule]


def keep_variants(rule: Rule, made: Sequence[Variant]) -> None:
    """Say what `variants_of` a rule are."""
    _MADE[rule] = made


_MADE: dict[Rule, Sequence[Variant]] = {}


def variants(rule: Rule) -> list[Variant]:
    """All patterns of a rule, without repetition, the fullest first.  Raises RuleError where there are too many."""
    tried, found = 0, list[Variant]()
    seen, skeletons = set[str](), set[str]()
    optional = [p for p in rule.parameters if p.optional and p.kind != ANY and p.name not in rule.starred]
    for block in range(len(rule.blocks)):
        for drops in itertools.product((False, True), repeat=len(optional)):
            dropped = {p.name: p.default for p, drop in zip(optional, drops, strict=True) if drop and p.default}
            constants_dropped = any(p.constant for p, drop in zip(optional, drops, strict=True) if drop)
            for spelling, root, operators in _spellings(rule, block, dropped):
                tried += 1
                if tried > SPELLINGS:
                    raise rule.source.error(
                        f"more than {SPELLINGS:,} ways to write it: each `|` multiplies them, each optional parameter "
                        "doubles them",
                        rule.blocks[block][-1],
                        "make several rules of it, or leave spellings out that the normal form has already",
                    )
                if root.kind != "op":
                    continue
                exposed = "".join(p.skeleton for p in root.walk() if p.label in rule.labels)
                key, skeleton = root.key + exposed, root.skeleton + exposed
                # A dropped constant that leaves the skeleton as it is only narrows a pattern that stands already.
                if key in seen or (constants_dropped and skeleton in skeletons):
                    continue
                seen.add(key)
                skeletons.add(skeleton)
                found.append(Variant(rule, block, _dropped_in(rule, root, dropped), root, spelling, operators))
    return found


def _dropped_in(rule: Rule, root: Pattern, dropped: Mapping[str, ast.expr]) -> dict[str, ast.expr]:
    """Optional parameters that this pattern does not bind, whether dropped or absent from its block."""
    bound = {p.name for p in root.walk() if p.kind in ("variable", "constant")}
    names = {n.id for p in root.walk() for a in p.attrs.values() for n in ast.walk(a) if isinstance(n, ast.Name)}
    result = dict(dropped)
    for p in rule.parameters:
        if p.name not in bound | names and not p.ops:
            result.setdefault(p.name, p.default or ast.Constant(None))
    return result


def _spellings(
    rule: Rule, block: int, dropped: Mapping[str, ast.expr]
) -> Iterator[tuple[tuple[int, ...], Pattern, dict[str, str]]]:
    """Every combination of `|` choices, by replaying the choices made so far and branching at the next."""
    todo: list[tuple[int, ...]] = [()]
    while todo:
        picks = todo.pop(0)
        used: list[int] = []

        def choose(count: int, picks: tuple[int, ...] = picks, used: list[int] = used) -> int:
            position = len(used)
            pick = picks[position] if position < len(picks) else 0
            if position >= len(picks):
                todo.extend((*used, other) for other in range(1, count))
            used.append(pick)
            return pick

        builder = _Builder(rule, dropped, choose)
        root = builder.build(block)
        yield tuple(used), root, builder.operators


class _Builder(Backend):
    """Builds the pattern of one block for one choice of variants and spellings."""

    READS = frozenset({ast.Constant, ast.Name, ast.UnaryOp, ast.BinOp, ast.Call, ast.Starred})

    def __init__(self, rule: Rule, dropped: Mapping[str, ast.expr], choose: Callable[[int], int]) -> None:
        self.rule, self.pick = rule, choose
        self.names: dict[str, Pattern] = {}
        self.operators: dict[str, str] = {}
        for p in rule.parameters:
            default = dropped.get(p.name)
            self.names[p.name] = _literal(p, default) if default is not None else self._parameter(p)
            for name in (n for form in p.forms for n in form_values(form)):
                self.names[name] = Pattern("constant", name=name)

    def _parameter(self, p: Parameter) -> Pattern:
        kind, lacking = "constant" if p.constant else "variable", p.optional and p.name in self.rule.starred
        return Pattern(kind, name=p.name, op=p.kind or "", line=p.line, lacking=lacking)

    def build(self, block: int) -> Pattern:
        root = number(0)
        for statement in self.rule.blocks[block]:
            root = self.value(statement.value)
            name = targets(statement)[0]
            if root.kind == "op" and not root.scalar:
                root = replace(root, label=name)
            self.names[name] = root
        return root

    # ------------------------------------------------------------------------------------- steps

    def constant(self, node: ast.Constant) -> Pattern:
        if node.value is None:
            return Pattern("absent")
        return number(node.value) if isinstance(node.value, int | float) else self.refuse(node)

    def name(self, node: ast.Name) -> Pattern:
        return self.names[node.id] if node.id in self.names else self.refuse(node)

    def tensor(self, value: Value) -> bool:
        return True

    def truth(self, value: Value, node: ast.expr) -> NoReturn:
        self.refuse(node)

    def choose(self, count: int) -> int:
        return self.pick(count)

    def operator(self, op: str, operands: Sequence[Value], node: ast.expr, label: str) -> Pattern:
        return self.make(op, operands, node)

    def function(self, builtin: Builtin, arguments: Sequence[Value], node: ast.Call) -> NoReturn:
        self.refuse(node)

    def call(self, call: Call, label: str) -> Pattern:
        args = [argument(self, "") for argument in call.arguments]
        attrs = {k.arg: k.value for k in call.node.keywords if k.arg}
        star = next((name for key, _, name in call.keywords if key is None), "")
        op, form = self.meant(call.op)
        if form is not None:
            args += [self.value(a) for a in form.args]
            attrs |= {k.arg: k.value for k in form.keywords if k.arg}
        return self.make(op, args, call.node, attrs, star)

    def each(self, value: Compiled, node: ast.expr) -> Pattern:
        return Pattern("each", args=(value(self, ""),), line=node.lineno)

    def refuse(self, node: ast.expr) -> NoReturn:
        raise self.rule.source.error("this cannot be matched", node)

    def value(self, node: ast.expr) -> Pattern:
        made: Pattern = compiled(node, _Builder)(self, "")
        return made

    def meant(self, name: str) -> tuple[str, ast.Call | None]:
        """The op of a call, and its form: what it says, or the choice for a parameter that may be one of several."""
        parameter = self.rule.parameter(name)
        if parameter is None or not parameter.ops:
            return name, None
        if name not in self.operators:
            self.operators[name] = parameter.ops[self.pick(len(parameter.ops))]
        return self.operators[name], parameter.form(self.operators[name])

    def make(
        self,
        op: str,
        args: Sequence[Pattern],
        node: ast.expr,
        attrs: Mapping[str, ast.expr] | None = None,
        star: str = "",
    ) -> Pattern:
        if op == "Gemm":
            raise self.rule.source.error("Gemm is MatMul in the normal form", node, "write MatMul(x, w) + bias")
        while args and args[-1].kind == "absent":
            args = args[:-1]
        made = normal(op, tuple(args), node.lineno, attrs or {}, star)
        if made.weight > NODES or made.depth > DEPTH:
            raise self.rule.source.error(
                f"a pattern of more than {NODES:,} steps, or of {DEPTH} one below the other",
                node,
                "a name stands for all its steps wherever it stands: make several rules of it",
            )
        return made


def _literal(parameter: Parameter, default: ast.expr) -> Pattern:
    value = literal(default)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return number(value)
    return Pattern("absent", name=parameter.name)
