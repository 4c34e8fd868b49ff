"""Models of models/ as they are fused for a target, not proved: fused once, and kept in a folder for all who ask."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import onnx

from onnxfuse.fusing.fuse import lower
from onnxfuse.language.catalogue import load
from onnxfuse.targets.target import Target

MODELS = Path(__file__).parents[1] / "models"
FusedModel: TypeAlias = Callable[[str, Target], onnx.ModelProto]
"""Of a file's name and a target; external data stays where it is."""


def kept_in(folder: Path) -> FusedModel:
    """Of several processes, the one that asks for a model first fuses it; two may at a time, and write the same."""

    def fused(name: str, target: Target) -> onnx.ModelProto:
        path = folder / f"{name}.{target.name}.{target.provider}.onnx"
        if not path.exists():
            model = onnx.load(MODELS / name, load_external_data=False)
            written = lower(model, load().serving(target), base_dir=MODELS)[1].model
            own = path.with_suffix(f".{os.getpid()}")
            own.write_bytes(written.SerializeToString())
            own.replace(path)
        return onnx.load(path, load_external_data=False)

    return fused
