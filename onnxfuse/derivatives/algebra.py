"""Sums, products and powers of syntax trees, simplified as they are made: a derivative is mostly ones and zeros."""

from __future__ import annotations

import ast
from collections.abc import Sequence

SHORT, LONG = 10, 15
"""Significant digits of a number that is computed here: few where no more are meant, else as many as are exact."""


def number(value: float) -> ast.expr:
    """A number, an integer where it is one."""
    short = float(f"{value:.{SHORT}g}")
    value = short if abs(short - value) <= 1e-12 * abs(value) else float(f"{value:.{LONG}g}")
    whole = int(value) if value.is_integer() else value
    return ast.UnaryOp(ast.USub(), ast.Constant(-whole)) if whole < 0 else ast.Constant(whole)


def value_of(node: ast.expr) -> float | None:
    """The number that an expression is; None for any other."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = value_of(node.operand)
        return None if inner is None else -inner
    value = node.value if isinstance(node, ast.Constant) else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def same(a: ast.expr, b: ast.expr) -> bool:
    return ast.unparse(a) == ast.unparse(b)


def negative(x: ast.expr) -> ast.expr:
    return product([number(-1), x])


def sum_of(terms: Sequence[ast.expr]) -> ast.expr:
    """a + b - c, its numbers collected behind."""
    constant, rest = 0.0, list[ast.expr]()
    for term in terms:
        value = value_of(term)
        if value is None:
            rest.append(term)
        else:
            constant += value
    if constant or not rest:
        rest.append(number(constant))
    first = next((i for i, term in enumerate(rest) if _signed(term)[0] >= 0), 0)
    rest.insert(0, rest.pop(first))
    made = rest[0]
    for term in rest[1:]:
        factor, others = _signed(term)
        made = ast.BinOp(made, ast.Sub() if factor < 0 else ast.Add(), others if factor < 0 else term)
    return made


def _signed(term: ast.expr) -> tuple[float, ast.expr]:
    """The sign of a term, and the term without it."""
    factor, above, below = factors(term)
    return factor, _quotient(-factor, above, below) if factor < 0 else term


def factors(term: ast.expr) -> tuple[float, list[ast.expr], list[ast.expr]]:
    """A number, and what it is multiplied with and divided by."""
    value = value_of(term)
    if value is not None:
        return value, [], []
    if isinstance(term, ast.UnaryOp) and isinstance(term.op, ast.USub):
        factor, above, below = factors(term.operand)
        return -factor, above, below
    if isinstance(term, ast.BinOp) and isinstance(term.op, ast.Mult | ast.Div):
        first, second = factors(term.left), factors(term.right)
        if isinstance(term.op, ast.Mult):
            return first[0] * second[0], first[1] + second[1], first[2] + second[2]
        if second[0]:
            return first[0] / second[0], first[1] + second[2], first[2] + second[1]
    if isinstance(term, ast.BinOp) and isinstance(term.op, ast.Pow):
        exponent, base = value_of(term.right), factors(term.left)
        if exponent is not None and exponent.is_integer() and base[0] != 1 and base[1]:
            inner = _quotient(1.0, base[1], base[2])
            return base[0] ** exponent, [power(inner, exponent)], []
    return 1.0, [term], []


def product(terms: Sequence[ast.expr]) -> ast.expr:
    """a * b / c, its numbers collected in front."""
    number_, above, below = 1.0, list[ast.expr](), list[ast.expr]()
    for term in terms:
        own = factors(term)
        number_, above, below = number_ * own[0], above + own[1], below + own[2]
    for divisor in list(below):
        twin = next((f for f in above if same(f, divisor)), None)
        if twin is not None:
            above.remove(twin)
            below.remove(divisor)
    return _quotient(number_, above, below) if number_ else number(0)


def _quotient(factor: float, above: Sequence[ast.expr], below: Sequence[ast.expr]) -> ast.expr:
    if factor == -1 and above:
        return ast.UnaryOp(ast.USub(), _quotient(1.0, above, below))
    terms = list(above) if factor == 1 and above else [number(factor), *above]
    made = terms[0]
    for term in terms[1:]:
        made = ast.BinOp(made, ast.Mult(), term)
    for term in below:
        made = ast.BinOp(made, ast.Div(), term)
    return made


def quotient(x: ast.expr, y: ast.expr) -> ast.expr:
    factor, above, below = factors(y)
    if not factor:  # nothing is said of what is divided by 0
        return ast.BinOp(x, ast.Div(), y)
    return product([x, _quotient(1 / factor, below, above)])


def power(x: ast.expr, exponent: float) -> ast.expr:
    """x to a number."""
    value = value_of(x)
    if exponent == 0:
        return number(1)
    if exponent == 1:
        return x
    return number(value**exponent) if value is not None and value > 0 else ast.BinOp(x, ast.Pow(), number(exponent))


def simplified(node: ast.expr) -> ast.expr:
    """The same expression, made by the functions above."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return negative(simplified(node.operand))
    if isinstance(node, ast.BinOp):
        x, y = simplified(node.left), simplified(node.right)
        exponent = value_of(y)
        match node.op:
            case ast.Add():
                return sum_of([x, y])
            case ast.Sub():
                return sum_of([x, negative(y)])
            case ast.Mult():
                return product([x, y])
            case ast.Div():
                return quotient(x, y)
            case ast.Pow() if exponent is not None:
                return product([power(x, exponent)])
        return ast.BinOp(x, node.op, y)
    if isinstance(node, ast.Call):
        return ast.Call(node.func, [simplified(a) for a in node.args], node.keywords)
    return node


def factored(terms: Sequence[ast.expr]) -> ast.expr:
    """The sum of terms, with what all of them are multiplied by in front: s + x*s*(1-s) is s * (x*(1-s) + 1)."""
    parts = [factors(term) for term in terms]
    common = list[ast.expr]()
    for candidate in parts[0][1] if len(parts) > 1 else ():
        if all(any(same(candidate, f) for f in above) for _, above, _ in parts):
            common.append(candidate)
            for _, above, _ in parts:
                above.remove(next(f for f in above if same(candidate, f)))
    if not common:
        return sum_of(terms)
    return product([*common, sum_of([_quotient(*part) for part in parts])])


def chosen(terms: Sequence[ast.expr]) -> ast.expr:
    """The sum of terms, with those that a condition chooses in one Where: Where(c, g, 0) + 2 * Where(c, 0, g) is
    Where(c, g, 2 * g)."""
    choices: dict[str, list[list[ast.expr]]] = {}
    conditions: dict[str, ast.expr] = {}
    rest = list[ast.expr]()
    for term in terms:
        factor, above, below = factors(term)
        where = [f for f in above if isinstance(f, ast.Call) and ast.unparse(f.func) == "Where"]
        if len(where) != 1 or all(value_of(x) != 0 for x in where[0].args[1:]):
            rest.append(term)
            continue
        others = [f for f in above if f is not where[0]]
        condition, *arms = where[0].args
        key = ast.unparse(condition)
        conditions[key] = condition
        pair = choices.setdefault(key, [[], []])
        for own, arm in zip(pair, arms, strict=True):
            own.append(product([arm, _quotient(factor, others, below)]))
    made = [
        ast.Call(ast.Name("Where", ast.Load()), [conditions[key], sum_of(yes), sum_of(no)], [])
        for key, (yes, no) in choices.items()
    ]
    return sum_of([*made, *rest])
