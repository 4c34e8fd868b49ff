"""Asks the onnxruntime of one environment; benchmarks/ort_versions.py runs it there, with numpy and onnxruntime alone.

    python ort_probe.py QUESTIONS ANSWERS [PROVIDER]

Both are pickles.  QUESTIONS lists (a serialized model, its feeds or None); ANSWERS holds what became of each, "refused"
(not loaded), "failed" (not run), or its outputs, None where there were no feeds; and the registry of kernels of the
provider, the CPU's unless another is named, and of schemas, as onnxruntime's own documentation is made from them.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any


def answer(model: bytes, feeds: dict[str, Any] | None) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception:  # onnxruntime's own classes, all derived from Exception
        return "refused"
    try:
        return session.run(None, feeds) if feeds is not None else None
    except Exception:
        return "failed"


def kernels(provider: str) -> list[tuple[str, str, int, int, dict[str, list[str]]]]:
    """(domain, op, first and last version of the op, type variable → types) of each kernel."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    return [
        (k.domain, k.op_name, *k.version_range, {name: list(types) for name, types in k.type_constraints.items()})
        for k in state.get_all_opkernel_def()
        if k.provider == provider
    ]


def schemas() -> list[tuple[str, str, int, list[str], list[str]]]:
    """(domain, op, version, types of the inputs, types of the outputs) of each op."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    return [
        (s.domain, s.name, s.since_version, [p.typeStr for p in s.inputs], [p.typeStr for p in s.outputs])
        for s in state.get_all_operator_schema()
    ]


def main() -> None:
    provider = sys.argv[3] if len(sys.argv) > 3 else "CPUExecutionProvider"
    questions = pickle.loads(Path(sys.argv[1]).read_bytes())
    answers = [answer(model, feeds) for model, feeds in questions]
    found = {"kernels": kernels(provider), "schemas": schemas(), "answers": answers}
    Path(sys.argv[2]).write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main()
