"""Finds every subgraph of an ONNX model that one kernel could run, fuses it, and proves the numbers unchanged.

Example::

    import onnxfuse

    fused = onnxfuse.optimize("bert.onnx", "bert.fused.onnx")
    print(fused.report.census)  # Counter({'Attention': 12, ...})

    for miss in onnxfuse.report("bert.onnx").near_misses:
        print(miss.rule, miss.node, miss.reason)

    assert not onnxfuse.check("bert.onnx", expect=["Attention>=12"])

Models are paths, `onnx.ModelProto`s or `onnx_graphsurgeon.Graph`s; none is changed.  Everything raised on purpose is an
`OnnxfuseError` of onnxfuse.errors.  What is returned is documented in onnxfuse.reporting.records.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from onnxfuse.errors import OnnxfuseError

# onnx and numpy take a while to import, and `onnxfuse --help` imports this file: each function imports what it needs.
if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    import numpy as np
    import onnx
    import onnxruntime

    from onnxfuse.fusing.fused import Progress
    from onnxfuse.model.sources import Source
    from onnxfuse.pipeline import Optimized
    from onnxfuse.reporting.records import Report
    from onnxfuse.reporting.requirements import Finding
    from onnxfuse.runtime.served import Served


__all__ = ["InferenceSession", "OnnxfuseError", "__version__", "check", "optimize", "register", "report"]
__version__ = "0.1.0"


def optimize(
    model: Source,
    output: str | os.PathLike[str] | None = None,
    *,
    target: Literal["onnxfuse", "onnx", "ort"] = "onnxfuse",
    provider: Literal["cpu", "cuda"] = "cpu",
    runtime: str | None = None,
    keep_products: Literal["all", "weighted"] | None = None,
    opset: int | None = None,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    rules: Sequence[Path] = (),
    shapes: Mapping[str, Sequence[int]] | None = None,
    inputs: Mapping[str, np.ndarray[Any, Any]] | None = None,
    seed: int = 0,
    rtol: float | None = None,
    atol: float | None = None,
    on_mismatch: Literal["bisect", "fail"] = "bisect",
    validate: Literal["onnxruntime", "reference", "kernels", "off"] = "onnxruntime",
    timeout: float | None = None,
    rename_dims: bool = False,
    card: str | None = None,
    base_dir: Path | None = None,
    fold_limit: int = 1_000_000,
    level: Literal[0, 1, 2, 3] = 2,
    recompute: int | None = None,
    nodes: bool = False,
    precision: Literal["fp16", "bf16", "mixed"] | None = None,
    io_precision: Literal["keep", "half"] = "keep",
    progress: Progress | None = None,
) -> Optimized:
    """Fuse `model`, prove that it computes the same, and write it to `output` if that is given.

    Args:
        model: A file, a ModelProto, or a graphsurgeon Graph.
        output: The file to write, never `model` itself.
        target: "onnxfuse" for fused ops with function bodies, "onnx" for standard ops only, "ort" for the ops that
            onnxruntime runs fastest.
        provider: Where it runs them: "cpu" or "cuda", the latter with "ort" only.
        runtime: "onnxruntime==1.23" writes what that version runs and computes rightly, its opset, IR version, ops and
            element types; "onnxruntime" is the version that is installed.  None: any, with what the newest can.
        keep_products: Fuse around products, so that a quantizer finds each MatMul, Gemm and Conv that it would find in
            `model`: "all" of them, or only those that are "weighted" by a constant, which lets attention be fused.
            docs/quantization.md says which is for which quantizer.
        opset: Convert to this opset of ai.onnx first.  If it is not given, "onnx" and "ort" raise the opset to the
            lowest that has the standard ops they find.
        select, ignore: Names of the rules to use, and not to use.
        rules: Folders of further .rule files.
        shapes: Input name → dimensions, for inputs whose dimensions are symbolic.
        inputs: Input name → value to validate with; the others are generated from `seed`.
        rtol, atol: Tolerances; None chooses by dtype.
        on_mismatch: Leave the guilty fusion out and name it in the report, or raise.
        validate: Compare in onnxruntime; also with float64 ("reference"); with the CUDA source of the kernels run on
            the CPU, which needs g++ ("kernels"); or not at all ("off").
        timeout: Prove in a child process, in which each run of a model may take so many seconds (0: any time); None
            proves in this process, which a model that never ends then stops.
        rename_dims: Where two inputs call dimensions by one name that are not equal, as the lengths of an encoder and a
            decoder, and the fused model fails at such sizes for it, give the second a name of its own.
        card: Leave out what is predicted to be slower fused than not on this GPU, "h200" or a .json file that
            onnxfuse.performance.gpus describes, at `shapes`, or at sizes that are assumed and named in the report.
            What was measured on this machine counts for more than what is predicted.
        base_dir: Where external data lies; None is the folder of `model`, if that is a file.
        fold_limit: What is computed from constants alone is stored, as long as the file grows by no more bytes.
        level: 0 folds alone; 1 fuses what rules name; 2 also makes regions of what no rule names, for "onnxfuse" (not
            with a `precision`, and not beside rules that are selected); 3 is 2 with a `card`.
        recompute: Of a training step, the bytes that may live between forward and backward at `shapes`: backward
            computes the others again, those first that free most for each operation (docs/gradients.md).  None: only
            what needs no launch of its own is computed again.
        nodes: Tell of every node, too, before and after: what it takes, what it reads, what stands for it.  A page
            (onnxfuse.reporting.html.page) is made of such a report.
        precision: Convert what was fused to float16 or bfloat16, and compare it with the original; "mixed" is float16
            and leaves in float32 as much as overflows that or is rounded too much.  docs/precision.md says what else
            stays in float32.
        io_precision: Whether inputs and outputs keep their types then.
        progress: Called with (step, done, total).

    Returns:
        An object with `.model`, a Graph if `model` is one, else a ModelProto; and `.report`, a Report.

    Raises:
        NumericsError: The fused model computes something else, and `on_mismatch` is "fail" or no fusion is to blame; or
            half precision does not hold its numbers.
        DependencyError: Neither onnxruntime nor onnxruntime-gpu is installed, and `validate` is not "off"; or g++ is
            not, and `validate` is "kernels".
        ModelError, RuleError, UsageError, OutputError: As their names say.
    """
    from onnxfuse import pipeline
    from onnxfuse.fusing.build import Build
    from onnxfuse.model import files, sources, spool
    from onnxfuse.performance import gpus
    from onnxfuse.precision.wanted import Precision
    from onnxfuse.proof.claim import Experiment
    from onnxfuse.targets import runtimes
    from onnxfuse.targets.target import Target

    meant = Target(target, provider, runtimes.given(runtime), keep_products)
    place = Path(output) if output is not None else None
    opened = sources.in_file(model, weights=validate != "off", in_place=base_dir is None)
    with opened as source, spool.beside(place if precision is not None else None, source.proto) as weights:
        optimized = pipeline.optimize(
            source.proto,
            Build(meant, opset, select, ignore, rules, base_dir or source.folder, fold_limit, recompute, level),
            Experiment(shapes, inputs, seed, rtol, atol, on_mismatch, validate, timeout, rename_dims=rename_dims),
            card=gpus.given(card, meant),
            nodes=nodes,
            precision=Precision(precision, io=io_precision == "half") if precision is not None else None,
            spool=weights,
            progress=progress,
        )
        optimized.report.model = source.name
        if place is not None:
            files.write(optimized.model, place, source=source.path, spool=weights)
            optimized.report.output = str(output)
        optimized.model = sources.like(model, optimized.model, source.path, weights)
    return optimized


def report(
    model: Source,
    *,
    target: Literal["onnxfuse", "onnx", "ort"] = "onnxfuse",
    provider: Literal["cpu", "cuda"] = "cpu",
    runtime: str | None = None,
    keep_products: Literal["all", "weighted"] | None = None,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    rules: Sequence[Path] = (),
    shapes: Mapping[str, Sequence[int]] | None = None,
    card: str | None = None,
    base_dir: Path | None = None,
    level: Literal[0, 1, 2, 3] = 2,
    nodes: bool = False,
    progress: Progress | None = None,
) -> Report:
    """What can be fused in `model`, what that saves, and why the rest cannot.  Nothing is run or written.

    With a `card` ("h200", or a .json file that onnxfuse.performance.gpus describes) each fusion has an estimate of its
    time there.  The other arguments are those of `optimize`.
    """
    from onnxfuse import pipeline
    from onnxfuse.fusing.build import Build
    from onnxfuse.model import sources
    from onnxfuse.performance import gpus
    from onnxfuse.targets import runtimes
    from onnxfuse.targets.target import Target

    meant = Target(target, provider, runtimes.given(runtime), keep_products)
    source = sources.opened(model, weights=False, in_place=base_dir is None)
    found = pipeline.report(
        source.proto,
        Build(meant, None, select, ignore, rules, base_dir or source.folder, level=level),
        shapes=shapes,
        card=gpus.given(card, meant),
        nodes=nodes,
        progress=progress,
    )
    found.model = source.name
    return found


def check(
    model: Source,
    *,
    expect: Sequence[str] = (),
    baseline: str | os.PathLike[str] | None = None,
    **options: Any,
) -> list[Finding]:
    """What `model` lacks of the fusions that it should have; nothing, if all is well.

    Args:
        model: A file, a ModelProto, or a graphsurgeon Graph.
        expect: Demands such as "Attention>=12".
        baseline: File that `onnxfuse check --update-baseline` wrote; it knows models by file name, so that `model` must
            be a file.
        options: As for `report`.
    """
    from onnxfuse.errors import UsageError
    from onnxfuse.language import lookup
    from onnxfuse.model import sources
    from onnxfuse.reporting import baseline as remembered
    from onnxfuse.reporting import code_lines, requirements

    expectations = [requirements.parse(text) for text in expect]
    lookup.check_rules(
        [expected.name for expected in expectations], options.get("rules", ()), or_ops=True, regions=True
    )
    place = Path(baseline) if baseline is not None else None
    before = remembered.read(place) if place is not None else None
    if before is not None and sources.path_of(model) is None:
        raise UsageError("a baseline knows models by file name: give the model as a file")
    source = sources.opened(model, weights=False)
    found = report(source.proto, **{"base_dir": source.folder} | options)
    found.model = source.name
    findings = requirements.disappointed(found, expectations)
    if place is not None and before is not None:
        before.refuse(place, remembered.Way.of(found.level, found.target, found.provider))
        by = before.written_by(__version__)
        findings += requirements.lost(found, before.models.get(Path(found.model).name), by)
    return code_lines.located(findings, source.proto)


def InferenceSession(  # noqa: N802 - it stands where onnxruntime's stood
    path_or_bytes: str | os.PathLike[str] | bytes,
    sess_options: onnxruntime.SessionOptions | None = None,
    providers: Sequence[str | tuple[str, dict[str, Any]]] | None = None,
    provider_options: Sequence[dict[str, Any]] | None = None,
    *,
    emulate: bool = False,
    rules: Sequence[Path] = (),
    **options: Any,
) -> onnxruntime.InferenceSession:
    """onnxruntime's own session of a fused model, in which its fused nodes run kernels where onnxfuse has one.

    Args:
        path_or_bytes, sess_options, providers, provider_options, options: As onnxruntime.InferenceSession has them.
            Without providers: CUDA where a session can have it, and the CPU.
        emulate: On the CPU provider, run the CUDA source of the kernels in the emulator, which is for tests and slow.
            Without it, a session on a CPU runs function bodies, as it would without onnxfuse.
        rules: Folders of .rule files that the model was fused with besides the catalogue.

    An op runs its kernel if the kernel takes every node of it in this model, else its function body; `register` says
    which.

    Raises:
        DependencyError: onnxruntime is not installed, or is a version that kernels were not tested with.
        UsageError: `sess_options` were used for another model, and know an op that must run from its body in this one.
    """
    from onnxfuse.runtime.session import open_session

    return open_session(
        path_or_bytes, sess_options, providers, provider_options, emulate=emulate, rules=rules, **options
    )


def register(
    session_options: onnxruntime.SessionOptions,
    model: str | os.PathLike[str] | bytes | onnx.ModelProto,
    providers: Sequence[str | tuple[str, dict[str, Any]]] | None = None,
    *,
    emulate: bool = False,
    rules: Sequence[Path] = (),
) -> Served:
    """Make the kernels for `model` known to `session_options`, for a session that you open yourself.

    The arguments are those of `InferenceSession`, which calls this; `providers` are those that the session will have.

    Returns:
        An object with `.ops`, those registered, and `.reasons`: op → why it runs from its function body.
    """
    from onnxfuse.runtime import session

    return session.register(session_options, model, providers, emulate=emulate, rules=rules)
