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
from types import MappingProxyType

from onnxfuse.derivatives.reverse import Gradient, gradient
from onnxfuse.derivatives.tape import Definition, NoDerivativeError
from onnxfuse.errors import RuleError, UsageError

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


def _gradient(
    rule: Rule,
    call: ast.Call,
    definitions: Mapping[str, Rule],
    taken: set[str],
    broadcast: frozenset[str] = frozenset(),
) -> Gradient:
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
        return gradient(expression, wrt.id, seed, definition, taken, saved, numbers, broadcast)
    except NoDerivativeError as error:
        what = op_name(expression) or ast.unparse(expression)
        raise rule.source.error(f"no gradient of {what}: {error}", call) from error


def definition_of(rule: Rule) -> Definition:
    """What the op means that a rule defines.  Where that depends on how many axes a tensor has, it has those of the
    rule's `test:` line."""
    defaults = {p.name: p.default for p in rule.parameters if p.default is not None}
    names = tuple(p.name for p in rule.tensors)
    equations = tuple(_of_ranks(e, rule.test) for e in rule.equations) if "rank(" in rule.text else rule.equations
    return Definition(names, defaults, equations, targets(rule.equations[-1])[0])


def _of_ranks(equation: ast.Assign, shapes: Mapping[str, ast.expr]) -> ast.Assign:
    """The equation of tensors with so many axes as these shapes have."""
    ranks = {name: len(shape.elts) for name, shape in shapes.items() if isinstance(shape, ast.List)}

    class Ranks(ast.NodeTransformer):
        def visit_Call(self, node: ast.Call) -> ast.expr:
            self.generic_visit(node)
            known = op_name(node) == "rank" and isinstance(node.args[0], ast.Name) and ranks.get(node.args[0].id)
            return ast.Constant(known) if known else node

    made = Ranks().visit(ast.parse(ast.unparse(equation)).body[0])
    assert isinstance(made, ast.Assign)
    return made


def narrow(rule: Rule) -> frozenset[str]:
    """The tensors of a definition that have fewer axes than others, which they broadcast with."""
    shapes = {p.name: rule.test.get(p.name) for p in rule.tensors}
    ranks = {name: len(shape.elts) for name, shape in shapes.items() if isinstance(shape, ast.List)}
    return frozenset(name for name, rank in ranks.items() if rank < max(ranks.values()))


def _placed(statement: Statement, place: ast.AST) -> Statement:
    """The statement with every node at one place of the text; no node is shared with another statement."""
    made = ast.parse(ast.unparse(ast.fix_missing_locations(statement))).body[0]
    assert isinstance(made, ast.Assign)
    for node in ast.walk(made):
        ast.copy_location(node, place)
    return made


def asked(text: str) -> tuple[str, dict[str, ast.expr]]:
    """The name of an op, and what is said of its attributes: Gelu, or Gelu(approximate="tanh").  Raises UsageError."""
    try:
        call = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        call = ast.Constant(text)
    said = {k.arg: k.value for k in call.keywords if k.arg} if isinstance(call, ast.Call) else {}
    plain = not isinstance(call, ast.Call) or (not call.args and len(said) == len(call.keywords))
    if not plain or not all(isinstance(value, ast.Constant) for value in said.values()):
        raise UsageError(f"{text}: attributes are said as in  onnxfuse rules grad 'Gelu(approximate=\"tanh\")'")
    return ast.unparse(call.func) if isinstance(call, ast.Call) else text, said


def derived(op: str, definitions: Mapping[str, Rule], said: Mapping[str, ast.expr] = MappingProxyType({})) -> str:
    """The gradient of an op that a rule defines, with respect to each of its real tensors, as the text of a rule.

    `said` is what attributes are.  One on which it depends what the op computes is its default where nothing is said.
    Raises RuleError where something has no derivative, UsageError for an attribute that the op has not."""
    rule = definitions[op]
    names = [p.name for p in rule.constants]
    unknown = next((name for name in said if name not in names), "")
    if unknown:
        has = f"it has {', '.join(names)}" if names else "it has none"
        raise UsageError(f"{unknown}: {op} has no such attribute: {has}")
    deciding = _deciding(rule)
    fixed = {p.name: p.default for p in rule.constants if p.default is not None and p.name in deciding} | dict(said)
    result = targets(rule.equations[-1])[0]
    taken = {p.name for p in rule.parameters}
    seed = _free(f"d{result}", taken)
    lines, refused = list[str](), list[RuleError]()
    absent = {p.name for p in rule.tensors if p.default is not None and ast.unparse(p.default) == "None"} - set(
        rule.test
    )
    tensors = [p for p in rule.tensors if p.name not in absent]
    operands: list[ast.expr] = [ast.Constant(None) if p.name in absent else ast.Name(p.name) for p in rule.tensors]
    for parameter in (p for p in tensors if p.kind not in OTHER):
        keywords = [ast.keyword(name, fixed.get(name, ast.Name(name))) for name in names]
        forward = ast.Call(ast.Name(op), operands, keywords)
        call = ast.parse(f"{GRAD}({ast.unparse(forward)}, {parameter.name}, {seed})", mode="eval").body
        assert isinstance(call, ast.Call)
        try:
            made = _gradient(rule, call, definitions, set(taken), narrow(rule))  # equal names are equal steps
        except RuleError as error:
            refused.append(error)
            lines.append(f"# {parameter.name}: {error.message}")
            continue
        lines += [ast.unparse(ast.fix_missing_locations(e)) for e in made.equations]
        lines.append(f"d{parameter.name} = {' | '.join(map(ast.unparse, made.spellings))}")
    if refused and not any(line.startswith("d") for line in lines):
        raise refused[0]
    head = ", ".join([seed, *(p.name for p in tensors)])
    constants = "".join(f", {name}" for name in names if name not in fixed)
    signature = f"{op}Grad({head}{', *' if constants else ''}{constants})"
    body = [f"    {line}" for line in dict.fromkeys(lines)]
    return "\n".join([*_about(op, rule, fixed), signature, "", "meaning:", *body])


def _deciding(rule: Rule) -> set[str]:
    """The constants that choose what an op computes: texts, and those that its equations ask."""
    tests = [n.test for e in rule.equations for n in ast.walk(e) if isinstance(n, ast.IfExp)]
    asked_for = {n.id for test in tests for n in ast.walk(test) if isinstance(n, ast.Name)}
    texts = {p.name for p in rule.constants if isinstance(p.default, ast.Constant) and isinstance(p.default.value, str)}
    return texts | asked_for & {p.name for p in rule.constants}


def _about(op: str, rule: Rule, fixed: Mapping[str, ast.expr]) -> Iterator[str]:
    yield f"# The gradient of {op}, derived from its equations ({rule.path})."
    yield "# What is broadcast has the dims of the result here: who wants its own sums over the others."
    if fixed:
        texts = {name: ast.unparse(value).replace("'", '"') for name, value in fixed.items()}
        call = f"{op}({', '.join(f'{name}={text}' for name, text in texts.items())})"
        yield f"# What it computes depends on attributes, which may be others: onnxfuse rules grad '{call}'"


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name
