"""Architectures at the size of their authors' base (or smallest) checkpoint, with seeded random weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import transformers as hf
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

from models.architectures import (
    LOGITS,
    PIXELS,
    SEQUENCE,
    STATES,
    TOKEN_LOGITS,
    TOKENS,
    Architecture,
    bert_inputs,
    images,
    noise,
    seeded,
    token_inputs,
)

BATCH, LENGTH = 1, 128
"""The size of the inputs that `write_inputs` makes; an image is 224 x 224, audio 30 seconds."""
IMAGE = 224


def bert_base() -> hf.PreTrainedModel:
    """BERT-base: 12 layers of width 768, and a classifier."""
    return seeded(hf.BertForSequenceClassification(hf.BertConfig()))


def distilbert_base() -> hf.PreTrainedModel:
    """DistilBERT-base: 6 layers of width 768, and a classifier."""
    return seeded(hf.DistilBertForSequenceClassification(hf.DistilBertConfig()))


def gpt2_124m() -> hf.PreTrainedModel:
    """GPT-2, the smallest: 12 layers of width 768, logits of every token."""
    return seeded(hf.GPT2LMHeadModel(hf.GPT2Config(use_cache=False)))


def vit_base() -> hf.PreTrainedModel:
    """ViT-B/16."""
    return seeded(hf.ViTForImageClassification(hf.ViTConfig()))


def swin_tiny() -> hf.PreTrainedModel:
    """Swin-T: windows of 7 x 7, stages of 2, 2, 6 and 2 blocks."""
    config = hf.SwinConfig(embed_dim=96, depths=[2, 2, 6, 2], num_heads=[3, 6, 12, 24], window_size=7)
    return seeded(hf.SwinForImageClassification(config))


def convnext_tiny() -> hf.PreTrainedModel:
    """ConvNeXt-T: stages of 3, 3, 9 and 3 blocks."""
    config = hf.ConvNextConfig(depths=[3, 3, 9, 3], hidden_sizes=[96, 192, 384, 768])
    return seeded(hf.ConvNextForImageClassification(config))


def efficientnet_b0() -> hf.PreTrainedModel:
    """EfficientNet-B0."""
    config = hf.EfficientNetConfig(image_size=IMAGE, width_coefficient=1.0, depth_coefficient=1.0, hidden_dim=1280)
    return seeded(hf.EfficientNetForImageClassification(config))


def t5_base_config() -> hf.T5Config:
    """T5-base, the first version: its feed-forward is one ReLU."""
    return hf.T5Config(d_model=768, d_kv=64, d_ff=3072, num_layers=12, num_heads=12, use_cache=False)


def t5_seeded(model: hf.PreTrainedModel) -> hf.PreTrainedModel:
    """The seeded model with small query weights.

    T5 does not scale its scores but leaves that to its weights; scores of d_kv's size would make Softmax a step, which
    magnifies every rounding.
    """
    with torch.no_grad():
        for name, parameter in seeded(model).named_parameters():
            if name.endswith(".q.weight"):
                parameter.mul_(model.config.d_kv**-0.5)
    return model


def t5_base_encoder() -> hf.PreTrainedModel:
    """The encoder of T5-base."""
    return t5_seeded(hf.T5EncoderModel(t5_base_config()))


def t5_base_decoder() -> hf.PreTrainedModel:
    """The decoder of T5-base alone, with cross-attention to given encoder states."""
    decoder: hf.PreTrainedModel = t5_seeded(hf.T5Model(t5_base_config())).decoder
    return decoder


def t5_decoder_inputs(batch: int, length: int) -> dict[str, Tensor]:
    """Decoder ids [batch, length]; encoder states [batch, length + 3, 768] with their mask."""
    return {
        "input_ids": token_inputs(batch, length)["input_ids"],
        "encoder_hidden_states": noise(batch, length + 3, 768),
        "encoder_attention_mask": token_inputs(batch, length + 3)["attention_mask"],
    }


def whisper_base_encoder() -> hf.PreTrainedModel:
    """The encoder of Whisper-base: 6 layers of width 512 on 30 seconds of audio."""
    config = hf.WhisperConfig(
        d_model=512,
        encoder_layers=6,
        encoder_attention_heads=8,
        encoder_ffn_dim=2048,
        decoder_layers=1,
        decoder_attention_heads=8,
    )
    encoder: hf.PreTrainedModel = seeded(hf.WhisperModel(config)).encoder
    return encoder


class CachedBlock(nn.Module):
    """One decoder block of a Llama as generation runs it, with its cache.

    `hidden` is [batch, new, width]; the cache's `past_key` and `past_value` are [batch, heads, past, width / heads].
    Returns the hidden states behind the block, and the cache with the new keys and values in it.
    """

    def __init__(self, config: hf.LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.layer = LlamaDecoderLayer(config, 0)
        self.rotary = LlamaRotaryEmbedding(config)

    def set_attn_implementation(self, name: str) -> None:
        """As PreTrainedModel has it."""
        self.config._attn_implementation = name

    def forward(self, hidden: Tensor, past_key: Tensor, past_value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        past, new = past_key.shape[2], hidden.shape[1]
        cache = hf.DynamicCache()
        cache.update(past_key, past_value, 0)
        positions = torch.arange(past, past + new).unsqueeze(0)
        seen = torch.arange(past + new) <= positions.transpose(0, 1)
        # Added, as float16 needs it: the TorchScript exporter makes a boolean mask one of float32, and all behind it.
        mask = torch.where(seen, 0.0, -torch.inf).to(hidden.dtype)
        behind = self.layer(
            hidden,
            attention_mask=mask[None, None],
            position_ids=positions,
            past_key_values=cache,
            position_embeddings=self.rotary(hidden, positions),
        )
        return behind, cache.layers[0].keys, cache.layers[0].values


def llama_7b_config() -> hf.LlamaConfig:
    """Llama-7B: width 4096 in 32 heads, 11008 wide inside."""
    return hf.LlamaConfig(hidden_size=4096, intermediate_size=11008, num_attention_heads=32, num_hidden_layers=1)


def cached_block(config: hf.LlamaConfig) -> Architecture:
    """A block of a Llama with a cache; its inputs are one new token behind `length` in the cache."""
    heads, width = config.num_key_value_heads, config.hidden_size // config.num_attention_heads

    def build() -> CachedBlock:
        block = seeded(CachedBlock(config))
        block.set_attn_implementation("sdpa")
        return block

    def inputs(batch: int, length: int) -> dict[str, Tensor]:
        key, value = noise(2, batch, heads, length, width)
        return {"hidden": noise(batch, 1, config.hidden_size), "past_key": key, "past_value": value}

    past, present = {0: "batch", 2: "past"}, {0: "batch", 2: "total"}
    return Architecture(
        build,
        inputs,
        {"hidden": {0: "batch"}, "past_key": past, "past_value": past},
        {"behind": {0: "batch"}, "present_key": present, "present_value": present},
    )


ENCODER_SEQUENCE = {0: "batch", 1: "encoder_sequence"}

BASE = {
    "bert_base": Architecture(bert_base, bert_inputs, {**TOKENS, "token_type_ids": SEQUENCE}, LOGITS),
    "distilbert_base": Architecture(distilbert_base, token_inputs, TOKENS, LOGITS),
    "gpt2_124m": Architecture(gpt2_124m, token_inputs, TOKENS, TOKEN_LOGITS),
    "vit_base": Architecture(vit_base, images(IMAGE), PIXELS, LOGITS),
    "swin_tiny": Architecture(swin_tiny, images(IMAGE), PIXELS, LOGITS),
    "convnext_tiny": Architecture(convnext_tiny, images(IMAGE), PIXELS, LOGITS),
    "efficientnet_b0": Architecture(efficientnet_b0, images(IMAGE), PIXELS, LOGITS),
    "t5_base_encoder": Architecture(t5_base_encoder, token_inputs, TOKENS, STATES),
    "t5_base_decoder": Architecture(
        t5_base_decoder,
        t5_decoder_inputs,
        {
            "input_ids": SEQUENCE,
            "encoder_hidden_states": ENCODER_SEQUENCE,
            "encoder_attention_mask": ENCODER_SEQUENCE,
        },
        STATES,
    ),
    "whisper_base_encoder": Architecture(
        whisper_base_encoder,
        lambda batch, length: {"input_features": noise(batch, 80, 3000)},
        {"input_features": {0: "batch"}},
        {"last_hidden_state": {0: "batch"}},
    ),
    "llama_7b_block": cached_block(llama_7b_config()),
}


def write_inputs(architecture: Architecture, path: Path) -> None:
    """Writes inputs of size BATCH x LENGTH to the .npz file `path`, under the keys ``in:NAME``."""
    inputs = architecture.inputs(BATCH, LENGTH)
    np.savez(path, **{f"in:{name}": tensor.numpy() for name, tensor in inputs.items()})
