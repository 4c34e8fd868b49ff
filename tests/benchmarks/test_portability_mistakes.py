"""Models that show the mistakes of other tools are such that it can be nobody else's: valid, and run by onnxruntime."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from benchmarks import portability_mistakes
from benchmarks.portability import INSTALLED, OPENERS
from benchmarks.portability_mistakes import MISTAKES, Mistake, verdict


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: f"{mistake.opener} {mistake.told}")
def test_a_model_that_shows_a_mistake_is_right_in_onnxruntime(mistake: Mistake, tmp_path: Path) -> None:
    assert mistake.opener in OPENERS
    for name, model in (("model", mistake.model), ("control", mistake.control)):
        onnx.checker.check_model(onnx.parser.parse_model(model), full_check="com.microsoft." not in model)
        found = verdict(INSTALLED, model, tmp_path / name)
        assert (found.verdict, found.reason) == ("right", "")


def test_graphsurgeon_is_kept_from_its_own(tmp_path: Path) -> None:
    """The worker does not call the sort that never ends; onnxslim does."""
    (mistake,) = (mistake for mistake in MISTAKES if mistake.opener == "onnxslim")
    assert verdict("graphsurgeon", mistake.model, tmp_path / "model").verdict == "right"


@pytest.mark.parametrize(
    ("verdicts", "code"), [(("refused", "right"), 0), (("right", "right"), 1), (("wrong",) * 2, 1)]
)
def test_an_opener_that_has_learned_is_named(
    verdicts: tuple[str, str], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mistake = MISTAKES[0]
    said = {mistake.model: verdicts[0], mistake.control: verdicts[1]}
    monkeypatch.setattr(portability_mistakes, "MISTAKES", (mistake,))
    monkeypatch.setattr(
        portability_mistakes, "verdict", lambda opener, model, folder: portability_mistakes.Verdict(said[model])
    )
    assert portability_mistakes.main([]) == code
    assert ("NO LONGER" in capsys.readouterr().out) == bool(code)
