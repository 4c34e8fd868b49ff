"""Guard the fusions of an exported model in your own test suite: python examples/guard_export.py [MODEL]"""

import sys
from pathlib import Path

import onnxfuse

MODEL = Path(__file__).parents[1] / "models" / "bert.ts.onnx"
LAYERS = 3


def fusions_are_there(model: str | Path) -> bool:
    findings = onnxfuse.check(model, expect=[f"Attention=={LAYERS}", f"Gelu>={LAYERS}", "LayerNormalization==0"])
    for finding in findings:
        print(f"{finding.code or finding.model}: {finding.message}")
        for miss in finding.near_misses:
            print(f"  {miss.rule} at {miss.node}: {miss.reason} ({miss.source})")
    return not findings


def test_every_layer_is_fused() -> None:
    assert fusions_are_there(MODEL)


if __name__ == "__main__":
    if not fusions_are_there(sys.argv[1] if sys.argv[1:] else MODEL):
        sys.exit(1)
    print("all fusions are there")
