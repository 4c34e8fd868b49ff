"""Names that users type, looked up: rules and nodes, with the nearest one where there is none."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from onnxfuse.errors import UsageError
from onnxfuse.model.graph import REGION
from onnxfuse.model.op_traits import ARITHMETIC
from onnxfuse.model.tensors import bodies

from . import catalogue as language

if TYPE_CHECKING:
    import onnx

    from .catalogue import Catalogue
    from .rule import Rule


def catalogue(folders: Sequence[Path]) -> Catalogue:
    """The rules that come with onnxfuse and those in `folders`; RuleError if one has a mistake."""
    return language.load(folders)


def rules_named(name: str, folders: Sequence[Path]) -> list[Rule]:
    """The rules of this name, one or more; UsageError if there is none."""
    check_rules([name], folders)
    return [rule for rule in catalogue(folders) if rule.name == name]


def check_rules(names: Sequence[str], folders: Sequence[Path], *, or_ops: bool = False, regions: bool = False) -> None:
    """UsageError if one of `names` is no rule; with `or_ops`, the op that a rule makes will do as well, with `regions`
    Region, which is none."""
    if not names:
        return
    rules = list(catalogue(folders))
    known = {rule.name for rule in rules}
    if or_ops:
        known |= {op for rule in rules for op in (rule.op, rule.op.rpartition(".")[2])}
    if regions:
        known.add(REGION)
    for name in names:
        if name not in known:
            raise _unknown(name, known, "rule", "see onnxfuse rules list")


def rules_with(op_type: str, folders: Sequence[Path]) -> list[str] | None:
    """Names of the rules that call `op_type`; None for an op that rules write as an operator, so that many may."""
    if op_type in ARITHMETIC:
        return None
    return [rule.name for rule in catalogue(folders) if re.search(rf"\b{re.escape(op_type)}\(", rule.text)]


def node_named(name: str, model: onnx.ModelProto) -> onnx.NodeProto:
    """The node of this name, or that makes the value of this name, in any body of `model`; UsageError if none does."""
    names = set()
    for body in bodies(model):
        for node in body.node:
            if name == node.name or name in node.output:
                found: onnx.NodeProto = node
                return found
            names.add(node.name or node.output[0])
    raise _unknown(name, names, "node in this model", "onnxfuse report -v names nodes")


def _unknown(name: str, known: Iterable[str], kind: str, otherwise: str) -> UsageError:
    import difflib  # a mistake is rare

    nearest = difflib.get_close_matches(name, known, n=1)
    return UsageError(f"{name}: no such {kind}: " + (f"did you mean {nearest[0]}?" if nearest else otherwise))
