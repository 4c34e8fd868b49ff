"""What is claimed of a fused model, and how it is put to the test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from onnx import ModelProto

from onnxfuse.reporting.records import LeftOut, Validation

if TYPE_CHECKING:
    import numpy as np

    from onnxfuse.fusing.fused import Fused, Rebuild
    from onnxfuse.model.spool import Spool
    from onnxfuse.targets.target import Target


@dataclass(frozen=True)
class Experiment:
    """On what the two models are compared, by whom, and what follows."""

    shapes: Mapping[str, Sequence[int]] | None = None
    """Input name → dimensions, for inputs whose dimensions are symbolic."""
    inputs: Mapping[str, np.ndarray[Any, Any]] | None = None
    """Input name → value, of all inputs; None generates them from `seed`."""
    seed: int = 0
    rtol: float | None = None
    """Relative tolerance; None chooses by dtype, as with `atol`."""
    atol: float | None = None
    on_mismatch: Literal["bisect", "fail"] = "bisect"
    """Look for what is to blame and leave it out, or say that there is something."""
    validate: Literal["onnxruntime", "reference", "kernels", "off"] = "onnxruntime"
    """In onnxruntime; also with float64; with the CUDA source of the kernels, run on the CPU; or not at all."""
    timeout: float | None = None
    """Seconds that each step may take, in a child process (0: any time); None: in this process."""
    optimizing: bool = True
    """Does onnxruntime's optimizer work on cuts?  Not where it has crashed on one."""
    rename_dims: bool = False
    """May dimensions of inputs that bear one name and are not equal get names of their own (`namesakes`)?"""

    @property
    def bisecting(self) -> bool:
        return self.on_mismatch == "bisect"

    @property
    def tolerances(self) -> dict[str, float | None]:
        """As keywords of what compares numbers."""
        return {"rtol": self.rtol, "atol": self.atol}


@dataclass(frozen=True)
class Claim:
    """That a fused model computes what the original does."""

    original: ModelProto
    fused: Fused
    rebuild: Rebuild
    """The original fused again."""
    runnable: Callable[[ModelProto], ModelProto] = lambda model: model
    """Makes of a fused model what the proof can run (`stand_in`)."""
    rules: Sequence[Path] = ()
    """Folders of the rules that define ops besides the catalogue."""
    base_dir: Path | None = None
    """Where external data lies."""
    spool: Spool | None = None
    """Where that of a converted model goes."""
    target: Target | None = None
    """For whom it is converted."""


class Proved(NamedTuple):
    """What became of a claim."""

    fused: Fused
    """The model that passed, or the last one that did not."""
    validation: Validation
    """The verdict on it."""
    left_out: list[LeftOut]
    """The fusions that were to blame."""
