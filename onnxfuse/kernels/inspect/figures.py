"""What products and attention execute, beside what is aimed at: the section of docs/kernels.md that says so.

    python -m onnxfuse.kernels.inspect.figures    print it, and write it there

All figures are from the committed tables of this folder and from the tiles themselves.  Nothing is timed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from . import instructions, nvrtc
from .instructions import Counts
from .launches import there
from .nvrtc import ARCHITECTURES

PAGE = Path(__file__).parents[3] / "docs" / "kernels.md"
BEGIN, END = "<!-- made by python -m onnxfuse.kernels.inspect.figures -->", "<!-- end of products and attention -->"
HALF_BYTES = 2
KIB = 1024
UNIT = 64
"""Products of matrices (HMMA) of a warp for which the main loop of a product is counted."""

OF_TILE = 32
"""As how many one of 128 x 256 x 16 counts whose sums are in tensor memory."""

LOOP = 272 - 93
"""What that of 2026-11-20 took, without those that computed addresses."""

BY_WARPGROUPS = 128
"""A quarter of the cycles that the tensor cores take for as many of two warps, of which a scheduler has two."""

Figure = Callable[[str], float]
"""Of an architecture."""


@dataclass(frozen=True, slots=True)
class Row:
    """One figure; `least` says that more of it is better, `where` on which architectures there is one."""

    what: str
    goal: float
    figure: Figure
    least: bool = False
    where: tuple[str, ...] = ARCHITECTURES

    def reached(self, architecture: str) -> bool:
        if architecture not in self.where:
            return True
        value = self.figure(architecture)
        return value >= self.goal if self.least else value <= self.goal


@dataclass(frozen=True, slots=True)
class Tables:
    """What was counted."""

    counts: Mapping[str, Mapping[str, Mapping[str, Counts]]]
    spills: Mapping[str, int]
    """Bytes, by architecture, of all that is compiled here."""

    def of(self, source: str) -> Callable[[str], Counts]:
        """The one entry of a source."""
        found = {source: self.counts[source]}
        return lambda architecture: next(iter(there(found, architecture)[source].values()))

    def per_product(self, source: str, unit: int = 1) -> Figure:
        """Instructions of the main loop for each product of matrices."""
        return lambda architecture: unit * (self.of(source)(architecture).per_product or 0.0)

    def masked(self, source: str) -> Figure:
        """The same of a tile of which a mask shows each score a part of its own."""
        return lambda architecture: self.of(source)(architecture).masked_per_product or 0.0

    def per_element(self, source: str) -> Figure:
        """Instructions for each element written."""
        return lambda architecture: self.of(source)(architecture).per_element(HALF_BYTES) or 0.0

    def beyond(self, source: str, bare: str) -> Figure:
        """The same beyond those of a product of which nothing is made."""
        whole, less = self.per_element(source), self.per_element(bare)
        return lambda architecture: whole(architecture) - less(architecture)


def tables() -> Tables:
    """The committed ones."""
    spills = {
        architecture: sum(
            one.spill_stores + one.spill_loads
            for name, found in there(nvrtc.committed(), architecture).items()
            if name.startswith(("Attention", "FusedMatMul", "Region product", "Siblings", "Gated"))
            for one in found.values()
        )
        for architecture in ARCHITECTURES
    }
    return Tables(instructions.committed(), spills)


PRODUCT = "FusedMatMul float16"
EPILOGUES = {
    "Relu, bias": "large Relu",
    "Swish, bias": "large Swish",
    "Tanh, bias": "large Tanh",
    "FastGelu, bias": "large FastGelu",
    "Gelu, bias": "large Gelu",
    "Gelu, bias and residual": "large",
}


BY_WARPGROUPS_EPILOGUES = {
    "Gelu, bias and residual": f"{PRODUCT} warpgroups",
    "bias, Gelu, times a tensor, heads apart": "Region product float16 warpgroups",
}


IN_TENSOR_MEMORY = {
    what: source.replace("warpgroups", "tensor memory") for what, source in BY_WARPGROUPS_EPILOGUES.items()
}


LARGE = {
    "Siblings": "several products of one operand",
    "Gated": "a gate's two products",
    "Region product normalised": "a product and the norm of its rows",
}
"""What else warpgroups multiply."""


def rows(found: Tables) -> Iterator[Row]:
    """All figures, attention first."""
    for head, goal in ((64, 6.0), (80, 6.0), (128, 4.0)):
        yield Row(f"attention, heads of {head}", goal, found.per_product(f"Attention float16 {head}"))
    yield Row("attention, heads of 64, one query", 6.0, found.per_product("Attention float16 64 one query"))
    for head, mask, goal in ((64, "boolean", 6.0), (64, "added", 6.0), (128, "boolean", 4.0), (128, "added", 4.0)):
        name = f"Attention float16 {head} {mask} mask"
        what = f"attention, heads of {head}, {mask} mask"
        yield Row(f"{what} that shows a tile whole", goal, found.per_product(name))
        yield Row(f"{what} that shows a tile in part", goal, found.masked(name))
    yield from _attention_by_forms(found)
    for what, kind, goals in (("queries", "", (6.0, 7.0)), ("keys and values", " of keys and values", (6.5, 6.5))):
        for head, goal in zip((64, 128), goals, strict=True):
            figure = found.per_product(f"AttentionGrad float16 {head}{kind}")
            yield Row(f"attention's gradient of {what}, heads of {head}", goal, figure)
    for tile in ("large", "large transposed"):
        yield Row(f"main loop of 128 x 128 tiles, {tile}", LOOP, found.per_product(f"{PRODUCT} {tile}", UNIT))
    for tile in ("warpgroups", "warpgroups transposed"):
        figure = found.per_product(f"{PRODUCT} {tile}", UNIT)
        yield Row(f"main loop of 128 x 256 tiles, {tile}", BY_WARPGROUPS, figure, where=("sm_90",))
    for source, what in LARGE.items():
        for kind, by in (("", ""), (" maps", " by tensor maps")):
            figure = found.per_product(f"{source} float16 warpgroups{kind}", UNIT)
            yield Row(f"main loop of 128 x 256 tiles, {what}{by}", BY_WARPGROUPS, figure, where=("sm_90",))
    for kind, tile in ((" maps", "128 x 256"), (" maps transposed", "128 x 256"), (" narrow", "128 x 128")):
        figure = found.per_product(f"{PRODUCT} warpgroups{kind}", UNIT)
        what = f"warpgroups{kind}".replace(" maps", " and tensor maps").replace(" narrow", "")
        yield Row(f"main loop of {tile} tiles, {what}", BY_WARPGROUPS, figure, where=("sm_90",))
    narrow = found.per_product(f"{PRODUCT} warpgroups maps narrow", UNIT)
    yield Row("main loop of 128 x 128 tiles, warpgroups and tensor maps", BY_WARPGROUPS, narrow, where=("sm_90",))
    yield from _in_tensor_memory(found)
    for what, source in EPILOGUES.items():
        yield Row(f"epilogue: {what}", 20, found.beyond(f"{PRODUCT} {source}", f"{PRODUCT} large bare"))
    beyond = found.beyond("Region product float16 large", f"{PRODUCT} large bare")
    yield Row("epilogue of a region: bias, Gelu, times a tensor, heads apart", 20, beyond)
    for what, source in BY_WARPGROUPS_EPILOGUES.items():
        figure = found.beyond(source, f"{PRODUCT} warpgroups bare")
        yield Row(f"epilogue, warpgroups: {what}", 20, figure, where=("sm_90",))
    for what, source in IN_TENSOR_MEMORY.items():
        figure = found.beyond(source, f"{PRODUCT} tensor memory bare")
        yield Row(f"epilogue, tensor memory: {what}", 20, figure, where=("sm_100",))
    after = found.per_element("Region product float16 after the vendor's")
    yield Row("the same as a pass over the vendor's product", 40, after)
    rows_of = found.of("Region product normalised float16 large")
    access = "a product and the norm of its rows: bytes of an access"
    yield Row(access, 15, lambda architecture: rows_of(architecture).bytes_per_access, least=True)
    medium = import_module("onnxfuse.kernels.gemm.tiles").HALF[1]  # a room above this one
    flight = (medium.stages - 1) * (medium.m + medium.n) * medium.k * HALF_BYTES / KIB
    yield Row("17 to 64 rows: KiB on their way to a block", 32, lambda _: flight, least=True)
    yield Row("bytes spilled, all products and attentions", 0, lambda architecture: found.spills[architecture])


def _attention_by_forms(found: Tables) -> Iterator[Row]:
    """In the form that a card has for itself, of which tiles may have no mask or one that shows them whole."""
    for form, how, on in (
        ("warpgroups", "by warpgroups", "sm_90"),
        ("tensor memory", "with scores in tensor memory", "sm_100"),
    ):
        for head, goal in ((64, 6.0), (128, 4.0)):
            for kind in ("", " boolean mask", " added mask"):
                figure = found.per_product(f"Attention float16 {head} {form}{kind}")
                what = f"attention {how}, heads of {head}{kind.replace(' ', ', ', 1)}"
                yield Row(what + (" that shows a tile whole" if kind else ""), goal, figure, where=(on,))


def _in_tensor_memory(found: Tables) -> Iterator[Row]:
    """Main loops of products whose sums are there, of the warp that begins them."""
    for kind, tile in (("", "128 x 256"), (" transposed", "128 x 256"), (" narrow", "128 x 128")):
        figure = found.per_product(f"{PRODUCT} tensor memory{kind}", UNIT)
        what = f"tensor memory{kind}".replace(" narrow", "")
        yield Row(f"main loop of {tile} tiles, {what}", BY_WARPGROUPS, figure, where=("sm_100",))
    for source, what in LARGE.items():
        figure = found.per_product(f"{source} float16 tensor memory", UNIT)
        yield Row(f"main loop of 128 x 256 tiles, {what}, tensor memory", BY_WARPGROUPS, figure, where=("sm_100",))
    each = found.per_product(f"{PRODUCT} tensor memory", OF_TILE)
    yield Row("main loop, tensor memory: for each tcgen05.mma of 128 x 256 x 16", 16, each, where=("sm_100",))


UNITS = """Attention: instructions of the main loop for each product of matrices (HMMA, m16n8k16) of a warp.  Main
loops of products: instructions for 64 of them; a product by a warpgroup (HGMMA, m64n256k16, on sm_90a) counts as the
32 that each of its warps would need, one with its sums in tensor memory (UTCHMMA, 128 x 256 x 16, on sm_100f) as the 32
that each warp of two warpgroups would.  Epilogues: instructions for each element beyond those of a product of which
nothing is made, which takes {bare:.1f} on sm_90 for what comes before and behind its main loop."""


def section(found: Tables) -> str:
    """Markdown."""
    lines = [
        BEGIN,
        "## Products and attention in half precision",
        "",
        UNITS.format(bare=found.per_element(f"{PRODUCT} large bare")("sm_90")),
        "",
        f"| | goal | {' | '.join(ARCHITECTURES)} | |",
        f"|---|---|{'---|' * len(ARCHITECTURES)}---|",
    ]
    for row in rows(found):
        figures = " | ".join(f"{row.figure(a):.4g}" if a in row.where else "" for a in ARCHITECTURES)
        missed = [architecture for architecture in ARCHITECTURES if not row.reached(architecture)]
        sign = ">=" if row.least else "<="
        where = "missed" if len(missed) == len(row.where) else f"missed on {', '.join(missed)}"
        lines.append(f"| {row.what} | {sign} {row.goal:g} | {figures} | {where if missed else 'reached'} |")
    return "\n".join([*lines, "", END])


def written(page: str, text: str) -> str:
    """A page with this section in place of what it had, or behind it."""
    if BEGIN not in page:
        return f"{page.rstrip()}\n\n{text}\n"
    before, _, rest = page.partition(BEGIN)
    return before + text + rest.partition(END)[2]


def main() -> int:
    """Print the section, and write it to the page."""
    text = section(tables())
    print(text)
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
