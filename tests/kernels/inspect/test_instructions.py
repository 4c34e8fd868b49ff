"""What compiled kernels execute, held to the committed counts."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from onnxfuse.errors import DependencyError
from onnxfuse.kernels.device.device import Source
from onnxfuse.kernels.inspect import instructions, nvrtc, sass
from onnxfuse.kernels.inspect.instructions import Counts, Tensor, Way, counts, of_tile, worse

SOURCES = dict(instructions.chosen())
TABLE = instructions.committed()


def absent() -> str:
    """Why nothing can be disassembled here, if so."""
    try:
        sass.version()
    except DependencyError as error:
        return str(error)
    return ""


def test_the_committed_table_has_every_source() -> None:
    assert sorted(TABLE) == sorted(SOURCES)
    for name, found in TABLE.items():
        assert tuple(found) == nvrtc.of(SOURCES[name])


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return instructions.texts()


@pytest.mark.skipif(bool(absent()), reason=absent())
@pytest.mark.parametrize("name", SOURCES)
def test_no_kernel_executes_more_than_the_committed_table_says(name: str, texts: dict[str, str]) -> None:
    """On every architecture; on one or none where the table was written of the same text (`nvrtc.unsettled`)."""
    for architecture in nvrtc.unsettled(name, SOURCES[name], texts):
        found = instructions.counted(SOURCES[name], architecture)
        assert sorted(found) == sorted(TABLE[name][architecture])
        for entry, now in found.items():
            assert not worse(TABLE[name][architecture][entry], now), (architecture, entry)


@pytest.mark.skipif(bool(absent()), reason=absent())
def test_the_table_is_of_this_disassembler(monkeypatch: pytest.MonkeyPatch, texts: dict[str, str]) -> None:
    assert sass.version() == json.loads(instructions.TABLE.read_text())["nvdisasm"]
    assert texts.keys() <= TABLE.keys()
    monkeypatch.setattr(instructions, "version", lambda: "99.9")
    assert instructions.texts() == {}


@pytest.mark.parametrize("name", SOURCES)
def test_every_kernel_that_is_counted_writes(name: str) -> None:
    """One that is compiled without its outputs says nothing."""
    for entries in TABLE[name].values():
        assert all(found.whole.written for found in entries.values())


@pytest.mark.parametrize(("head", "most"), [(64, 6.0), (80, 6.0), (128, 4.0)])
def test_attention_multiplies_most_of_the_time(head: int, most: float) -> None:
    for architecture, entries in TABLE[f"Attention float16 {head}"].items():
        per_product = entries["attention"].per_product
        assert per_product is not None
        assert per_product <= most, architecture


NONE = Tensor(1, 1)
PRODUCT = """
.text.gemm:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_0:
        /*0010*/                   LDGSTS.E.BYPASS.128 [R5], desc[UR4][R2.64] ;
        /*0020*/                   BAR.SYNC 0x0 ;
        /*0030*/                   LDSM.16.M88.4 R4, [R5] ;
        /*0040*/                   HMMA.16816.F32 R4, R8, R10, R4 ;
        /*0050*/               @P1 BRA `(.L_x_0) ;
        /*0060*/                   F2FP.F16.F32.PACK_AB R4, R5, R4 ;
        /*0070*/                   HADD2.F32 R4, -RZ, R4.H0_H0 ;
        /*0080*/                   STG.E.64 desc[UR4][R2.64], R4 ;
        /*0090*/                   LDG.E.U16.CONSTANT R3, desc[UR4][R2.64] ;
        /*00a0*/                   EXIT ;
"""


def test_what_is_counted() -> None:
    found = counts(sass.functions(PRODUCT)["gemm"], NONE)
    assert found.whole == Way(11, products=1, read=2, written=8, copied=16)
    assert found.loop == Way(5, products=1, read=0, written=0, copied=16)
    assert found.accesses == {"LDG 2": 1, "LDGSTS 16": 1, "LDSM 16": 1, "STG 8": 1}
    assert (found.conversions, found.barriers) == (2, 1)
    assert found.per_product == 5
    assert found.per_element(2) == 6 / 4
    assert found.bytes_per_access == pytest.approx(26 / 3)


MASKED = """
.text.attention:
.L_x_0:
        /*0010*/                   HMMA.16816.F32 R4, R8, R10, R4 ;
        /*0020*/               @P0 BRA `(.L_x_1) ;
        /*0030*/                   R2P PR, R2, 0x7f ;
        /*0040*/                   FSEL R4, R4, -INF , P1 ;
.L_x_1:
        /*0050*/                   HMMA.16816.F32 R4, R8, R10, R4 ;
        /*0060*/               @P1 BRA `(.L_x_0) ;
        /*0070*/                   LDGSTS.E.BYPASS.128 [R5], desc[UR4][R2.64] ;
        /*0080*/               @P2 BRA `(.L_x_0) ;
        /*0090*/                   EXIT ;
"""


def test_a_tile_with_a_mask_is_counted_besides() -> None:
    """The main loop is the innermost of those that multiply as much, and its shortest way passes masks by."""
    found = counts(sass.functions(MASKED)["attention"], NONE)
    assert found.loop == Way(4, products=2, read=0, written=0, copied=0)
    assert found.masked == replace(found.loop, instructions=6)
    assert found.masked_per_product == 3
    assert worse(found, replace(found, masked=replace(found.loop, instructions=7))) == [
        "tile with a mask: 6 instructions for 2 products, now 7 for 2"
    ]


def test_a_product_by_a_warpgroup_is_what_its_warps_would_need() -> None:
    """m64n256k16 of four warps is 32 times m16n8k16 of each."""
    text = PRODUCT.replace("HMMA.16816.F32 R4, R8, R10, R4", "HGMMA.64x256x16.F32 R24, gdesc[UR8].tnspB, R24, gsb0")
    assert counts(sass.functions(text)["gemm"], NONE).whole.products == 32


ATTENTION = [name for name in SOURCES if name.startswith("Attention ")]


@pytest.mark.parametrize("name", [name for name in ATTENTION if "warpgroup" in name])
def test_attention_by_warpgroups_multiplies_as_much_by_fewer_instructions(name: str) -> None:
    """It reads no keys and values from shared memory itself, which is one for each two products by warps."""
    own, by_warps = (
        TABLE[of][on]["attention"] for of, on in ((name, "sm_90a"), (re.sub(" (one )?warpgroups?", "", name), "sm_90"))
    )
    assert own.loop is not None
    assert by_warps.loop is not None
    assert own.loop.products == by_warps.loop.products
    assert own.loop.instructions < by_warps.loop.instructions - own.loop.products / 4
    assert own.accesses["LDSM 16"] < by_warps.accesses["LDSM 16"] / 8


@pytest.mark.parametrize("name", [name for name in SOURCES if "warpgroups" in name and name not in ATTENTION])
def test_products_by_warpgroups_are_not_taken_apart(name: str) -> None:
    """Four of them in the main loop, 64 of k, and few instructions beside."""
    (entries,) = TABLE[name].values()
    (loop,) = (found.loop for found in entries.values())
    assert loop is not None
    assert loop.products == 4 * (16 if "narrow" in name else 32)
    assert loop.instructions <= (44 if "normalised" in name else 40) * 4


@pytest.mark.parametrize("name", [name for name in ATTENTION if "tensor memory" in name])
def test_attention_in_tensor_memory_reads_and_writes_it_alone(name: str) -> None:
    """It takes fewer instructions than that by warps, and an exponential for each score, of which heads of 64 take a
    part by multiplications."""
    own, by_warps = (
        TABLE[of][on]["attention"] for of, on in ((name, "sm_100f"), (name.replace(" tensor memory", ""), "sm_100"))
    )
    assert own.loop is not None
    assert by_warps.loop is not None
    assert own.loop.products == 2 * by_warps.loop.products
    assert 2 * by_warps.loop.special == 64
    assert own.loop.special == (52 if " 64 " in name else 64)
    assert own.loop.instructions < (0.95 if " 64 " in name else 0.6) * 2 * by_warps.loop.instructions
    assert "LDSM 16" not in own.accesses


def test_a_product_of_what_is_in_tensor_memory_is_that_of_an_attention() -> None:
    """128 x 128 x 16 of queries and keys, 128 x 64 x 16 of shares and values."""
    attention = Source("attention.cu", "#define KEYS 128\n#define HEAD 128\n#define HEAD_V 64\n")
    both = "UTCHMMA gdesc[UR8], gdesc[UR4], tmem[UR6], UPT ;\n  /*0041*/  UTCHMMA tmem[UR8], gdesc[UR4], tmem[UR6], UPT"
    text = PRODUCT.replace("HMMA.16816.F32 R4, R8, R10, R4", both)
    assert counts(sass.functions(text)["gemm"], of_tile(attention)).whole.products == 16 + 8


LOOPS = """
.text.attention:
.L_x_0:
        /*0010*/                   HMMA.16816.F32 R4, R8, R10, R4 ;
.L_x_1:
        /*0020*/                   HMMA.16816.F32 R4, R8, R10, R4 ;
        /*0030*/                   HMMA.16816.F32 R4, R8, R10, R4 ;
        /*0040*/                   MUFU.EX2 R4, R4 ;
        /*0050*/               @P1 BRA `(.L_x_1) ;
        /*0060*/               @P2 BRA `(.L_x_0) ;
        /*0070*/                   EXIT ;
"""


def test_a_loop_with_most_of_the_products_is_the_main_one() -> None:
    """What another around it multiplies besides is done once."""
    assert counts(sass.functions(LOOPS)["attention"], NONE).loop == Way(4, 2, 0, 0, 0, special=1)
    half = LOOPS.replace("/*0030*/                   HMMA.16816.F32", "/*0030*/                   FFMA")
    assert counts(sass.functions(half)["attention"], NONE).loop == Way(6, 2, 0, 0, 0, special=1)


def test_a_product_in_tensor_memory_is_what_the_warps_of_two_warpgroups_would_need() -> None:
    """128 x 256 x 16 is 32 times m16n8k16 of each of eight."""
    wide = Source("gemm.cu", "#define TILE_M 128\n#define TILE_N 256\n")
    assert of_tile(wide) == Tensor(32, 1)
    text = PRODUCT.replace(
        "HMMA.16816.F32 R4, R8, R10, R4", "UTCHMMA gdesc[UR8], gdesc[UR4], tmem[UR6], tmem[UR26], UPT"
    )
    assert counts(sass.functions(text)["gemm"], of_tile(wide)).whole.products == 32


@pytest.mark.parametrize("name", [name for name in SOURCES if "tensor memory" in name and name not in ATTENTION])
def test_products_in_tensor_memory_are_begun_by_few_instructions(name: str) -> None:
    """Four of them in the main loop, which one thread has 512 cycles for, or half of that in the narrow tile."""
    (entries,) = TABLE[name].values()
    (loop,) = (found.loop for found in entries.values())
    assert loop is not None
    assert loop.products == 4 * of_tile(SOURCES[name]).shared
    assert loop.instructions <= 13 * 4
    assert sum(found.whole.copied for found in entries.values()) == 0, "all by the tensor memory accelerator"


def test_what_has_become_worse_is_told_with_both_figures() -> None:
    before = Counts(Way(100, 0, 32, 32, 0), Way(50, 0, 32, 32, 0), {"LDG 16": 2, "STG 16": 2}, 4, 0)
    assert worse(before, before) == []
    assert worse(before, replace(before, loop=replace(before.main, instructions=52))) == [
        "main loop: 50 instructions for 64 bytes, now 52 for 64"
    ]
    assert worse(before, replace(before, loop=Way(100, 0, 64, 64, 0), whole=Way(150, 0, 64, 64, 0))) == []
    assert worse(before, replace(before, accesses={"LDG 2": 16, "STG 16": 2})) == ["bytes of an access: 16.0, now 3.6"]
    assert worse(before, replace(before, conversions=5, barriers=1)) == ["conversions: 4, now 5", "barriers: 0, now 1"]
    product = replace(before, loop=Way(40, 10, 0, 0, 32))
    assert worse(product, replace(product, loop=Way(44, 11, 0, 0, 32))) == []
    assert worse(product, replace(product, loop=Way(44, 10, 0, 0, 64)))
