"""Every way to write an operator out: generators of small models that all mean the same.

Each module has the numpy float64 definition of its operators and yields `build.Spelling`s of them.  `FAMILIES` names
them all; tests/whole/test_spellings.py proves that each spelling really is its operator.

    for spelling in spellings("layer_norm", opset=17):
        spelling.model, spelling.inputs      # run it
        spelling.outputs                     # what it must compute, in float64
        spelling.expect                      # what must stand there after fusing: {"LayerNormalization": 1}

`expect` speaks of the finished model: a LayerNormalization that went into a SkipLayerNormalization is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

from tests.spellings import (
    activations,
    attention,
    attention_forms,
    attention_positions,
    conv_bn,
    embed,
    gelu,
    layer_norm,
    rms_norm,
    rotary,
    softmax,
)
from tests.spellings.build import Spelling

FAMILIES: dict[str, Callable[[int], Iterator[Spelling]]] = {
    "layer_norm": layer_norm.spellings,
    "skip_layer_norm": layer_norm.skip_spellings,
    "rms_norm": rms_norm.spellings,
    "skip_rms_norm": rms_norm.skip_spellings,
    "embed_layer_norm": embed.spellings,
    "embed_rms_norm": embed.rms_spellings,
    "gelu_erf": gelu.erf_spellings,
    "gelu_tanh": gelu.tanh_spellings,
    "gelu_quick": gelu.quick_spellings,
    "activations": activations.spellings,
    "softmax": softmax.spellings,
    "rotary": rotary.spellings,
    "attention": attention.spellings,
    "attention_forms": attention_forms.spellings,
    "attention_positions": attention_positions.spellings,
    "conv_bn": conv_bn.spellings,
    "epilogues": conv_bn.epilogue_spellings,
}

LEAST = {
    "layer_norm": 250,
    "skip_layer_norm": 150,
    "rms_norm": 100,
    "skip_rms_norm": 80,
    "embed_layer_norm": 120,
    "embed_rms_norm": 50,
    "gelu_erf": 48,
    "gelu_tanh": 70,
    "gelu_quick": 20,
    "activations": 40,
    "softmax": 30,
    "rotary": 100,
    "attention": 240,
    "attention_forms": 72,
    "attention_positions": 60,
    "conv_bn": 30,
    "epilogues": 30,
}
"""How many distinct spellings each family has at the very least."""


@cache
def spellings(family: str, opset: int = 17) -> tuple[Spelling, ...]:
    """The spellings of a family, written once for all tests that ask; nobody changes their models."""
    return tuple(FAMILIES[family](opset))
