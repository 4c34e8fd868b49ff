"""Which ops each version of onnxruntime runs on a CPU, in which element types, from which opset on: each is asked.

An environment per version is built from the package index, and `ort_probe` run in it.  It tells the registry of kernels
and schemas, and what becomes of small models: of one at each opset and IR version, of ops without a kernel, which
onnxruntime expands, in each element type, and of all forms of ai.onnx Attention, whose numbers are compared with those
of the op's own function as the newest version computes it.

The answer goes to onnxfuse/targets/runtimes.json: op → version of the op, or opset from which on it is expanded →
"from", the first onnxruntime that has it, "until", the last opset at which it is expanded if not at all, and type
variable → types, each with the onnxruntime that it came with if that is a later one ("int8@1.24").  "precise" says from
which one on a normalization of rows has its digits where their mean is far larger than their deviation.
"""

from __future__ import annotations

import argparse
import json
import pickle
import subprocess
import tempfile
import venv
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, defs, helper

from benchmarks.ort_forms import SINCE, forms, other_forms, wrong_forms

TABLE = Path(__file__).parents[1] / "onnxfuse" / "targets" / "runtimes.json"

VERSIONS = [f"1.{minor}" for minor in range(20, 33)]
PROBE = Path(__file__).with_name("ort_probe.py")
LATEST = 2147483647
"""The last version of an op that a kernel names which serves its first version alone, until there is another."""
TYPES = [name.lower() for name, _ in TensorProto.DataType.items() if name != "UNDEFINED"]
ADDED = (13, 15, 18, 20)
"""Opsets at which onnx gave functions to ops that had none."""
DOMAINS = ("", "ai.onnx.ml", "com.microsoft")

Answers = Mapping[str, Mapping[str, Any]]
"""onnxruntime version → what `ort_probe` found there."""


# --------------------------------------------------------------------------------------------------------- questions


def basics() -> Iterator[tuple[Any, Any]]:
    """A model at each opset and each IR version, and one with two overloads of a function."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"], "n")], "g", values[:1], values[1:])
    for opset in range(7, defs.onnx_opset_version() + 1):
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
        yield ("opset", opset), (model.SerializeToString(), None)
    for version in range(3, onnx.IR_VERSION + 1):
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=version)
        yield ("ir", version), (model.SerializeToString(), None)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("d", 1)]
    functions = [
        helper.make_function("d", "F", ["a"], ["b"], [helper.make_node(op, ["a"], ["b"], op)], imports[:1], overload=op)
        for op in ("Neg", "Exp")
    ]
    nodes = [
        helper.make_node("F", ["x"], ["z"], "first", domain="d", overload="Neg"),
        helper.make_node("F", ["z"], ["y"], "second", domain="d", overload="Exp"),
    ]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=imports, ir_version=10, functions=functions)
    yield ("overloads", 0), (model.SerializeToString(), {"x": np.ones(1, np.float32)})


def expansions(answers: Answers) -> Iterator[tuple[Any, Any]]:
    """A node of each standard op that has a function or lacks a kernel, at each version of the op, and at opsets behind
    it at which functions were added, in each element type that its schema allows: onnx's own test of it, in other
    types; and at every later opset in the type of the test alone, since onnxruntime expands no function whose own ops
    have changed since."""
    from onnx.backend.test.case.node import collect_testcases

    with_kernel = {k[1] for found in answers.values() for k in found["kernels"] if not k[0]}
    versions = {(op, since) for found in answers.values() for domain, op, since, *_ in found["schemas"] if not domain}
    samples: dict[str, onnx.ModelProto] = {}
    for case in collect_testcases(None):
        if case.model is not None and len(case.model.graph.node) == 1:
            node = case.model.graph.node[0]
            if not node.domain and (_has_function(node.op_type) or node.op_type not in with_kernel):
                samples.setdefault(node.op_type, case.model)
    for op, since in sorted(versions):
        if op not in samples or not defs.has(op, since, ""):
            continue
        for opset in (since, *(later for later in ADDED if later > since)):
            for kind in ("", *TYPES) if defs.get_schema(op, opset, "").since_version == since else ():
                model = _retyped(samples[op], opset, kind)
                if model is not None:
                    yield ("expanded", op, opset, kind), (model.SerializeToString(), None)
        for opset in range(since, defs.onnx_opset_version() + 1):
            if defs.get_schema(op, opset, "").since_version == since and (model := _retyped(samples[op], opset, "")):
                yield ("reach", op, opset), (model.SerializeToString(), None)


NORMS = ("LayerNormalization", "com.microsoft.SkipLayerNormalization")


def distant() -> Iterator[tuple[Any, Any]]:
    """Rows of numbers around 100 that are 0.01 apart, to be normalized."""
    rows = DISTANT.astype(np.float32)
    feeds = {"x": rows, "skip": np.zeros_like(rows), "scale": np.ones(rows.shape[-1], np.float32)}
    for name in NORMS:
        domain, _, op = name.rpartition(".")
        inputs = ["x", "skip", "scale"] if domain else ["x", "scale"]
        values = [helper.make_tensor_value_info(i, TensorProto.FLOAT, feeds[i].shape) for i in inputs]
        made = helper.make_tensor_value_info("y", TensorProto.FLOAT, rows.shape)
        node = helper.make_node(op, inputs, ["y"], "n", domain=domain, epsilon=1e-12)
        imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(helper.make_graph([node], "g", values, [made]), opset_imports=imports, ir_version=8)
        yield ("distant", name), (model.SerializeToString(), {i: feeds[i] for i in inputs})


DISTANT = 100 + 0.01 * np.random.default_rng(0).standard_normal((1, 4, 512))


def _precise(answers: Answers, name: str) -> str:
    """The version from which on all have the digits of such rows."""
    rows = DISTANT.astype(np.float32).astype(np.float64)
    exact = (rows - rows.mean(-1, keepdims=True)) / rows.std(-1, keepdims=True)
    off = {version: np.abs(found["answers"]["distant", name][0] - exact).max() for version, found in answers.items()}
    wrong = [version for version in answers if not off[version] < LOST]
    return next((v for v in answers if not wrong or list(answers).index(v) > list(answers).index(wrong[-1])), "")


LOST = 0.05
"""Deviations by which a number is off that has no digits left; rounding moves it by a hundredth of that."""


def _has_function(op: str) -> bool:
    schema: Any = defs.get_schema(op)  # the type stubs lack this
    return bool(schema.has_function or schema.has_context_dependent_function)


def _retyped(sample: onnx.ModelProto, opset: int, kind: str) -> onnx.ModelProto | None:
    """The one-node model at an opset, with another type for what has the first input's; None if it is not valid."""
    model = onnx.ModelProto()
    model.CopyFrom(sample)
    model.ir_version = 8
    del model.opset_import[:]
    model.opset_import.append(helper.make_opsetid("", opset))
    node = model.graph.node[0]
    schema = defs.get_schema(node.op_type, opset, "")
    if kind and not model.graph.input:
        return None
    if kind:
        dtype, own = TensorProto.DataType.Value(kind.upper()), model.graph.input[0].type.tensor_type.elem_type
        types = {info.name: info.type.tensor_type for info in (*model.graph.input, *model.graph.output)}
        for formal, name in _real(schema, node):
            if types[name].elem_type == own and f"tensor({kind})" in formal.types:
                types[name].elem_type = dtype
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception:  # the checker's and shape inference's own errors
        return None
    return model


def _real(schema: defs.OpSchema, node: onnx.NodeProto) -> Iterator[tuple[defs.OpSchema.FormalParameter, str]]:
    """(what the schema says of it, value) of each tensor whose type is not fixed."""
    for names, formals in ((node.input, schema.inputs), (node.output, schema.outputs)):
        for i, name in enumerate(names):
            if name and len(formals[min(i, len(formals) - 1)].types) > 1:
                yield formals[min(i, len(formals) - 1)], name


# ------------------------------------------------------------------------------------------------------------ asking


def environments(folder: Path, versions: Iterable[str]) -> dict[str, Path]:
    """onnxruntime version → the Python of an environment with it, built where there is none yet."""
    found = {}
    for version in versions:
        home = folder / version
        found[version] = home / "bin" / "python"
        if not found[version].exists():
            print(f"installing onnxruntime {version}", flush=True)
            venv.create(home, with_pip=True)
            install = [str(found[version]), "-m", "pip", "install", "-q", f"onnxruntime=={version}.*", "numpy"]
            subprocess.run(install, check=True)
    return found


def asked(pythons: Mapping[str, Path], questions: Mapping[Any, Any]) -> dict[str, dict[str, Any]]:
    """What each version answers; the newest alone computes what the forms of an op are compared with."""
    answers = {}
    with tempfile.TemporaryDirectory() as name:
        asking, answering = Path(name, "questions"), Path(name, "answers")
        for version, python in pythons.items():
            keys = [key for key in questions if key[0] != "function" or version == list(pythons)[-1]]
            asking.write_bytes(pickle.dumps([questions[key] for key in keys]))
            subprocess.run([python, PROBE, asking, answering], check=True, stderr=subprocess.DEVNULL)
            answers[version] = pickle.loads(answering.read_bytes())
            answers[version]["answers"] = dict(zip(keys, answers[version]["answers"], strict=True))
            print(f"onnxruntime {version}: {len(keys)} questions", flush=True)
    return answers


# ------------------------------------------------------------------------------------------------------------- table


def table(answers: Answers) -> dict[str, Any]:
    """What the package keeps of the answers."""
    last = list(answers)[-1]
    kernels, expanded = _named(_kernels(answers), last), _named(_expanded(answers), last)
    for op, entries in list(expanded.items()):
        known = {defs.get_schema(op, int(opset), "").since_version: opset for opset in reversed(entries)}
        expanded[op] = {
            opset: entry
            for opset, entry in entries.items()
            for version in [defs.get_schema(op, int(opset), "").since_version]
            if not _covered(entry, kernels.get(op, {}).get(str(version)))
            and (known[version] == opset or entry != entries[known[version]])
        }
        for opset, entry in expanded[op].items():
            if until := _until(op, int(opset), answers[last]["answers"]):
                entry["until"] = until
    return {
        "provider": "CPUExecutionProvider",
        "versions": {version: _limits(found["answers"]) for version, found in answers.items()},
        "overloads": next(v for v, found in answers.items() if found["answers"]["overloads", 0][0] < 1),
        "kernels": kernels,
        "expanded": {op: entries for op, entries in expanded.items() if entries},
        "without": _without(answers[last]["schemas"], kernels, expanded),
        "parameters": {
            f"{domain}.{op}".strip("."): [inputs, outputs]
            for domain, op, since, inputs, outputs in answers[last]["schemas"]
            if domain in DOMAINS and not defs.has(op, since, domain)
        },
        "precise": {name: _precise(answers, name) for name in NORMS},
        "wrong": {
            op: wrong_forms({version: answers[version]["answers"] for version in versions}, op)
            for op, versions in (
                ("Attention", _modern(answers)),
                ("RotaryEmbedding", _modern(answers)),
                ("com.microsoft.Attention", answers),
                ("com.microsoft.MultiHeadAttention", answers),
            )
        },
    }


def _modern(answers: Answers) -> list[str]:
    """The versions that have ai.onnx Attention."""
    return [version for version, found in answers.items() if found["answers"]["opset", SINCE] is None]


def _without(schemas: Iterable[Any], *tables: Mapping[str, Mapping[str, Any]]) -> dict[str, list[int]]:
    """Versions of ops of ai.onnx that have a schema and nothing that computes them."""
    versions: dict[str, list[int]] = {}
    for domain, op, since, *_ in sorted(schemas):
        known = {v for found in tables for v in found.get(op, {})}
        if not domain and str(since) not in known:
            versions.setdefault(op, []).append(since)
    return versions


def _covered(entry: Mapping[str, str], kernel: Mapping[str, str] | None) -> bool:
    """Does a kernel take all types that the expanded function does?"""
    return kernel is not None and all(set(entry[name].split()) <= set(kernel.get(name, "").split()) for name in entry)


def _until(op: str, opset: int, found: Mapping[Any, Any]) -> str:
    """The last opset at which an op is expanded that has not changed since this one; "" if that is so at all."""
    asked = sorted(key[2] for key in found if key[:2] == ("reach", op) and key[2] >= opset)
    same = defs.get_schema(op, opset, "").since_version
    ends = (o for o in asked if defs.get_schema(op, o, "").since_version == same and found["reach", op, o] is not None)
    return next((str(end - 1) for end in ends), "")


def _limits(found: Mapping[Any, Any]) -> dict[str, int]:
    loaded = [key for key, value in found.items() if value is None and key[0] in ("opset", "ir")]
    return {kind: max(number for what, number in loaded if what == kind) for kind in ("opset", "ir")}


Sets = dict[tuple[str, int], dict[str, dict[str, set[str]]]]
"""(op with its domain, version of the op or opset) → onnxruntime version → type variable → types."""


def _kernels(answers: Answers) -> Sets:
    """What the registries say: a kernel serves a version of an op if it starts with it or has a last one behind it."""
    sets: Sets = {}
    for version, found in answers.items():
        ranges: dict[tuple[str, str], list[Any]] = {}
        for domain, op, first, final, types in found["kernels"]:
            ranges.setdefault((domain, op), []).append((first, final, types))
        for domain, op, since, *_ in found["schemas"]:
            for first, final, types in ranges.get((domain, op), ()):
                if domain in DOMAINS and (first == since or (final != LATEST and first <= since <= final)):
                    own = sets.setdefault((f"{domain}.{op}".strip("."), since), {}).setdefault(version, {})
                    for variable, names in types.items():
                        own.setdefault(variable, set()).update(map(_short, names))
    return sets


def _expanded(answers: Answers) -> Sets:
    """What was loaded of the ops without a kernel."""
    sets: Sets = {}
    for version, found in answers.items():
        for key, value in found["answers"].items():
            if key[0] == "expanded" and value is None:
                _, op, since, kind = key
                own = sets.setdefault((op, since), {}).setdefault(version, {})
                for formal in defs.get_schema(op, since, "").inputs if kind else ():
                    if f"tensor({kind})" in formal.types and len(formal.types) > 1:
                        own.setdefault(formal.type_str, set()).add(kind)
    return sets


def _short(kind: str) -> str:
    """`float` for tensor(float); other types, such as sequences, as they are."""
    return kind[7:-1] if kind.startswith("tensor(") else kind


def _named(sets: Sets, last: str) -> dict[str, dict[str, dict[str, str]]]:
    """The sets as the table has them: with each type the version from which on all have it."""
    result: dict[str, dict[str, dict[str, str]]] = {}
    for (op, since), by_version in sorted(sets.items()):
        if last not in by_version:
            continue
        start = _first(list(by_version), by_version)
        entry = {"from": start}
        for variable, kinds in sorted(by_version[last].items()):
            told = [(kind, _first(list(by_version), by_version, variable, kind)) for kind in sorted(kinds)]
            entry[variable] = " ".join(kind if first == start else f"{kind}@{first}" for kind, first in told)
        result.setdefault(op, {})[str(since)] = entry
    return result


def _first(versions: list[str], sets: Mapping[str, Mapping[str, set[str]]], variable: str = "", kind: str = "") -> str:
    """The version from which on all have a type, or the op at all; a variable that a version does not name is free."""
    first = versions[-1]
    for version in reversed(versions):
        if variable and kind not in sets[version].get(variable, {kind}):
            break
        first = version
    return first


def text(found: Mapping[str, Any]) -> str:
    """The table as JSON, a line for each op."""
    parts = []
    for key, value in found.items():
        entries = value.items() if isinstance(value, dict) else ()
        rows = [f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries]
        parts.append(f" {json.dumps(key)}: " + ("{\n" + ",\n".join(rows) + "\n }" if rows else json.dumps(value)))
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  python -m benchmarks.ort_versions --environments environments",
    )
    parser.add_argument("--output", type=Path, default=TABLE)
    parser.add_argument("--environments", type=Path, help="folder to build them in  [default: a temporary one]")
    parser.add_argument("--versions", nargs="+", default=VERSIONS, metavar="X.Y")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        pythons = environments(given.environments or Path(temporary), given.versions)
        answers = asked(pythons, dict(basics()) | dict(other_forms()) | dict(distant()))
        modern = {version: pythons[version] for version in _modern(answers)}
        for more in (asked(pythons, dict(expansions(answers))), asked(modern, dict(forms()))):
            for version, found in more.items():
                answers[version]["answers"].update(found["answers"])
    found = table(answers)
    given.output.write_text(text(found), encoding="utf-8")
    print(f"{given.output}: {len(found['kernels'])} ops with kernels, {len(found['expanded'])} that are expanded")


if __name__ == "__main__":
    main()
