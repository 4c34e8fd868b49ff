"""Patterns of a rule: one for each optional parameter and spelling, none of them twice, the fullest first."""

from __future__ import annotations

from pathlib import Path

from onnxfuse.language.parse import finished, read
from onnxfuse.language.rule import LeftOut, Rule
from onnxfuse.language.variants import Variant, variants


def rule(tmp_path: Path, head: str, match: str, emit: str) -> Rule:
    text = f"# A rule.\n{head}\n\nmatch:\n    {match}\n\nemit:   {emit}\n"
    (tmp_path / "a.rule").write_text(text)
    (made,) = read(tmp_path / "a.rule", tmp_path)
    assert isinstance(made, Rule)
    return finished(made, {}, {})


def described(found: list[Variant]) -> list[tuple[int, dict[str, object]]]:
    return [(variant.size, variant.defaults) for variant in found]


def test_an_optional_parameter_is_a_step_that_may_be_left_out(tmp_path: Path) -> None:
    made = rule(
        tmp_path,
        "Shifted(x, *, scale=1, shift=0)",
        "y = Cos(x) * scale + shift",
        "y = Shifted(x, scale=scale, shift=shift)",
    )
    assert described(variants(made)) == [
        (3, {}),
        (2, {"shift": 0}),
        (2, {"scale": 1}),
        (1, {"scale": 1, "shift": 0}),
    ]
    assert not any(isinstance(value, LeftOut) for v in variants(made) for value in v.defaults.values())


def test_a_tensor_that_is_left_out_is_told_from_a_number(tmp_path: Path) -> None:
    made = rule(tmp_path, "Shifted(x, b=0)", "y = Cos(x) + b", "y = Shifted(x, b)")
    assert [{name: type(value) for name, value in v.defaults.items()} for v in variants(made)] == [{}, {"b": LeftOut}]


def test_a_dropped_constant_that_leaves_the_pattern_as_it_is_gives_none(tmp_path: Path) -> None:
    made = rule(tmp_path, "Powered(x, *, n=2)", "y = Clip(x, 0, n)", "y = Powered(x, n=n)")
    assert len(variants(made)) == 1


def test_each_spelling_is_a_pattern_once(tmp_path: Path) -> None:
    made = rule(tmp_path, "Wave(x)", "y = Cos(Sin(x) | Tanh(x) | Sin(x))", "y = Wave(x)")
    assert [variant.spelling for variant in variants(made)] == [(0,), (1,)]
    nested = rule(tmp_path, "Wave(x)", "y = Cos(Sin(x) | Exp(Tanh(x) | Abs(x)))", "y = Wave(x)")
    assert [variant.spelling for variant in variants(nested)] == [(0,), (1, 0), (1, 1)]


def test_a_parameter_of_several_ops_is_each_of_them(tmp_path: Path) -> None:
    made = rule(
        tmp_path, "Active(x, *, f: Relu | LeakyRelu(alpha=slope))", "y = f(Cos(x))", "y = Active(x, f=f, p=f_params)"
    )
    found = variants(made)
    assert [variant.operators for variant in found] == [{"f": "Relu"}, {"f": "LeakyRelu"}]
    assert [variant.values for variant in found] == [{"f_params": ()}, {"f_params": ("slope",)}]
