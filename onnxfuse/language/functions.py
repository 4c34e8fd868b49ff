"""Model-local functions: what the fused nodes of a model call, so that a runtime without our kernels runs them.

Each use of a fused op is an op of its own, with one signature: `Attention_attn_mask_1f2e3d4c` is the family Attention,
the optional inputs that are given, and a digest of the attributes and of the body.  The same use has the same name in
every model.  ONNX tells functions of one name apart by their overload, too, but hardly any reader of it does, and runs
another use's body without a word.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from onnx import FunctionProto, ModelProto, TensorProto, helper

from onnxfuse.model import ir_version
from onnxfuse.model.graph import DOMAIN, number_of
from onnxfuse.model.op_traits import PRODUCTS
from onnxfuse.model.schema import is_standard, make_attribute
from onnxfuse.model.types import type_name
from onnxfuse.targets import runtimes
from onnxfuse.terms.term import HALF

from .bodies import LEFT, Body, Call, Ref, Use, environment, output_dtype, output_names
from .catalogue import Catalogue
from .rule import OTHER, Rule, targets

CAST_LIKE = 15
"""The first opset that has CastLike."""
MOST_BODIES = 2048
"""So many functions are kept for other models; a few kilobytes each."""


@dataclass
class Functions:
    """The functions of one model: `present` are those that it has already, by name."""

    catalogue: Catalogue
    present: dict[str, FunctionProto] = field(default_factory=dict)
    generic: bool = True
    """See `function`."""
    made: dict[tuple[int, Use], FunctionProto] = field(default_factory=dict)

    def of(self, use: Use, opset: int) -> FunctionProto:
        """The function that a node for this use calls, in a graph of this opset; its name is the node's op type."""
        known = self.made.get((opset, use))
        if known is None:
            written = self._written(use, opset)
            known = self.made[opset, use] = self._under(self._free(written.name, written), written)
        return known

    def _written(self, use: Use, opset: int) -> FunctionProto:
        """The function under its usual name, written once for all models; nobody changes it.

        Not so one that calls others, whose names are this model's."""
        if self.catalogue.definitions[use.op].called & LEFT:
            return self._write(use, opset)
        # Numbers that are equal can be written differently: 1 and 1.0, 0.0 and -0.0.
        key, bodies = (repr(use), opset, self.generic, self.catalogue.target), self.catalogue.bodies.written
        if key not in bodies:
            if len(bodies) >= MOST_BODIES:
                bodies.clear()
            bodies[key] = self._write(use, opset)
        return bodies[key]

    def _write(self, use: Use, opset: int) -> FunctionProto:
        made = function(use, self.catalogue, opset, partial(self.of, opset=opset), generic=self.generic)
        made.name = named(use, made, self.catalogue)
        return made

    @staticmethod
    def _under(name: str, made: FunctionProto) -> FunctionProto:
        """The function under this name: itself, or a copy."""
        if name == made.name:
            return made
        copy = FunctionProto()
        copy.CopyFrom(made)
        copy.name = name
        return copy

    def _free(self, name: str, made: FunctionProto) -> str:
        """The name, or one with a number where another tool has changed the function that has it."""
        number, free = 1, name
        while free in self.present and list(self.present[free].node) != list(made.node):
            number += 1
            free = f"{name}_{number}"
        return free

    def attach(self, model: ModelProto, used: Collection[str]) -> None:
        """Add the functions that the ops `used` need, callees first, as onnx's reference evaluator wants them, with the
        import of their domain, and an IR version that allows functions."""
        made = {function.name: function for function in self.made.values() if function.name not in self.present}
        wanted = list(dict.fromkeys(name for op in sorted(used) for name in _called(op, made)))
        model.functions.extend(made[name] for name in wanted)
        if used and DOMAIN not in {entry.domain for entry in model.opset_import}:
            model.opset_import.add(domain=DOMAIN, version=1)
        if used:
            ir_version.raise_to(model, ir_version.FUNCTIONS)


def _called(op: str, made: dict[str, FunctionProto]) -> Iterator[str]:
    """The functions that an op needs, itself last."""
    if op in made:
        for node in made[op].node:
            if node.domain == DOMAIN:
                yield from _called(node.op_type, made)
        yield op


def named(use: Use, body: FunctionProto, catalogue: Catalogue) -> str:
    """What a use of a fused op is called: its family, what of it is optional, and a digest of all that decides it."""
    definition = catalogue.definitions[use.op]
    optional = [p.name for p, given in zip(definition.tensors, use.inputs, strict=False) if given and p.default]
    words = [*optional, *(value for _, value in use.attrs if isinstance(value, str))]
    digest = hashlib.blake2s(repr((use.op, use.inputs, use.outputs)).encode(), digest_size=4)
    for name, value in use.attrs:
        digest.update(make_attribute(name, value).SerializeToString(deterministic=True))
    for node in body.node:
        digest.update(node.SerializeToString(deterministic=True))
    return "_".join([use.op, *(re.sub(r"\W", "", word) for word in words), digest.hexdigest()])


def function(
    use: Use,
    catalogue: Catalogue,
    opset: int,
    call: Call | None = None,
    *,
    generic: bool = False,
    standard: bool = True,
) -> FunctionProto:
    """The function for one use of a fused op, under the name of its family: its inputs and outputs are those that the
    use has, and are called what the op's definition calls them.

    With `call`, a body around a product that is left to the runtime calls other fused ops.  A `generic` body computes
    in the element type of its inputs, so that a model that is converted to half precision stays valid: before opset 15,
    which has no CastLike, it takes its numbers as further inputs (`graph.NUMBER`).  In half precision, where most
    bodies compute in float32, it is of `use.dtype`.  Unless it may be `standard`, it is the equations even where the
    opset has the op itself.
    """
    definition = catalogue.definitions[use.op]
    names = [p.name for p in definition.tensors][: len(use.inputs)]
    shapes, booleans = use.shapes or (None,) * len(names), use.booleans or (False,) * len(names)
    args = [
        Ref(name, shape, boolean) if given else None
        for name, given, shape, boolean in zip(names, use.inputs, shapes, booleans, strict=True)
    ]
    body = _as_standard(use, definition, args, catalogue, opset) if standard else None
    if body is None:
        body = _as_equations(use, definition, args, catalogue, opset, call, generic)
    made = FunctionProto(domain=DOMAIN, name=use.op, doc_string=definition.doc)
    made.input.extend(a.name for a in args if a)
    made.output.extend(name for name, named in zip(output_names(definition), use.outputs, strict=False) if named)
    made.attribute.extend(name for name, _ in use.attrs)
    made.node.extend(body.needed(made.output))
    read = {name for node in made.node for name in node.input}
    made.input.extend(name for name in body.numbers if number_of(name) is not None and name in read)
    made.opset_import.append(helper.make_opsetid("", opset))
    domains = sorted({node.domain for node in made.node} - {""})
    made.opset_import.extend(helper.make_opsetid(domain, 1) for domain in domains)
    return made


def _as_equations(
    use: Use,
    definition: Rule,
    args: Sequence[Ref | None],
    catalogue: Catalogue,
    opset: int,
    call: Call | None,
    generic: bool,
) -> Body:
    """A body of what the op's definition says."""
    equations = definition.equations
    calls = definition.called
    island = use.dtype in HALF and not {op.rpartition(".")[2] for op in calls} & PRODUCTS
    results = output_names(definition)[: len(use.outputs)]
    body = Body(catalogue, opset, use.dtype, call if calls & LEFT else None, taken=_taken(definition))
    if island:
        body.dtype = TensorProto.FLOAT
        args = [
            replace(a, narrow=True) if a and p.kind not in OTHER else a
            for a, p in zip(args, definition.tensors, strict=False)
        ]
    elif generic:
        body.like, body.numbers_given = _typed(definition, args), opset < CAST_LIKE
    body.ranks = {a.name: len(a.shape) for a in args if a and a.shape is not None}
    env = environment(definition, args, dict(use.attrs), catalogue)
    last = body.equations(equations, env)
    values = last if isinstance(last, tuple) else [last] if len(results) == 1 else [env[name] for name in results]
    for i, (name, value) in enumerate(zip(results, values, strict=False)):
        if use.outputs[i]:
            kind = output_dtype(use.op, i, use.dtype)
            narrow = island and kind != body.dtype
            op, attrs = ("Cast", {"to": kind}) if narrow else ("Identity", {})
            body.result(op, body.ref(value), attrs, name)
    return body


def _as_standard(
    use: Use, definition: Rule, args: Sequence[Ref | None], catalogue: Catalogue, opset: int
) -> Body | None:
    """A body of the standard op, after what its rule says of it under `standard:`; None where this opset has no op for
    such a use."""
    attrs = dict(use.attrs)
    replaced = {name for s in definition.standard for name in targets(s)}
    kept = {name: value for name, value in attrs.items() if name not in replaced}
    known = use.shapes or [()] * len(args)
    shapes = [(shape or ()) if given else None for shape, given in zip(known, use.inputs, strict=True)]
    features = runtimes.features(use.op, kept, shapes, type_name(use.dtype), len(use.outputs))
    if not catalogue.target.has(use.op, kept, opset, use.dtype, features):
        return None
    body = Body(catalogue, opset, use.dtype, taken=_taken(definition))
    env = environment(definition, args, attrs, catalogue)
    body.equations(definition.standard, env)
    inputs = [value.name if isinstance(value, Ref) else "" for value in (env[p.name] for p in definition.tensors)]
    while inputs and not inputs[-1]:
        inputs.pop()
    if not is_standard(use.op, kept, opset, len(inputs)):
        return None
    body.outputs(use.op, inputs, kept, len(use.outputs))
    results = zip(output_names(definition), use.outputs, strict=False)
    body.nodes[-1].output[:] = [name if named else "" for name, named in results]
    return body


def _taken(definition: Rule) -> set[str]:
    """Names that values within a body must not have."""
    return {*(p.name for p in definition.tensors), *output_names(definition)}


def _typed(definition: Rule, args: Sequence[Ref | None]) -> str:
    """The first input that has the op's real element type; "" if none is given."""
    given = zip(definition.tensors, args, strict=False)
    return next((a.name for p, a in given if a and not a.boolean and p.kind not in OTHER), "")
