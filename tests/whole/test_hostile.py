"""Models that are not what they should be end in one line or in a file: never in a mistake of ours, never in a hang."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxfuse
from onnxfuse.cli.main import main
from onnxfuse.errors import InternalError, ModelError, OnnxfuseError
from onnxfuse.model import files
from tests import broken, hostile

MODELS = Path(__file__).parents[2] / "models"
TARGETS = ("onnxfuse", "onnx", "ort")
Capture = pytest.CaptureFixture[str]

pytestmark = pytest.mark.usefixtures("lenient")


@pytest.mark.parametrize("number", range(4))
def test_mutants_of_real_models_are_read_or_refused(number: int, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    read = 0
    for index, (what, data) in enumerate(hostile.mutants(MODELS, 20, seed=number)):
        path.write_bytes(data)
        try:
            model = files.read(path)
            read += 1
            onnxfuse.report(model, base_dir=tmp_path)
            onnxfuse.optimize(model, target=TARGETS[index % 3], validate="off", base_dir=tmp_path)
        except OnnxfuseError as error:
            if isinstance(error, InternalError):
                raise
        except Exception as error:
            error.add_note(f"mutant {index} of seed {number}: {what}")
            raise
    assert 4 <= read < 20, "mutants that are all refused, or all read, show little"


def graph(body: str, inputs: str = "float[4] x", outputs: str = "float[d] y", constants: str = "") -> onnx.ModelProto:
    text = f'<ir_version: 9, opset_import: ["": 18]> g ({inputs}) => ({outputs}) {constants} {{ {body} }}'
    return onnx.parser.parse_model(text)


def tensor(data_type: int, dims: list[int], **fields: object) -> onnx.ModelProto:
    """y = x + w, where w is this tensor."""
    w = TensorProto(name="w", data_type=data_type, dims=dims, **fields)
    return broken.model([helper.make_node("Add", ["x", "w"], ["y"])], initializers=[w])


def placed(**entries: str) -> onnx.ModelProto:
    model = tensor(TensorProto.FLOAT, [8, 8])
    w = model.graph.initializer[0]
    w.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        w.external_data.add(key=key, value=value)
    return model


INVALID: dict[str, tuple[onnx.ModelProto, str]] = {
    "element type": (tensor(99, [1], raw_data=b"\0"), "'w' has element type 99, which the installed onnx"),
    "no element type": (tensor(0, [1], raw_data=b"\0"), "'w' has element type 0, which"),
    "negative": (tensor(1, [-4], raw_data=b""), "'w' has the impossible shape [-4]: export it again"),
    "huge": (tensor(1, [1 << 40, 1 << 40, 0], raw_data=b""), "'w' has the impossible shape"),
    "few elements": (tensor(1, [4], float_data=[1.0]), "'w' has too few elements for [4]: export it again"),
    "many elements": (tensor(1, [4], float_data=[1.0] * 5), "'w' has too many elements for [4]"),
    "many bytes": (tensor(7, [1], raw_data=bytes(16)), "'w' has too many bytes for [1]"),
    "long place": (placed(location="a" * 5000), "is missing (tensor 'w'): put it beside the model"),
    "place with NUL": (placed(location="a\0b"), r"a\x00b is missing (tensor 'w')"),
    "place with a line break": (placed(location="a\nb"), r"a\nb is missing (tensor 'w')"),
    "place that is a folder": (placed(location="folder"), "folder is missing (tensor 'w')"),
    "negative offset": (placed(location="data", offset="-4"), "offset and length of the external data of 'w' are not"),
    "short, no length": (placed(location="data"), "'w' ends at byte 256, the file at 16; copy or export it again"),
}


@pytest.mark.parametrize(
    ("what", "command"),
    [
        (what, command)
        for what in INVALID
        for command in ("optimize", "report", "run", "bench")
        if (what, command) != ("place with a line break", "report")  # which needs no external data
    ],
)
def test_what_is_not_valid_is_said_in_one_line(what: str, command: str, tmp_path: Path, capsys: Capture) -> None:
    model, message = INVALID[what]
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    (tmp_path / "data").write_bytes(bytes(16))
    (tmp_path / "folder").mkdir()
    assert main([command, str(path)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err
    assert str(path) in err


def test_a_name_that_is_no_text_is_shown(tmp_path: Path, capsys: Capture) -> None:
    """protobuf hands such a name out as bytes."""
    data = broken.good().SerializeToString()
    name = broken.good().graph.node[1].name.encode()
    path = tmp_path / "m.onnx"
    path.write_bytes(data.replace(name, b"\xff" * len(name)))
    with pytest.raises(ModelError, match="has a name that is not UTF-8"):
        files.read(path)
    assert main(["report", str(path)]) == 2
    assert "node 1 (" in capsys.readouterr().err


VALID: dict[str, onnx.ModelProto] = {
    "Gather beyond its axis": graph(
        "y = Gather (w, i)", "", "float[1] y", "<float[4] w = {1,1,1,1}, int64[1] i = {99}>"
    ),
    "a step of 0": graph(
        "y = Slice (x, a, b, c, s)",
        constants="<int64[1] a = {0}, int64[1] b = {4}, int64[1] c = {0}, int64[1] s = {0}>",
    ),
    "the least integer by -1": graph(
        "y = Div (a, b)", "", "int64 y", "<int64 a = {-9223372036854775808}, int64 b = {-1}>"
    ),
    "8 TB of numbers": graph(
        "r = Range (a, b, c) y = ReduceSum <keepdims = 0> (r)",
        "",
        "int64 y",
        "<int64 a = {0}, int64 b = {1099511627776}, int64 c = {1}>",
    ),
    "8 TB of one number": graph("y = Expand (c, s)", "", "float[n] y", "<float c = {1}, int64[1] s = {1099511627776}>"),
    "an axis that is none": graph("y = Softmax <axis = 9> (x)"),
    "a Transpose of more axes": graph("y = Transpose <perm = [0, 1, 2]> (x)"),
    "a Concat of different ranks": graph("z = Neg (w) y = Concat <axis = 1> (x, z)", constants="<float[1,1] w = {1}>"),
    "a negative pad beyond the end": graph("y = Pad (x, p)", constants="<int64[2] p = {-9, 0}>"),
    "a dimension that gets negative": graph("y = Neg (x)", "float[n] x", "float[n] y"),
    "an input of 16 EB": graph("y = Neg (x)", "float[4611686018427387904] x", "float[4611686018427387904] y"),
    "squares of squares": graph(
        " ".join(f"v{i + 1} = Mul (v{i}, v{i}) " for i in range(60)) + "y = Neg (v60)", "float[4] v0", "float[4] y"
    ),
    "sums of sums": graph(
        " ".join(f"v{i + 1} = Add (v{i}, v{i}) " for i in range(60)) + "y = Neg (v60)", "float[4] v0", "float[4] y"
    ),
    "a chain of 2,000": graph(
        " ".join(f"v{i + 1} = {('Sin', 'Cos')[i % 2]} (v{i}) " for i in range(2000)) + "y = Neg (v2000)",
        "float[4] v0",
        "float[4] y",
    ),
    "a sum of 500": graph(
        " ".join(f"v{i + 1} = Add (v{i}, x{i % 9}) " for i in range(500)) + "y = Neg (v500)",
        "float[4] v0, " + ", ".join(f"float[4] x{i}" for i in range(9)),
        "float[4] y",
    ),
    "views of views": graph(
        " ".join(f"v{i + 1} = Transpose <perm = [1, 0]> (v{i}) w{i} = Relu (v{i + 1}) " for i in range(500))
        + "y = Neg (v500)",
        "float[4, 5] v0",
        "float[4, 5] y",
    ),
}


@pytest.mark.parametrize("what", VALID)
def test_what_no_runtime_may_run_is_left_as_it_is(what: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(VALID[what], path)
    model = files.read(path)
    onnxfuse.report(model)
    for target in TARGETS:
        assert onnxfuse.optimize(model, target=target, validate="off").report.nodes_before == len(model.graph.node)


@pytest.mark.parametrize(
    "what",
    ["Gather beyond its axis", "a step of 0", "the least integer by -1", "8 TB of numbers", "an input of 16 EB"],
)
def test_the_proof_survives_it(what: str, tmp_path: Path, capsys: Capture) -> None:
    """What takes onnxruntime down is told, and costs no other model anything."""
    path = tmp_path / "m.onnx"
    onnx.save(VALID[what], path)
    onnx.save(broken.good(), tmp_path / "good.onnx")
    code = main(["optimize", str(path), str(tmp_path / "good.onnx"), "-o", str(tmp_path / "out"), "--timeout", "60"])
    out, err = capsys.readouterr()
    assert code == (2 if "crashed with" in err else 0)
    assert "not validated" in out or "crashed with" in err
    assert (tmp_path / "out" / "good.onnx").exists()


def test_a_size_that_an_input_cannot_have_is_named() -> None:
    result = onnxfuse.optimize(VALID["an input of 16 EB"])
    assert result.report.validation.verdict == "not validated"
    assert "input 'x' would have the shape [4611686018427387904]" in result.report.validation.note


def test_weights_of_all_types_are_read(tmp_path: Path) -> None:
    for dtype in (
        np.float16,
        np.float64,
        np.int8,
        np.uint8,
        np.int16,
        np.uint16,
        np.int32,
        np.uint32,
        np.uint64,
        np.bool_,
    ):
        model = broken.good()
        plain = numpy_helper.from_array(np.ones((3, 5), dtype), "raw")
        model.graph.initializer.append(plain)
        if dtype != np.float16:
            values = np.ones(15, dtype).tolist()
            model.graph.initializer.append(helper.make_tensor("typed", plain.data_type, [3, 5], values))
        onnx.save(model, tmp_path / "m.onnx")
        assert files.read(tmp_path / "m.onnx") == model
