"""Folders of packages from the package index, kept in a cache, for what cannot stand beside our own onnxruntime."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TIMEOUT = 900
"""Seconds that an installation may take."""


class UnavailableError(Exception):
    """An environment that cannot be built; the text is the reason, in one line."""


@dataclass(frozen=True, slots=True)
class Environment:
    """Packages in a folder, and the Python that this one runs in without its own packages."""

    folder: Path

    @property
    def versions(self) -> dict[str, str]:
        """Package → version."""
        found = (path.name.removesuffix(".dist-info").rpartition("-") for path in self.folder.glob("*.dist-info"))
        return {name: version for name, _, version in sorted(found)}

    def command(self, script: Path, *arguments: str) -> list[str]:
        """What runs a script there; -S keeps this Python's own packages out."""
        return [str(Path(sys.executable).resolve()), "-S", "-s", str(script), *arguments]

    def variables(self) -> Mapping[str, str]:
        """The variables of the process that runs it: modules are compiled when they are first imported, and kept."""
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        return kept | {"PYTHONPATH": str(self.folder)}


def cache() -> Path:
    """Where environments are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "onnxfuse" / "environments"


def build(packages: Sequence[str], root: Path | None = None) -> Environment:
    """The environment of some packages, installed once.

    Raises UnavailableError where pip cannot install them, for want of a package index or of such a version."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    digest = hashlib.sha256("\n".join(packages).encode()).hexdigest()[:8]
    folder = (root or cache()) / f"{packages[0].split('=')[0].split('<')[0]}-{version}-{digest}"
    if folder.is_dir():
        return Environment(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".") as temporary:
        made = Path(temporary) / "packages"
        # Most modules that packages bring are never imported.
        flags = ["--quiet", "--no-compile", "--disable-pip-version-check"]
        command = [sys.executable, "-m", "pip", "install", *flags, "--target", str(made), *packages]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT)
        except subprocess.CalledProcessError as failure:
            errors = [line for line in failure.stderr.splitlines() if line.startswith("ERROR")]
            raise UnavailableError(errors[-1] if errors else f"pip exits with {failure.returncode}") from None
        except subprocess.TimeoutExpired:
            raise UnavailableError(f"pip took longer than {TIMEOUT} s") from None
        try:
            made.rename(folder)
        except OSError:  # another process was faster
            if not folder.is_dir():
                raise
            shutil.rmtree(made, ignore_errors=True)
    return Environment(folder)
