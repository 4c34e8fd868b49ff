"""What is blamed for a wrong value, in which order, and who is acquitted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx.parser
import pytest

from onnxfuse.fusing.fuse import fuse
from onnxfuse.fusing.fused import Fused
from onnxfuse.language.catalogue import load
from onnxfuse.proof.blame import Blame, Suspects, suspects
from onnxfuse.proof.cut_proof import Compared
from onnxfuse.proof.cuts import find
from onnxfuse.reporting.records import Validation
from onnxfuse.rewriting.provenance import keys

MODEL = onnx.parser.parse_model(
    """<ir_version: 9, opset_import: ["": 17]>
    g (float[n, 4, 2] x, float[n, 4, 2] r) => (float[n, 4, 2] y) <float[2, 2] w = {1, 2, -3, 4}, float[2] b = {1, -1}> {
        p = MatMul (x, w) s = Add (p, b) a = Relu (s) y = Add (a, r)
    }"""
)
RULE = """# A linear layer that is a percent too large, or a further one.
Sloppy(A, B, bias)

match:  Y = FusedMatMul(A, B, bias, activation="Relu", alpha={})
emit:   Y = FusedMatMul(A, B, bias, activation="Relu", alpha={})
"""
VERDICT = Validation("mismatch", 0.5)


@pytest.fixture
def fused(tmp_path: Path) -> Fused:
    """One fused node: the work of a rule, of two on top of it that are wrong, and of one more."""
    for step in range(2):
        (tmp_path / f"sloppy{step}.rule").write_text(RULE.format(1 + step / 100, 1 + (step + 1) / 100))
    return fuse(MODEL, load([tmp_path]))


def test_the_last_rule_is_to_blame_first_and_in_the_end_all(fused: Fused) -> None:
    (site,) = fused.sites
    assert len(site.matches) > 2
    guilty, before = Suspects([(site, "wrong")], frozenset()), frozenset({("", "Other", "z")})
    assert Blame().lay(guilty, before, VERDICT, whole=False) == before | frozenset(keys(site, site.matches[-1:]))
    assert Blame().lay(guilty, before, VERDICT, whole=True) == before | frozenset(keys(site, site.matches))


def test_what_was_built_on_the_guilty_is_acquitted(fused: Fused) -> None:
    (site,) = fused.sites
    below = replace(site, matches=site.matches[:-1])
    blame = Blame()
    banned = blame.lay(Suspects([(site, "wrong")], frozenset()), frozenset(), VERDICT, whole=False)
    assert [left.reason for left in blame.left_out] == ["wrong"]
    banned = blame.lay(Suspects([(below, "wrong still")], frozenset()), banned, VERDICT, whole=False)
    assert banned == frozenset(keys(site, site.matches[-2:-1]))
    assert [(left.reason, left.error) for left in blame.left_out] == [("wrong still", 0.5)]


def test_the_fusion_inside_a_wrong_cut_is_to_blame_unless_its_own_value_is_right(fused: Fused) -> None:
    (cut,) = find(MODEL, fused.model)
    (site,) = fused.sites
    assert suspects(fused, fused.model, Compared(wrong={cut: "off"})).sites == [(site, "value 'y' off")]
    other = replace(cut, output="unnamed")  # no fusion is named after it
    assert suspects(fused, fused.model, Compared(wrong={other: "off"})).sites == [(site, "value 'unnamed' off")]
    inner = replace(site, value="s", node=onnx.NodeProto(output=["s"]))
    both = replace(fused, sites=[site, inner])
    tested = onnx.ModelProto()
    tested.graph.node.extend([inner.node, site.node])
    wider = replace(other, fused=(0, 1))
    assert suspects(both, tested, Compared(wrong={wider: "off"}, right={"s"})).sites == [(site, "value 'unnamed' off")]
    assert not suspects(fused, fused.model, Compared())


def test_what_was_simplified_is_told_apart_from_fusions(fused: Fused) -> None:
    (cut,) = find(MODEL, fused.model)
    key = ("", "simplify", cut.output)
    found = suspects(replace(fused, sites=[], simplified=frozenset({key})), fused.model, Compared(wrong={cut: "off"}))
    assert found == Suspects([], frozenset({key}))
    assert Blame().lay(found, frozenset(), VERDICT, whole=False) == {key}
