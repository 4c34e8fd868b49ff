"""The same nodes in PyTorch, as its users write them: eager, and through torch.compile."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from . import regions, timing
from .machine import Machine, Memory, Run
from .plan import Row, SkippedError, one_line
from .sizes import Timed
from .timing import Set

FULL, TUNED = "compile", "max-autotune"
MODES: dict[str, dict[str, Any]] = {FULL: {}, TUNED: {"mode": "max-autotune-no-cudagraphs"}}
CLOSE = {"float32": 1e-4, "float16": 5e-3, "bfloat16": 4e-2}
"""‖theirs − ours‖ / ‖ours‖ beyond which two sides compute different things."""
EPSILON = 1e-5


def torch() -> Any:
    """PyTorch with a GPU.  Raises SkippedError with the reason where it is of no use."""
    try:
        import torch as module
    except ModuleNotFoundError:
        raise SkippedError("torch is not installed") from None
    except (ImportError, OSError) as error:
        raise SkippedError(f"torch does not load: {one_line(error)}") from None
    if not module.cuda.is_available():
        raise SkippedError(f"torch {module.__version__} sees no GPU")
    return module


def release() -> None:
    """What PyTorch holds for later goes back to the driver, if it has been imported."""
    if (module := sys.modules.get("torch")) is not None:
        module.cuda.empty_cache()


class _Raw:
    """Memory in the form that PyTorch takes over, as integers of the element's size."""

    def __init__(self, memory: Memory) -> None:
        size = memory.dtype.itemsize
        self.memory = memory
        self.__cuda_array_interface__ = {
            "shape": memory.shape,
            "typestr": f"<i{size}",
            "data": (memory.pointer, False),
            "version": 3,
            "strides": None,
        }


def tensor(module: Any, memory: Memory) -> Any:
    """An array as a tensor on the same memory."""
    return module.as_tensor(_Raw(memory), device="cuda").view(getattr(module, memory.dtype.name))


def tensors(module: Any, made: Set) -> list[Any]:
    """The inputs of a launch, None for those that are left out."""
    return [None if memory is None else tensor(module, memory) for memory in made.inputs]


def function(module: Any, node: Timed) -> Callable[..., Any]:
    """A node as a function of tensors.  Raises SkippedError where PyTorch has no usual way to write it."""
    nn, get = module.nn.functional, node.attributes.get
    width = node.first.shape[-1:]
    axis = get("axis", -1)

    def skip_layer(x: Any, skip: Any, scale: Any, beta: Any) -> Any:
        total = x + skip
        return nn.layer_norm(total, width, scale, beta, EPSILON), total

    def skip_rms(x: Any, skip: Any, scale: Any) -> Any:
        total = x + skip
        return nn.rms_norm(total, width, scale, EPSILON), total

    def embed(ids: Any, segments: Any, words: Any, positions: Any, kinds: Any, scale: Any, beta: Any) -> Any:
        total = nn.embedding(ids, words) + positions + nn.embedding(segments, kinds)
        return nn.layer_norm(total, scale.shape, scale, beta, EPSILON)

    def embed_rms(ids: Any, words: Any, scale: Any) -> Any:
        return nn.rms_norm(nn.embedding(ids, words), scale.shape, scale, EPSILON)

    def safe(x: Any) -> Any:
        return module.nan_to_num(module.softmax(x, -1), nan=0.0)

    def loss_grad(dy: Any, logarithms: Any, label: Any) -> Any:
        """What autograd launches behind log_softmax and nll_loss, of a sum that ignores no label."""
        total = module.ones((), dtype=logarithms.dtype, device=logarithms.device)
        back = module.ops.aten.nll_loss_backward(dy.squeeze(0), logarithms, label, None, 2, -100, total)
        return module.ops.aten._log_softmax_backward_data(back, logarithms, 1, logarithms.dtype)

    def scores_grad(dy: Any, scores: Any, label: Any) -> Any:
        return loss_grad(dy, module.log_softmax(scores, 1), label)

    def attention_grad(dy: Any, *inputs: Any) -> Any:
        """Forward and backward: AttentionGrad is given no results of forward either."""
        with module.enable_grad():
            q, k, v = (x.detach().requires_grad_() for x in inputs)
            y = nn.scaled_dot_product_attention(q, k, v)
        return module.autograd.grad(y, (q, k, v), dy)

    def embedding_grad(dy: Any, indices: Any) -> Any:
        return module.ops.aten.embedding_dense_backward(dy, indices, get("num_embeddings"), -1, False)

    def group_norm_grad(dy: Any, x: Any, scale: Any) -> Any:
        """Forward's statistics and backward: GroupNormalizationGrad computes both."""
        sizes = (x.shape[0], x.shape[1], x[0, 0].numel(), get("num_groups"))
        _, mean, inverse = module.ops.aten.native_group_norm(x, scale, None, *sizes, EPSILON)
        return module.ops.aten.native_group_norm_backward(dy, x, mean, inverse, scale, *sizes, [True, True, True])

    def batch_norm_grad(dy: Any, x: Any, scale: Any, *statistics: Any) -> Any:
        """Of what forward kept."""
        mean, inverse = (one.flatten().float() for one in statistics)
        every = (scale.flatten(), None, None, mean, inverse, True, EPSILON, [True, True, True])
        return module.ops.aten.native_batch_norm_backward(dy, x, *every)

    known: dict[str, Callable[..., Any]] = {
        "LayerNormalization": lambda x, s, b: nn.layer_norm(x, width, s, b, EPSILON),
        "RMSNormalization": lambda x, s: nn.rms_norm(x, width, s, EPSILON),
        "SkipLayerNormalization": skip_layer,
        "SkipSimplifiedLayerNormalization": skip_rms,
        "Softmax": lambda x: module.softmax(x, axis),
        "LogSoftmax": lambda x: module.log_softmax(x, axis),
        "SafeSoftmax": safe,
        "GroupNormalization": lambda x, s, b: nn.group_norm(x, get("num_groups"), s, b, EPSILON),
        "InstanceNormalization": lambda x, s, b: nn.instance_norm(x, weight=s, bias=b, eps=EPSILON),
        "Gelu": lambda x: nn.gelu(x, approximate=get("approximate", "none")),
        "Tanh": module.tanh,
        "Swish": nn.silu,
        "Mish": nn.mish,
        "SwiGLU": lambda a, b: nn.silu(a) * b,
        "GeGLU": lambda a, b: nn.gelu(a) * b,
        "GLU": lambda a, b: a * module.sigmoid(b),
        "PRelu": lambda x, slope: module.where(x >= 0, x, x * slope),
        "RotaryEmbedding": partial(rotary, module, bool(get("interleaved"))),
        "SoftmaxCrossEntropyLossGrad": loss_grad,
        "SoftmaxCrossEntropyGrad": scores_grad,
        "AttentionGrad": attention_grad,
        "EmbeddingGrad": embedding_grad,
        "GroupNormalizationGrad": group_norm_grad,
        regions.OF_BATCH: lambda x, s, b: nn.batch_norm(x, None, None, s.flatten(), b.flatten(), True, 0.1, EPSILON),
        regions.BATCH_GRADIENTS: batch_norm_grad,
        "EmbedLayerNormalization": embed,
        "EmbedSimplifiedLayerNormalization": embed_rms,
    }
    if node.op not in known:
        raise SkippedError(f"{node.op} has no usual spelling in PyTorch")
    return known[node.op]


def rotary(module: Any, interleaved: bool, x: Any, cos: Any, sin: Any, ids: Any = None) -> Any:
    """x [batch, heads, positions, size], turned by angles for each position, or looked up in a table."""
    cos, sin = (table if ids is None else table[ids] for table in (cos, sin))
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    if interleaved:
        a, b = x[..., ::2], x[..., 1::2]
        return module.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)
    a, b = x.chunk(2, -1)
    return module.cat((a * cos - b * sin, a * sin + b * cos), -1)


def call(written: Callable[..., Any], inputs: Sequence[Sequence[Any]]) -> Callable[[int], Run]:
    """What runs a function on the i-th inputs and forgets its results."""

    def at(i: int) -> Run:
        def run() -> None:
            written(*inputs[i])

        return run

    return at


def graph(module: Any, machine: Machine, calls: Sequence[Run]) -> tuple[Run, str]:
    """As Machine.graph, with PyTorch's allocator aware of it."""
    try:
        captured = module.cuda.CUDAGraph()
        with module.cuda.graph(captured):
            for each in calls:
                each()
    except Exception:  # whatever cannot be captured runs as it is
        module.cuda.synchronize()

        def plain() -> None:
            for each in calls:
                each()

        return plain, "stream"
    return captured.replay, "graph"


def compare(module: Any, node: Timed, written: Callable[..., Any], tensors: Sequence[Any], made: Set) -> str:
    """Why two sides compute different things, empty if they do not.  Our outputs must be there."""
    results = written(*tensors)
    outputs = [tensor(module, output) for output in made.outputs if output is not None]
    for theirs, own in zip(results if isinstance(results, tuple) else (results,), outputs, strict=True):
        wide = own.double()
        far = float((theirs.double() - wide).norm() / wide.norm())
        if not far <= CLOSE[node.dtype]:
            return f"differs from onnxfuse by {far:.1e}"
    return ""


def beside(node: Timed, names: Sequence[str], rate: timing.Rate, machine: Machine) -> Iterator[Row]:
    """Our kernel, torch eager, and the compiled forms `names`, in turns."""
    module = torch()
    written = function(module, node)
    every = timing.sets(node, machine)
    own = timing.ours(node, machine, every)
    with module.no_grad(), module.cuda.stream(module.cuda.ExternalStream(machine.stream)):
        inputs = [tensors(module, each) for each in every]
        sides = {"onnxfuse": timing.side(machine, own, len(every), machine.graph)}
        reasons: dict[str, str] = {}
        for name in ("eager", *names):
            try:
                sides[name] = _side(module, name, written, node, every, inputs, machine)
            except Exception as error:
                reasons[name] = one_line(error)
                machine.wait()
        samples = timing.measure(machine, sides)
        found = timing.row(node, machine, every, samples, rate())
        found |= {"name": node.name, "how": {name: side.how for name, side in sides.items()}, "failed": reasons}
        if "eager" in reasons:
            found["outcome"] = f"torch: {reasons['eager']}"
        yield found
    module._dynamo.reset()


def _side(
    module: Any,
    name: str,
    written: Callable[..., Any],
    node: Timed,
    every: Sequence[Set],
    inputs: Sequence[Sequence[Any]],
    machine: Machine,
) -> timing.Side:
    function = written
    if name in MODES:
        module._dynamo.reset()
        function = module.compile(written, dynamic=False, fullgraph=True, **MODES[name])
        for _ in range(3):
            function(*inputs[0])
        module.cuda.synchronize()
    if reason := compare(module, node, function, inputs[-1], every[-1]):
        raise ValueError(reason)
    return timing.side(machine, call(function, inputs), len(every), partial(graph, module, machine))
