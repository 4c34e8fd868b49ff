"""What torch.compile launches and moves for architectures of which exports are measured (`benchmarks.launches`).

Counted in the scheduler of its inductor, in front of code generation, with the Triton backend: the kernels that it has
after its own fusions, calls of library kernels (products, convolutions, attention) beside them, and the bytes that its
scheduler says each reads and writes.  One graph, static shapes, batch and lengths of the exports.  torch 2.9 and
transformers 4.57, 2026-11-22.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Compiled(NamedTuple):
    """One architecture."""

    kernels: int
    """Generated, each with all that was fused into it."""
    calls: int
    """Of library kernels."""
    bytes: int
    """Read and written by all of them, weights among them."""

    @property
    def launches(self) -> int:
        return self.kernels + self.calls


COMPILED: Mapping[str, Compiled] = {
    "bert": Compiled(8, 14, 792_576),
    "distilbert": Compiled(8, 14, 791_552),
    "deberta_v2": Compiled(24, 24, 1_489_920),
    "gpt2": Compiled(8, 11, 1_178_624),
    "llama": Compiled(20, 17, 1_179_200),
    "gemma2": Compiled(24, 19, 1_248_072),
    "falcon": Compiled(18, 11, 1_247_808),
    "bloom": Compiled(19, 13, 1_308_416),
    "llama_decode": Compiled(30, 17, 562_016),
    "gpt2_decode": Compiled(16, 11, 671_696),
    "t5_decoder": Compiled(21, 43, 2_012_912),
    "bart": Compiled(19, 39, 1_582_960),
    "whisper_encoder": Compiled(16, 16, 2_620_928),
    "vit": Compiled(11, 15, 1_735_680),
    "swin": Compiled(27, 30, 9_729_968),
    "beit": Compiled(25, 15, 1_760_320),
    "convnext": Compiled(18, 16, 2_446_080),
    "resnet": Compiled(12, 8, 1_353_600),
    "efficientnet": Compiled(58, 36, 6_957_984),
    "mobilevit": Compiled(80, 95, 19_729_856),
}
"""Architecture → what was counted.  Inductor did not compile segformer as one graph."""

STEPS: Mapping[str, Compiled] = {
    "softmax_ce": Compiled(3, 0, 2_416),
    "ffn_ln_gelu": Compiled(8, 6, 134_664),
    "ffn_rms_swiglu": Compiled(6, 9, 184_712),
    "ffn_frms": Compiled(8, 6, 134_280),
    "attn_sdpa_causal": Compiled(10, 8, 154_376),
    "attn_eager_causal": Compiled(17, 12, 196_552),
    "bert_cls": Compiled(44, 46, 673_462),
    "llama_lm": Compiled(47, 49, 808_832),
    "resnet_bneval": Compiled(19, 9, 197_740),
    "resnet_bntrain": Compiled(31, 9, 444_040),
    "convnext_block": Compiled(25, 11, 710_508),
    "dropout_maskin": Compiled(8, 6, 137_736),
    "mlp_relu_sgd": Compiled(11, 8, 94_608),
    "ffn_ln_gelutanh_adamw": Compiled(10, 6, 287_952),
    "gpt2_lm": Compiled(58, 39, 1_003_184),
}
"""Training steps → the same: of forward and backward graph together, and of the optimizer's, with foreach=True.  torch
2.13 and transformers 5.23, 2026-11-23.  Attention and its backward pass are one call each (flash attention), and so is
the backward pass of a convolution."""
