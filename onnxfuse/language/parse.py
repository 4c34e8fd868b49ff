"""The text of a rule → `Rule`.

Every line is a Python expression or assignment, read with `ast.parse`; nothing is ever executed, so a rule from a
stranger is safe to load.  What is returned is complete: it emits or means something, its names are bound, its
expressions hold only what a rule may hold.  A mistake becomes a `RuleError` with file, line, caret and advice.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from onnxfuse.errors import RuleError, UsageError

from .check import check_expression, check_names, unknown
from .rule import (
    OWN,
    Function,
    Parameter,
    Rule,
    Source,
    Statement,
    alternatives,
    op_name,
    targets,
)
from .shorthand import written_out

BLOCKS = 64
"""Blocks of equations that `or` may make of one."""
FUNCTION = ("is",)
"""Sections of what begins with a small letter."""
SECTIONS = ("match", "let", "where", "emit", "meaning", "standard", "kernel", "cost", "test")
REPEATABLE = ("match",)
KINDS = ("const", "bool", "sum", "real", "int", "bytes")
"""What an annotation in a rule's head may demand of a tensor: constant, of booleans, the rest of a sum, ..."""

LARGEST = 1 << 16
"""Bytes of a file: the largest shipped rule has 3 kB."""
DEEPEST = 100
"""Expressions inside one another."""

# ------------------------------------------------------------------------------------------------ reading


def read(path: Path, root: Path) -> list[Rule | Function]:
    """The rules and functions of one file, as they are written: `finished` completes a rule.  Raises RuleError."""
    try:
        if not path.is_file():
            raise UsageError(f"{path} is not a file: a rule is a text file")
        if (size := path.stat().st_size) > LARGEST:
            raise UsageError(f"{path} has {size:,} bytes, and a rule {LARGEST:,} at most: make several rules of it")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    relative = path.relative_to(root)
    stratum = relative.parent.as_posix() if len(relative.parts) > 1 else OWN
    return [_read(text, start, end, str(relative), stratum) for start, end in _parts(text.splitlines())]


def parse_text(text: str, file: str, stratum: str = OWN) -> Rule:
    """Read one rule that needs no other from its text; `file` is what messages call it.  Raises RuleError."""
    found = _read(text, 0, len(text.splitlines()), file, stratum)
    if isinstance(found, Function):
        raise found.source.error("a rule begins with a capital", 1)
    return finished(found, {}, {})


def finished(rule: Rule, functions: Mapping[str, Function], definitions: Mapping[str, Rule]) -> Rule:
    """A rule with its shorthand written out, and checked.  Raises RuleError."""
    rule = written_out(rule, functions, definitions)
    check_names(rule)
    return rule


def _parts(lines: Sequence[str]) -> list[tuple[int, int]]:
    """Where the rules of a file begin and end: lines of dashes part them."""
    cuts = [i for i, line in enumerate(lines) if re.fullmatch(r"-{3,}\s*", line)]
    return list(zip([0, *(cut + 1 for cut in cuts)], [*cuts, len(lines)], strict=True))


def _read(text: str, begin: int, end: int, file: str, stratum: str) -> Rule | Function:
    """The rule between two lines of a file."""
    lines = tuple(text.splitlines()[:end])
    source = Source(file, lines)
    doc = []
    for line in lines[begin:]:
        if not line.startswith("#"):
            break
        doc.append(line.lstrip("# ").rstrip())
    starts = [(i, m) for i in range(begin, end) if (m := re.match(r"([A-Za-z_]\w*)[ \t]*:(?!=)", lines[i]))]
    name, parameters = _head(source, begin, starts[0][0] if starts else end)
    function = name[0].islower()
    known = FUNCTION if function else SECTIONS
    sections: dict[str, list[tuple[ast.stmt, ...]]] = {}
    for index, (start, found) in enumerate(starts):
        section = found[1]
        if section not in known:
            unknown(source, "section", section, known, start + 1)
        if section in sections and section not in REPEATABLE:
            raise source.error(f"a second `{section}:`; only `match:` may be repeated", start + 1)
        below = starts[index + 1][0] if index + 1 < len(starts) else end
        body = () if section in ("kernel", "cost") else _body(source, start, below, found.end())
        sections.setdefault(section, []).append(body)
    if function:
        return _function(source, name, " ".join(doc), parameters, sections.get("is", [()])[0])
    plain = {found[1]: lines[start][found.end() :].split("#")[0].strip() for start, found in starts}
    return Rule(
        name=name,
        path=file,
        stratum=stratum,
        doc=" ".join(doc),
        text=text if (begin, end) == (0, len(text.splitlines())) else "\n".join(lines[begin:]).strip() + "\n",
        parameters=parameters,
        blocks=tuple(b for block in sections.get("match", []) for b in _choices(source, _assignments(source, block))),
        let=_assignments(source, sections.get("let", [()])[0]),
        where=_expressions(source, sections.get("where", [()])[0]),
        emit=_assignments(source, sections.get("emit", [()])[0]),
        meaning=_assignments(source, sections.get("meaning", [()])[0]),
        standard=_assignments(source, sections.get("standard", [()])[0]),
        kernel=plain.get("kernel", ""),
        cost=plain.get("cost", ""),
        test=_test(source, sections.get("test", [()])[0]),
        source=source,
    )


def _function(
    source: Source, name: str, doc: str, parameters: tuple[Parameter, ...], body: Sequence[ast.stmt]
) -> Function:
    """Equations that rules share, which end in what they give."""
    result = body[-1] if body else None
    if not isinstance(result, ast.Expr):
        text = "a function, whose name begins with a small letter, ends in what it is"
        raise source.error(text, result or 1, "such as  is:  size(bias) == dim(bias, -1)")
    value = result.value
    function = Function(
        name,
        source.file,
        doc,
        parameters,
        _assignments(source, body[:-1]),
        tuple(value.elts) if isinstance(value, ast.Tuple) else (value,),
        source,
    )
    known = {p.name for p in parameters}
    for statement in function.equations:
        check_expression(source, statement.value, known)
        known.update(targets(statement))
    for expression in function.results:
        check_expression(source, expression, known)
    return function


def _choices(source: Source, block: Sequence[Statement]) -> list[tuple[Statement, ...]]:
    """One block of equations for each choice among those that `or` parts."""
    blocks: list[tuple[Statement, ...]] = [()]
    for statement in block:
        value = statement.value
        either = value.values if isinstance(value, ast.BoolOp) and isinstance(value.op, ast.Or) else [value]
        if len(blocks) * len(either) > BLOCKS:
            raise source.error(
                f"more than {BLOCKS} ways to choose between what `or` parts", statement, "make several rules of it"
            )
        made = [ast.copy_location(ast.Assign(statement.targets, choice), statement) for choice in either]
        blocks = [(*before, one) for one in made for before in blocks]
    return blocks


def _head(source: Source, begin: int, end: int) -> tuple[str, tuple[Parameter, ...]]:
    start = next((i for i in range(begin, end) if source.lines[i].split("#")[0].strip()), None)
    if start is None:
        raise source.error("a rule begins with its head", min(end, len(source.lines)) or 1, "such as  Gelu(x)")
    body = [line.split("#")[0] for line in source.lines[start:end]]
    text = "\n" * start + "def " + "\n".join(body).rstrip() + ": pass"
    source.shifts[start + 1] = -4
    try:
        function = ast.parse(text).body[0]
    except SyntaxError as error:
        raise _syntax(source, error, "the head is a signature: Name(tensor, optional=0, *, constant)") from error
    except (MemoryError, RecursionError, ValueError) as error:
        raise source.error(f"the head cannot be read: {error or 'it nests too deep'}", start + 1) from error
    _check_depth(source, function)
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
        kind, ops, forms = None, tuple[str, ...](), tuple[ast.Call | ast.Name, ...]()
        if argument.annotation is not None:
            kind = ast.unparse(argument.annotation)
            if constant:
                kind, forms = None, _forms(source, argument.annotation)
                ops = tuple(op_name(form) if isinstance(form, ast.Call) else form.id for form in forms)
            elif kind not in KINDS:
                unknown(source, "kind", kind, KINDS, argument.annotation)
        if default is not None:
            _literal(source, default)
        called = tuple(form if isinstance(form, ast.Call) else None for form in forms)
        parameters.append(Parameter(argument.arg, kind, default, constant, ops, argument.lineno, called))
    if "_" in function.name and not function.name[0].islower():
        hint = f"such as {''.join(map(str.capitalize, function.name.split('_')))}: ONNX's own are written so"
        raise source.error("the name of an op has no underscore", start + 1, hint)
    return function.name, tuple(parameters)


def _forms(source: Source, annotation: ast.expr) -> tuple[ast.Call | ast.Name, ...]:
    """The ops of ``Relu | LeakyRelu(alpha=slope) | Clip(low, high)``."""
    forms = list[ast.Call | ast.Name]()
    for form in alternatives(annotation):
        if not isinstance(form, ast.Name) and not (isinstance(form, ast.Call) and isinstance(form.func, ast.Name)):
            hint = "such as  activation: Relu | LeakyRelu(alpha=slope)"
            raise source.error("behind a constant stand the ops it may be", form, hint)
        if ast.unparse(getattr(form, "func", form)) in {ast.unparse(getattr(f, "func", f)) for f in forms}:
            raise source.error("an op stands here twice", form, "make two rules of it")
        forms.append(form)
    return tuple(forms)


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
        body = ast.parse("\n".join(texts)).body
    except SyntaxError as error:
        raise _syntax(source, error, "equations look like  y = x * Sigmoid(x)") from error
    except (MemoryError, RecursionError, ValueError) as error:
        raise source.error(f"this cannot be read: {error or 'it nests too deep'}", start + 1) from error
    for statement in body:
        _check_depth(source, statement)
    return tuple(body)


def _check_depth(source: Source, tree: ast.stmt) -> None:
    """Raises RuleError where expressions nest deeper than what is recursive behind here can follow.

    A chain of `|`, which is flat to a reader, counts as one step."""
    level: list[tuple[ast.AST, bool]] = [(tree, False)]
    for _ in range(DEEPEST):
        below: list[tuple[ast.AST, bool]] = []
        while level:
            node, chained = level.pop()
            for child in ast.iter_child_nodes(node):
                flat = isinstance(child, ast.BinOp) and isinstance(child.op, ast.BitOr)
                (level if flat and chained else below).append((child, flat))
        level = below
        if not level:
            return
    place = next((node for node, _ in level if hasattr(node, "lineno")), tree)
    raise source.error(f"more than {DEEPEST} expressions inside one another", place, "give some of them names")


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


DRAWN = frozenset("positive halves pairs ones zeros lower upper hidden numbers booleans".split())
"""What a shape in ``test:`` may be wrapped in; `rule_test` draws the elements."""


def _test(source: Source, body: Sequence[ast.stmt]) -> dict[str, ast.expr]:
    test = {s.targets[0].id: s.value for s in _assignments(source, body) if isinstance(s.targets[0], ast.Name)}
    for value in test.values():
        drawn = isinstance(value, ast.Call) and op_name(value) in DRAWN and len(value.args) == 1
        _literal(source, value.args[0] if isinstance(value, ast.Call) and drawn else value)
    return test


def _literal(source: Source, node: ast.expr) -> None:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError) as error:
        raise source.error(
            "here stands a literal: a number, a string or a list", node, "such as  x=[2, 7, 64]"
        ) from error


def _syntax(source: Source, error: SyntaxError, hint: str) -> RuleError:
    line = min(error.lineno or 1, len(source.lines) or 1)
    text = source.lines[line - 1] if source.lines else ""
    column = max((error.offset or 1) + source.shifts.get(line, 0), 1)
    return RuleError(error.msg or "not an expression", source.file, line, min(column, len(text) + 1), text, hint)
