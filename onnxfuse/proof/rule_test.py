"""Proves a rule: writes its equations out as models, and shows that they are matched and mean what the fused op means.

Every combination of optional parameters, blocks, spellings and ops becomes one model, lowered from the rule's own text.
Three claims are made of each: the rule matches it; it computes what the other spellings compute; and the fused model,
with the op's function body, computes the same in onnxruntime.  Sizes and values come from the rule's ``test:`` line.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
from onnx import ModelProto, TensorProto, helper

from onnxfuse.language.bodies import Body, Ref
from onnxfuse.language.catalogue import Catalogue
from onnxfuse.language.rule import (
    ANY,
    REST,
    Parameter,
    Rule,
    Statement,
    alternatives,
    captured,
    form_values,
    literal,
    op_name,
    targets,
)
from onnxfuse.language.variadic import Each
from onnxfuse.language.variants import Variant, variants
from onnxfuse.model.graph import DOMAIN
from onnxfuse.model.op_traits import VIEWS
from onnxfuse.model.schema import tensor
from onnxfuse.terms.term import Array

from .numerics import compare

if TYPE_CHECKING:
    from collections.abc import Sequence

Feeds: TypeAlias = dict[str, Array]
_Node = TypeVar("_Node", bound=ast.AST)

OPSET = 17
LARGEST = 1 << 24
"""Elements of a tensor that a rule is tested with."""
TOLERANCE: dict[int, float] = {TensorProto.FLOAT: 2e-5, TensorProto.FLOAT16: 4e-3}
"""Largest difference over the largest result: a few hundred ulp in float32, where folding weights moves roundings; four
ulp in float16."""
PLAIN = "plain"
STORED = frozenset("halves pairs lower upper hidden numbers".split())
"""Values of ``test:`` that are constants of the model."""


@dataclass(frozen=True)
class Outcome:
    """One claim about one model: `claim` is "matched", "spellings agree", "float32 body" or "float16 body"."""

    rule: str
    path: str
    case: str
    claim: str
    passed: bool
    detail: str = ""

    @property
    def text(self) -> str:
        """One line: verdict, rule, claim, and which model."""
        verdict = "ok    " if self.passed else "FAILED"
        return f"{verdict} {self.rule} ({self.path}): {self.claim}: {self.case}" + (
            f": {self.detail}" if self.detail else ""
        )


@dataclass(frozen=True)
class Case:
    """A variant written out as a model; `setting` is equal where two of them must compute the same."""

    name: str
    setting: str
    model: ModelProto
    feeds: Feeds


def check(rule: Rule, catalogue: Catalogue) -> Iterator[Outcome]:
    """Everything that can be shown of a rule; nothing if it has no ``test:`` line or only gives a meaning.

    Raises DependencyError without onnxruntime, RuleError for a ``test:`` line that does not fit the rule."""
    if not rule.test or not rule.blocks:
        return
    reference: dict[str, list[Array]] = {}
    for variant in variants(rule):
        case = write(rule, variant, catalogue, TensorProto.FLOAT)
        expected = run(case.model, case.feeds)
        first = case.setting not in reference
        if first:
            reference[case.setting] = expected
        else:
            error = worst(expected, reference[case.setting], TensorProto.FLOAT)
            yield Outcome(rule.name, rule.path, case.name, "spellings agree", not error, error)
        yield from _fused(rule, catalogue, case, expected, TensorProto.FLOAT)
        if first:
            yield from _in_half(rule, variant, catalogue)


def _fused(rule: Rule, catalogue: Catalogue, case: Case, expected: list[Array], dtype: int) -> Iterator[Outcome]:
    """The rule matches the model, and the fused model computes what the model computes."""
    from onnxfuse.fusing.fuse import fuse
    from onnxfuse.model.graph import count_nodes

    fused = fuse(case.model, catalogue, why=rule.name)
    used = sorted({match.rule.name for site in fused.sites for match in site.matches})
    plain = rule.call is None or (op_name(rule.call) in VIEWS and not used)
    found = rule.name in used or (plain and count_nodes(fused.model) < count_nodes(case.model))
    kind = "float32" if dtype == TensorProto.FLOAT else "float16"
    if kind == "float32":
        detail = "" if found else f"fused by {', '.join(used) or 'no rule'}; {_reason(rule, fused)}"
        yield Outcome(rule.name, rule.path, case.name, "matched", found, detail)
    error = worst(run(fused.model, case.feeds), expected, dtype)
    yield Outcome(rule.name, rule.path, case.name, f"{kind} body", not error, error)


def _reason(rule: Rule, fused: Any) -> str:
    return next((m.reason for m in fused.near_misses if m.rule == rule.name), "it stopped at its first op")


def _in_half(rule: Rule, variant: Variant, catalogue: Catalogue) -> Iterator[Outcome]:
    """The same in float16, where onnxruntime has CPU kernels for what the spelling says."""
    case = write(rule, variant, catalogue, TensorProto.FLOAT16)
    try:
        expected = run(case.model, case.feeds)
    except NotImplementedError:
        return
    if all(np.isfinite(array).all() for array in expected):
        yield from _fused(rule, catalogue, case, expected, TensorProto.FLOAT16)


def worst(actual: Sequence[Array], expected: Sequence[Array], dtype: int) -> str:
    """Why the outputs differ; empty if they do not."""
    limit = TOLERANCE[dtype]
    reasons = [compare(a, e, limit, limit / 100).reason for a, e in zip(actual, expected, strict=True)]
    return next((reason for reason in reasons if reason), "")


def run(model: ModelProto, feeds: Feeds) -> list[Array]:
    """The outputs in onnxruntime on the CPU, unoptimized.  Raises NotImplementedError where it has no kernel, or the op
    not float16."""
    from onnxfuse.runtime.quiet import onnxruntime

    ort = onnxruntime()
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        if "NOT_IMPLEMENTED" in str(error) or "Type Error: Type 'tensor(float16)' of input" in str(error):
            raise NotImplementedError(str(error)) from error
        raise
    return list(session.run(None, feeds))


# ------------------------------------------------------------------------------------------------ models


def write(rule: Rule, variant: Variant, catalogue: Catalogue, dtype: int) -> Case:
    """A variant's equations as a model of `dtype`; inputs and constants are drawn as ``test:`` says."""
    rng = np.random.default_rng(0)
    body = Body(catalogue, OPSET, dtype, taken={p.name for p in rule.parameters})
    env: dict[str, Any] = {name: _captured(rule, name) for name in captured(rule.blocks[variant.block])}
    env |= variant.operators
    env |= {name: literal(_given(rule, name)) for names in variant.values.values() for name in names}
    initializers, inputs, feeds = [], [], Feeds()
    for p in rule.parameters:
        default = variant.dropped.get(p.name)
        if default is not None:
            env.setdefault(p.name, literal(default))
        elif p.kind == ANY and p.name not in rule.test:
            env[p.name] = None
        elif p.constant:
            if not p.ops:
                value = literal(_wanted(rule, p))
                env[p.name] = Each(value) if p.name in rule.starred and isinstance(value, tuple) else value
        else:
            drawn = {name: _draw(rule, p, wanted, dtype, rng) for name, wanted in _tensors(rule, p).items()}
            refs = [None if t is None else Ref(name, t[1].shape) for name, t in drawn.items()]
            env[p.name] = Each(refs) if p.name in rule.starred else refs[0]
            for name, (kind, array) in ((name, t) for name, t in drawn.items() if t is not None):
                if p.kind == "const" or op_name(_wanted(rule, p)) in STORED:
                    initializers.append(tensor(array, name, kind))
                else:
                    inputs.append(helper.make_tensor_value_info(name, kind, array.shape))
                    feeds[name] = array
    block = spelled(rule, variant)
    setting = sorted((name, repr(value)) for name, value in env.items() if not isinstance(value, Ref))
    setting += [("", side) for side in _sides(rule, block)]
    if len({len(value) for value in env.values() if isinstance(value, Each)}) > 1:
        raise rule.source.error("`test:` gives lists of different lengths for what is behind a `*`", 1)
    result = body.equations(_typed(block, dtype), env)
    graph = helper.make_graph(
        body.nodes, "rule", inputs, [helper.make_tensor_value_info(result.name, dtype, None)], initializers
    )
    domains = sorted({DOMAIN, *(node.domain for node in body.nodes)} - {""})
    imports = [helper.make_opsetid("", OPSET), *(helper.make_opsetid(domain, 1) for domain in domains)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    return Case(_name(rule, variant), repr(setting), model, feeds)


def _sides(rule: Rule, block: Sequence[Statement]) -> list[str]:
    """Equations beside those that lead to the root: what `emit` is told of this block, so that it may mean another."""
    used = {n.id for s in block for n in ast.walk(s.value) if isinstance(n, ast.Name)}
    return [ast.unparse(s) for s in block[:-1] if not used & set(targets(s)) and rule.asked & set(targets(s))]


def _name(rule: Rule, variant: Variant) -> str:
    parts = [f"block {variant.block + 1}"] if len(rule.blocks) > 1 else []
    parts += [f"without {name}" for name in variant.dropped]
    parts += [f"{name} {op}" for name, op in variant.operators.items()]
    parts += [f"spelling {'.'.join(str(i + 1) for i in variant.spelling)}"] if any(variant.spelling) else []
    return ", ".join(parts) or PLAIN


def _wanted(rule: Rule, p: Parameter) -> ast.expr:
    return _given(rule, p.name)


def _given(rule: Rule, name: str) -> ast.expr:
    value = rule.test.get(name)
    if value is None:
        raise rule.source.error(f"`test:` gives no value for {name}", 1, f"such as  {name}=1e-5")
    return value


def _captured(rule: Rule, name: str) -> Mapping[str, Any]:
    """Attributes for a ``**name``: those that ``test: name={...}`` gives; for `...` those that it gives by name."""
    if name == REST:
        constants = {value for p in rule.parameters for form in p.forms for value in form_values(form)}
        return {n: literal(v) for n, v in rule.test.items() if rule.parameter(n) is None and n not in constants}
    return dict(ast.literal_eval(rule.test[name])) if name in rule.test else {}


def _tensors(rule: Rule, p: Parameter) -> dict[str, ast.expr]:
    """What ``test:`` wants of a parameter, by the name of the tensor: of one behind a `*` a list, for each of them."""
    wanted = rule.test.get(p.name)
    if wanted is None:
        raise rule.source.error(f"`test:` gives no shape for {p.name}", 1, f"such as  {p.name}=[2, 7, 64]")
    if p.name not in rule.starred:
        return {p.name: wanted}
    if not isinstance(wanted, ast.List) or not all(isinstance(w, ast.List) or literal(w) is None for w in wanted.elts):
        text = f"{p.name} stands for a list, and its test for the shape of each"
        raise rule.source.error(text, wanted, f"such as  {p.name}=[[2, 7], [2, 9], [2, 4]]")
    return {f"{p.name}{index}": each for index, each in enumerate(wanted.elts)}


def _draw(rule: Rule, p: Parameter, wanted: ast.expr, dtype: int, rng: np.random.Generator) -> tuple[int, Array] | None:
    """A tensor of the shape that ``test:`` gives: ``[2, 7]``, or ``positive([7])`` for what must be; ``halves([7])``
    and ``pairs([7])`` are constants whose last axis repeats, as a whole or element by element, ``lower([7, 9])`` one of
    1 up to the diagonal and 0 behind it, ``upper([7, 9])`` of 0 up to it and -1e4 behind, ``hidden([7])`` of -inf,
    ``numbers([1, 0, 2])`` one of these, ``booleans([1, 0])`` one of true and false.  Tensors of kind `int` are indices
    from 0 to 3, those of `bytes` are uint8.  None where one of several is left out."""
    positive = op_name(wanted) == "positive"
    shape = literal(wanted.args[0] if isinstance(wanted, ast.Call) else wanted)
    if shape is None:
        return None
    if op_name(wanted) == "booleans":
        return TensorProto.BOOL, np.array(shape, np.bool_)
    if op_name(wanted) == "numbers":
        dtype = TensorProto.INT64 if p.kind == "int" else dtype
        return dtype, np.array(shape, helper.tensor_dtype_to_np_dtype(dtype))
    sizes = shape if isinstance(shape, tuple) else (shape,)
    if not all(isinstance(d, int) and d >= 0 for d in sizes) or math.prod(sizes) > LARGEST:
        raise rule.source.error(
            f"{p.name} cannot have the shape {ast.unparse(wanted)}",
            wanted,
            f"a few numbers will do, such as  {p.name}=[2, 7, 64]: no more than {LARGEST:,} elements",
        )
    if p.kind == "int":
        return TensorProto.INT64, rng.integers(0, 4, shape)
    if p.kind == "bytes":
        return TensorProto.UINT8, rng.integers(0, 256, shape, np.uint8)
    if p.kind == "bool":
        array = rng.random(shape) < 0.8
        return TensorProto.BOOL, array
    array = rng.standard_normal(shape)
    array = np.abs(array) + 0.5 if positive else array
    if op_name(wanted) == "halves":
        array = np.concatenate([array, array], -1)
    elif op_name(wanted) == "pairs":
        array = np.repeat(array, 2, -1)
    elif op_name(wanted) in ("ones", "zeros"):
        array = np.full(shape, float(op_name(wanted) == "ones"))
    elif op_name(wanted) == "lower":
        array = np.tril(np.ones(shape))
    elif op_name(wanted) == "upper":
        array = np.triu(np.full(shape, -1e4), 1)
    elif op_name(wanted) == "hidden":
        array = np.full(shape, -np.inf)
    return dtype, array.astype(helper.tensor_dtype_to_np_dtype(dtype))


def spelled(rule: Rule, variant: Variant) -> list[Statement]:
    """The equations of a variant's block with its choices made: no `|` is left."""
    picks = iter(variant.spelling)
    known: set[str] = set()

    def chosen(node: ast.expr) -> ast.expr:
        # The order in which onnxfuse.language.pattern asks: operands first, then the op.
        if isinstance(node, ast.BinOp):
            if isinstance(node.op, ast.BitOr):
                return chosen(alternatives(node)[next(picks)])
            return _at(ast.BinOp(chosen(node.left), node.op, chosen(node.right)), node)
        if isinstance(node, ast.UnaryOp):
            return _at(ast.UnaryOp(node.op, chosen(node.operand)), node)
        if isinstance(node, ast.Starred):
            return _at(ast.Starred(chosen(node.value), node.ctx), node)
        if isinstance(node, ast.Call):
            args = [chosen(a) for a in node.args]
            parameter = rule.parameter(op_name(node))
            if parameter is not None and parameter.ops:
                if parameter.name not in known:
                    known.add(parameter.name)
                    next(picks)
                form = parameter.form(variant.operators[parameter.name])
                if form is not None:
                    return _at(ast.Call(form.func, [*args, *form.args], [*node.keywords, *form.keywords]), node)
            return _at(ast.Call(node.func, args, node.keywords), node)
        return node

    return [_at(ast.Assign(s.targets, chosen(s.value)), s) for s in rule.blocks[variant.block]]


def _at(node: _Node, like: ast.AST) -> _Node:
    return ast.copy_location(node, like)


def _typed(block: Sequence[Statement], dtype: int) -> list[Statement]:
    """Attributes that the rule does not care for (``to=_``) get a value where the op must have one."""

    class Fill(ast.NodeTransformer):
        def visit_Call(self, node: ast.Call) -> ast.Call:
            self.generic_visit(node)
            keywords = [k for k in node.keywords if not (isinstance(k.value, ast.Name) and k.value.id == "_")]
            if op_name(node) == "Cast":
                keywords.append(ast.keyword("to", ast.Constant(int(dtype))))
            return _at(ast.Call(node.func, node.args, keywords), node)

    return [Fill().visit(statement) for statement in block]


# ------------------------------------------------------------------------------------------------ a first rule


def template(name: str) -> str:
    """The text of a rule to begin with; it passes its test as it is."""
    return f"""\
# What {name} computes, and where it comes from (paper, specification).
{name}(X, scale=1, *, epsilon=1e-5)

match:
    norm = Sqrt(ReduceSum(X**2, axes=[-2]) + epsilon)
    Y = X * scale / norm

where:
    0 < epsilon < 1e-2
    rank(scale) <= 1

emit:   Y = {name}(X, scale, epsilon=epsilon)
test:   X=[2,7,64]; scale=[64]; epsilon=1e-5
"""
