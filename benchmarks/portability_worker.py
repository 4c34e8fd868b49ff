"""Opens model files in what is installed beside it, and says of each what came of it; see portability.py.

Run by the Python of an environment, which has no onnxfuse: `portability_worker.py OPENER INPUTS.npz`, with lines
`FILE<tab>RESULT` on standard input.  A runtime writes its outputs to RESULT, as an .npz of arrays by position; a tool
writes the model that it makes.  For each line one line goes to standard output: `ok`, or why it was refused.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

Inputs = dict[str, Any]


def onnxruntime(source: str, result: str, inputs: Inputs) -> None:
    import onnxruntime as ort

    ort.set_default_logger_severity(4)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    wanted = {given.name for given in session.get_inputs()}
    _write(result, session.run(None, {name: value for name, value in inputs.items() if name in wanted}))


def openvino(source: str, result: str, inputs: Inputs) -> None:
    import openvino as ov

    model = ov.Core().compile_model(source, "CPU", {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1})
    names = {name: given for given in model.inputs for name in given.get_names()}
    found = model({names[name]: value for name, value in inputs.items() if name in names})
    _write(result, [found[output] for output in model.outputs])


def graphsurgeon(source: str, result: str, inputs: Inputs) -> None:
    import onnx
    import onnx_graphsurgeon as gs

    # Not sorted: its toposort never ends where a model has local functions and bodies (0.6.1, ir/graph.py).
    _save(gs.export_onnx(gs.import_onnx(onnx.load(source)).cleanup()), result)


def onnxslim(source: str, result: str, inputs: Inputs) -> None:
    import onnxslim

    _save(onnxslim.slim(source), result)


def onnxsim(source: str, result: str, inputs: Inputs) -> None:
    import onnx
    import onnxsim

    model, checked = onnxsim.simplify(onnx.load(source))
    if not checked:
        raise ValueError("onnxsim's own check fails")
    _save(model, result)


def float16(source: str, result: str, inputs: Inputs) -> None:
    import onnx
    from onnxconverter_common.float16 import convert_float_to_float16

    _save(convert_float_to_float16(onnx.load(source), keep_io_types=True), result)


def ort_float16(source: str, result: str, inputs: Inputs) -> None:
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    _save(convert_float_to_float16(onnx.load(source), keep_io_types=True), result)


def quantize_dynamic(source: str, result: str, inputs: Inputs) -> None:
    from onnxruntime.quantization import quantize_dynamic

    quantize_dynamic(source, result)


def quantize_products(source: str, result: str, inputs: Inputs) -> None:
    from onnxruntime.quantization import quantize_dynamic

    quantize_dynamic(source, result, op_types_to_quantize=["MatMul", "Gemm"])


def version_converter(source: str, result: str, inputs: Inputs) -> None:
    import onnx
    from onnx import version_converter

    _save(version_converter.convert_version(onnx.load(source), 24), result)


OPENERS: dict[str, Callable[[str, str, Inputs], None]] = {
    function.__name__: function
    for function in (
        onnxruntime,
        openvino,
        graphsurgeon,
        onnxslim,
        onnxsim,
        float16,
        ort_float16,
        quantize_dynamic,
        quantize_products,
        version_converter,
    )
}


def _write(result: str, values: list[Any]) -> None:
    arrays: dict[str, Any] = {
        str(i): np.asarray(value) for i, value in enumerate(values) if not isinstance(value, list)
    }
    np.savez(result, **arrays)


def _save(model: Any, result: str) -> None:
    import onnx

    onnx.save(model, result)


def main() -> None:
    opener, inputs = sys.argv[1:]
    with np.load(inputs) as arrays:
        given = dict(arrays)
    # Tools print what they like; the answers have a stream of their own.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        source, result = line.rstrip("\n").split("\t")
        try:
            OPENERS[opener](source, result, given)
            said = "ok"
        except Exception as error:  # whatever it says of the file
            said = f"{type(error).__name__}: {' '.join(str(error).split())}"
        print(said, file=answers, flush=True)


if __name__ == "__main__":
    main()
