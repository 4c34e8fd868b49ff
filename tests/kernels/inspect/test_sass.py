"""What nvdisasm prints, as instructions, loops and the way through them."""

from __future__ import annotations

import subprocess

import pytest

from onnxfuse.errors import DependencyError
from onnxfuse.kernels.inspect import sass

TEXT = """
        .headerflags    @"EF_CUDA_SM90"
.text.walk:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/               @P0 BRA `(.L_x_2) ;
.L_x_0:
        /*0020*/                   LDG.E.128 R4, desc[UR6][R6.64] ;
        /*0030*/                   BRA.DIV UR4, `(.L_x_3) ;
        /*0040*/               @P1 BRA `(.L_x_1) ;
        /*0050*/                   FADD R4, R4, R5 ;
        /*0060*/                   FADD R4, R4, R5 ;
.L_x_1:
        /*0070*/                   STG.E.128 desc[UR6][R6.64], R4 ;
        /*0080*/                   BRA P2, `(.L_x_0) ;
.L_x_2:
        /*0090*/                   EXIT ;
.L_x_3:
        /*00a0*/                   BRA `(.L_x_3);
        /*00b0*/                   NOP;
.text.other:
        /*0000*/                   EXIT ;
"""


def test_instructions_have_the_places_that_they_jump_to() -> None:
    found = sass.functions(TEXT)
    assert list(found) == ["walk", "other"]
    walk = found["walk"]
    assert [i.name for i in walk] == "LDC BRA LDG BRA BRA FADD FADD STG BRA EXIT BRA".split()
    assert [i.target for i in walk] == [None, 9, None, 10, 7, None, None, None, 2, None, 10]
    assert [i.conditional for i in walk if i.name == "BRA"] == [True, True, True, True, False]
    assert walk[2].op == "LDG.E.128"


def test_what_stands_behind_the_end_and_returns_is_no_loop() -> None:
    """A wait that goes on there comes back to where it was left; a loop that stands there is one."""
    code = [
        sass.Instruction("SYNCS", "", False),
        sass.Instruction("BRA", "", True, 4),  # not there yet
        sass.Instruction("BRA", "", True, 0),
        sass.Instruction("EXIT", "", False),
        sass.Instruction("SYNCS", "", False),
        sass.Instruction("BRA", "", True, 4),
        sass.Instruction("BRA", "", False, 2),
    ]
    assert sass.loops(code) == [(0, 2), (4, 5)]


def test_loops_are_where_one_jumps_back() -> None:
    """What waits for ever is none."""
    assert sass.loops(sass.functions(TEXT)["walk"]) == [(2, 8)]


def test_the_way_does_most_work_in_the_fewest_instructions() -> None:
    walk = sass.functions(TEXT)["walk"]

    def bytes_moved(i: sass.Instruction) -> tuple[int, ...]:
        return (16 * (i.name in ("LDG", "STG")),)

    weights, walked = sass.way(walk, 2, 8, bytes_moved)
    assert weights == (32,)
    assert [i.name for i in walked] == "LDG BRA BRA STG BRA".split()
    _, adding = sass.way(walk, 2, 8, lambda i: (i.name == "FADD",))
    assert len(adding) == 7
    _, whole = sass.way(walk, 0, len(walk) - 1, bytes_moved)
    assert [i.name for i in whole] == "LDC BRA LDG BRA BRA STG BRA EXIT".split()


def test_a_missing_disassembler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sass.shutil, "which", lambda name, path=None: None)
    sass._tool.cache_clear()
    with pytest.raises(DependencyError, match="pip install nvidia-cuda-nvdisasm"):
        sass._tool()


def test_a_disassembly_is_asked_for_once(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    asked = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        return subprocess.CompletedProcess(command, 0, TEXT, "")

    monkeypatch.setenv("ONNXFUSE_CACHE", str(tmp_path))
    monkeypatch.setattr(sass, "_tool", lambda: "nvdisasm")
    monkeypatch.setattr(sass, "version", lambda: "13.5")
    monkeypatch.setattr(sass.subprocess, "run", run)
    assert sass.disassembled(b"one") == sass.disassembled(b"one") == TEXT
    assert len(asked) == 1
    sass.disassembled(b"two")
    assert len(asked) == 2
