"""Counts the blocks that a PyTorch module's forward really executes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

# Every call of one of these is a block, whoever makes it.  Softmax stands for attention where a model computes
# attention step by step: none of the architectures here uses softmax for anything else.
FUNCTIONS: dict[Callable[..., Any], str] = {
    nn.functional.scaled_dot_product_attention: "attention",
    nn.functional.softmax: "attention",
    nn.functional.layer_norm: "layernorm",
    nn.functional.batch_norm: "batchnorm",
    nn.functional.gelu: "gelu",
    nn.functional.silu: "silu",
}

# Blocks that the library writes out in primitives, so that no single function call stands for them.
MODULES = {
    "LlamaRMSNorm": "rmsnorm",
    "T5LayerNorm": "rmsnorm",
    "NewGELUActivation": "gelu",
}


class _Calls(TorchFunctionMode):
    """While active, counts the calls of FUNCTIONS; what a counted function calls inside is not counted again."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in FUNCTIONS:
            self.counts[FUNCTIONS[func]] += 1
        return func(*args, **(kwargs or {}))


def count_blocks(module: nn.Module, inputs: dict[str, Tensor]) -> dict[str, int]:
    """How often `module(**inputs)` executes each kind of block: {"attention": 3, "layernorm": 7, ...}.

    It counts calls while the forward runs, so a layer that runs twice counts twice and one that never runs not at all.
    """
    calls = _Calls()

    def called(child: nn.Module, *_: object) -> None:
        calls.counts[MODULES[type(child).__name__]] += 1

    hooks = [m.register_forward_hook(called) for m in module.modules() if type(m).__name__ in MODULES]
    with torch.no_grad(), calls:
        module(**inputs)
    for hook in hooks:
        hook.remove()
    return dict(sorted(calls.counts.items()))
