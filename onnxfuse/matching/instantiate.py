"""From a binding to what it emits: `let`, `where` and `emit` of a rule, once its pattern has matched."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onnxfuse.language.builtins import UndecidedError, Value
from onnxfuse.language.catalogue import Catalogue
from onnxfuse.language.context import Context
from onnxfuse.language.evaluate import Bindings, Scope
from onnxfuse.language.rule import Rule, targets
from onnxfuse.language.variadic import spread
from onnxfuse.language.variants import Variant
from onnxfuse.model.dims import product
from onnxfuse.terms.infer import infer
from onnxfuse.terms.normal.normal import closed, combine, reshape
from onnxfuse.terms.normal.ranges import in_range, misfit
from onnxfuse.terms.normal.views import is_reshape
from onnxfuse.terms.term import REAL, Term, Terms, UnknownValueError, same_shape

from .near_miss import Reason, is_other, unmet


class RefusedError(Exception):
    """The pattern matched, but a condition does not hold, or what would be emitted is not what was there."""

    def __init__(self, line: int, reason: Reason, *, other: bool = False) -> None:
        super().__init__()
        self.line, self.reason, self.other = line, reason, other


@dataclass(frozen=True)
class Conclusion:
    """What a match emits: `emitted` in place of the root, and for each exposed term the output that replaces it."""

    bindings: Bindings
    emitted: Term
    exposed: dict[Term, Term]


def conclude(
    terms: Terms,
    catalogue: Catalogue,
    context: Context,
    variant: Variant,
    root: Term,
    env: Bindings,
    outside: Sequence[Term],
) -> Conclusion:
    """Check the conditions of a matched variant and build what it emits; `outside` are operands of the root's chain
    that the pattern left.  Raises RefusedError.

    Guarantees: shape and kind of element of the root stay what they are."""
    rule = variant.rule
    bindings = variant.defaults | env
    bindings |= {name: tuple(bindings[v] for v in values) for name, values in variant.values.items()}
    like = root
    if outside:
        inside = [a for a in root.args if not any(a is o for o in outside)]
        like = combine(terms, root.op, inside) if inside else root
    scope = Scope(terms, rule, bindings, like, context, catalogue)
    line = rule.emit[0].lineno
    try:
        for statement in rule.blocks[variant.block]:
            _inline(rule, scope, statement)
        steps: list[ast.Assign | ast.expr] = [*rule.early, *rule.let, *rule.late]
        for step in steps:
            line = step.lineno
            if isinstance(step, ast.Assign):
                _let(scope, step)
            elif not scope.truth(scope.value(step), step):
                raise RefusedError(line, unmet(step, bindings), other=is_other(step))
        line = rule.emit[0].lineno
        emitted, exposed = _emit(rule, scope, targets(rule.blocks[variant.block][-1])[0])
    except UndecidedError as reason:
        text = str(reason)
        raise RefusedError(line, lambda: text) from None
    if rule.cost == "fold" and not _fits(emitted, root, env):
        raise RefusedError(line, lambda: "what is folded leaves the range of its element type")
    if any(t.scalar is not None and math.isfinite(t.scalar) and not in_range(t.scalar, root.dtype) for t in outside):
        raise RefusedError(line, lambda: "what is left of its factors is out of range")
    if outside:
        emitted = combine(terms, root.op, [emitted, *outside])
    if root.closed:
        emitted = closed(terms, emitted)
    if root.shape is not None and product(root.shape) == 0:
        raise RefusedError(line, lambda: f"there is nothing to compute in {root.shape}")
    if root.shape is not None and emitted.shape is not None and not same_shape(root.shape, emitted.shape):
        raise RefusedError(line, lambda: f"the shape would change from {root.shape} to {emitted.shape}")
    if _circular(exposed | {root: emitted} if exposed else {}, root):
        raise RefusedError(line, lambda: "the op would depend on an output of its own")
    if (root.dtype in REAL) != (emitted.dtype in REAL):
        raise RefusedError(line, lambda: "the element type would change")
    if emitted is not root and _depends(emitted, root):
        raise RefusedError(line, lambda: "what it emits is computed from what it replaces")
    return Conclusion(bindings, emitted, exposed)


def _fits(emitted: Term, root: Term, env: Bindings) -> bool:
    """Are the constants that a fold makes as well within the range of their type as those that it was given?"""
    given = {term.id: term for term in spread([*env.values()]) if isinstance(term, Term)}
    made, stack = dict[int, Term](), [emitted]
    while stack:
        term = stack.pop()
        if term.id not in given and term.id not in made and (term.constant or term.id > root.id):
            made[term.id] = term
            stack += () if term.constant else term.args
    try:
        return _worst(made) <= _worst(given)
    except UnknownValueError:
        return True


def _worst(terms: Mapping[int, Term]) -> int:
    return max((misfit(term) for term in terms.values() if term.constant and term.dtype in REAL), default=0)


def _circular(replaced: dict[Term, Term], root: Term) -> bool:
    """Would what replaces a term be computed from that, by way of others that are replaced?  Nothing else replaced
    depends on the root, which is looked at where it is emitted."""
    below = {old: [t for t in replaced if t is not root and _depends(new, t)] for old, new in replaced.items()}
    for start in replaced:
        stack, seen = list(below[start]), set[int]()
        while stack:
            term = stack.pop()
            if term is start:
                return True
            if term.id not in seen:
                seen.add(term.id)
                stack += below[term]
    return False


def _depends(term: Term, other: Term) -> bool:
    """Is the other term computed on the way to this one?  Arguments have smaller ids than their users."""
    stack, seen = [term], set[int]()
    while stack:
        current = stack.pop()
        if current is other:
            return True
        if current.id not in seen and current.id > other.id:
            seen.add(current.id)
            stack.extend(current.args)
    return False


def _inline(rule: Rule, scope: Scope, statement: ast.Assign) -> None:
    """A name of `match:` that was dissolved into a longer chain gets its value back when `emit` asks for it."""
    name = targets(statement)[0]
    if name in rule.asked and name not in scope.bindings:
        scope.bindings[name] = _as_value(scope, scope.value(statement.value))


def _as_value(scope: Scope, value: Value) -> Value:
    """A sum or product as the value that the graph has of it, which several use as a whole; else as it is."""
    whole = closed(scope.terms, value) if isinstance(value, Term) else None
    return whole if whole is not None and whole.id in scope.context.named else value


def _let(scope: Scope, statement: ast.Assign) -> None:
    names, value = targets(statement), scope.value(statement.value)
    if len(names) == 1 and not isinstance(statement.targets[0], ast.Tuple):
        scope.bindings[names[0]] = _as_value(scope, value)
        return
    if not isinstance(value, tuple) or len(value) != len(names):
        raise UndecidedError(f"{ast.unparse(statement.value)} does not have {len(names)} parts")
    scope.bindings.update(zip(names, value, strict=True))


def _output(scope: Scope, whole: Term, index: int, old: Term) -> Term:
    """One output of an op with several, in the shape of what it replaces."""
    inferred = infer(scope.terms, whole.op, list(whole.args), dict(whole.attrs), index + 1)
    shape = inferred[index][0] or old.shape
    output = scope.terms.raw("Output", [whole], (("index", index),), shape=shape, dtype=old.dtype)
    if shape is None or old.shape is None or same_shape(shape, old.shape) or product(shape) != product(old.shape):
        return output
    return reshape(scope.terms, output, old.shape)


def _emit(rule: Rule, scope: Scope, root_name: str) -> tuple[Term, dict[Term, Term]]:
    """What replaces the root, which may be any of an op's outputs, and what replaces other terms: outputs of an op that
    have their names, and what is computed under their names."""
    exposed: dict[Term, Term] = {}
    result = scope.like
    for statement in rule.emit:
        value = scope.term(scope.value(statement.value))
        names = targets(statement)
        old = scope.bindings.get(names[0]) if len(names) == 1 and names[0] != root_name else None
        if isinstance(old, Term):
            exposed[old] = scope.bindings[names[0]] = value
            continue
        result = value
        root, before = next((i for i, name in enumerate(names) if name == root_name), 0), set(scope.bindings)
        if root or any(isinstance(scope.bindings.get(name), Term) for name in names[1:]):
            first = whole = result
            while is_reshape(whole):
                whole = whole.args[0]
            for i, name in enumerate(names):
                old = (scope.like if root else first) if i == root else scope.bindings.get(name)
                if isinstance(old, Term) and name != "_":
                    output = _output(scope, whole, i, old)
                    if i != root:
                        exposed[old] = output
                    else:
                        result = output
        scope.bindings[names[root]] = result
        if not any(name in before for name in names if name != "_") and len(names) > 1 and root_name not in names:
            _name_outputs(scope, result, names)
    return result, exposed


def _name_outputs(scope: Scope, whole: Term, names: Sequence[str]) -> None:
    """The outputs of an op, for the equations behind it."""
    inferred = infer(scope.terms, whole.op, list(whole.args), dict(whole.attrs), len(names))
    for i, (name, (shape, dtype)) in enumerate(zip(names, inferred, strict=True)):
        if name != "_":
            scope.bindings[name] = scope.terms.raw("Output", [whole], (("index", i),), shape=shape, dtype=dtype)
