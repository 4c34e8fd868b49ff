"""What is read only blocks behind where it stands is looked at where it is read."""

from __future__ import annotations

from onnx import NodeProto, helper

from onnxfuse.fusing.repeats.late import LONG, late


def nodes(*lines: str) -> list[NodeProto]:
    """`y = a b` for each: what it gives and reads; it is called after what it gives."""
    made = (line.split(" = ") for line in lines)
    return [helper.make_node("Op", read.split(), [given], name=given) for given, read in made]


def names(given: list[NodeProto], block: int) -> str:
    return " ".join(given[at].name for at in late(given, block))


def test_what_is_read_soon_stays() -> None:
    given = nodes("a = x", "b = a", "c = a b", "d = c")
    assert late(given, 3) == [0, 1, 2, 3]


def test_what_is_read_far_behind_moves_with_all_that_it_alone_reads() -> None:
    given = nodes("k = w", "l = k v", "a = x", "b = a", "c = b", "d = c l", "e = d l")
    assert names(given, 3) == "a b c k l d e"
    assert names(given, 4) == names(given, 9) == "k l a b c d e"


def test_what_others_read_sooner_stays() -> None:
    given = nodes("s = x", "k = s", "a = s x", "b = a", "c = b", "d = c k")
    assert names(given, 3) == "s a b c k d"


def test_what_nobody_reads_stays() -> None:
    given = nodes("k = x", "a = x", "b = a", "c = b")
    assert late(given, 1) == [0, 1, 2, 3]


def test_each_stands_before_what_reads_it_and_layers_stay() -> None:
    """The last layer of a chain is read far behind: the end of the chain moves, and no more of it."""
    chain = [f"n{at} = n{at - 1} w" for at in range(1, 30)]
    other = [f"m{at} = m{at - 1}" for at in range(1, 20)]
    given = nodes("w = ", *chain, *other, "y = n29 m19")
    order = late(given, 5)
    place = {given[at].output[0]: number for number, at in enumerate(order)}
    assert all(place.get(name, -1) < place[node.output[0]] for node in given for name in node.input)
    moved = [given[at].name for at in order[order.index(len(given) - 2) + 1 : -1]]
    assert moved == [f"n{at}" for at in range(30 - LONG, 30)]


def test_constants_move_with_the_last_of_a_chain_that_moves() -> None:
    chain = [f"n{at} = n{at - 1} c{at}" for at in range(1, LONG + 1)]
    constants = [f"c{at} = " for at in range(1, LONG + 1)]
    given = nodes(*constants, *chain, *(f"m{at} = m{at - 1}" for at in range(1, 20)), f"y = n{LONG} m19")
    order = late(given, 5)
    assert [given[at].name for at in order[:19]] == [f"m{at}" for at in range(1, 20)]
