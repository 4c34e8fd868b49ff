"""What is asked for, and what it comes to."""

from __future__ import annotations

import pytest

from onnxfuse.fusing.build import LEVEL, Build
from onnxfuse.language.catalogue import MEASURED, REGIONS, RULES
from onnxfuse.targets.target import Target


def test_the_default_makes_regions() -> None:
    assert LEVEL == REGIONS
    assert Build().reached == Build().catalogue.level == REGIONS
    assert Build(level=MEASURED).reached == MEASURED


@pytest.mark.parametrize("level", [RULES, REGIONS, MEASURED])
def test_rules_are_all_where_functions_are_none_or_rules_are_selected(level: int) -> None:
    for build in (
        Build(Target("onnx"), level=level),
        Build(Target("ort"), level=level),
        Build(Target("ort", "cuda"), level=level),
        Build(select=("Gelu",), level=level),
    ):
        assert build.reached == build.catalogue.level == RULES


def test_what_is_less_than_rules_stays_less() -> None:
    assert Build(Target("ort"), level=0).reached == Build(select=("Gelu",), level=0).reached == 0
