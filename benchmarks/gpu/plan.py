"""Steps in order of importance within a budget of time, and the journal that they write."""

from __future__ import annotations

import gc
import json
import re
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .machine import Machine

Row = dict[str, Any]
"""What a step found: `outcome` is "ok" or the reason why not, in one line; the rest depends on the section."""

OK = "ok"
LONGEST = 160
"""Characters of a reason."""


@dataclass(frozen=True, slots=True)
class Step:
    """Something to do.  Its name is its own; steps of one section take about as long."""

    section: str
    name: str
    run: Callable[[Machine], Iterable[Row]]
    seconds: float = 1.0
    """What it takes at most, as far as is known beforehand: it is not begun if less is left."""
    limit: float = 60.0
    """Seconds after which it hangs."""

    @property
    def key(self) -> str:
        return f"{self.section}: {self.name}"


class SkippedError(Exception):
    """A step that cannot be done here; the text is the reason, in one line."""


class LostError(Exception):
    """The machine does not answer any more; the text is the last error, in one line."""


@dataclass(slots=True)
class Journal:
    """Lines of JSON, each an object of one key: `facts`, `plan`, `begin`, `row`, `end`, `left`."""

    path: Path

    def write(self, kind: str, value: Any) -> None:
        """Append a line; it is on the disk when this returns."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({kind: value}) + "\n")

    def lines(self) -> Iterator[tuple[str, Any]]:
        """What was written; half a line at the end, of a process that died, is none."""
        if not self.path.exists():
            return
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                ((kind, value),) = json.loads(line).items()
            except ValueError:
                continue
            yield kind, value

    def all(self, kind: str) -> list[Any]:
        """The lines of one kind."""
        return [value for found, value in self.lines() if found == kind]

    def begun(self) -> Row | None:
        """The step that was begun and has not ended, None if there is none."""
        found: Row | None = None
        for kind, value in self.lines():
            if kind in ("begin", "end"):
                found = value if kind == "begin" else None
        return found

    def died(self, step: Row, reason: str, seconds: float) -> None:
        """End a step whose process is gone."""
        self.write("row", {"section": step["section"], "name": step["name"], "outcome": reason})
        self.write("end", {"step": step["step"], "section": step["section"], "seconds": seconds})


def run(
    steps: Sequence[Step],
    machine: Machine,
    journal: Journal,
    budget: float,
    clock: Callable[[], float] = time.monotonic,
    tell: Callable[[str], None] = lambda line: None,
) -> None:
    """Do the steps that have not ended yet by the journal, those first that stand first.

    A step that fails is a row.  A step whose section has taken longer, so far, than is left of `budget` seconds is
    not begun; a shorter one behind it may be.  `tell` is told of each new section.  Raises LostError if the machine is
    of no use after a step.
    """
    start, section = clock(), ""
    gc.freeze()
    done = {end["step"] for end in journal.all("end")}
    took: dict[str, list[float]] = {}
    for end in journal.all("end"):
        took.setdefault(end["section"], []).append(end["seconds"])
    for step in steps:
        if step.key in done:
            continue
        before = took.get(step.section, [])
        need = statistics.median(before) if len(before) > 2 else step.seconds
        if clock() - start + need > budget:
            continue
        about = {"step": step.key, "section": step.section, "name": step.name, "limit": step.limit}
        journal.write("begin", about)
        if step.section != section:
            section = step.section
            tell(f"{clock() - start:5.0f} s  {section}")
        began, failed = clock(), False
        try:
            for row in step.run(machine):
                journal.write("row", {"section": step.section, "name": step.name, "outcome": OK} | row)
        except SkippedError as reason:
            journal.write("row", {"section": step.section, "name": step.name, "outcome": f"skipped: {reason}"})
        except Exception as error:
            failed = True
            journal.write("row", {"section": step.section, "name": step.name, "outcome": one_line(error)})
        lost = died(machine) if failed else ""
        if step.section != "check":
            gc.collect()  # closures that hold the machine's memory
            gc.freeze()  # what is left stays, and is not looked at again after each step
        seconds = round(clock() - began, 3)
        took.setdefault(step.section, []).append(seconds)
        journal.write("end", {"step": step.key, "section": step.section, "seconds": seconds})
        if lost:
            raise LostError(lost)


def died(machine: Machine) -> str:
    """Why the machine does not answer; empty if it does."""
    try:
        machine.wait()
    except Exception as error:
        return one_line(error)
    return ""


def one_line(error: BaseException) -> str:
    """What an error says, in one short line."""
    said = re.sub(r"\s+", " ", str(error)).strip()
    text = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
