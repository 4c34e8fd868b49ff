"""Equations as steps of one op each, in order, ops of other definitions written out down to those of the table.

Equal steps are one.  A step has the name of its equation where it has one: the gradient may refer to it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, count

from .algebra import number, simplified, value_of
from .operators import BINARY
from .table import transposed

DEEPEST = 20
"""Definitions inside one another."""


class NoDerivativeError(Exception):
    """An expression has no derivative; says why, and names it."""


@dataclass(frozen=True)
class Definition:
    """What an op means: the names of its tensors in order, the values of what is left out, and its equations."""

    tensors: tuple[str, ...]
    defaults: Mapping[str, ast.expr]
    equations: tuple[ast.Assign, ...]
    result: str
    """The name of its first output."""


@dataclass(frozen=True)
class Step:
    """One op: its operands are names, numbers, or expressions of which nothing depends on a gradient."""

    name: str
    op: str
    operands: tuple[ast.expr, ...]
    value: ast.expr
    """What it is in the rule language."""
    attributes: Mapping[str, ast.expr] = field(default_factory=dict)


@dataclass
class Tape:
    """Writes expressions down as steps.  `saved` are names whose values are known, and need not be computed again."""

    definition: Callable[[str], Definition | None]
    taken: set[str]
    saved: Mapping[str, str] = field(default_factory=dict)
    """Intermediates of the op that is differentiated → what they are called where they are given."""
    steps: list[Step] = field(default_factory=list)
    known: dict[str, str] = field(default_factory=dict)
    """Text of a step → its name."""
    named: set[str] = field(default_factory=set)
    """The names that equations gave."""

    def fresh(self, base: str) -> str:
        """A name that nothing has."""
        free = next(n for n in chain([base], (f"{base}{i}" for i in count(2))) if n not in self.taken)
        self.taken.add(free)
        return free

    def write(self, node: ast.expr, names: Mapping[str, ast.expr], label: str = "", depth: int = 0) -> ast.expr:
        """The expression, each of whose `names` means something: a name of a step, or a number.

        Raises NoDerivativeError for what no equation of a rule may hold here."""
        if depth > DEEPEST:
            raise NoDerivativeError(f"definitions are inside one another more than {DEEPEST} times")
        match node:
            case ast.Name():
                return names.get(node.id, node)
            case ast.Constant() | ast.List() | ast.Tuple():
                return substituted(node, names)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self._step("Neg", [self.write(operand, names, "", depth)], {}, label)
            case ast.BinOp(op=ast.BitOr()):
                return self.write(_first(node), names, label, depth)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in BINARY:
                operands = [self.write(left, names, "", depth), self.write(right, names, "", depth)]
                return self._binary(BINARY[type(op)], operands, label)
            case ast.IfExp():
                return self.write(node.body if self._holds(node.test, names) else node.orelse, names, label, depth)
            case ast.Call(func=ast.Name(id=op)):
                return self._call(node, op, names, label, depth)
        raise NoDerivativeError(f"{ast.unparse(node)} has no derivative here")

    def follow(
        self, equations: Sequence[ast.Assign], names: dict[str, ast.expr], depth: int = 0, *, own: bool = False
    ) -> ast.expr:
        """All equations in order; the value of the last.  Of the op itself (`own`), some may be given already."""
        result: ast.expr = number(0)
        for equation in equations:
            target = equation.targets[0]
            if not isinstance(target, ast.Name):
                raise NoDerivativeError(f"{ast.unparse(equation)} has several results")
            given = self.saved.get(target.id) if own else None
            result = names[target.id] = self.write(equation.value, names, given or target.id, depth)
        return result

    # ------------------------------------------------------------------------------------- steps

    def _binary(self, op: str, operands: list[ast.expr], label: str) -> ast.expr:
        x, y = operands
        root = self._of(y)
        if op == "Div" and root is not None and root.op == "Sqrt":  # 1 / Sqrt(v) is one step: its gradient needs no v
            inverse = self._step("Rsqrt", list(root.operands), {}, label if value_of(x) == 1 else "")
            return inverse if value_of(x) == 1 else self._step("Mul", [x, inverse], {}, label)
        return self._step(op, operands, {}, label)

    def _of(self, node: ast.expr) -> Step | None:
        """The step that a name is the result of."""
        return next((s for s in self.steps if isinstance(node, ast.Name) and s.name == node.id), None)

    def _call(self, node: ast.Call, op: str, names: Mapping[str, ast.expr], label: str, depth: int) -> ast.expr:
        definition = self.definition(op) if transposed(op) is None else None
        attributes = {k.arg: substituted(k.value, names) for k in node.keywords if k.arg}
        operands = [self.write(a, names, "", depth + 1) for a in node.args]
        if definition is None:
            return self._step(op, operands, attributes, label)
        given = dict(zip(definition.tensors, operands, strict=False)) | attributes
        own = depth == 0 and op != label
        return self._inside(definition, {**definition.defaults, **given}, depth, label, own=own)

    def _inside(
        self, definition: Definition, names: dict[str, ast.expr], depth: int, label: str, *, own: bool
    ) -> ast.expr:
        *before, last = definition.equations
        self.follow(before, names, depth + 1, own=own)
        target = last.targets[0]
        saved = self.saved.get(target.id, "") if own and isinstance(target, ast.Name) else ""
        return self.write(last.value, names, saved or label, depth + 1)

    def _step(self, op: str, operands: Sequence[ast.expr], attributes: Mapping[str, ast.expr], label: str) -> ast.expr:
        """A name for the result of a step, which stands already or is written down; a number where it is one."""
        value = simplified(_written(op, operands, attributes))
        if value_of(value) is not None or isinstance(value, ast.Name):
            return value
        text = ast.unparse(value)
        if text in self.known:
            return ast.Name(self.known[text], ast.Load())
        name = label if label in self.saved.values() else self.fresh(label or "t")
        self.known[text] = name
        self.named |= {name} if label else set()
        self.steps.append(Step(name, op, tuple(operands), value, attributes))
        return ast.Name(name, ast.Load())

    def _holds(self, test: ast.expr, names: Mapping[str, ast.expr]) -> bool:
        """Is a condition over literals true?"""
        match test:
            case ast.BoolOp(op=both, values=values):
                return (all if isinstance(both, ast.And) else any)(self._holds(value, names) for value in values)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not self._holds(operand, names)
        test = substituted(test, names)
        match test:
            case ast.Constant(value=value):
                return bool(value)
            case ast.Compare(left=left, ops=[ast.Eq() | ast.NotEq() as op], comparators=[right]):
                if isinstance(left, ast.Constant) and isinstance(right, ast.Constant):
                    return (left.value == right.value) == isinstance(op, ast.Eq)
            case ast.Call(func=ast.Name(id="given"), args=[operand]):
                return not (isinstance(operand, ast.Constant) and operand.value is None)
        raise NoDerivativeError(f'{ast.unparse(test)} is not decided: say what it is, as in Gelu(approximate="none")')


def _written(op: str, operands: Sequence[ast.expr], attributes: Mapping[str, ast.expr]) -> ast.expr:
    """A step in the rule language."""
    operators = {name: kind for kind, name in BINARY.items()}
    if op in operators:
        return ast.BinOp(operands[0], operators[op](), operands[1])
    if op == "Neg":
        return ast.UnaryOp(ast.USub(), operands[0])
    if op == "Rsqrt":
        return ast.BinOp(number(1), ast.Div(), called("Sqrt", operands))
    return called(op, operands, attributes)


def called(op: str, operands: Sequence[ast.expr], attributes: Mapping[str, ast.expr] | None = None) -> ast.Call:
    """The call of an op."""
    keywords = [ast.keyword(name, value) for name, value in (attributes or {}).items()]
    return ast.Call(ast.Name(op, ast.Load()), list(operands), keywords)


def _first(node: ast.expr) -> ast.expr:
    """The first of equal spellings, which is the meaning."""
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        node = node.left
    return node


def substituted(node: ast.expr, names: Mapping[str, ast.expr]) -> ast.expr:
    """A copy in which names stand for what they mean."""

    class Names(ast.NodeTransformer):
        def visit_Call(self, node: ast.Call) -> ast.expr:
            node.args = [self.visit(a) for a in node.args]
            node.keywords = [ast.keyword(k.arg, self.visit(k.value)) for k in node.keywords]
            return node

        def visit_Name(self, node: ast.Name) -> ast.expr:
            return names.get(node.id, node)

    made: ast.expr = Names().visit(ast.parse(ast.unparse(node), mode="eval").body)
    return made
