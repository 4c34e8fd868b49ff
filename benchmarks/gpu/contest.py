"""A node by every way to compute it, ours and PyTorch's, in turns; and how far from the floor ours is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from onnxfuse.errors import KernelError

from . import expected, peers, timing
from .floors import Measured
from .machine import Machine, Run
from .plan import Row, SkippedError, one_line
from .sizes import Timed, moved
from .timing import Set, Side

OURS = "onnxfuse"
Own = Callable[[Machine, Sequence[Set]], Callable[[int], Run]]
"""What launches one of our forms on the i-th set.  Raises KernelError where the node has no such form."""
Verify = Callable[[Timed, Machine, Set], str]
"""Why the outputs of a set are wrong, empty if they are right."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A way that is not tried, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Way:
    """A function of tensors that computes the node; it is compiled first by torch.compile in `mode`, if that is set."""

    function: Callable[..., Any]
    mode: Mapping[str, Any] | None = None


Ways = Mapping[str, Way | Refused]


@dataclass(frozen=True)
class Contest:
    """A node and the ways to compute it.  The first of `own` is that of a user, and called OURS."""

    node: Timed
    own: Mapping[str, Own]
    verify: Verify
    theirs: Callable[[Any], Ways]
    """PyTorch → its ways."""
    more: Mapping[str, Any]
    """What a row says besides."""


def run(contest: Contest, floors: Measured, machine: Machine) -> Iterator[Row]:
    """A row of ours, in case that what comes then takes the process with it, and one of all ways, which replaces it.

    Each of ours must be right before anything is timed; a way that fails or differs is a reason.  Raises SkippedError
    where the node has no kernel.
    """
    try:
        yield from _rows(contest, floors, machine)
    finally:
        machine.release()
        peers.release()


def _rows(contest: Contest, floors: Measured, machine: Machine) -> Iterator[Row]:
    node, sides, failed = contest.node, dict[str, Side](), dict[str, str]()
    try:
        every = timing.sets(node, machine)
    except KernelError as missing:
        raise SkippedError(str(missing)) from None
    row: Row = {"name": node.name, "op": node.op, "dtype": node.dtype, **contest.more}
    for name, own in contest.own.items():
        try:
            launch = own(machine, every)
            for i in range(len(every)):
                launch(i)()
            machine.wait()
            if reason := contest.verify(node, machine, every[-1]):
                yield row | {"outcome": f"{name}: {reason}"}
                return
            sides[name] = timing.side(machine, launch, len(every), machine.graph)
        except Exception as error:
            if name == OURS:
                raise
            failed[name] = one_line(error)

    def found(samples: Mapping[str, Sequence[float]]) -> Row:
        timed = timing.row(node, machine, every, samples, floors().copy)
        timed |= {"how": {name: side.how for name, side in sides.items()}, "failed": failed}
        return row | timed | _floor(node, floors, timed)

    try:
        module = peers.torch()
    except SkippedError as reason:
        failed["torch"] = str(reason)
        yield found(timing.measure(machine, sides))
        return
    yield found(timing.measure(machine, sides, most=0.0))
    with module.no_grad(), module.cuda.stream(module.cuda.ExternalStream(machine.stream)):
        inputs = [peers.tensors(module, each) for each in every]
        for name, way in contest.theirs(module).items():
            try:
                sides[name] = _side(module, way, node, every, inputs, machine)
            except Exception as error:
                failed[name] = str(error) if isinstance(error, SkippedError) else one_line(error)
                machine.wait()
        yield found(timing.measure(machine, sides))


def _side(
    module: Any,
    way: Way | Refused,
    node: Timed,
    every: Sequence[Set],
    inputs: Sequence[Sequence[Any]],
    machine: Machine,
) -> Side:
    if isinstance(way, Refused):
        raise SkippedError(way.reason)
    function = way.function
    if way.mode is not None:
        module._dynamo.reset()
        function = module.compile(function, dynamic=False, fullgraph=True, **way.mode)
        for _ in range(3):
            function(*inputs[0])
        module.cuda.synchronize()
    if reason := peers.compare(module, node, function, inputs[-1], every[-1]):
        raise SkippedError(reason)
    call = peers.call(function, inputs)
    return timing.side(machine, call, len(every), partial(peers.graph, module, machine))


def _floor(node: Timed, floors: Measured, found: Row) -> Row:
    """The least time of a launch, what bounds it, and our share of it; empty where rates are not known."""
    kernel = expected.kernel(node.op, node.attributes)
    work = kernel.work(node.types)
    count = moved(node, work.read + work.written, list(kernel.outputs(node.types)))
    row: Row = {"flops": work.flops}
    bound, us = floors().bound(count, work.flops, node.dtype), found["sides"][OURS]["us"]
    if bound is None or not us:
        return row
    return row | {
        "floor_us": round(bound.seconds * 1e6, 3),
        "bound": bound.by,
        "of_floor": round(bound.seconds * 1e6 / us, 4),
    }
