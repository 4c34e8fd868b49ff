"""The list of exported models: which architecture, by which exporter, and how it is asked to export.

It imports neither torch nor transformers, so that tests and `--help` can read it.
"""

from __future__ import annotations

from dataclasses import dataclass

ARCHITECTURES = (
    "bert",
    "gpt2",
    "llama",
    "vit",
    "t5_encoder",
    "t5_decoder",
    "whisper_encoder",
    "resnet",
    "mobilenet",
    "convnext",
)

# "ts" is torch's TorchScript exporter, "dynamo" the one on torch.export, each with an operator set usual for it.
OPSETS = {"ts": 17, "dynamo": 20}


@dataclass(frozen=True)
class Export:
    """One exported file of models/.

    `eager=True` takes the attention that the library computes step by step, not scaled_dot_product_attention.
    `folded=False` asks for the graph before the exporter's own optimizations: BatchNormalization stays.
    """

    name: str
    architecture: str
    exporter: str
    opset: int
    half: bool = False
    eager: bool = False
    folded: bool = True

    @property
    def file(self) -> str:
        """The file's name."""
        return f"{self.name}.{self.exporter}.onnx"

    @property
    def variant(self) -> str:
        """What sets this export apart from the plain one, for readers; empty for the plain one."""
        traits = {"float16": self.half, "eager attention": self.eager, "nothing folded": not self.folded}
        return ", ".join(trait for trait, present in traits.items() if present)


EXPORTS = [
    *(Export(name, name, exporter, opset) for name in ARCHITECTURES for exporter, opset in OPSETS.items()),
    # Before operator set 17 the exporter writes LayerNormalization out.
    Export("bert_opset16", "bert", "ts", 16),
    Export("convnext_opset13", "convnext", "ts", 13),
    # Before opset 14 the TorchScript exporter knows no scaled_dot_product_attention, and in float16 it makes its
    # boolean mask float32, which no runtime loads.
    Export("bert_opset13", "bert", "ts", 13, eager=True),
    Export("gpt2_half", "gpt2", "ts", 17, half=True, eager=True),
    Export("llama_half", "llama", "ts", 17, half=True, eager=True),
    Export("llama_half", "llama", "dynamo", 20, half=True),
    *(Export("resnet_unfused", "resnet", exporter, opset, folded=False) for exporter, opset in OPSETS.items()),
]
