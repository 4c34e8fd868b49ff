"""Protobuf's wire format, as far as large models need it: writing one in pieces, and looking into a broken one.

Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from mmap import mmap
from typing import TypeAlias, TypeVar

import onnx
from google.protobuf.internal.containers import RepeatedCompositeFieldContainer
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

GRAPH = onnx.ModelProto.GRAPH_FIELD_NUMBER
INITIALIZER = onnx.GraphProto.INITIALIZER_FIELD_NUMBER

Buffer: TypeAlias = bytes | mmap
"""What a message is in."""
_LENGTH_DELIMITED = 2
MOST = 1 << 22
"""Fields of one message that are looked at: a file of more has no few large weights, and takes minutes."""
_Proto = TypeVar("_Proto", bound=Message)


def part(message: _Proto, keep: Callable[[int], bool], into: _Proto | None = None) -> _Proto:
    """A copy of `message` with only the fields whose numbers `keep` wants; fields that protobuf does not know go.

    The copy is made in the empty message `into` if there is one.
    """
    copy: _Proto = type(message)() if into is None else into
    for descriptor, value in message.ListFields():
        if not keep(descriptor.number):
            continue
        if isinstance(value, Message):
            getattr(copy, descriptor.name).CopyFrom(value)
        elif isinstance(value, (int, float, str, bytes)):
            setattr(copy, descriptor.name, value)
        else:
            getattr(copy, descriptor.name).extend(value)
    return copy


def remove(messages: RepeatedCompositeFieldContainer[_Proto], unwanted: Callable[[_Proto], bool]) -> None:
    """Take out the messages that are `unwanted`, at once: one by one, all behind each would be moved."""
    kept = sum(not unwanted(message) for message in messages)
    if kept < len(messages):
        messages.sort(key=unwanted)  # moves no bytes of messages, and leaves those that stay in their order
        del messages[kept:]


def whole(message: Message) -> tuple[int, Iterator[bytes]]:
    """The size in bytes of a serialised message, and its bytes, made when they are asked for."""
    return message.ByteSize(), (message.SerializeToString(deterministic=True) for _ in range(1))


def pieces(
    model: onnx.ModelProto, written: Callable[[onnx.TensorProto], tuple[int, Iterator[bytes]]] = whole
) -> tuple[int, Iterator[bytes]]:
    """The size in bytes of the serialised `model`, and its bytes in pieces of one initializer at most.

    Together they are what ``model.SerializeToString(deterministic=True)`` is, without all weights in memory once more,
    if initializers are `written` as they are.

    Raises:
        google.protobuf.message.EncodeError: an initializer has more than 2 GiB.
    """
    if has_unknown_fields(model) or not model.HasField("graph"):
        # Where a field that this protobuf does not know belongs, only protobuf can say.
        return whole(model)
    before, after = around(model, GRAPH)
    graph_before, graph_after = around(model.graph, INITIALIZER)
    weights = [written(tensor) for tensor in model.graph.initializer]
    graph = len(graph_before) + sum(len(header(INITIALIZER, size)) + size for size, _ in weights) + len(graph_after)
    start = before + header(GRAPH, graph)

    def all_pieces() -> Iterator[bytes]:
        yield start + graph_before
        for size, parts in weights:
            yield header(INITIALIZER, size)
            yield from parts
        yield graph_after + after

    return len(start) + graph + len(after), all_pieces()


def has_unknown_fields(model: onnx.ModelProto) -> bool:
    """Has a model fields that this protobuf does not know, so that it must be serialised as a whole?"""
    return bool(len(UnknownFieldSet(model)) or len(UnknownFieldSet(model.graph)))


def edited(data: Buffer, start: int, end: int, *, number: int, change: Callable[[int, int], bytes]) -> bytes:
    """The message in data[start:end], with what `change` makes of each field of this `number`, given where its content
    starts and ends.

    Raises:
        IndexError: `data` is no such message, or such a field is no string of bytes.
    """
    parts, kept, at = list[bytes](), start, start
    for found, begin, stop in fields(data, start, end):
        if stop > end:
            raise IndexError
        if found == number:
            if data[at] & 7 != _LENGTH_DELIMITED:
                raise IndexError
            content = change(begin, stop)
            parts += [data[kept:at], header(number, len(content)), content]
            kept = stop
        at = stop
    if at != end:
        raise IndexError
    return b"".join([*parts, data[kept:end]])


def fields(data: Buffer, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """(field number, start, end) of each field of the message in data[at:end], as its headers claim; up to what is no
    field, as a number of 0 is none, and MOST of them at most.

    Raises:
        IndexError: `data` ends within a header.
    """
    for _ in range(MOST):
        if at >= end:
            return
        tag, start = _read_varint(data, at)
        if not tag >> 3:
            return
        match tag & 7:
            case 0:
                _, stop = _read_varint(data, start)
            case 1:
                stop = start + 8
            case 2:
                length, start = _read_varint(data, start)
                stop = start + length
            case 5:
                stop = start + 4
            case _:
                return
        yield tag >> 3, start, stop
        at = stop


def around(message: Message, number: int) -> tuple[bytes, bytes]:
    """`message` serialised in two: the fields below `number`, and those above it."""
    below = part(message, lambda field: field < number).SerializeToString(deterministic=True)
    above = part(message, lambda field: field > number).SerializeToString(deterministic=True)
    return below, above


def header(number: int, length: int) -> bytes:
    """What stands before so many bytes of a field."""
    return _varint(number << 3 | _LENGTH_DELIMITED) + _varint(length)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*out, number))


def _read_varint(data: Buffer, at: int) -> tuple[int, int]:
    """The number that starts at `at`, and where the next thing starts."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
