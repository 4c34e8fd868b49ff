"""The model-local functions that the fused nodes of one model call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import partial

from onnx import ModelProto

from .bodies import Use, function
from .graph import DOMAIN
from .language import Catalogue


@dataclass
class Functions:
    """One for each use; `taken` are those that the model has already."""

    catalogue: Catalogue
    taken: set[tuple[str, str]] = field(default_factory=set)
    overloads: dict[tuple[int, Use], str] = field(default_factory=dict)

    def overload(self, use: Use, opset: int) -> str:
        known = self.overloads.get((opset, use))
        if known is None:
            known, count = "", 1
            while (use.op, known) in self.taken:
                count += 1
                known = str(count)
            self.taken.add((use.op, known))
            self.overloads[opset, use] = known
        return known

    def _callable(self, wanted: Iterable[tuple[int, Use]]) -> set[tuple[int, Use]]:
        """The uses that bodies may call: of each op the one that most of these functions ask for.

        onnxruntime (1.31) heeds no overload inside a body, so that an op can be called there for one use only."""
        asked: Counter[tuple[int, Use]] = Counter()

        def ask(opset: int, use: Use) -> bool:
            asked[opset, use] += 1
            return False

        for opset, use in wanted:
            function(use, "", self.catalogue, opset, partial(ask, opset))
        found = set()
        for key, _ in asked.most_common():
            name = (key[1].op, "")
            if name not in self.taken:
                self.taken.add(name)
                self.overloads[key] = ""
            if self.overloads.get(key) == "":
                found.add(key)
        return found

    def attach(self, model: ModelProto, used: Collection[tuple[str, str]]) -> None:
        """Add the functions that are `used`, as (op, overload), the import of their domain, and the IR version that
        allows them (functions 8, overloads 10)."""
        wanted = {key: overload for key, overload in self.overloads.items() if (key[1].op, overload) in used}
        if not wanted:
            return
        allowed = self._callable(wanted)
        made = [
            function(use, overload, self.catalogue, opset, partial(lambda opset, use: (opset, use) in allowed, opset))
            for (opset, use), overload in wanted.items()
        ]
        called = {node.op_type for body in made for node in body.node if node.domain == DOMAIN}
        # The reference evaluator of onnx wants a function before its callers.
        for opset, use in sorted(allowed - wanted.keys(), key=lambda key: key[1].op):
            if use.op in called:
                model.functions.append(function(use, "", self.catalogue, opset))
        model.functions.extend(sorted(made, key=lambda body: any(node.domain == DOMAIN for node in body.node)))
        imported = {entry.domain for entry in model.opset_import}
        for domain in sorted({use.domain for _, use in wanted} - imported):
            model.opset_import.add(domain=domain, version=1)
        least = 10 if any(wanted.values()) else 8
        model.ir_version = max(model.ir_version, least)
