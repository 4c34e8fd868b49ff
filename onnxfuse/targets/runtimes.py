"""Versions of onnxruntime as values: what each loads and runs on a CPU, and rightly.

runtimes.json holds what each version said of itself; benchmarks/ort_versions.py asked it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from onnxfuse.errors import DependencyError, UsageError
from onnxfuse.model import standard
from onnxfuse.model.standard import schema_of

TABLE = Path(__file__).with_name("runtimes.json")
PACKAGES = ("onnxruntime", "onnxruntime-gpu")


@dataclass(frozen=True, order=True)
class Runtime:
    """An onnxruntime, by the first two numbers of its version."""

    version: tuple[int, int]

    def __str__(self) -> str:
        return ".".join(map(str, self.version))

    @property
    def opset(self) -> int:
        """The highest opset of ai.onnx that it loads."""
        return int(_table()["versions"][str(self)]["opset"])

    @property
    def ir_version(self) -> int:
        """The highest IR version that it loads."""
        return int(_table()["versions"][str(self)]["ir"])


def of(version: str) -> Runtime:
    """`1.23` → the version."""
    major, minor = version.split(".")[:2]
    return Runtime((int(major), int(minor)))


@cache
def known() -> tuple[Runtime, ...]:
    """The versions that were asked, oldest first."""
    return tuple(sorted(of(version) for version in _table()["versions"]))


def loading(opset: int) -> Runtime | None:
    """The first version that loads files of this opset of ai.onnx; None if none that is known does."""
    return next((runtime for runtime in known() if runtime.opset >= opset), None)


def given(text: str | None) -> Runtime | None:
    """The version that a user names: "onnxruntime==1.23", or the one that is installed, "onnxruntime".

    One that is newer than all known is taken for the newest of them.  Raises UsageError for any other that is not
    known, DependencyError where none is installed."""
    if text is None:
        return None
    match = re.fullmatch(r"onnxruntime(?:==(\d+\.\d+)(?:\.[\w.*]+)?)?", text.replace(" ", ""))
    oldest, newest = known()[0], known()[-1]
    if match is None:
        raise UsageError(f"--runtime {text}: write onnxruntime==X.Y, X.Y from {oldest} to {newest}, or onnxruntime")
    wanted = of(match[1] or _installed())
    if wanted > newest:
        return newest
    if wanted not in known():
        raise UsageError(f"--runtime {text}: onnxruntime {wanted} is not known: those from {oldest} to {newest} are")
    return wanted


def proving(named: Runtime | None) -> Runtime:
    """The version that is to run what is written: the one that is `named`, else the one that is installed, as far as it
    is known, else the newest."""
    with suppress(DependencyError, UsageError):
        return named or given("onnxruntime") or known()[-1]
    return known()[-1]


def newer(text: str | None) -> str:
    """A note for a user who names a version that is newer than all known; else ""."""
    runtime = given(text)
    match = re.search(r"\d+\.\d+", text or "")
    wanted = of(match[0] if match else _installed()) if runtime else None
    return f"onnxruntime {wanted} is newer than is known: taken for {runtime}" if wanted and wanted != runtime else ""


def _installed() -> str:
    for package in PACKAGES:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    raise DependencyError("--runtime onnxruntime: none is installed; write onnxruntime==X.Y for one that is not here")


@cache
def _table() -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))
    return found


def overloads() -> Runtime:
    """The first version that runs the body of the overload that a node names."""
    return of(_table()["overloads"])


# ------------------------------------------------------------------------------------------------- ops and kernels


@cache
def since(op: str, opset: int) -> int | None:
    """The version of an op (`Gelu`, `com.microsoft.BiasGelu`) that onnxruntime takes for that of an opset of its
    domain; None if it has none."""
    kernels, bodies = _table()["kernels"].get(op, {}), _table()["expanded"].get(op, {})
    versions = [*map(int, kernels), *(s.since_version for v in bodies if (s := schema_of(op, int(v))))]
    return max((v for v in (*versions, *_table()["without"].get(op, ())) if v <= opset), default=None)


@cache
def parameters(op: str, opset: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Types of an op's inputs and outputs as its schema names them: type variables, or such as `tensor(int64)`."""
    domain, _, name = op.rpartition(".")
    if schema_of(name, opset, domain) is not None:
        return standard.parameters(name, opset, domain)
    inputs, outputs = _table()["parameters"].get(op, ((), ()))
    return tuple(inputs), tuple(outputs)


@cache
def first(op: str, opset: int, types: frozenset[tuple[str, str]] = frozenset()) -> Runtime | None:
    """The first onnxruntime that runs an op of this opset of its domain with these types (variable, `float`); None if
    none does.

    What has a kernel for float32 alone runs in float16, too: onnxruntime converts around it.  An op without a kernel
    may have a function that is expanded, up to the opset at which an op in it changes."""
    version = since(op, opset)
    if version is None:
        return None
    kernel = _table()["kernels"].get(op, {}).get(str(version))
    bodies = _table()["expanded"].get(op, {})
    added = max((int(known) for known in bodies if version <= int(known) <= opset), default=None)
    found = [_first(kernel, types, True)] if kernel else []
    if added is not None and opset <= int(bodies[str(added)].get("until", opset)):
        found.append(_first(bodies[str(added)], types, False))
    return min((runtime for runtime in found if runtime is not None), default=None)


def _first(entry: Mapping[str, str], types: Collection[tuple[str, str]], converted: bool) -> Runtime | None:
    needed = of(entry["from"])
    for variable, kind in types:
        if variable not in entry:
            continue
        came = dict(token.partition("@")[::2] for token in entry[variable].split())
        held = next((k for k in (kind, "float" if kind == "float16" and converted else kind) if k in came), None)
        if held is None:
            return None
        needed = max(needed, of(came[held] or entry["from"]))
    return needed


@cache
def computes(kind: str) -> bool:
    """Does any onnxruntime compute in an element type on a CPU?  It does not in bfloat16: other providers run those
    files, and what they have is not known."""
    return first("Add", known()[-1].opset, frozenset({("T", kind)})) is not None


@cache
def is_known(domain: str) -> bool:
    """Does onnxruntime have ops of this domain?"""
    return any(op.rpartition(".")[0] == domain for op in _table()["kernels"])


# ----------------------------------------------------------------------------------------------- forms of an op


@cache
def judged() -> frozenset[str]:
    """The ops whose numbers were compared, form by form."""
    return frozenset(_table()["wrong"])


def features(
    op: str, attrs: Mapping[str, Any], inputs: Sequence[Sequence[Any] | None], dtype: str, outputs: int = 0
) -> frozenset[str]:
    """What of a node its numbers depend on in some version; `attrs` are those that it names, `inputs` are shapes, () if
    not known, None if not given, `outputs` tells how many there are.

    The names are those of the op's schema, and what benchmarks/ort_forms.py calls such cases besides."""
    if op not in judged():
        return frozenset()
    given = [*inputs, *[None] * 7]
    if op == "Attention":
        said = _attention(attrs, given, dtype, outputs)
    elif op == "RotaryEmbedding":
        said = {name: bool(attrs.get(name)) for name in ("interleaved", "rotary_embedding_dim")}
        said["position_ids"] = given[3] is not None
    else:
        bias = given[5]
        alike = bias is not None and not (len(bias) == 4 and (bias[0] == 1 or bias[1] != 1))
        said = {"mask": bias is not None, "mask for all heads": alike, "is_causal": bool(attrs.get("unidirectional"))}
    return frozenset(name for name, there in said.items() if there)


def _attention(
    attrs: Mapping[str, Any], given: Sequence[Sequence[Any] | None], dtype: str, outputs: int
) -> dict[str, bool]:
    query, key, mask, past, nonpad = given[0] or (), given[1] or (), given[3], given[4], given[6]
    heads = (query[1], key[1]) if len(query) == len(key) == 4 else (attrs.get("q_num_heads"), attrs.get("kv_num_heads"))
    mode = attrs.get("qk_matmul_output_mode", 0)
    return {
        "grouped": heads[0] != heads[1],
        "mask": mask is not None,
        "mask of each head": mask is not None and len(mask) > 2 and mask[-3] != 1,
        "is_causal": bool(attrs.get("is_causal")),
        "past_key": past is not None,
        "softcap": bool(attrs.get("softcap")),
        "nonpad_kv_seqlen": nonpad is not None,
        "window": "left_window_size" in attrs or "right_window_size" in attrs,
        "float16": dtype == "float16",
        f"qk_matmul_output_mode {mode}": mode > 0 or outputs > 3,
    }


def right_from(op: str, features: Collection[str]) -> Runtime | None:
    """The first onnxruntime that computes an op with these features rightly; None if any that has the op does."""
    return max((version for version, _ in _mistakes(op, features)), default=None)


def precise_from(op: str) -> Runtime | None:
    """The first onnxruntime that keeps the digits of rows whose mean is far larger than their deviation; None of an op
    that is not known to have lost them in any."""
    version = _table()["precise"].get(op)
    return of(version) if version else None


def mistake(op: str, features: Collection[str]) -> str:
    """What of these features versions before that compute wrong, for a user: "softcap and mask"."""
    return max(_mistakes(op, features))[1]


def _mistakes(op: str, features: Collection[str]) -> list[tuple[Runtime, str]]:
    """Of each mistake that is known of such an op, the first version without it, and the features that it needs."""
    rows = _table()["wrong"].get(op, ())
    return [(of(version), " and ".join(wanted)) for version, *wanted in rows if set(wanted) <= set(features)]
