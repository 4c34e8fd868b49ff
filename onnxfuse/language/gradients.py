"""`grad(y, x, dy)` in a rule, written out: the gradient of an expression, in equations of the same language.

    dX = grad(Gelu(X), X, dY)
    dX = grad(Softmax(X, axis=axis), X, dY, Y)                   Y is the result, and is given
    dX = grad(LayerNormalization(X, Scale, B, axis=axis), X, dY, Mean=Mean, InvStdDev=InvStdDev)

A further argument is the value of the expression, where the rule has it already; keywords are intermediates of its
definition that the rule has.  `match:` gets every spelling of the result, any other section the first.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from onnxfuse.derivatives.reverse import Gradient, gradient
from onnxfuse.derivatives.tape import Definition, NoDerivativeError

from .rule import OTHER, Rule, Statement, alternatives, op_name, targets

GRAD = "grad"


def with_gradients(rule: Rule, definitions: Mapping[str, Rule]) -> Rule:
    """The rule with its gradients written out; the same object if it has none.  Raises RuleError."""
    if GRAD not in rule.text:
        return rule
    return replace(
        rule,
        blocks=tuple(tuple(_written(rule, block, definitions, several=True)) for block in rule.blocks),
        meaning=tuple(_written(rule, rule.meaning, definitions, several=False)),
        let=tuple(_written(rule, rule.let, definitions, several=False)),
        emit=tuple(_written(rule, rule.emit, definitions, several=False)),
    )


def _written(
    rule: Rule, statements: Sequence[Statement], definitions: Mapping[str, Rule], *, several: bool
) -> Iterator[Statement]:
    taken = {n.id for s in statements for n in ast.walk(s) if isinstance(n, ast.Name)}
    taken |= {p.name for p in rule.parameters} | {name for s in (*rule.let, *rule.emit) for name in targets(s)}
    for statement in statements:
        spellings, equations = list[ast.expr](), list[Statement]()
        for spelling in alternatives(statement.value):
            spellings += _expanded(rule, spelling, definitions, taken, equations)
        if spellings == alternatives(statement.value):
            yield statement
            continue
        yield from (_placed(equation, statement) for equation in equations)
        value = spellings[0]
        for other in spellings[1:] if several else ():
            value = ast.BinOp(value, ast.BitOr(), other)
        yield _placed(ast.Assign(statement.targets, value), statement)


def _expanded(
    rule: Rule, value: ast.expr, definitions: Mapping[str, Rule], taken: set[str], equations: list[Statement]
) -> list[ast.expr]:
    """The spellings of a gradient, or of a choice between two; adds to `equations` what they are over."""
    if isinstance(value, ast.IfExp):
        arms = [_expanded(rule, arm, definitions, taken, equations) for arm in (value.body, value.orelse)]
        if arms != [[value.body], [value.orelse]]:
            return [ast.IfExp(value.test, arms[0][0], arms[1][0])]
    if op_name(value) != GRAD or not isinstance(value, ast.Call):
        return [value]
    made = _gradient(rule, value, definitions, taken)
    equations += made.equations
    return list(made.spellings)


def _gradient(rule: Rule, call: ast.Call, definitions: Mapping[str, Rule], taken: set[str]) -> Gradient:
    if not 3 <= len(call.args) <= 4 or not all(isinstance(a, ast.Name) for a in call.args[1:]):
        text = "it is grad(expression, tensor, gradient of the expression), and the expression's value if it is given"
        raise rule.source.error(text, call, "such as  dX = grad(Gelu(X), X, dY)")
    expression, wrt, seed, *value = call.args
    assert isinstance(wrt, ast.Name)
    saved = {k.arg: ast.unparse(k.value) for k in call.keywords if k.arg}
    if value:
        saved[""] = ast.unparse(value[0])
    numbers = frozenset(p.name for p in rule.constants)

    def definition(op: str) -> Definition | None:
        return definition_of(definitions[op]) if op in definitions else None

    try:
        return gradient(expression, wrt.id, seed, definition, taken, saved, numbers)
    except NoDerivativeError as error:
        what = op_name(expression) or ast.unparse(expression)
        raise rule.source.error(f"no gradient of {what}: {error}", call) from error


def definition_of(rule: Rule) -> Definition:
    """What the op means that a rule defines."""
    defaults = {p.name: p.default for p in rule.parameters if p.default is not None}
    names = tuple(p.name for p in rule.tensors)
    return Definition(names, defaults, rule.equations, targets(rule.equations[-1])[0])


def _placed(statement: Statement, place: ast.AST) -> Statement:
    """The statement with every node at one place of the text; no node is shared with another statement."""
    made = ast.parse(ast.unparse(ast.fix_missing_locations(statement))).body[0]
    assert isinstance(made, ast.Assign)
    for node in ast.walk(made):
        ast.copy_location(node, place)
    return made


def derived(op: str, definitions: Mapping[str, Rule]) -> str:
    """The gradient of an op that a rule defines, with respect to each of its real tensors, as the text of a rule.

    Raises RuleError where something in it has no derivative."""
    rule = definitions[op]
    equations = rule.equations
    result = targets(equations[-1])[0]
    tensors = [p for p in rule.tensors if p.kind not in OTHER]
    taken = {p.name for p in rule.parameters}
    seed = _free(f"d{result}", taken)
    lines = list[str]()
    for parameter in tensors:
        inputs = ", ".join(p.name for p in rule.tensors)
        attributes = "".join(f", {p.name}={p.name}" for p in rule.constants)
        call = ast.parse(f"{GRAD}({op}({inputs}{attributes}), {parameter.name}, {seed})", mode="eval").body
        assert isinstance(call, ast.Call)
        made = _gradient(rule, call, definitions, set(taken))  # equal names are equal steps
        lines += [ast.unparse(ast.fix_missing_locations(e)) for e in made.equations]
        lines.append(f"d{parameter.name} = {' | '.join(map(ast.unparse, made.spellings))}")
    head = ", ".join([seed, *(p.name for p in rule.tensors)])
    constants = "".join(f", {p.name}" for p in rule.constants)
    signature = f"{op}Grad({head}{', *' if constants else ''}{constants})"
    about = [
        f"# The gradient of {op}, derived from its equations ({rule.path}).",
        "# What is broadcast has the dims of the result here: who wants its own sums over the others.",
    ]
    return "\n".join([*about, signature, "", "meaning:", *(f"    {line}" for line in dict.fromkeys(lines))])


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name
