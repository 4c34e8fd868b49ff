"""A rule as data: what a .rule file says, with nothing interpreted, and the small questions asked of its equations."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import chain
from typing import Any, TypeAlias

from onnxfuse.errors import RuleError
from onnxfuse.model.op_traits import VIEWS

from .builtins import BUILTINS

OWN = "9_user"
"""The stratum of a user's rules that lie in no folder of a meaning: the last."""
OPS = 2
"""The first stratum whose rules make ops that a runtime may not have."""
SHARED = ("functions", "fusions", "ops")
"""The folders of rules that serve every target; a folder with a number does as well."""

Statement: TypeAlias = ast.Assign
"""An equation; see `targets`."""

ANY = "any"
"""The kind of an input that `...` stands for: it may be absent."""
OTHER = ("int", "bool", "bytes")
"""The kinds of inputs that are not of the op's real element type."""
REST = "..."
"""The name of the attributes that `...` stands for."""


@dataclass(frozen=True, eq=False)
class Rule:
    """One .rule file.

    `blocks` holds a list of equations per `match:`; each block's last name is what the rule replaces.  `stratum` orders
    rules: all of one stratum run to a fixed point before the next begins.
    """

    name: str
    path: str
    stratum: str
    doc: str
    text: str
    parameters: tuple[Parameter, ...]
    blocks: tuple[tuple[Statement, ...], ...]
    let: tuple[Statement, ...]
    where: tuple[ast.expr, ...]
    emit: tuple[Statement, ...]
    meaning: tuple[Statement, ...]
    standard: tuple[Statement, ...]
    kernel: str
    cost: str
    test: dict[str, ast.expr]
    source: Source
    passed: frozenset[str] = frozenset()
    """The attributes behind `...` that `let`, `where` and `emit` ask for."""
    lowers: bool = False
    """Whether it says what a fused op becomes for a target, and is no fusion."""

    @cached_property
    def version(self) -> str:
        """Changes whenever the text does."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:12]

    @cached_property
    def rank(self) -> int:
        """The number of the stratum: rules of all folders with one number run together, to a fixed point."""
        found = re.search(r"(?:^|/)(\d+)", self.stratum)
        return int(found[1]) if found else 9

    @property
    def primitive(self) -> bool:
        """Whether it makes ops that every runtime has, which are written as they are: those of the first strata do."""
        return self.rank < OPS

    @cached_property
    def target(self) -> str:
        """The only target that this rule serves, by the name of its folder; empty for a fusion that all use."""
        first, *below = self.stratum.split("/")
        if first == "targets" and below:
            return below[0]
        return "" if first[:1].isdigit() or first in SHARED else first

    @cached_property
    def tensors(self) -> tuple[Parameter, ...]:
        return tuple(p for p in self.parameters if not p.constant)

    @cached_property
    def constants(self) -> tuple[Parameter, ...]:
        return tuple(p for p in self.parameters if p.constant)

    @cached_property
    def attributes(self) -> frozenset[str] | None:
        """The attributes of the op that the rule defines; None if it takes any."""
        return None if self.captured else frozenset(p.name for p in self.parameters)

    @property
    def equations(self) -> tuple[Statement, ...]:
        """The equations that define its op: its `meaning:`, or its first `match:` block in its first spelling."""
        return self.meaning or self.blocks[0]

    @cached_property
    def called(self) -> frozenset[str]:
        """The ops and functions that the definition of its op calls."""
        return frozenset(called_in(self.equations))

    @cached_property
    def captured(self) -> frozenset[str]:
        """The names that stand for further attributes in the definition of its op."""
        return frozenset(captured(self.equations))

    @cached_property
    def starred(self) -> frozenset[str]:
        """The names of `match:` that stand for lists, a value for each of the inputs behind a `*`."""
        return frozenset(name for block in self.blocks for name in starred(block))

    @cached_property
    def call(self) -> ast.Call | None:
        """The op that `emit` ends in, if it ends in one."""
        value = self.emit[-1].value if self.emit else None
        return value if isinstance(value, ast.Call) else None

    @cached_property
    def op(self) -> str:
        """The op this rule emits: its own where `emit` has it, of what a target writes the first that is no view, else
        what `emit` ends in; the rule's name if it emits plain algebra."""
        calls = [node for s in reversed(self.emit) for node in ast.walk(s.value) if isinstance(node, ast.Call)]
        names = [n for c in calls if (n := op_name(c)) not in BUILTINS]
        if self.name in names:
            return self.name
        core = [n for n in names if n not in VIEWS] if self.target or self.cost == "fold" else []
        return [*core, *([op_name(self.call)] if self.call else []), *names, self.name][0]

    @cached_property
    def matched_ops(self) -> frozenset[str]:
        """The ops that `match` mentions."""
        calls = [n for b in self.blocks for s in b for n in ast.walk(s.value) if isinstance(n, ast.Call)]
        return frozenset(map(op_name, calls)).union(*(p.ops for p in self.constants))

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Names of intermediates, matched or found by `let`, that `emit` exposes beside the result."""
        matched = {name for s in (*chain(*self.blocks), *self.let) for name in targets(s)}
        return tuple(n for s in self.emit for n in targets(s)[1:] if n in matched)

    @cached_property
    def asked(self) -> frozenset[str]:
        """Names that `let`, `where` and `emit` mention."""
        expressions = [*(s.value for s in (*self.let, *self.emit)), *self.where]
        return frozenset(n.id for e in expressions for n in ast.walk(e) if isinstance(n, ast.Name))

    @cached_property
    def early(self) -> tuple[ast.expr, ...]:
        """The conditions that do not wait for `let`: cheap refusals come first."""
        later = {name for s in self.let for name in targets(s)}
        return tuple(c for c in self.where if not any(isinstance(n, ast.Name) and n.id in later for n in ast.walk(c)))

    @cached_property
    def late(self) -> tuple[ast.expr, ...]:
        return tuple(c for c in self.where if c not in self.early)

    @cached_property
    def _by_name(self) -> Mapping[str, Parameter]:
        return {p.name: p for p in self.parameters}

    def parameter(self, name: str) -> Parameter | None:
        return self._by_name.get(name)


@dataclass(frozen=True)
class Parameter:
    """A name in a rule's head: a tensor before `*`, a matched constant after it."""

    name: str
    kind: str | None
    default: ast.expr | None
    constant: bool
    ops: tuple[str, ...] = ()
    """``activation: Relu | Tanh``: the name stands for one of these ops, and for its name as a string."""
    line: int = 1
    forms: tuple[ast.Call | None, ...] = ()
    """``LeakyRelu(alpha=slope)`` for each of the ops that is called with more than its first input."""

    def form(self, op: str) -> ast.Call | None:
        """What one of the ops is called with; None if that is its first input alone."""
        return self.forms[self.ops.index(op)] if self.forms else None

    @property
    def optional(self) -> bool:
        return self.default is not None


@dataclass(frozen=True, eq=False)
class Function:
    """What several rules share: equations under a name that begins with a small letter.

    ``results`` are expressions over the parameters and the names of the equations."""

    name: str
    path: str
    doc: str
    parameters: tuple[Parameter, ...]
    equations: tuple[Statement, ...]
    results: tuple[ast.expr, ...]
    source: Source


@dataclass(frozen=True)
class Source:
    """A rule's text, for messages."""

    file: str
    lines: tuple[str, ...]
    shifts: dict[int, int] = field(default_factory=dict)

    def error(self, message: str, node: ast.AST | int, hint: str = "") -> RuleError:
        line = node if isinstance(node, int) else getattr(node, "lineno", 1)
        column = 0 if isinstance(node, int) else getattr(node, "col_offset", 0)
        text = self.lines[line - 1] if line <= len(self.lines) else ""
        return RuleError(message, self.file, line, column + self.shifts.get(line, 0) + 1, text, hint)


@cache
def targets(statement: Statement) -> tuple[str, ...]:
    """The names on the left of an equation."""
    target = statement.targets[0]
    names = target.elts if isinstance(target, ast.Tuple) else [target]
    return tuple(n.id for n in names if isinstance(n, ast.Name))


def op_name(call: ast.expr) -> str:
    """``Softmax`` or ``com.microsoft.QuickGelu`` of a call."""
    if not isinstance(call, ast.Call):
        return ""
    return call.func.id if isinstance(call.func, ast.Name) else _unparsed(call.func)


@cache
def _unparsed(node: ast.expr) -> str:
    return ast.unparse(node)


class LeftOut(float):
    """What stands for a tensor that a match left out, by whatever name: its neutral number in arithmetic, and no input
    of an op that may do without."""


@cache
def literal(node: ast.expr) -> Any:
    """A literal, lists as tuples."""
    value = ast.literal_eval(node)
    return tuple(value) if isinstance(value, list) else value


@cache
def names_in(node: ast.expr) -> frozenset[str]:
    """The names that an expression mentions."""
    return frozenset(n.id for n in ast.walk(node) if isinstance(n, ast.Name))


def read_in(node: ast.expr) -> frozenset[str]:
    """The names whose values an expression reads: all but those of what it calls."""
    called = {id(n.func) for n in ast.walk(node) if isinstance(n, ast.Call)}
    return frozenset(n.id for n in ast.walk(node) if isinstance(n, ast.Name) and id(n) not in called)


def form_values(form: ast.Call | None) -> tuple[str, ...]:
    """The constants of ``Clip(low, high)`` or ``LeakyRelu(alpha=slope)``, in order."""
    given = (*form.args, *(k.value for k in form.keywords)) if form is not None else ()
    return tuple(n.id for n in given if isinstance(n, ast.Name))


def called_in(statements: Iterable[Statement]) -> set[str]:
    """The ops and functions that equations call."""
    return {op_name(n) for s in statements for n in ast.walk(s.value) if isinstance(n, ast.Call)}


def captured(statements: Iterable[Statement]) -> set[str]:
    """The names that stand for further attributes, as in ``Conv(x, w, **conv)``."""
    calls = [n for s in statements for n in ast.walk(s.value) if isinstance(n, ast.Call)]
    return {k.value.id for call in calls for k in call.keywords if k.arg is None and isinstance(k.value, ast.Name)}


def starred(block: Sequence[Statement]) -> frozenset[str]:
    """The names that stand for lists, since they are behind a `*` in these equations, or in what is."""
    found = {name for s in block for star in stars(s.value) for name in read_in(star)}
    for statement in reversed(block):
        if found & set(targets(statement)):
            found |= read_in(statement.value)
    return frozenset(found)


def stars(expression: ast.expr) -> list[ast.Starred]:
    """What is behind a `*` in an expression."""
    return [node for node in ast.walk(expression) if isinstance(node, ast.Starred)]


def alternatives(expression: ast.expr) -> list[ast.expr]:
    """The equal spellings `A | B | ...`; the first is the meaning."""
    found: list[ast.expr] = []
    stack = [expression]
    while stack:
        top = stack.pop()
        if isinstance(top, ast.BinOp) and isinstance(top.op, ast.BitOr):
            stack += [top.right, top.left]
        else:
            found.append(top)
    return found
