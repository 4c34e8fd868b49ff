"""The architectures of the transformers package that models/ exports: tiny, with seeded random weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
import transformers as hf
from torch import Tensor, nn

VOCABULARY = 101

# Axis number -> symbolic name, for every input or output whose size a user would leave open.
Axes = dict[str, dict[int, str]]


@dataclass(frozen=True)
class Architecture:
    """One model class with its configuration, and what the exporters need to know of it.

    `inputs(batch, length)` gives named tensors; an architecture without a sequence ignores `length`.
    """

    build: Callable[[], nn.Module]
    inputs: Callable[[int, int], dict[str, Tensor]]
    input_axes: Axes
    output_axes: Axes


Module = TypeVar("Module", bound=nn.Module)


def seeded(module: Module, seed: int = 20) -> Module:
    """The module in evaluation mode, every parameter and running statistic redrawn from `seed`.

    Library defaults (weights near 0, norm weights 1, biases 0, variances 1) would hide a fusion that drops one.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim > 1:
                parameter.copy_(noise * (parameter.shape[0] / parameter.numel()) ** 0.5)
            else:
                parameter.copy_(0.1 * noise + (0 if name.endswith("bias") else 1))
        for name, buffer in module.named_buffers():
            if name.endswith("running_mean"):
                buffer.copy_(0.1 * torch.randn(buffer.shape, generator=generator))
            elif name.endswith("running_var"):
                buffer.copy_(0.5 + torch.rand(buffer.shape, generator=generator))
    return module.eval()


def token_inputs(batch: int, length: int) -> dict[str, Tensor]:
    """Token ids [batch, length] below VOCABULARY, and a mask [batch, length] whose first row ends in padding."""
    ids = torch.arange(batch * length).reshape(batch, length) * 37 % VOCABULARY
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[0, -2:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def noise(*shape: int) -> Tensor:
    """Seeded normal float32 numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(7))


def bert_inputs(batch: int, length: int) -> dict[str, Tensor]:
    """Token inputs and segment ids [batch, length], 0 then 1."""
    segments = (torch.arange(length) > length // 2).long().expand(batch, length).contiguous()
    return {**token_inputs(batch, length), "token_type_ids": segments}


def bert() -> hf.PreTrainedModel:
    """BERT, post-norm, erf-GELU, SDPA attention with a padding mask; a classifier on the pooled token."""
    config = hf.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=36,
        num_hidden_layers=3,
        num_attention_heads=3,
        intermediate_size=96,
        max_position_embeddings=40,
    )
    return seeded(hf.BertForSequenceClassification(config))


def gpt2() -> hf.PreTrainedModel:
    """GPT-2, pre-norm, tanh-GELU from primitives, packed query, key and value."""
    config = hf.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=40,
        n_embd=30,
        n_layer=3,
        n_head=5,
        use_cache=False,
    )
    return seeded(hf.GPT2LMHeadModel(config))


def llama() -> hf.PreTrainedModel:
    """Llama, RMSNorm, rotary positions, 6 query heads on 2 key/value heads, SwiGLU."""
    config = hf.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=48,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        intermediate_size=80,
        max_position_embeddings=64,
        use_cache=False,
    )
    return seeded(hf.LlamaForCausalLM(config))


def vit() -> hf.PreTrainedModel:
    """ViT on 32x32 images in 8x8 patches, no mask."""
    config = hf.ViTConfig(
        hidden_size=36,
        num_hidden_layers=3,
        num_attention_heads=3,
        intermediate_size=90,
        image_size=32,
        patch_size=8,
    )
    return seeded(hf.ViTForImageClassification(config))


def t5_config() -> hf.T5Config:
    """T5 1.1, whose feed-forward is gated."""
    return hf.T5Config(
        vocab_size=VOCABULARY,
        d_model=40,
        d_kv=12,
        d_ff=72,
        num_layers=3,
        num_decoder_layers=2,
        num_heads=4,
        feed_forward_proj="gated-gelu",
        use_cache=False,
    )


def t5_encoder() -> hf.PreTrainedModel:
    """The encoder of T5: RMSNorm, relative position bias, no attention scale, gated tanh-GELU."""
    return seeded(hf.T5EncoderModel(t5_config()))


def t5_decoder() -> hf.PreTrainedModel:
    """The decoder of T5 alone: causal self-attention and cross-attention to given encoder states."""
    decoder: hf.PreTrainedModel = seeded(hf.T5Model(t5_config())).decoder
    return decoder


def t5_decoder_inputs(batch: int, length: int) -> dict[str, Tensor]:
    """Decoder ids [batch, length]; encoder states [batch, length + 3, 40] with their mask."""
    encoder = token_inputs(batch, length + 3)
    return {
        "input_ids": token_inputs(batch, length)["input_ids"],
        "encoder_hidden_states": noise(batch, length + 3, 40),
        "encoder_attention_mask": encoder["attention_mask"],
    }


def whisper_encoder() -> hf.PreTrainedModel:
    """The encoder of Whisper on 60 frames of 20 mel bands: two convolutions, then pre-norm blocks."""
    config = hf.WhisperConfig(
        vocab_size=VOCABULARY,
        num_mel_bins=20,
        d_model=40,
        encoder_layers=3,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=104,
        max_source_positions=30,
        decoder_layers=1,
        pad_token_id=0,
    )
    encoder: hf.PreTrainedModel = seeded(hf.WhisperModel(config)).encoder
    return encoder


def resnet() -> hf.PreTrainedModel:
    """ResNet of basic blocks, three stages."""
    config = hf.ResNetConfig(
        embedding_size=12,
        hidden_sizes=[12, 24, 40],
        depths=[1, 2, 1],
        layer_type="basic",
    )
    return seeded(hf.ResNetForImageClassification(config))


def mobilenet() -> hf.PreTrainedModel:
    """MobileNetV2 of width 0.2: depthwise convolutions, ReLU6, inverted residuals."""
    config = hf.MobileNetV2Config(
        depth_multiplier=0.2,
        depth_divisible_by=4,
        min_depth=4,
        expand_ratio=4.0,
        finegrained_output=False,
        tf_padding=False,
    )
    return seeded(hf.MobileNetV2ForImageClassification(config))


def convnext() -> hf.PreTrainedModel:
    """ConvNeXt: 7x7 depthwise convolution, LayerNorm over channels both first and last, erf-GELU, layer scale."""
    config = hf.ConvNextConfig(
        hidden_sizes=[12, 24, 48],
        depths=[1, 2, 1],
        num_stages=3,
    )
    return seeded(hf.ConvNextForImageClassification(config))


def images(size: int) -> Callable[[int, int], dict[str, Tensor]]:
    """Inputs of a vision model: pixels [batch, 3, size, size]."""
    return lambda batch, length: {"pixel_values": noise(batch, 3, size, size)}


SEQUENCE = {0: "batch", 1: "sequence"}
TOKENS: Axes = {"input_ids": SEQUENCE, "attention_mask": SEQUENCE}
PIXELS: Axes = {"pixel_values": {0: "batch"}}
LOGITS: Axes = {"logits": {0: "batch"}}
TOKEN_LOGITS: Axes = {"logits": SEQUENCE}
STATES: Axes = {"last_hidden_state": SEQUENCE}

ARCHITECTURES = {
    "bert": Architecture(bert, bert_inputs, {**TOKENS, "token_type_ids": SEQUENCE}, LOGITS),
    "gpt2": Architecture(gpt2, token_inputs, TOKENS, TOKEN_LOGITS),
    "llama": Architecture(llama, token_inputs, TOKENS, TOKEN_LOGITS),
    "vit": Architecture(vit, images(32), PIXELS, LOGITS),
    "t5_encoder": Architecture(t5_encoder, token_inputs, TOKENS, STATES),
    "t5_decoder": Architecture(
        t5_decoder,
        t5_decoder_inputs,
        {
            "input_ids": SEQUENCE,
            "encoder_hidden_states": {0: "batch", 1: "encoder_sequence"},
            "encoder_attention_mask": {0: "batch", 1: "encoder_sequence"},
        },
        STATES,
    ),
    "whisper_encoder": Architecture(
        whisper_encoder,
        lambda batch, length: {"input_features": noise(batch, 20, 60)},
        {"input_features": {0: "batch"}},
        {"last_hidden_state": {0: "batch"}},
    ),
    "resnet": Architecture(resnet, images(64), PIXELS, LOGITS),
    "mobilenet": Architecture(mobilenet, images(64), PIXELS, LOGITS),
    "convnext": Architecture(convnext, images(48), PIXELS, LOGITS),
}
