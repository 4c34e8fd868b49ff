"""What a node costs besides its kernel, where onnxruntime calls a kernel of onnxfuse.

Chains of nodes whose kernel does nothing, of two lengths: what the longer takes more, divided by the nodes that it has
more.  Beside them onnxruntime's own Identity on tensors of the same size, which it copies.  A CPU session; a CUDA
session calls the same code.

And what the host side of kernels costs, with a device that launches nothing.  Where the cache of an attention grows by
one key at each call: the types of its outputs, and its launches, for lengths that it has never seen.  Where shapes are
those of a call before: its launches with all arguments packed for the driver, which is not called.  Nothing of it needs
a card, or CuPy.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import onnxruntime
from onnx import NodeProto, TensorProto, helper, numpy_helper

from benchmarks import scale
from onnxfuse.kernels import find
from onnxfuse.kernels.attention.attention import Attention
from onnxfuse.kernels.device.device import Argument, Array, Buffer, Device, Launch, TensorMap, TensorType
from onnxfuse.kernels.device.kernel import Kernel, Parameter, Signature, Work
from onnxfuse.kernels.device.packed import MAP_WORDS, WORD, Start
from onnxfuse.kernels.device.recorder import ADDRESS
from onnxfuse.kernels.gemm.gemm import FusedMatMul
from onnxfuse.performance import interleaved
from onnxfuse.runtime import registration
from onnxfuse.runtime.custom_op import Backend, Op
from onnxfuse.runtime.installed import CPU
from onnxfuse.runtime.served import arguments

EXAMPLE = """example:
  python -m benchmarks.bridge --json bridge.json
"""
SHORT, LONG = 1, 201
DIMS = (2, 3, 4)
PAST, LENGTHS = 1000, 256
"""Keys of the first past, and how many lengths there are."""
CALLS = 1001


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of node."""

    node: str
    microseconds: float
    """What one such node adds to a run: the median over rounds."""


def empty(read: int, written: int) -> type[Kernel]:
    """A kernel that does nothing, with so many inputs and outputs."""

    class Empty:
        name: ClassVar[str] = "empty"
        signature: ClassVar[Signature] = Signature(
            f"Empty{read}{written}",
            tuple(Parameter(f"X{index}") for index in range(read)),
            tuple(Parameter(f"Y{index}", optional=bool(index)) for index in range(written)),
        )

        def __init__(self, attributes: Mapping[str, Any]) -> None: ...

        def outputs(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
            assert inputs[0] is not None
            return (inputs[0],) * written

        def launch(self, device: Device, inputs: Sequence[Any], outputs: Sequence[Any]) -> None: ...

        def work(self, inputs: Sequence[TensorType | None]) -> Work:
            return Work(0, 0, 0)

    return Empty


def kinds() -> dict[str, tuple[type[Kernel] | None, Callable[[int], NodeProto]]]:
    """Name of a kind of node → its kernel, and what makes the i-th node of a chain of them."""

    def node(op: str, extra: Sequence[str], outputs: int) -> Callable[[int], NodeProto]:
        domain = "onnxfuse" if op.startswith("Empty") else ""
        unread = [f"unread{index}" for index in range(1, outputs)]
        return lambda i: helper.make_node(
            op, [f"x{i}", *extra], [f"x{i + 1}", *(f"{name}_{i}" for name in unread)], domain=domain
        )

    return {
        "onnxruntime's Identity": (None, node("Identity", [], 1)),
        "1 input": (empty(1, 1), node("Empty11", [], 1)),
        "1 input, 2 initializers": (empty(3, 1), node("Empty31", ["w", "w"], 1)),
        "3 inputs": (empty(3, 1), node("Empty31", ["x0", "x0"], 1)),
        "5 inputs, 3 outputs": (empty(5, 3), node("Empty53", ["x0", "x0", "w", "w"], 3)),
    }


def chain(
    make: Callable[[int], NodeProto], kernel: type[Kernel] | None, length: int, backend: Backend
) -> Callable[[], object]:
    """A function that runs a chain once."""
    first, last = (helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, ["a", "b", "c"]) for i in (0, length))
    weight = [numpy_helper.from_array(np.ones(DIMS[-1], np.float32), "w")]
    graph = helper.make_graph([make(i) for i in range(length)], "chain", [first], [last], weight)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("onnxfuse", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    # Identity would be optimized away.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if kernel is not None:
        op = Op(kernel.signature.op, kernel, "float32", *arguments(kernel.signature, None))
        registration.add(options, [op], backend)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=[backend.provider])
    feeds = {"x0": np.ones(DIMS, np.float32)}
    return lambda: session.run(None, feeds)


class Nowhere:
    """A device that launches nothing, as large as an H100: what it is given is packed as for a driver."""

    vendor = None
    multiprocessors = 132
    architecture = ""
    maps = False

    def launch(self, launch: Launch, arguments: Sequence[Argument]) -> None: ...

    def starter(self, launch: Launch) -> Start:
        return lambda table, blocks: None

    def encoded(self, map: TensorMap, address: int) -> bytes:
        return bytes(WORD * MAP_WORDS)

    def scratch(self, count: int) -> AbstractContextManager[Buffer]:
        return nullcontext(Buffer(ADDRESS, (count,), np.dtype(np.uint8)))

    def counters(self, count: int) -> AbstractContextManager[Buffer]:
        return nullcontext(Buffer(ADDRESS, (count,), np.dtype(np.uint32)))


def growing(rounds: int, rotary: bool = False) -> list[float]:
    """Seconds for each call of a node of Llama-2-7B's heads, in grouped form, behind a past that is one longer each
    time; what the node remembers begins with the first."""
    node, device, half = Attention({"q_num_heads": 32, "kv_num_heads": 8}), Nowhere(), np.dtype(np.float16)

    def array(*shape: int) -> Buffer:
        return Buffer(ADDRESS, shape, half)

    angles = [array(4096, 64), array(4096, 64), Buffer(ADDRESS, (1, 1), np.dtype(np.int64))] if rotary else []
    seconds = []
    for past in range(PAST, PAST + rounds):
        fresh, cache = (array(1, 1, 8 * 128) for _ in range(2)), [array(1, 8, past, 128)] * 2
        inputs = [array(1, 1, 32 * 128), *fresh, array(1, 1, 1, past + 1), *cache, None, None, *angles]
        outputs: list[Array | None] = [array(1, 1, 32 * 128), *[array(1, 8, past + 1, 128)] * 2]
        begin = time.thread_time()
        node.outputs([None if i is None else TensorType(i.dtype, i.shape) for i in inputs])
        node.launch(device, inputs, outputs)
        seconds.append(time.thread_time() - begin)
    return seconds


def fixed() -> dict[str, Callable[[Device], None]]:
    """Kinds of nodes whose shapes stay: BERT-base's heads, Llama-2-7B's behind a past with the presents that a model
    for decoding gives out, BERT-base's activation and its first dense layer."""
    half = np.dtype(np.float16)

    def array(*shape: int) -> Buffer:
        return Buffer(ADDRESS, shape, half)

    def node(kernel: Kernel, inputs: list[Array | None], outputs: list[Array | None]) -> Callable[[Device], None]:
        return lambda device: kernel.launch(device, inputs, outputs)

    heads, x, y = array(1, 12, 128, 64), array(128, 768), array(128, 3072)
    past, present = [array(1, 8, PAST, 128)] * 2, [array(1, 8, PAST + 1, 128)] * 2
    query, fresh = array(1, 32, 1, 128), [array(1, 8, 1, 128)] * 2
    product = FusedMatMul({"activation": "Gelu"})
    return {
        "attention at a fixed shape": node(Attention({}), [heads] * 3, [heads, None, None]),
        "the same, one query behind a past": node(Attention({}), [query, *fresh, None, *past], [query, *present]),
        "an activation at a fixed shape": node(find("Gelu")({}), [y], [y]),
        "a product at a fixed shape": node(product, [x, array(768, 3072), array(3072)], [y]),
    }


def seconds(calls: int, run: Callable[[Device], None]) -> list[float]:
    """What each call of a node took."""
    device, found = Nowhere(), list[float]()
    for _ in range(calls):
        begin = time.thread_time()
        run(device)
        found.append(time.thread_time() - begin)
    return found


BACKEND = Backend(CPU, lambda stream: cast(Device, None))


def measure(rounds: int, backend: Backend = BACKEND) -> list[Row]:
    """Every kind of node, all of them in turns, in sessions of the provider of `backend`."""
    chains = {
        (name, length): chain(make, kernel, length, backend)
        for name, (kernel, make) in kinds().items()
        for length in (SHORT, LONG)
    }
    samples = interleaved.measure(
        {f"{name}/{length}": run for (name, length), run in chains.items()},
        f"1 input/{LONG}",
        rounds=rounds,
        # All of it happens in this thread: what other processes take is left out.
        clock=time.thread_time,
    )
    return [
        Row(name, round(statistics.median(differences(samples, name)) / (LONG - SHORT) * 1e6, 2)) for name in kinds()
    ]


def differences(samples: interleaved.Samples, name: str) -> list[float]:
    """What the long chain took more than the short one in each round, in seconds."""
    return [b - a for a, b in zip(samples[f"{name}/{SHORT}"], samples[f"{name}/{LONG}"], strict=True)]


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bridge",
        description=__doc__,
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=99, metavar="N", help="default: 99")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    parsed = parser.parse_args(arguments)
    rows = measure(parsed.rounds)
    for name, rotary in (("a cache that grows", False), ("the same, keys turned", True)):
        rows.append(Row(name, round(statistics.median(growing(LENGTHS, rotary)) * 1e6, 2)))
    for name, run in fixed().items():
        rows.append(Row(name, round(statistics.median(seconds(CALLS, run)) * 1e6, 2)))
    for row in rows:
        print(f"{row.node:34} {row.microseconds:6.2f} us a node")
    if parsed.json:
        figures = {
            "date": datetime.now(UTC).date().isoformat(),
            "environment": scale.environment(),
            "versions": {name: version(name) for name in ("onnxfuse", "onnxruntime", "numpy")},
            "rounds": parsed.rounds,
            "rows": [asdict(row) for row in rows],
        }
        parsed.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
