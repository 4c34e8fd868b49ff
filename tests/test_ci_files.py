"""What CI systems are given is run as they run it: the hooks of pre-commit, and the steps of the GitHub action."""

from __future__ import annotations

import fcntl
import json
import os
import py_compile
import re
import shlex
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest
import yaml

from onnxfuse.cli.main import main

ROOT = Path(__file__).parents[1]
GELU = ROOT / "models" / "quick_gelu.onnx"
SHELL = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c"]
"""As GitHub's runner calls bash."""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The example's project with one export and its baseline, which has another model besides."""
    shutil.copy(ROOT / "examples" / "ci" / "pyproject.toml", tmp_path)
    (tmp_path / "exports").mkdir()
    shutil.copy(GELU, tmp_path / "exports")
    (tmp_path / "fusions.jsonl").write_text(
        '{"onnxfuse-baseline": 2, "onnxfuse": "0.1.0", "level": 2, "target": "onnxfuse"}\n'
        '{"model": "old.onnx"}\n'
        '{"model": "quick_gelu.onnx", "scope": "/quick_gelu", "rule": "FusedMatMul", "count": 1}\n'
    )
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "onnxfuse").write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" > {shlex.quote(str(tmp_path / "asked"))}\n'
    )
    (tmp_path / "bin" / "onnxfuse").chmod(0o755)
    return tmp_path


def test_the_hooks_say_what_pre_commit_needs() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert {hook["id"] for hook in hooks} == {"onnxfuse-check", "onnxfuse-check-all"}
    for hook in hooks:
        assert hook["language"] == "python"
        assert hook.keys() >= {"name", "entry", "description"}
    (used,) = yaml.safe_load((ROOT / "examples" / "ci" / "pre-commit-config.yaml").read_text())["repos"]
    assert {hook["id"] for hook in used["hooks"]} <= {hook["id"] for hook in hooks}


@pytest.mark.parametrize(
    ("hook", "code", "said"),
    [("onnxfuse-check", 0, ""), ("onnxfuse-check-all", 1, "old.onnx: not given: is in fusions.jsonl")],
)
def test_hooks(
    hook: str, code: int, said: str, project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (entry,) = [h for h in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text()) if h["id"] == hook]
    files = ["exports/quick_gelu.onnx"] if entry.get("pass_filenames", True) else []
    assert not files or re.search(entry["files"], files[0])
    monkeypatch.chdir(project)
    command, *words = shlex.split(entry["entry"])
    assert command == "onnxfuse"
    assert main([*words, *files]) == code
    assert capsys.readouterr().out.startswith(said)


def filled(text: str, known: Mapping[str, str]) -> str:
    """`text` with GitHub's expressions replaced, all of which are known."""
    return re.sub(r"\$\{\{ *(.*?) *\}\}", lambda found: known[found[1]], text)


def act(project: Path, monkeypatch: pytest.MonkeyPatch, **given: str) -> int:
    """The exit code of what the steps of the action call with these inputs, called here, where the last step runs."""
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    inputs = {name: each["default"] for name, each in action["inputs"].items()}
    assert given.keys() <= {name.replace("-", "_") for name in inputs}
    known = {f"inputs.{name}": given.get(name.replace("-", "_"), value) for name, value in inputs.items()}
    known["github.action_path"] = str(ROOT)
    for step in action["runs"]["steps"]:
        assert "${{" not in step["run"], "inputs come by environment alone: they are not code"
        assert step["shell"] == "bash"
        variables = {name: filled(value, known) for name, value in step["env"].items()}
        path = f"{project / 'bin'}{os.pathsep}{os.environ['PATH']}"
        folder = project / filled(step.get("working-directory", "."), known)
        subprocess.run([*SHELL, step["run"]], cwd=folder, env=os.environ | {"PATH": path} | variables, check=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("GITHUB_WORKSPACE", str(project))
    return main((project / "asked").read_text().splitlines())


def test_the_action_annotates_what_is_lost(
    project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert act(project, monkeypatch) == 1
    assert capfd.readouterr().out == (
        "::error file=fusions.jsonl,line=2,title=onnxfuse%3A not given::old.onnx: is in fusions.jsonl, and was not "
        "checked: check all models of the baseline, or say --partial if that is meant; --update-baseline --prune drops "
        "what is gone\n"
    )


def test_the_action_with_all_its_inputs(
    project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    code = act(
        project,
        monkeypatch,
        models="../exports/quick_gelu.onnx\n../exports/q*.onnx",
        expect="QuickGelu>=1\nGelu>=99 ",
        baseline="../fusions.jsonl",
        arguments="--partial\n--quiet",
        format="text\nsarif\njunit=found.xml",
        output="found $(touch pwned).sarif",
        working_directory="exports",
    )
    assert code == 1
    assert "expected Gelu >= 99, found 0" in capfd.readouterr().out
    (result,) = json.loads((project / "exports" / "found $(touch pwned).sarif").read_text())["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "exports/quick_gelu.onnx"
    assert (project / "exports" / "found.xml").exists()
    assert not list(project.rglob("pwned"))


def test_the_example_workflow_gives_the_action_what_it_takes() -> None:
    inputs = yaml.safe_load((ROOT / "action.yml").read_text())["inputs"]
    steps = yaml.safe_load((ROOT / "examples" / "ci" / "github.yml").read_text())["jobs"]["check"]["steps"]
    used = [step["with"] for step in steps if step.get("uses") == "./onnxfuse"]
    assert len(used) == 1
    assert used[0].keys() <= inputs.keys()


def checkout(folder: Path, needs: str) -> Path:
    """A project of the same name, with the script that keeps packages."""
    (folder / ".ci").mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "packages", folder / ".ci")
    (folder / "pyproject.toml").write_text(needs)
    return folder


def packages(command: str, where: Path) -> None:
    """Keep the packages of a checkout, or restore them, in a cache beside it, with a pip that has no settings."""
    python = where.parent / "python"
    python.write_text(f'#!/bin/sh\n[ "$2" = pip ] || exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    environment = os.environ | {"PYTHON": str(python), "XDG_CACHE_HOME": str(where.parent / "cache")}
    subprocess.run([where / ".ci" / "packages", command], env=environment, check=True)


def installed(where: Path) -> Path:
    """A checkout's packages."""
    (found,) = (where / ".venv" / "lib").glob("python*/site-packages")
    return found


def test_packages_that_were_half_restored_are_restored_anew(tmp_path: Path) -> None:
    old, new = (checkout(tmp_path / name, "a") for name in ("old", "new"))
    venv.create(old / ".venv", with_pip=False)
    for name in ("numbers.py", "letters.py"):
        (installed(old) / name).write_text("one = 1")
    (old / ".venv" / "bin" / "tool").write_text(f"#!{old}/.venv/bin/python\nprint(1)\n")
    packages("keep", old)
    packages("restore", new)
    assert not (new / ".venv" / "restoring").exists()
    (installed(new) / "letters.py").unlink()
    (new / ".venv" / "restoring").touch()  # as a process leaves it that is killed
    packages("restore", new)
    assert sorted(path.name for path in installed(new).iterdir()) == ["letters.py", "numbers.py"]


def test_whoever_restores_packages_waits_for_those_who_keep_them(tmp_path: Path) -> None:
    old, new = (checkout(tmp_path / name, "a") for name in ("old", "new"))
    venv.create(old / ".venv", with_pip=False)
    (old / ".venv" / "bin" / "tool").write_text(f"#!{old}/.venv/bin/python\nprint(1)\n")
    packages("keep", old)
    lock = tmp_path / "cache" / "onnxfuse" / "packages" / ".lock"
    with lock.open() as held, ThreadPoolExecutor() as pool:
        fcntl.flock(held, fcntl.LOCK_EX)
        waiting = pool.submit(packages, "restore", new)
        assert not wait([waiting], timeout=0.5).done
        assert not (new / ".venv").exists()
        fcntl.flock(held, fcntl.LOCK_UN)
        waiting.result()
    assert (new / ".venv" / "bin" / "tool").exists()


def test_a_new_checkout_gets_the_packages_of_the_last_one_but_not_the_project(tmp_path: Path) -> None:
    old, new, other = (checkout(tmp_path / name, needs) for name, needs in (("old", "a"), ("new", "a"), ("other", "b")))
    packages("restore", old)
    assert not (old / ".venv").exists(), "nothing is kept yet"
    venv.create(old / ".venv", with_pip=False)
    (installed(old) / "numbers.py").write_text("one = 1")
    (installed(old) / "_editable_impl_onnxfuse.pth").write_text(str(old))
    (old / ".venv" / "bin" / "tool").write_text(f"#!{old}/.venv/bin/python\nprint(1)\n")
    packages("keep", old)
    packages("restore", new)
    packages("restore", other)
    there = installed(new)
    assert [path.name for path in there.iterdir()] == ["numbers.py"]
    assert (there / "numbers.py").samefile(installed(old) / "numbers.py")
    assert (new / ".venv" / "bin" / "tool").read_text() == f"#!{new}/.venv/bin/python\nprint(1)\n"
    assert (old / ".venv" / "bin" / "tool").read_text() == f"#!{old}/.venv/bin/python\nprint(1)\n"
    assert not (other / ".venv").exists(), "what it needs is something else"


def test_a_new_checkout_gets_what_was_compiled_of_the_same_modules(tmp_path: Path) -> None:
    """With its own path in it; what has changed is compiled anew."""
    old, new = tmp_path / "old", tmp_path / "new"
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    for where, changed in ((old, "1"), (new, "2")):
        (where / ".ci").mkdir(parents=True)
        shutil.copy(ROOT / ".ci" / "compiled", where / ".ci")
        (where / "onnxfuse").mkdir()
        (where / "onnxfuse" / "same.py").write_text("def f():\n    return lambda: None\n")
        (where / "onnxfuse" / "other.py").write_text(f"x = {changed}\n")
        for path in (where / "onnxfuse").iterdir():
            os.utime(path, (0, int(changed)))
    for name in ("same", "other"):
        py_compile.compile(
            str(old / "onnxfuse" / f"{name}.py"), invalidation_mode=py_compile.PycInvalidationMode.TIMESTAMP
        )
    for where, command in ((old, "keep"), (new, "restore")):
        subprocess.run([sys.executable, where / ".ci" / "compiled", command], env=environment, check=True)
    (compiled,) = (new / "onnxfuse" / "__pycache__").iterdir()
    before = compiled.read_bytes()
    code = "import os, same, other; print(same.f().__code__.co_filename, other.x)"
    said = subprocess.run(
        [sys.executable, "-c", code], cwd=new / "onnxfuse", capture_output=True, text=True, check=True
    )
    assert said.stdout.split() == [str(new / "onnxfuse" / "same.py"), "2"]
    assert compiled.read_bytes() == before
    assert int((new / "onnxfuse" / "same.py").stat().st_mtime) == 1
