"""Attention in PyTorch: scaled_dot_product_attention in each of its backends."""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from onnxfuse.errors import KernelError
from onnxfuse.kernels.attention.attention import Attention
from onnxfuse.kernels.attention.proof import VARIABLE, WARPS
from onnxfuse.kernels.attention.tiles import FORMS, form_of

from . import attentions, checks, expected, peers, timing
from .contest import OURS, Contest, Own, Refused, Way, Ways
from .machine import Machine, Run
from .plan import SkippedError
from .sizes import Timed
from .timing import Set

BACKENDS = {
    "flash": "FLASH_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
    "math": "MATH",
}
"""The name of a side → torch.nn.attention.SDPBackend."""
EAGER, FLEX = "eager", "flex"
MOST_SCORES = 2**32
"""Of the math backend, which holds all of them several times over: 16 GiB in float32."""


def contest(node: Timed) -> Contest:
    """Ours and each of PyTorch's."""
    more = {"kind": attentions.kind(node)}
    own: dict[str, Own] = {OURS: partial(timing.ours, node)}
    kernel = expected.kernel(node.op, node.attributes)
    if isinstance(kernel, Attention) and any(kernel.by_form(form, node.types, 1) for form in FORMS.values()):
        own[WARPS] = partial(_by_warps, node)
    return Contest(node, own, attentions.verify, partial(ways, node), more)


def _by_warps(node: Timed, machine: Machine, every: Sequence[Set]) -> Callable[[int], Run]:
    """What launches ours by warps, where a card has another form of it."""
    if form_of(machine.device.architecture) is None:
        raise KernelError("this card has no other form")
    launch = timing.ours(node, machine, every)

    def at(i: int) -> Run:
        def run() -> None:
            with checks.settled(VARIABLE, WARPS):
                launch(i)()

        return run

    return at


def ways(node: Timed, module: Any) -> Ways:
    """A way for each backend.  With softcap there is none, but the scores written out, and flex_attention."""
    cap = node.attributes.get("softcap")
    if cap:
        refused = Refused("scaled_dot_product_attention has no softcap")
        flex = Way(_flexible(module, float(cap)), {})
        return {**dict.fromkeys(BACKENDS, refused), EAGER: Way(_written_out(module, float(cap))), FLEX: flex}
    found: dict[str, Way | Refused] = {name: Way(_backend(node, module, kind)) for name, kind in BACKENDS.items()}
    keys = node.operands[1]
    assert keys is not None
    scores = math.prod(node.first.shape[:3]) * keys.shape[2]
    if scores > MOST_SCORES:
        found["math"] = Refused(f"left out: its scores alone take {scores * 4 / 1e9:.0f} GB")
    return found


def cached(module: Any, k: Any, v: Any, past_k: Any, past_v: Any) -> tuple[Any, Any, tuple[Any, ...]]:
    """Keys and values with those before them, and as outputs where the node gives them."""
    if past_k is None:
        return k, v, ()
    k, v = module.cat((past_k, k), 2), module.cat((past_v, v), 2)
    return k, v, (k, v)


def _backend(node: Timed, module: Any, name: str) -> Callable[..., Any]:
    """scaled_dot_product_attention by one backend; SkippedError says why it refuses."""
    kind = getattr(module.nn.attention.SDPBackend, name)
    causal = bool(node.attributes.get("is_causal"))

    def attend(q: Any, k: Any, v: Any, mask: Any = None, past_k: Any = None, past_v: Any = None, *angles: Any) -> Any:
        if angles:
            q, k = (peers.rotary(module, False, x, *angles[2:]) for x in (q, k))
        k, v, presents = cached(module, k, v, past_k, past_v)
        grouped = {"enable_gqa": True} if k.shape[1] < q.shape[1] else {}
        with module.nn.attention.sdpa_kernel(kind):
            y = module.nn.functional.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, **grouped)
        return (y, *presents) if presents else y

    def saying(*inputs: Any) -> Any:
        """PyTorch gives its reasons as warnings, before an error that has none."""
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                return attend(*inputs)
            except RuntimeError as error:
                raise SkippedError(reason([str(w.message) for w in said]) or str(error)) from None

    return saying


def reason(said: list[str]) -> str:
    """What the warnings say that a refused backend leaves, in one line; empty if that is nothing."""
    lines = [line.partition("(Triggered internally")[0].strip() for line in said]
    # Which backend it was, and that it was not used, goes without saying.
    lines = [line for line in lines if line and "not used because" not in line]
    return "; ".join(dict.fromkeys(lines))[:160]


def _written_out(module: Any, cap: float) -> Callable[..., Any]:
    """Softcap as models write it."""

    def attend(q: Any, k: Any, v: Any, *rest: Any) -> Any:
        group = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(group, 1) if group > 1 else x for x in (k, v))
        scores = q @ k.transpose(2, 3) * (1 / math.sqrt(q.shape[3]))
        return module.softmax(cap * module.tanh(scores / cap), -1, dtype=module.float32).to(q.dtype) @ v

    return attend


def _flexible(module: Any, cap: float) -> Callable[..., Any]:
    """Softcap as PyTorch generates a kernel for it."""

    def capped(score: Any, *place: Any) -> Any:
        return cap * module.tanh(score / cap)

    flex = importlib.import_module(f"{module.__name__}.nn.attention.flex_attention")

    def attend(q: Any, k: Any, v: Any, *rest: Any) -> Any:
        return flex.flex_attention(q, k, v, score_mod=capped, enable_gqa=k.shape[1] < q.shape[1])

    return attend
