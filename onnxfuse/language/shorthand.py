"""What a rule says in short, written out: calls of shared functions, named inputs, and `...`.

Behind this, a rule holds only what the matcher and the evaluator know: ops with all their inputs in order.  Syntax
trees are copied and never executed.  What is pasted stands at the line of its call, which is where messages point.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from typing import NoReturn, TypeVar, cast

from .gradients import with_gradients
from .rule import ANY, REST, Function, Parameter, Rule, Source, Statement, op_name, targets

STEPS = 20_000
"""Nodes of a rule's syntax trees with all functions written out; the largest shipped rule has 2,000."""

_Tree = TypeVar("_Tree", bound=ast.AST)


@dataclass(frozen=True)
class Signature:
    """The inputs, attributes and outputs of an op, by name."""

    inputs: tuple[str, ...]
    attributes: frozenset[str]
    outputs: tuple[str, ...]

    @staticmethod
    def of(definition: Rule) -> Signature:
        """Of the op that a rule defines."""
        inputs = tuple(p.name for p in definition.tensors)
        attributes = frozenset(p.name for p in definition.constants)
        return Signature(inputs, attributes, tuple(targets((definition.emit or definition.meaning)[-1])))


def written_out(rule: Rule, functions: Mapping[str, Function], definitions: Mapping[str, Rule]) -> Rule:
    """The rule without shorthand; `definitions` are the rules that define ops.  Raises RuleError."""
    rule = with_gradients(rule, definitions)
    if not _mentions(rule, functions, definitions):
        return rule
    inliner = _Inliner(rule, functions)
    rule = replace(
        rule,
        blocks=tuple(inliner.equations(block) for block in rule.blocks),
        let=inliner.equations(rule.let),
        where=tuple(made for condition in rule.where for made in inliner.conditions(condition)),
        emit=inliner.equations(rule.emit),
        meaning=inliner.equations(rule.meaning),
        standard=inliner.equations(rule.standard),
    )
    inputs = _Inputs(rule, definitions)
    blocks = tuple(inputs.block(block) for block in rule.blocks)
    emit = tuple(inputs.emitted(statement) for statement in rule.emit)
    rule = replace(
        rule,
        blocks=blocks,
        emit=emit,
        meaning=tuple(inputs.plain(s) for s in rule.meaning),
        let=tuple(inputs.plain(s) for s in rule.let),
        parameters=(*rule.parameters, *inputs.parameters.values()),
    )
    return replace(rule, passed=rule.asked & inputs.attributes)


def _mentions(rule: Rule, functions: Mapping[str, Function], definitions: Mapping[str, Rule]) -> bool:
    """Is there anything in short?  A rule without stays the object that it is."""
    for node in (node for tree in _trees(rule) for node in ast.walk(tree)):
        if _is_rest(node):
            return True
        if isinstance(node, ast.Call):
            op = op_name(node)
            inputs = {p.name for p in definitions[op].tensors} if op in definitions and node.keywords else set()
            if op in functions or any(k.arg in inputs for k in node.keywords):
                return True
    return False


def _trees(rule: Rule) -> Iterator[ast.AST]:
    for block in rule.blocks:
        yield from block
    yield from (*rule.let, *rule.where, *rule.emit, *rule.meaning, *rule.standard)


def _is_rest(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is Ellipsis


def _copied(tree: _Tree) -> _Tree:
    """A copy of all nodes, each at its place in the text."""
    made = type(tree)()
    for name, value in ast.iter_fields(tree):
        if isinstance(value, list):
            value = [_copied(item) if isinstance(item, ast.AST) else item for item in value]
        setattr(made, name, _copied(value) if isinstance(value, ast.AST) else value)
    return ast.copy_location(made, tree)


def _at(tree: _Tree, place: ast.AST) -> _Tree:
    """The tree with every node at one place of the text."""
    for node in ast.walk(tree):
        ast.copy_location(node, place)
    return tree


# ------------------------------------------------------------------------------------------------ functions


class _Inliner:
    """Pastes the equations of functions where they are called."""

    def __init__(self, rule: Rule, functions: Mapping[str, Function]) -> None:
        self.source, self.functions = rule.source, functions
        self.taken = {p.name for p in rule.parameters} | {
            name for tree in _trees(rule) if isinstance(tree, ast.Assign) for name in targets(tree)
        }
        self.steps = 0

    def equations(self, statements: Sequence[Statement]) -> tuple[Statement, ...]:
        return tuple(made for statement in statements for made in self._equation(statement))

    def _equation(self, statement: Statement) -> Iterator[Statement]:
        call = statement.value
        function = self.functions.get(op_name(call)) if isinstance(call, ast.Call) else None
        if function is None or not isinstance(call, ast.Call):
            self._count(statement)
            yield _replaced(statement, value=self.expression(statement.value))
            return
        names, results = targets(statement), function.results
        if len(names) != len(results):
            text = f"{function.name} gives {len(results)} results, and here are {len(names)} names"
            raise self.source.error(text, statement)
        meant: dict[str, ast.expr] = self._arguments(function, call)
        for local in (name for equation in function.equations for name in targets(equation)):
            own = next(
                (n for n, r in zip(names, results, strict=True) if isinstance(r, ast.Name) and r.id == local), ""
            )
            meant[local] = ast.Name(own or self._fresh(local), ast.Load())
        done = set()
        for equation in function.equations:
            renamed = [meant[name] for name in targets(equation)]
            done |= {n.id for n in renamed if isinstance(n, ast.Name)}
            left: ast.expr = (
                ast.Tuple(renamed, ast.Store()) if isinstance(equation.targets[0], ast.Tuple) else renamed[0]
            )
            made = ast.Assign([left], _substituted(equation.value, meant))
            self._count(made)
            yield _at(made, statement)
        for name, result in zip(names, results, strict=True):
            if name not in done:
                made = ast.Assign([ast.Name(name, ast.Store())], _substituted(result, meant))
                self._count(made)
                yield _at(made, statement)

    def expression(self, node: ast.expr) -> ast.expr:
        """The same with functions of one expression written out."""
        if not any(isinstance(n, ast.Call) and op_name(n) in self.functions for n in ast.walk(node)):
            return node
        return _changed(node, self._expression)

    def conditions(self, condition: ast.expr) -> list[ast.expr]:
        """The condition; for a function of several, each by itself, so that a refusal names the one that fails."""
        made = self.expression(condition)
        several = made is not condition and isinstance(condition, ast.Call)
        if not several or not isinstance(made, ast.BoolOp) or not isinstance(made.op, ast.And):
            return [made]
        return list(made.values)

    def _expression(self, call: ast.Call) -> ast.expr:
        function = self.functions.get(op_name(call))
        if function is None:
            return call
        if function.equations or len(function.results) != 1:
            text = f"{function.name} has equations of its own, and stands inside an expression"
            raise self.source.error(text, call, f"give it an equation:  y = {function.name}(...)")
        made = _substituted(function.results[0], self._arguments(function, call))
        self._count(made)
        return _at(made, call)

    def _arguments(self, function: Function, call: ast.Call) -> dict[str, ast.expr]:
        names = [p.name for p in function.parameters]
        given = dict(zip(names, call.args, strict=False)) | {k.arg: k.value for k in call.keywords if k.arg}
        missing = [p.name for p in function.parameters if p.name not in given and p.default is None]
        if len(call.args) > len(names) or set(given) - set(names) or missing or any(not k.arg for k in call.keywords):
            raise self.source.error(f"it is {function.name}({', '.join(names)})", call)
        return {
            p.name: self.expression(given.get(p.name) or p.default or ast.Constant(None)) for p in function.parameters
        }

    def _fresh(self, name: str) -> str:
        free = next(n for n in chain([name], (f"{name}_{i}" for i in count(2))) if n not in self.taken)
        self.taken.add(free)
        return free

    def _count(self, tree: ast.AST) -> None:
        self.steps += sum(1 for _ in ast.walk(tree))
        if self.steps > STEPS:
            text = f"more than {STEPS:,} steps with all functions written out"
            raise self.source.error(text, getattr(tree, "lineno", 1), "make several rules of it")


def _changed(tree: ast.expr, change: Callable[[ast.Call], ast.expr]) -> ast.expr:
    """A copy with all calls changed, inner ones first."""

    class Calls(ast.NodeTransformer):
        def visit_Call(self, node: ast.Call) -> ast.expr:
            self.generic_visit(node)
            return change(node)

    return cast("ast.expr", Calls().visit(_copied(tree)))


def _substituted(tree: ast.expr, meant: Mapping[str, ast.expr]) -> ast.expr:
    """A copy in which names stand for what they mean; what is called keeps its name, unless that means another."""

    class Names(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return _copied(meant[node.id]) if node.id in meant else node

        def visit_Call(self, node: ast.Call) -> ast.expr:
            called = node.func
            self.generic_visit(node)
            if isinstance(called, ast.Name) and not isinstance(node.func, ast.Name):
                node.func = called
            return node

    return cast("ast.expr", Names().visit(_copied(tree)))


def _replaced(statement: Statement, *, value: ast.expr, names: Sequence[str] | None = None) -> Statement:
    if value is statement.value and names is None:
        return statement
    left = statement.targets
    if names is not None:
        left = [_at(ast.Tuple([ast.Name(n, ast.Store()) for n in names], ast.Store()), statement.targets[0])]
    return ast.copy_location(ast.Assign(left, value), statement)


# ------------------------------------------------------------------------------------------------ inputs by name


@dataclass
class _Inputs:
    """Puts inputs that are named in their places, and writes out `...`.

    In `match:` it stands for every input, output and attribute of an op that the call does not name: they keep the
    names that the op's definition gives them.  In `emit:` it stands for the same ones again."""

    rule: Rule
    definitions: Mapping[str, Rule]
    parameters: dict[str, Parameter] = field(default_factory=dict)
    """The inputs behind `...`: parameters of the rule that its head does not mention."""
    attributes: set[str] = field(default_factory=set)
    """The attributes behind `...` whose names are free."""
    op: str = ""
    """The op that has `...` in `match:`."""
    left: set[str] = field(default_factory=set)
    """The inputs that it stands for there."""
    outputs: tuple[str, ...] = ()
    """Further outputs that go on as they are."""

    @property
    def source(self) -> Source:
        return self.rule.source

    def plain(self, statement: Statement) -> Statement:
        """An equation with the inputs of its ops in order."""
        return _replaced(statement, value=self._ordered(statement.value))

    def block(self, block: Sequence[Statement]) -> tuple[Statement, ...]:
        made, found = list[Statement](), list[ast.Call]()
        for statement in block:
            calls = [n for n in ast.walk(statement.value) if isinstance(n, ast.Call) and _has_rest(n)]
            found += calls
            if len(found) > 1:
                raise self.source.error("a second `...` in one `match:`", found[1], "write the inputs of one op out")
            for call in calls:
                self._open(
                    call, whole=call is statement.value and statement is block[-1] and len(targets(statement)) == 1
                )
            value = self._ordered(statement.value, self._matched)
            names = targets(statement)
            extended = [*names, *self.outputs] if calls and self.outputs and statement is block[-1] else None
            made.append(_replaced(statement, value=value, names=extended))
        return tuple(made)

    def emitted(self, statement: Statement) -> Statement:
        call = statement.value
        names = targets(statement)
        whole = isinstance(call, ast.Call) and _has_rest(call) and len(names) == 1
        value = self._ordered(call, self._passed)
        return _replaced(statement, value=value, names=[*names, *self.outputs] if whole and self.outputs else None)

    def _open(self, call: ast.Call, *, whole: bool) -> None:
        """Note what `...` stands for in a call of `match:`."""
        signature = self._signature(op_name(call), call)
        given = {k.arg for k in call.keywords}
        for keyword in call.keywords:
            if keyword.arg not in {*signature.inputs, *signature.attributes}:
                self._unknown(op_name(call), str(keyword.arg), signature, keyword.value)
        declared = {p.name for p in self.rule.parameters}
        left = {name for name in signature.inputs if name not in given}
        further = signature.outputs[1:] if whole else ()
        own = {n for tree in _trees(self.rule) if isinstance(tree, ast.Assign) for n in targets(tree)}
        for name in (*sorted(left - declared), *further):
            if name in own:
                text = f"{name} is what `...` calls an input or output of {op_name(call)}"
                raise self.source.error(text, call, "give what you call so another name")
        if self.op and (op_name(call), left, further) != (self.op, self.left, self.outputs):
            raise self.source.error("`...` stands for something else than in the first `match:`", call)
        self.op, self.left, self.outputs = op_name(call), left, tuple(further)
        for name in sorted(left - declared):
            self.parameters[name] = Parameter(name, ANY, ast.Constant(None), False, line=call.lineno)
        self.attributes |= signature.attributes - given - declared - own - left

    def _matched(self, call: ast.Call) -> tuple[list[ast.expr], list[ast.keyword]]:
        signature = self._signature(op_name(call), call)
        named = {k.arg: k.value for k in call.keywords if k.arg in signature.inputs}
        args = [named.get(name) or ast.Name(name, ast.Load()) for name in signature.inputs]
        return args, self._attributes(call, signature)

    def _passed(self, call: ast.Call) -> tuple[list[ast.expr], list[ast.keyword]]:
        """The call in `emit:`: what `...` stood for in `match:`, with what is named instead of what was named there."""
        if not self.op:
            raise self.source.error(
                "`...` in `emit:` stands for what it stood for in `match:`, where there is none", call
            )
        signature = self._signature(self.op, call)
        named = {k.arg: k.value for k in call.keywords if k.arg in signature.inputs}
        for name in named:
            if name in self.left:
                text = f"{name} is given, and `...` stands for it as well"
                raise self.source.error(text, named[name], f"name it in `match:`, too:  {self.op}(..., {name}={name})")
        args = [
            ast.Name(name, ast.Load()) if name in self.left else named.get(name) or ast.Constant(None)
            for name in signature.inputs
        ]
        return args, self._attributes(call, signature)

    def _attributes(self, call: ast.Call, signature: Signature) -> list[ast.keyword]:
        rest = ast.keyword(None, ast.Name(REST, ast.Load()))
        return [rest, *(k for k in call.keywords if k.arg not in signature.inputs)]

    def _ordered(
        self,
        tree: ast.expr,
        rest: Callable[[ast.Call], tuple[list[ast.expr], list[ast.keyword]]] | None = None,
    ) -> ast.expr:
        """The same with every named input in its place."""

        def change(call: ast.Call) -> ast.expr:
            if rest is not None and _has_rest(call):
                args, keywords = rest(call)
                made = ast.Call(call.func, args, keywords)
                for node in (a for a in (*args, *(k.value for k in keywords)) if not hasattr(a, "lineno")):
                    ast.copy_location(node, call)
                for keyword in keywords:
                    ast.copy_location(keyword, call)
                return ast.copy_location(made, call)
            definition = self.definitions.get(op_name(call))
            inputs = [p.name for p in definition.tensors] if definition is not None else []
            named = {k.arg: k for k in call.keywords if k.arg in inputs}
            if not named:
                return call
            place = {name: i for i, name in enumerate(inputs)}
            for name, keyword in named.items():
                if place[str(name)] < len(call.args):
                    raise self.source.error(f"{name} of {op_name(call)} is given twice", keyword.value)
            last = max(place[str(name)] for name in named)
            args = list(call.args)
            for name in inputs[len(call.args) : last + 1]:
                args.append(named[name].value if name in named else ast.copy_location(ast.Constant(None), call))
            return ast.copy_location(ast.Call(call.func, args, [k for k in call.keywords if k.arg not in named]), call)

        if not any(isinstance(n, ast.Call) and (_has_rest(n) or n.keywords) for n in ast.walk(tree)):
            return tree
        return _changed(tree, change)

    def _signature(self, op: str, call: ast.AST) -> Signature:
        definition = self.definitions.get(op)
        if definition is None:
            text = f"`...` stands for the inputs of an op that a rule defines, and {op} is not one"
            raise self.source.error(text, call, "write its inputs out")
        return Signature.of(definition)

    def _unknown(self, op: str, name: str, signature: Signature, node: ast.AST) -> NoReturn:
        known = ", ".join([*signature.inputs, *sorted(signature.attributes)])
        raise self.source.error(f"{op} has no input or attribute {name}", node, f"it has {known}")


def _has_rest(call: ast.Call) -> bool:
    """Is it a call such as ``Attention(..., V=v)``?"""
    return len(call.args) == 1 and _is_rest(call.args[0]) and all(k.arg for k in call.keywords)
