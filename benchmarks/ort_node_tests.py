"""Whether runtimes.json is right: onnx's own tests of nodes, each loaded in every onnxruntime that the table knows.

Of each the table says from which version on it runs; that is compared with the first version from which on all load it.
What a version loads and computes wrongly, as `ort_versions` found it does, counts as the table's own reason.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from pathlib import Path

from onnx import ModelProto
from onnx.backend.test.case.node import collect_testcases

from benchmarks.ort_versions import Answers, asked, environments
from onnxfuse.targets import runtimes
from onnxfuse.targets.compatibility import compatibility

AGREES, FORM, DOMAIN = "as the table says", "a form that is wrong before", "an op to be registered"
EARLIER, LATER = "earlier", "later or never"


def loads_from(name: str, answers: Answers) -> str | None:
    """The version from which on all load a test's model; None if the newest does not."""
    first = None
    for version in reversed(list(answers)):
        if answers[version]["answers"]["node", name] is not None:
            break
        first = version
    return first


def verdict(model: ModelProto, loaded: str | None) -> tuple[str, str]:
    """How the table's word on a model compares with the version that loads it, and that word."""
    said = compatibility(model)
    told = f"{said.runtime}: {said.reason}"
    if (str(said.runtime) if said.runtime else None) == loaded:
        return AGREES, told
    if said.domains:
        return DOMAIN, told
    if loaded is None or (said.runtime is not None and said.runtime < runtimes.of(loaded)):
        return LATER, told
    return FORM if " with " in said.reason else EARLIER, told


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--environments", type=Path, help="folder to build them in  [default: a temporary one]")
    given = parser.parse_args()
    models = {case.name: case.model for case in collect_testcases(None) if case.model is not None}
    with tempfile.TemporaryDirectory() as temporary:
        pythons = environments(given.environments or Path(temporary), map(str, runtimes.known()))
        questions = {("node", name): (model.SerializeToString(), None) for name, model in models.items()}
        answers = asked(pythons, questions)
    counts: Counter[str] = Counter()
    for name, model in models.items():
        loaded = loads_from(name, answers)
        found, told = verdict(model, loaded)
        counts[found] += 1
        if found in (EARLIER, LATER):
            print(f"{name}: loads from {loaded}, the table says {told}")
    print(f"{len(models)} node tests: " + ", ".join(f"{count} {found}" for found, count in counts.most_common()))


if __name__ == "__main__":
    main()
