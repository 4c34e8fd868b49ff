"""What must be true of any rule: every name in it is bound, and it holds only what a rule may hold."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import NoReturn

from onnxfuse.model.op_traits import COMMUTATIVE, NEUTRAL

from .builtins import BUILTINS
from .rule import Rule, Source, captured, form_values, names_in, op_name, starred, stars, targets

ALLOWED: tuple[type[ast.AST], ...] = tuple(
    getattr(ast, name)
    for name in """Name Constant BinOp UnaryOp Call keyword List Tuple Set Compare BoolOp IfExp Subscript Attribute
    Starred operator unaryop cmpop boolop expr_context Slice""".split()
)
"""What may stand in a rule."""


def check_names(rule: Rule) -> None:
    source = rule.source
    parameters = {p.name for p in rule.parameters}
    if not rule.emit and not rule.meaning:
        raise source.error("a rule says what it emits (`emit:`) or what its op means (`meaning:`)", 1)
    if rule.emit and not rule.blocks:
        raise source.error("`emit:` without `match:`", rule.emit[0])
    parameters |= {name for p in rule.parameters for form in p.forms for name in form_values(form)}
    parameters |= {f"{p.name}_params" for p in rule.parameters if any(p.forms)} | rule.passed
    bound_everywhere: set[str] = set(parameters)
    for block in rule.blocks:
        _check_stars(source, block)
        known = set(parameters)
        for statement in block:
            for name in _attribute_names(statement.value):
                known.add(name)
            check_expression(source, statement.value, known)
            known.update(targets(statement))
        bound_everywhere |= known | captured(block)
    used = {n for b in rule.blocks for s in b for n in (*names_in(s.value), *targets(s))}
    for p in rule.parameters:
        if p.ops and p.name in BUILTINS:
            raise source.error(f"there is a function called {p.name} already", p.line, "give the ops another name")
    for p in rule.parameters if rule.blocks else ():
        if p.name not in used and not p.optional:
            raise source.error(f"{p.name} stands in the head but not in `match:`", rule.blocks[0][0])
    known = set(bound_everywhere)
    for statement in rule.let:
        value = statement.value.value if isinstance(statement.value, ast.Starred) else statement.value
        check_expression(source, value, known)
        known.update(targets(statement))
    for condition in rule.where:
        check_expression(source, condition, known)
    for statement in rule.emit:
        check_expression(source, statement.value, known)
        known.update(targets(statement))
        for call in (n for n in ast.walk(statement.value) if isinstance(n, ast.Call)):
            called = rule.parameter(op_name(call))
            if called is not None and any(called.forms):
                raise source.error(f"{called.name} may have parameters, and stands in `match:` alone", call)
    for section in (rule.meaning, rule.standard):
        known = parameters | captured(section)
        for statement in section:
            check_expression(source, statement.value, known, meaning=True)
            known.update(targets(statement))


def check_expression(source: Source, expression: ast.expr, known: set[str], *, meaning: bool = False) -> None:
    """Raises RuleError; an expression of a `meaning` depends on what a function body can know."""
    functions, last = set[int](), set[int]()
    for node in ast.walk(expression):
        if not isinstance(node, ALLOWED):
            kind = type(node).__name__
            raise source.error(f"{kind} has no place in a rule", node if hasattr(node, "lineno") else expression)
        if isinstance(node, ast.Constant) and node.value is ...:
            raise source.error("`...` stands first in the call of an op", expression, "such as  Attention(..., V=v)")
        if isinstance(node, ast.Call):
            if not re.fullmatch(r"[A-Za-z]\w*(\.[A-Za-z]\w*)*", op_name(node)):
                raise source.error("only ops and the functions of rules can be called", node, "such as  Cos(x)")
            _check_call(source, node, meaning)
            last.update(id(a) for a in node.args[-1:] if not meaning and op_name(node) not in BUILTINS)
            functions.update(id(n) for n in ast.walk(node.func))
        elif isinstance(node, ast.Attribute) and id(node) not in functions:
            raise source.error("a dot stands only in the name of an op's domain", node)
        elif isinstance(node, ast.Name) and id(node) not in functions and node.id not in known:
            unknown(source, "name", node.id, sorted(known), node)
        elif isinstance(node, ast.Starred) and (id(node) not in last or stars(node.value)):
            hint = "such as  Concat(*Relu(x), axis=1)  or, in `let:`,  n = *dim(x, 1)"
            text = "a `*` stands before the last input of an op, or begins what a name of `let:` is"
            raise source.error(text, node, hint)


def _check_stars(source: Source, block: Sequence[ast.Assign]) -> None:
    """What is a list behind a `*` is one value nowhere else in the equations."""
    lists = starred(block)
    for statement in block:
        inside = bool(lists & set(targets(statement)))
        behind = {id(n) for star in stars(statement.value) for n in ast.walk(star)}
        for node in ast.walk(statement.value):
            if isinstance(node, ast.Name) and node.id in lists and id(node) not in behind and not inside:
                raise source.error(f"{node.id} stands for a list behind a `*`, and here for one value", node)
            if (
                isinstance(node, ast.Call)
                and any(isinstance(a, ast.Starred) for a in node.args)
                and op_name(node) in COMMUTATIVE | NEUTRAL.keys()
            ):
                text = f"{op_name(node)} has its operands in no order, and no `*`"
                raise source.error(text, node, "a parameter of the kind `sum` takes what is left of a sum")


def _check_call(source: Source, call: ast.Call, meaning: bool) -> None:
    """A function of rules takes what it takes, where it may stand."""
    builtin = BUILTINS.get(op_name(call))
    if builtin is None:
        return
    if call.keywords or not builtin.takes(len(call.args)):
        raise source.error(f"it is {builtin.form}", call, builtin.doc.split("\n")[0])
    if meaning and not builtin.meaning:
        allowed = ", ".join(b.name for b in BUILTINS.values() if b.meaning)
        raise source.error(f"what an op means cannot depend on {builtin.form}", call, f"there are {allowed}")


def _attribute_names(expression: ast.expr) -> Iterator[str]:
    """Names that an attribute position or `**name` of a match binds."""
    for node in ast.walk(expression):
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                yield from (n.id for n in ast.walk(keyword.value) if isinstance(n, ast.Name))


def unknown(source: Source, what: str, name: str, known: Sequence[str], node: ast.AST | int) -> NoReturn:
    """Raises RuleError about a name that is none, with the nearest one that is."""
    import difflib  # a mistake is rare

    close = difflib.get_close_matches(name, known, 1)
    raise source.error(f"unknown {what} {name}", node, f"did you mean {close[0]}?" if close else "")
