"""The rule language: .rule text → `Rule`.  rules/README.md teaches it.

Every line is a Python expression or assignment, read with `ast.parse` and interpreted by small walkers; nothing is ever
executed, so a rule from a stranger is safe to load.  A mistake becomes a `RuleError` with file, line, caret and advice.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import NoReturn, TypeAlias

from .errors import RuleError, UsageError

CATALOGUE = next(
    (p for p in (Path(__file__).parent / "rules", Path(__file__).parent.parent / "rules") if p.is_dir()),
    Path(__file__).parent / "rules",
)
"""The shipped rules: inside the wheel, or beside the package in a source tree."""

SECTIONS = ("match", "let", "where", "emit", "meaning", "kernel", "cost", "test")
REPEATABLE = ("match",)
KINDS = ("const", "bool", "sum", "real", "int")
"""What an annotation in a rule's head may demand of a tensor: constant, of booleans, the rest of a sum, ..."""

PREDICATES = frozenset(
    """rank dim shape size isconst isnumber isinput isint given free lowest len abs min max trailing filled opset
    broadcasts attribute""".split()
)
"""Functions of `let`, `where` and of attribute expressions; all defined in onnxfuse.equations."""

Statement: TypeAlias = ast.Assign


@dataclass(frozen=True)
class Parameter:
    """A name in a rule's head: a tensor before `*`, a matched constant after it."""

    name: str
    kind: str | None
    default: ast.expr | None
    constant: bool
    ops: tuple[str, ...] = ()
    """``activation: Relu | Tanh``: the name stands for one of these ops, and for its name as a string."""

    @property
    def optional(self) -> bool:
        return self.default is not None


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
    kernel: str
    cost: str
    test: dict[str, ast.expr]
    source: Source

    @cached_property
    def version(self) -> str:
        """Changes whenever the text does."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:12]

    @cached_property
    def rank(self) -> int:
        """The number of the stratum: rules of all folders with one number run together, to a fixed point."""
        found = re.match(r"\d+", self.stratum)
        return int(found[0]) if found else 9

    @property
    def target(self) -> str:
        """The lowering target that this rule belongs to; empty for a fusion, which every target uses."""
        return "" if self.stratum[:1].isdigit() else self.stratum

    @cached_property
    def tensors(self) -> tuple[Parameter, ...]:
        return tuple(p for p in self.parameters if not p.constant)

    @cached_property
    def constants(self) -> tuple[Parameter, ...]:
        return tuple(p for p in self.parameters if p.constant)

    @cached_property
    def call(self) -> ast.Call | None:
        """The op that `emit` ends in, if it ends in one."""
        value = self.emit[-1].value if self.emit else None
        return value if isinstance(value, ast.Call) else None

    @cached_property
    def op(self) -> str:
        """The op this rule emits; empty if it emits plain algebra."""
        calls = [node for s in reversed(self.emit) for node in ast.walk(s.value) if isinstance(node, ast.Call)]
        names = [n for c in calls if (n := op_name(c)) not in PREDICATES]
        return next((n for n in names if n == self.name), op_name(self.call) if self.call else [*names, self.name][0])

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Names of matched intermediates that `emit` exposes beside the result."""
        matched = {name for block in self.blocks for s in block for name in targets(s)}
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

    def parameter(self, name: str) -> Parameter | None:
        return next((p for p in self.parameters if p.name == name), None)


@dataclass
class Catalogue:
    """All rules, in the order in which their strata run, and the definition of each op they can emit."""

    rules: list[Rule]
    definitions: dict[str, Rule]

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)

    def __len__(self) -> int:
        return len(self.rules)

    @property
    def names(self) -> list[str]:
        return sorted({rule.name for rule in self.rules})

    def strata(self) -> list[list[Rule]]:
        """The fusions by the number that their folder begins with: folders of one number run together."""
        fusions = [rule for rule in self.rules if not rule.target]
        return [[r for r in fusions if r.rank == rank] for rank in sorted({r.rank for r in fusions})]

    def lowering(self, target: str) -> list[Rule]:
        """The rules of a target's folder, which run after all fusions."""
        return [rule for rule in self.rules if rule.target == target]

    def named(self, name: str) -> list[Rule]:
        """The rules of a name. Raises UsageError, with a suggestion, if there are none."""
        found = [rule for rule in self.rules if rule.name == name]
        if not found:
            close = difflib.get_close_matches(name, self.names, 1)
            advice = f"did you mean {close[0]}?" if close else "`onnxfuse rules list` names them all"
            raise UsageError(f"no rule is called {name}; {advice}")
        return found

    def choose(self, select: Sequence[str] = (), ignore: Sequence[str] = ()) -> Catalogue:
        """The rules named by `select` (all, if empty) but not by `ignore`; definitions stay."""
        for name in (*select, *ignore):
            self.named(name)
        kept = [r for r in self.rules if (not select or r.name in select) and r.name not in ignore]
        return Catalogue(kept, self.definitions)


def targets(statement: Statement) -> list[str]:
    """The names on the left of an equation."""
    target = statement.targets[0]
    names = target.elts if isinstance(target, ast.Tuple) else [target]
    return [n.id for n in names if isinstance(n, ast.Name)]


def op_name(call: ast.expr) -> str:
    """``Softmax`` or ``com.microsoft.QuickGelu`` of a call."""
    return ast.unparse(call.func) if isinstance(call, ast.Call) else ""


def captured(statements: Iterable[Statement]) -> set[str]:
    """The names that stand for further attributes, as in ``Conv(x, w, **conv)``."""
    calls = [n for s in statements for n in ast.walk(s.value) if isinstance(n, ast.Call)]
    return {k.value.id for call in calls for k in call.keywords if k.arg is None and isinstance(k.value, ast.Name)}


def alternatives(expression: ast.expr) -> list[ast.expr]:
    """The equal spellings `A | B | ...`; the first is the meaning."""
    if isinstance(expression, ast.BinOp) and isinstance(expression.op, ast.BitOr):
        return alternatives(expression.left) + alternatives(expression.right)
    return [expression]


@cache
def standard_ops() -> frozenset[str]:
    """Names of all ops of ai.onnx."""
    from onnx import defs

    return frozenset(s.name for s in defs.get_all_schemas_with_history() if s.domain == "")


# ------------------------------------------------------------------------------------------------ reading


def load(directories: Iterable[Path] = ()) -> Catalogue:
    """The shipped catalogue and the .rule files below further directories.

    Raises RuleError for a mistake in a rule, UsageError for a directory that is none or holds no rule."""
    rules = [parse(path, CATALOGUE) for path in sorted(CATALOGUE.rglob("*.rule"))]
    for directory in directories:
        if not directory.is_dir():
            raise UsageError(f"{directory} is not a folder; --rules wants a folder of .rule files")
        found = sorted(directory.rglob("*.rule"))
        if not found:
            raise UsageError(f"{directory} holds no .rule file; `onnxfuse rules new NAME` writes a first one")
        rules += [parse(path, directory) for path in found]
    catalogue = Catalogue(rules, define(rules))
    known = standard_ops() | set(catalogue.definitions) | {"Repeat"}  # numpy.repeat along an axis
    for rule in rules:
        _check_ops(rule, known)
    return catalogue


def define(rules: Sequence[Rule]) -> dict[str, Rule]:
    """For each op, the rule whose equations are its meaning: the one with a `meaning`, else the first that emits it
    from its own parameters."""
    definitions: dict[str, Rule] = {}
    for rule in rules:
        if rule.meaning:
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


def parse(path: Path, root: Path) -> Rule:
    """Read one file.  Raises RuleError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    relative = path.relative_to(root)
    return parse_text(text, str(relative), relative.parts[0] if len(relative.parts) > 1 else "9_user")


def parse_text(text: str, file: str, stratum: str = "9_user") -> Rule:
    """Read a rule from its text; `file` is what messages call it.  Raises RuleError."""
    lines = tuple(text.splitlines())
    source = Source(file, lines)
    doc = []
    for line in lines:
        if not line.startswith("#"):
            break
        doc.append(line.lstrip("# ").rstrip())
    starts = [(i, m) for i, line in enumerate(lines) if (m := re.match(r"([A-Za-z_]\w*)[ \t]*:(?!=)", line))]
    first = starts[0][0] if starts else len(lines)
    name, parameters = _head(source, first)
    sections: dict[str, list[tuple[ast.stmt, ...]]] = {}
    for index, (start, found) in enumerate(starts):
        section = found[1]
        if section not in SECTIONS:
            _unknown(source, "section", section, SECTIONS, start + 1)
        if section in sections and section not in REPEATABLE:
            raise source.error(f"a second `{section}:`; only `match:` may be repeated", start + 1)
        end = starts[index + 1][0] if index + 1 < len(starts) else len(lines)
        body = () if section in ("kernel", "cost") else _body(source, start, end, found.end())
        sections.setdefault(section, []).append(body)
    plain = {found[1]: lines[start][found.end() :].split("#")[0].strip() for start, found in starts}
    test = _test(source, sections.get("test", [()])[0])
    rule = Rule(
        name=name,
        path=file,
        stratum=stratum,
        doc=" ".join(doc),
        text=text,
        parameters=parameters,
        blocks=tuple(_assignments(source, block) for block in sections.get("match", [])),
        let=_assignments(source, sections.get("let", [()])[0]),
        where=_expressions(source, sections.get("where", [()])[0]),
        emit=_assignments(source, sections.get("emit", [()])[0]),
        meaning=_assignments(source, sections.get("meaning", [()])[0]),
        kernel=plain.get("kernel", ""),
        cost=plain.get("cost", ""),
        test=test,
        source=source,
    )
    _check_names(rule)
    return rule


def _head(source: Source, end: int) -> tuple[str, tuple[Parameter, ...]]:
    start = next((i for i in range(end) if source.lines[i].split("#")[0].strip()), None)
    if start is None:
        raise source.error("a rule begins with its head", min(end, len(source.lines)) or 1, "such as  Gelu(x)")
    body = [line.split("#")[0] for line in source.lines[start:end]]
    text = "\n" * start + "def " + "\n".join(body).rstrip() + ": pass"
    source.shifts[start + 1] = -4
    try:
        function = ast.parse(text).body[0]
    except SyntaxError as error:
        raise _syntax(source, error, "the head is a signature: Name(tensor, optional=0, *, constant)") from error
    if not isinstance(function, ast.FunctionDef) or function.args.vararg or function.args.kwarg:
        raise source.error("the head is a signature: Name(tensor, optional=0, *, constant)", start + 1)
    given = function.args
    shared = [*given.posonlyargs, *given.args]
    defaults: list[ast.expr | None] = [None] * (len(shared) - len(given.defaults)) + list(given.defaults)
    parameters = []
    for argument, default, constant in [
        *((a, d, False) for a, d in zip(shared, defaults, strict=True)),
        *((a, d, True) for a, d in zip(given.kwonlyargs, given.kw_defaults, strict=True)),
    ]:
        kind, ops = None, tuple[str, ...]()
        if argument.annotation is not None:
            kind = ast.unparse(argument.annotation)
            if constant:
                kind, ops = None, _ops(source, argument.annotation)
            elif kind not in KINDS:
                _unknown(source, "kind", kind, KINDS, argument.annotation)
        if default is not None:
            _literal(source, default)
        parameters.append(Parameter(argument.arg, kind, default, constant, ops))
    return function.name, tuple(parameters)


def _ops(source: Source, annotation: ast.expr) -> tuple[str, ...]:
    """The ops of ``Relu | Tanh``."""
    names = alternatives(annotation)
    for name in names:
        if not isinstance(name, ast.Name):
            raise source.error("behind a constant stand the ops it may be", name, "such as  activation: Relu | Tanh")
        if name.id not in standard_ops():
            _unknown(source, "op", name.id, sorted(standard_ops()), name)
    return tuple(name.id for name in names if isinstance(name, ast.Name))


def _body(source: Source, start: int, end: int, after: int) -> tuple[ast.stmt, ...]:
    """The statements of a section, with line numbers of the file."""
    rows = [source.lines[start][after:], *source.lines[start + 1 : end]]
    texts = [""] * start
    margin = min((len(r) - len(r.lstrip()) for r in rows[1:] if r.split("#")[0].strip()), default=0)
    for offset, row in enumerate(rows):
        cut = len(row) - len(row.lstrip()) if offset == 0 else margin
        source.shifts[start + offset + 1] = cut + (after if offset == 0 else 0)
        texts.append(row[cut:] if row.split("#")[0].strip() else "")
    try:
        return tuple(ast.parse("\n".join(texts)).body)
    except SyntaxError as error:
        raise _syntax(source, error, "equations look like  y = x * Sigmoid(x)") from error


def _syntax(source: Source, error: SyntaxError, hint: str) -> RuleError:
    line = min(error.lineno or 1, len(source.lines) or 1)
    text = source.lines[line - 1] if source.lines else ""
    column = max((error.offset or 1) + source.shifts.get(line, 0), 1)
    return RuleError(error.msg or "not an expression", source.file, line, min(column, len(text) + 1), text, hint)


def _assignments(source: Source, body: Sequence[ast.stmt]) -> tuple[Statement, ...]:
    for statement in body:
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            raise source.error("here stands an equation", statement, "such as  d = x - mean")
        target = statement.targets[0]
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        for name in names:
            if not isinstance(name, ast.Name):
                raise source.error("the left of an equation is a name, or names with commas", name)
    return tuple(s for s in body if isinstance(s, ast.Assign))


def _expressions(source: Source, body: Sequence[ast.stmt]) -> tuple[ast.expr, ...]:
    for statement in body:
        if not isinstance(statement, ast.Expr):
            raise source.error("here stands a condition", statement, "such as  0 < epsilon < 1e-2  (equality is ==)")
    return tuple(s.value for s in body if isinstance(s, ast.Expr))


def _test(source: Source, body: Sequence[ast.stmt]) -> dict[str, ast.expr]:
    test = {s.targets[0].id: s.value for s in _assignments(source, body) if isinstance(s.targets[0], ast.Name)}
    for value in test.values():
        positive = isinstance(value, ast.Call) and op_name(value) == "positive" and len(value.args) == 1
        _literal(source, value.args[0] if isinstance(value, ast.Call) and positive else value)
    return test


def _literal(source: Source, node: ast.expr) -> None:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError) as error:
        raise source.error(
            "here stands a literal: a number, a string or a list", node, "such as  x=[2, 7, 64]"
        ) from error


# ------------------------------------------------------------------------------------------------ checking

ALLOWED: tuple[type[ast.AST], ...] = tuple(
    getattr(ast, name)
    for name in """Name Constant BinOp UnaryOp Call keyword List Tuple Set Compare BoolOp IfExp Subscript Attribute
    operator unaryop cmpop boolop expr_context Slice""".split()
)
"""What may stand in a rule."""


def _check_names(rule: Rule) -> None:
    source = rule.source
    parameters = {p.name for p in rule.parameters}
    if not rule.emit and not rule.meaning:
        raise source.error("a rule says what it emits (`emit:`) or what its op means (`meaning:`)", 1)
    if rule.emit and not rule.blocks:
        raise source.error("`emit:` without `match:`", rule.emit[0])
    bound_everywhere: set[str] = set(parameters)
    for block in rule.blocks:
        known = set(parameters)
        for statement in block:
            for name in _attribute_names(statement.value):
                known.add(name)
            _check_expression(rule, statement.value, known)
            known.update(targets(statement))
        bound_everywhere |= known | _starred(block)
        used = {n.id for s in block for n in ast.walk(s.value) if isinstance(n, ast.Name)}
        for p in rule.parameters:
            if p.name not in used and not p.optional:
                raise source.error(f"{p.name} stands in the head but not in `match:`", block[0])
    known = set(bound_everywhere)
    for statement in rule.let:
        _check_expression(rule, statement.value, known)
        known.update(targets(statement))
    for condition in rule.where:
        _check_expression(rule, condition, known)
    for statement in rule.emit:
        _check_expression(rule, statement.value, known)
        known.update(targets(statement))
    known = parameters | captured(rule.meaning)
    for statement in rule.meaning:
        _check_expression(rule, statement.value, known)
        known.update(targets(statement))


def _starred(block: Sequence[Statement]) -> set[str]:
    """Names of captured attributes, `**name`."""
    keywords = [k for s in block for n in ast.walk(s.value) if isinstance(n, ast.Call) for k in n.keywords]
    return {k.value.id for k in keywords if k.arg is None and isinstance(k.value, ast.Name)}


def _attribute_names(expression: ast.expr) -> Iterator[str]:
    """Names that an attribute position or `**name` of a match binds."""
    for node in ast.walk(expression):
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                yield from (n.id for n in ast.walk(keyword.value) if isinstance(n, ast.Name))


def _check_expression(rule: Rule, expression: ast.expr, known: set[str]) -> None:
    functions: set[int] = set()
    for node in ast.walk(expression):
        if not isinstance(node, ALLOWED):
            kind = type(node).__name__
            raise rule.source.error(f"{kind} has no place in a rule", node if hasattr(node, "lineno") else expression)
        if isinstance(node, ast.Call):
            if not re.fullmatch(r"[A-Za-z]\w*(\.[A-Za-z]\w*)*", op_name(node)):
                raise rule.source.error("only ops and the functions of rules can be called", node, "such as  Cos(x)")
            functions.update(id(n) for n in ast.walk(node.func))
        elif isinstance(node, ast.Attribute) and id(node) not in functions:
            raise rule.source.error("a dot stands only in the name of an op's domain", node)
        elif isinstance(node, ast.Name) and id(node) not in functions and node.id not in known:
            _unknown(rule.source, "name", node.id, sorted(known), node)


def _check_ops(rule: Rule, known: frozenset[str] | set[str]) -> None:
    parameters = {p.name for p in rule.parameters}
    statements = [*(s for b in rule.blocks for s in b), *rule.emit, *rule.meaning, *rule.let]
    for expression in [*(s.value for s in statements), *rule.where]:
        for node in ast.walk(expression):
            if isinstance(node, ast.Call):
                name = op_name(node)
                if "." not in name and name not in known and name not in PREDICATES and name not in parameters:
                    _unknown(rule.source, "op", name, sorted(known), node)


def _unknown(source: Source, what: str, name: str, known: Sequence[str], node: ast.AST | int) -> NoReturn:
    close = difflib.get_close_matches(name, known, 1)
    raise source.error(f"unknown {what} {name}", node, f"did you mean {close[0]}?" if close else "")
