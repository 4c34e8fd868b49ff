"""Exports models of the size that users have, by torch's dynamo exporter, with seeded random weights.

They are built from configurations of torchvision, transformers and diffusers; nothing is downloaded.

    python -m models.full_size FOLDER sam_base unet

Each goes to FOLDER/NAME.onnx with its weights beside it, and is compared with nothing: a run in PyTorch takes as long
as the export.  Which packages a model needs, `SIZES` says; all together take 20 GB of disk.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

SIZES = {
    "efficientnet_v2_m": ("torchvision", "480 x 480"),
    "convnext_base": ("torchvision", "224 x 224"),
    "swin_base": ("torchvision", "224 x 224, windows of 7 x 7"),
    "swin_v2_base": ("torchvision", "256 x 256, windows of 8 x 8, attention of cosines"),
    "vit_large": ("torchvision", "224 x 224"),
    "dinov2_base": ("transformers", "224 x 224"),
    "sam_base": ("transformers", "the image encoder, 1,024 x 1,024"),
    "detr_resnet50": ("transformers", "640 x 640"),
    "bert_large": ("transformers", "batch and sequence dynamic"),
    "gpt2_medium": ("transformers", "batch and sequence dynamic"),
    "t5_base": ("transformers", "encoder and decoder, batch and sequences dynamic"),
    "llama_1b": ("transformers", "16 layers of width 2,048, batch and sequence dynamic"),
    "mamba_130m": ("transformers", "16 tokens, its loop written out"),
    "whisper_small": ("transformers", "the encoder, 30 seconds"),
    "wav2vec2_base": ("transformers", "batch and samples dynamic"),
    "unet": ("diffusers", "Stable Diffusion 1.5's, 64 x 64 latents"),
    "vae_decoder": ("diffusers", "Stable Diffusion 1.5's, 512 x 512"),
}
"""Each model's package beside torch and onnxscript, and at which size it is exported."""


def _of_torchvision(name: str, side: int) -> tuple[Any, tuple[Any, ...], Any]:
    import torch
    import torchvision

    return getattr(torchvision.models, name)(), (torch.randn(1, 3, side, side),), ["batch"]


def _built(name: str) -> tuple[Any, tuple[Any, ...], Any]:
    """A module, inputs, and which of their first axes are dynamic: ["batch"], ["batch", "sequence"] or none."""
    import torch

    def ids(length: int = 16) -> torch.Tensor:
        return torch.randint(0, 1000, (1, length))

    def image(side: int) -> torch.Tensor:
        return torch.randn(1, 3, side, side)

    both = ["batch", "sequence"]
    match name:
        case "efficientnet_v2_m":
            return _of_torchvision("efficientnet_v2_m", 480)
        case "convnext_base":
            return _of_torchvision("convnext_base", 224)
        case "swin_base":
            return _of_torchvision("swin_b", 224)
        case "swin_v2_base":
            return _of_torchvision("swin_v2_b", 256)
        case "vit_large":
            return _of_torchvision("vit_l_16", 224)
        case "unet" | "vae_decoder":
            return _of_diffusers(name)
    import transformers as hf

    states: Callable[[Any], Any] = lambda given: given.last_hidden_state  # noqa: E731
    logits: Callable[[Any], Any] = lambda given: given.logits  # noqa: E731
    match name:
        case "dinov2_base":
            return _picked(hf.Dinov2Model(hf.Dinov2Config()), states), (image(224),), ["batch"]
        case "sam_base":
            return _picked(hf.SamModel(hf.SamConfig()).vision_encoder, states), (image(1024),), []
        case "detr_resnet50":
            own = hf.DetrConfig(
                use_timm_backbone=False,
                use_pretrained_backbone=False,
                backbone=None,
                backbone_config=hf.ResNetConfig(out_features=["stage4"]),
            )
            picked = _picked(hf.DetrForObjectDetection(own), lambda given: (given.logits, given.pred_boxes))
            return picked, (image(640),), []
        case "bert_large":
            large = hf.BertConfig(
                hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
            )
            return _picked(hf.BertModel(large), states), (ids(), torch.ones(1, 16, dtype=torch.long)), both
        case "gpt2_medium":
            medium = hf.GPT2Config(n_embd=1024, n_layer=24, n_head=16, use_cache=False)
            return _picked(hf.GPT2LMHeadModel(medium), logits), (ids(),), both
        case "t5_base":
            base = hf.T5Config(d_model=768, d_kv=64, d_ff=3072, num_layers=12, num_heads=12, use_cache=False)
            named = _picked(hf.T5ForConditionalGeneration(base), logits, ("input_ids", "decoder_input_ids"))
            return named, (ids(), ids(9)), both
        case "llama_1b":
            llama = hf.LlamaConfig(
                vocab_size=128256,
                hidden_size=2048,
                intermediate_size=8192,
                num_hidden_layers=16,
                num_attention_heads=32,
                num_key_value_heads=8,
                tie_word_embeddings=True,
                use_cache=False,
            )
            return _picked(hf.LlamaForCausalLM(llama), logits), (ids(),), both
        case "mamba_130m":
            mamba = hf.MambaConfig(hidden_size=768, num_hidden_layers=24, use_cache=False)
            return _picked(hf.MambaForCausalLM(mamba), logits), (ids(),), []
        case "whisper_small":
            small = hf.WhisperConfig(
                d_model=768,
                encoder_layers=12,
                decoder_layers=1,
                encoder_attention_heads=12,
                decoder_attention_heads=12,
                encoder_ffn_dim=3072,
                decoder_ffn_dim=3072,
            )
            return _picked(hf.WhisperModel(small).encoder, states), (torch.randn(1, 80, 3000),), []
        case _:
            return _picked(hf.Wav2Vec2ForCTC(hf.Wav2Vec2Config()), logits), (torch.randn(1, 64000),), both


def _of_diffusers(name: str) -> tuple[Any, tuple[Any, ...], Any]:
    import diffusers
    import torch

    latents = torch.randn(1, 4, 64, 64)
    if name == "unet":
        unet = diffusers.UNet2DConditionModel(
            sample_size=64,
            in_channels=4,
            out_channels=4,
            down_block_types=("CrossAttnDownBlock2D",) * 3 + ("DownBlock2D",),
            up_block_types=("UpBlock2D",) + ("CrossAttnUpBlock2D",) * 3,
            block_out_channels=(320, 640, 1280, 1280),
            layers_per_block=2,
            cross_attention_dim=768,
            attention_head_dim=8,
        )
        return _picked(unet, lambda given: given.sample), (latents, torch.tensor([5]), torch.randn(1, 77, 768)), []
    vae = diffusers.AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(128, 256, 512, 512),
        layers_per_block=2,
        sample_size=512,
    )
    vae.forward = vae.decode
    return _picked(vae, lambda given: given.sample), (latents,), []


def _picked(module: Any, pick: Callable[[Any], Any], names: tuple[str, ...] = ()) -> Any:
    """A module that gives part of what another one gives, whose inputs are called so, if they are named."""
    import torch

    class Picked(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *given: Any) -> Any:
            return pick(self.module(**dict(zip(names, given, strict=True))) if names else self.module(*given))

    return Picked()


def export(name: str, path: Path) -> None:
    """Write one of `SIZES`.  Raises ModuleNotFoundError where a package is missing."""
    import torch

    importlib.import_module("onnxscript")  # torch's exporter would say so with a traceback
    torch.manual_seed(0)
    module, inputs, dynamic = _built(name)
    axes = dict.fromkeys(range(len(dynamic)), torch.export.Dim.AUTO)
    shapes: Any = tuple(dict(axes) for _ in inputs) if axes else None
    if shapes is not None and type(module).__name__ == "Picked":
        shapes = (shapes,)  # its inputs are one tuple
    with torch.no_grad():
        torch.onnx.export(module.eval(), inputs, path, dynamo=True, dynamic_shapes=shapes, external_data=True)


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code, which is 2 if a package is missing."""
    parser = argparse.ArgumentParser(
        prog="python -m models.full_size", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("name", nargs="+", choices=SIZES, metavar="NAME", help=f"of {', '.join(SIZES)}")
    parsed = parser.parse_args(arguments)
    if not parsed.folder.is_dir():
        parser.error(f"there is no folder {parsed.folder}: make it first")
    for name in parsed.name:
        try:
            export(name, parsed.folder / f"{name}.onnx")
        except ModuleNotFoundError as missing:
            packages = f"torch onnxscript {SIZES[name][0]}"
            print(f"{name} needs {missing.name}; install it with: pip install {packages}", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
