"""Reports with nodes, made by hand: of a few nodes, and of as many as one wants."""

from __future__ import annotations

from typing import Any

from onnxfuse.reporting.records import Fusion, NearMiss, Node, Nodes, Remaining, Report, Runs, Totals, Validation

LAUNCH = 2.5e-6
OPS = ("MatMul", "Add", "Mul", "Softmax", "Transpose", "ReduceMean", "Sub", "Sqrt", "Div", "Pow")


def node(name: str, op: str, scope: str = "", **changes: Any) -> Node:
    """A node that is launched, and moves 4 kB."""
    values: dict[str, Any] = {
        "launches": 1,
        "memory_seconds": 1e-9,
        "compute_seconds": 0.5e-9,
        "bound": "launches",
        "bytes": 4096,
        "flops": 1000,
        "reads": (),
    }
    values |= changes
    spent = max(values["memory_seconds"], values["compute_seconds"]) + values["launches"] * LAUNCH
    return Node(name=f"{scope}/{name}", op=op, scope=scope, seconds=spent, **values)


def report(before: list[Node], after: list[Node], **changes: Any) -> Report:
    """The report of these nodes, whose numbers are theirs."""

    def whole(nodes: list[Node]) -> Totals:
        return Totals(sum(n.launches for n in nodes), sum(n.bytes or 0 for n in nodes), 0)

    values: dict[str, Any] = {
        "model": "made.onnx",
        "nodes_before": len(before),
        "nodes_after": len(after),
        "before": whole(before),
        "after": whole(after),
        "nodes": Nodes("h200", tuple(before), tuple(after)),
        "runs": Runs("1.20", "", True),
    }
    return Report(**values | changes)


def layered(layers: int, steps: int) -> Report:
    """Layers that are alike, with `steps` nodes of the original each, every ten of which become a fused node and a
    product."""
    before: list[Node] = []
    after: list[Node] = []
    fusions: list[Fusion] = []
    for layer in range(layers):
        for step in range(steps):
            scope = f"/model/layers.{layer}/block_{'abcdefghij'[step // 10 % 10]}/attention"
            op = OPS[step % 10]
            if step % 10 == 0:
                reads = (len(after) - 1,) if after else ()
                reason = "a product by itself"
                after.append(
                    node(f"{op}_{step}", op, scope, flops=10**8, compute_seconds=4e-6, reads=reads, reason=reason)
                )
            elif step % 10 == 1:
                name = f"{scope}/LayerNormalization_{step}"
                replaced = tuple(f"{scope}/{OPS[at % 10]}_{at}" for at in range(step, step + 9))
                rule = "LayerNormalization"
                fusions.append(
                    Fusion(
                        rule,
                        f"onnxfuse.{rule}",
                        scope,
                        name,
                        replaced,
                        (),
                        8,
                        32768,
                        sources=("layer_normalization.rule",),
                    )
                )
                reads = (len(after) - 1,)
                after.append(node(f"{rule}_{step}", f"onnxfuse.{rule}", scope, fusion=len(fusions) - 1, reads=reads))
            reads = (len(before) - 1,) if before else ()
            before.append(node(f"{op}_{step}", op, scope, becomes=len(after) - 1, reads=reads))
    products = [n for n in after if n.fusion is None]
    share = sum(n.seconds for n in products) / sum(n.seconds for n in after)
    misses = [
        NearMiss("Gelu", "gelu.rule:7", "", n.name, "wants a constant 0.5, saw 0.4", 3) for n in before if n.op == "Pow"
    ][:40]
    return report(
        before,
        after,
        fusions=fusions,
        near_misses=misses,
        remaining=[Remaining("MatMul", len(products), share, "a product by itself")],
        validation=Validation("equal", 1e-7, 1e-4, 1e-5, 2),
    )


HOSTILE = (
    "</script><script>document.title='broken'</script>",
    "<img src=x onerror=\"document.title='broken'\">",
    "quote\" ' ` ${document.title='broken'} $data \\u003c",
    "line\nbreak\ttab\x00nul\x1b[31m",
    "<!-- comment -->&amp;&lt;]]>",
    "\u202eesrever\u2028separator",
    "constructor",
    "__proto__",
)
"""Names that somebody gives to nodes who wants to break the page, or does not know better."""


def hostile() -> Report:
    """A report that has them everywhere."""
    before = [
        node(name, name, f"/{name}", becomes=index, reads=(index - 1,) if index else ())
        for index, name in enumerate(HOSTILE)
    ]
    after = [
        node(name, name, f"/{name}", reason=name, reads=(index - 1,) if index else (), fusion=index)
        for index, name in enumerate(HOSTILE)
    ]
    fusions = [
        Fusion(
            name, name, f"/{name}", f"/{name}/{name}", (f"/{name}/{name}",), (name,), 1, 1, code=name, sources=(name,)
        )
        for name in HOSTILE
    ]
    return report(
        before,
        after,
        model=f"{HOSTILE[0]}/{HOSTILE[1]}\udcff.onnx",
        fusions=fusions,
        near_misses=[NearMiss(name, f"{name}:1", name, f"/{name}/{name}", name, 1, name) for name in HOSTILE],
        remaining=[Remaining(name, 1, 0.1, name) for name in HOSTILE],
        kernels=dict.fromkeys(HOSTILE, "gemm"),
        bodies=dict.fromkeys(HOSTILE, "why"),
        validation=Validation("equal", note=HOSTILE[0]),
    )
