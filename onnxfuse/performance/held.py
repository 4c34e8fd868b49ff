"""What a training step holds between forward and backward, as it was and as it became, in bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from onnx import ModelProto

from onnxfuse.errors import UsageError
from onnxfuse.fusing.fused import Fused
from onnxfuse.lifting.lifted import Lifted
from onnxfuse.lifting.view import View
from onnxfuse.matching.work import tensor_of
from onnxfuse.reporting.held import Fate, Held, HeldValue
from onnxfuse.rewriting.provenance import FusedNode
from onnxfuse.terms.term import Term
from onnxfuse.training.fates import Fates
from onnxfuse.training.kept import Kept, bytes_of, kept
from onnxfuse.training.recompute import Limit
from onnxfuse.training.step import Step

from .sizes import Sizes, sized
from .totals import qualified, terms_of


def held(
    model: ModelProto, lifted: Callable[[], Lifted], fused: Fused, base_dir: Path | None, at: Sizes, limit: int | None
) -> Held | None:
    """What lives between forward and backward at these sizes; None for a model that is no training step.

    `lifted` reads all of the model, which takes long; `limit` is what was asked for."""
    if not Step.possible(model) or Step.of(lifted().views[0]) is None:
        return None
    return between(lifted(), fused.lifted or Lifted.of(fused.model, base_dir), fused.sites, at, limit)


def between(
    original: Lifted, output: Lifted, sites: Sequence[FusedNode], at: Sizes, limit: int | None = None
) -> Held | None:
    """The same of models that were read."""
    source, made = original.views[0], output.views[0]
    step = Step.of(source)
    if step is None or step.loss not in made.graph.producer:
        return None
    before, after = kept(source, step), kept(made, Step.behind(made.graph, step.loss))
    main = [site for site in sites if not site.scope]
    told = terms_of(original, main).get("", {})
    was = _sizes(original, [each.value for each in before], at, {})
    now = _sizes(output, [each.value for each in after], at, told)
    fates = Fates(source, made, {site.node.name: site.replaced for site in main}, after)
    gone = [(each, *fates.of(each)) for each in before]
    return Held(
        loss=step.loss,
        before=sum(size or 0 for size in was.values()),
        after=sum(size or 0 for size in now.values()),
        unsized=sum(size is None for size in (*was.values(), *now.values())),
        limit=limit,
        values=(
            *(_told(made, each, now[each.value], "saved", ()) for each in after),
            *(_told(source, each, was[each.value], fate, of) for each, fate, of in gone if fate != "saved"),
        ),
    )


def _told(view: View, value: Kept, size: int | None, fate: Fate, of: tuple[str, ...]) -> HeldValue:
    nodes = view.graph.nodes
    readers = tuple(dict.fromkeys(qualified(nodes[index]) for index in value.readers))
    return HeldValue(value.value, qualified(nodes[view.graph.producer[value.value]]), readers, size, fate, of)


def _sizes(lifted: Lifted, names: Sequence[str], at: Sizes, told: Mapping[str, Term]) -> dict[str, int | None]:
    """The bytes of values; `told` are terms that may say what the model does not.  Where a size is no function of those
    of the inputs that we know, the model is read again with inputs of these sizes."""
    found = {name: bytes_of(lifted.views[0], name, at.known) for name in names}
    for name, size in found.items():
        tensor = tensor_of(told[name], at.known) if size is None and name in told else None
        found[name] = size if tensor is None else tensor.bytes
    if at.shapes and None in found.values():
        again = Lifted.of(sized(lifted.model, at.shapes), lifted.base_dir).views[0]
        found |= {name: bytes_of(again, name, at.known) for name, size in found.items() if size is None}
    return found


def limited(model: ModelProto, most: int, at: Sizes | None, base_dir: Path | None) -> Limit:
    """So many bytes at these sizes, or at those that a report assumes.

    Raises UsageError for a model that is no training step."""
    if not Step.possible(model) or Step.of(Lifted.of(model, base_dir).views[0]) is None:
        raise UsageError(
            "--recompute is for training steps, and this is none: no output is a loss of one number beside gradients "
            "or updates, which have the sizes of inputs"
        )
    return Limit(most, tuple((at or Sizes.of(model)).known.items()))
