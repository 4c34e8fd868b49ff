"""Where in the model's program a finding belongs, and which of its files are in the repository that is checked."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath, PureWindowsPath

from onnx import ModelProto, NodeProto

from onnxfuse.model.tensors import bodies
from onnxfuse.rewriting.module_paths import ModulePaths
from onnxfuse.rewriting.stack_traces import common

from .requirements import Finding

_INSTALLED = {"site-packages", "dist-packages"}
"""Folders of what others wrote, also where they are in the repository."""


@dataclass(frozen=True)
class Line:
    """A place in a file; `line` is None for a file as a whole."""

    file: str
    line: int | None = None


def located(findings: Iterable[Finding], model: ModelProto) -> list[Finding]:
    """The findings with the lines that their nodes come from, as far as `model` says: those of the first near miss, or
    of the module."""
    found = list(findings)
    if not any(finding.scopes or finding.near_misses for finding in found):
        return found
    by_name: dict[str, NodeProto] = {}
    by_module: dict[str, list[NodeProto]] = defaultdict(list)
    for body in bodies(model):
        modules = ModulePaths(body.node)
        for node in body.node:
            by_name.setdefault(node.name or node.output[0], node)
            by_module[modules.of([node])].append(node)

    def told(finding: Finding) -> Finding:
        nodes = [by_name[miss.node] for miss in finding.near_misses if miss.node in by_name][:1]
        for scope in finding.scopes[:1] if not nodes else ():
            # What a module does itself says more than what it calls.
            inside = (own for module, own in by_module.items() if module.startswith(f"{scope}/"))
            nodes = by_module.get(scope) or [node for own in inside for node in own]
        calls = tuple(f"{frame.file}:{frame.line}" for frame in common(nodes))
        return replace(finding, calls=calls, code=calls[-1] if calls else "")

    return [told(finding) for finding in found]


def root() -> Path:
    """The folder that paths of a repository begin in: GitHub's checkout, else the nearest with .git, else this one."""
    here = Path.cwd()
    workspace = os.environ.get("GITHUB_WORKSPACE")
    if workspace and here.is_relative_to(workspace):
        return Path(workspace)
    return next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here)


def place(finding: Finding, top: Path) -> Line:
    """The innermost call that is in the repository `top`, else the model's file."""
    for call in reversed(finding.calls):
        file, _, number = call.rpartition(":")
        if own := in_repository(file, top):
            return Line(own, int(number))
    return Line(relative(finding.model, top))


def in_repository(file: str, top: Path) -> str | None:
    """The path in the repository `top` of a file that an exporter names, wherever it exported; None if it is not there.

    What was /app/src/model.py in the exporter's container is src/model.py."""
    parts = (PureWindowsPath(file) if "\\" in file else PurePath(file)).parts
    if _INSTALLED.intersection(parts):
        return None
    absolute = Path(file).is_absolute()
    if absolute and Path(file).is_relative_to(top):
        return Path(file).relative_to(top).as_posix() if Path(file).is_file() else None
    outer = parts[1:] if absolute or PureWindowsPath(file).drive else parts
    shortest = 1 if len(outer) == 1 else 2  # a file's name alone says too little
    ends = (outer[start:] for start in range(len(outer) - shortest + 1))
    return next((PurePath(*end).as_posix() for end in ends if top.joinpath(*end).is_file()), None)


def relative(file: str, top: Path) -> str:
    """A file as the repository `top` names it, if it is in it."""
    path = Path(os.path.abspath(file))
    return path.relative_to(top).as_posix() if path.is_relative_to(top) else Path(file).as_posix()


def innermost(calls: Sequence[str]) -> Line | None:
    """The last of the calls, wherever it is."""
    if not calls:
        return None
    file, _, number = calls[-1].rpartition(":")
    return Line(file, int(number))
