"""What onnxruntime makes of models before it runs them; where another release is asked, it runs this file in its own
environment, with onnxruntime alone.

    python ort_optimized.py MODELS ANSWERS PROVIDER

Both are pickles: lists of serialized models, in the same order.
"""

from __future__ import annotations

import pickle
import sys
import tempfile
from pathlib import Path
from typing import Any

INT8_ALLOWED = "session.qdqisint8allowed"


def optimized(ort: Any, model: bytes, *providers: str) -> bytes:
    """The model that a session of these providers, the CPU's behind them, would run; b"" where it refuses it.

    Of bytes with a sign it is asked as it decides on Arm."""
    with tempfile.TemporaryDirectory() as folder:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.optimized_model_filepath = str(Path(folder, "optimized.onnx"))
        options.add_session_config_entry(INT8_ALLOWED, "1")
        try:
            ort.InferenceSession(model, options, providers=[*providers, "CPUExecutionProvider"])
        except Exception:  # onnxruntime's own classes, all derived from Exception
            return b""
        return Path(options.optimized_model_filepath).read_bytes()


def main() -> None:
    import onnxruntime

    models = pickle.loads(Path(sys.argv[1]).read_bytes())
    Path(sys.argv[2]).write_bytes(pickle.dumps([optimized(onnxruntime, model, sys.argv[3]) for model in models]))


if __name__ == "__main__":
    main()
