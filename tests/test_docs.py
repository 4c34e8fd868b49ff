"""The pages say what is so: links lead somewhere, and each command that they show works."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from onnxfuse.cli.main import COMMANDS, INTERRUPTED, UNREAD, main
from onnxfuse.errors import InternalError, NumericsError, OnnxfuseError

ROOT = Path(__file__).parents[1]
PAGES = [
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md")),
    *("README.md", "CONTRIBUTING.md", "rules/README.md", "benchmarks/README.md", "examples/README.md"),
]
EXPORTS = ("bert.ts.onnx", "llama.ts.onnx")
WITH_SETTINGS = "docs/ci.md"
WALKS = {"CONTRIBUTING.md"}
"""Pages whose commands are for rules and laws that the reader has just written."""


def blocks(page: str) -> list[str]:
    """What stands between fences."""
    return re.split(r"^```.*\n", (ROOT / page).read_text(), flags=re.MULTILINE)[1::2]


def commands() -> list[tuple[str, str]]:
    """The lines of all pages that begin with a prompt and run onnxfuse, without what is behind a pipe; what several
    pages say is run once, but for what the settings of one page change."""
    lines = (
        (page, line)
        for page in PAGES
        if page not in WALKS
        for block in blocks(page)
        for line in re.findall(r"^\$ (onnxfuse .*)$", block, re.MULTILINE)
    )
    shown = {(page == WITH_SETTINGS, re.split(r"\s[|#]", line)[0].strip()): page for page, line in lines}
    return [(page, line) for (_, line), page in shown.items()]


@pytest.fixture(scope="session")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What docs/ci.md says first, done once."""
    path = tmp_path_factory.mktemp("baseline") / "fusions.jsonl"
    models = [str(ROOT / "models" / name) for name in EXPORTS]
    assert main(["check", *models, "--baseline", str(path), "--update-baseline"]) == 0
    return path


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """A folder with what the pages speak of: models/, an export called bert.onnx, a few in exports/, and the README's
    rule in my_rules/; the baseline where a page has one made, and for docs/ci.md its settings."""
    page = request.node.callspec.params["page"]
    if page in ("README.md", WITH_SETTINGS, "docs/session.md"):
        shutil.copy(request.getfixturevalue("baseline"), tmp_path)
    if page == WITH_SETTINGS:
        (settings,) = [block for block in blocks(page) if block.startswith("[tool.onnxfuse]")]
        (tmp_path / "pyproject.toml").write_text(settings)
    (tmp_path / "models").symlink_to(ROOT / "models")
    (tmp_path / "exports").mkdir()
    shutil.copy(ROOT / "models" / "bert.ts.onnx", tmp_path / "bert.onnx")
    for name in EXPORTS:
        shutil.copy(ROOT / "models" / name, tmp_path / "exports" / name)
    (tmp_path / "my_rules").mkdir()
    (rule,) = [block for block in blocks("README.md") if block.startswith("# ")]
    (tmp_path / "my_rules" / "unit_scale.rule").write_text(rule)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("page", "command"), commands())
def test_commands_of_the_pages_work(
    page: str, command: str, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = shlex.split(command)[1:]
    expanded = [path for word in words for path in (sorted(workplace.glob(word)) if "*" in word else [word])]
    assert main([str(word) for word in expanded]) == 0, capsys.readouterr().err


def test_there_are_commands() -> None:
    assert {command.split()[1] for _, command in commands()} >= {"report", "optimize", "check", "diff", "bench", "run"}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)
    assert [target for target in targets if not ((ROOT / page).parent / target).exists()] == []


def anchors(page: str) -> set[str]:
    """What a link may name in a page, as GitHub makes it of headings."""
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_into_pages_lead_to_a_heading(page: str) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", (ROOT / page).read_text())
    there = {target: ((ROOT / page).parent / target if target else ROOT / page).resolve() for target, _ in links}
    assert [f"{target}#{to}" for target, to in links if to not in anchors(str(there[target]))] == []


def test_the_page_of_commands_has_all_of_them_and_their_exit_codes() -> None:
    page = (ROOT / "docs" / "commands.md").read_text()
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    errors = {error.exit_code for error in (OnnxfuseError, NumericsError, InternalError)}
    assert codes == {0, 1, *errors, INTERRUPTED, UNREAD}
    assert sorted(COMMANDS) == sorted(re.findall(r"^\| `([a-z]+)` \| [a-z`]", page, re.MULTILINE))
