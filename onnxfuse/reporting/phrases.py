"""Sentences that the text report and the page have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .records import Report, Runs, Validation

_FAST = {
    "onnxfuse": ("with onnxfuse.InferenceSession on an NVIDIA GPU", ""),
    "ort": ("in onnxruntime on a CPU", "--target ort"),
    "cuda": ("in onnxruntime on an NVIDIA GPU", "--target ort --provider cuda"),
    "onnx": ("in any runtime of standard ONNX", "--target onnx"),
}
"""Target, or provider → where its files run fast, and how to ask for one."""


def one_line(text: str) -> str:
    """The text with what neither a terminal nor a page shows, such as a line break in a file's name, written out."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def verdict(validation: Validation) -> str:
    """What the proof found."""
    if validation.verdict == "mismatch":
        return f"other numbers in onnxruntime: {validation.note}"
    if validation.verdict == "not validated":
        return f"not validated: {validation.note}" if validation.note else "not validated"
    error = validation.max_error or 0
    runs = f"{validation.cases} {'run' if validation.cases == 1 else 'runs'}"
    if validation.reference_error is not None and _beyond(validation):
        text = (
            f"as exact as the original, judged by float64 in {runs}: rounding alone moves what this model computes by "
            f"{error:.1e}"
        )
    elif _beyond(validation):
        text = f"same numbers in onnxruntime but for the rounding of the original itself: {error:.1e} in {runs}"
    else:
        text = f"same numbers in onnxruntime: largest error {error:.1e} in {runs}"
        if validation.rtol is not None and validation.atol is not None:
            text += f" (rtol {validation.rtol:g}, atol {validation.atol:g})"
    if validation.sites:
        text += f", and at {validation.sites} {'place' if validation.sites == 1 else 'places'}"
        text += f" of {validation.kinds} kinds" if 1 < validation.kinds < validation.sites else ""
        text += " of one kind" if validation.kinds == 1 < validation.sites else ""
    if validation.kernels:
        text += f", with the kernels of {', '.join(validation.kernels)} run on the CPU"
    return text


def _beyond(validation: Validation) -> bool:
    """Is the difference beyond the tolerance, though the verdict is good?  Values between two steps of a quantizer make
    such differences."""
    return validation.rtol is not None and (validation.max_error or 0) > validation.rtol


def against_float64(validation: Validation) -> str:
    """The errors of both models, where they are known."""
    if validation.reference_error is None:
        return ""
    original, fused = validation.reference_error
    return f"largest error against float64: {original:.1e} of the original, {fused:.1e} of the fused model"


def runs(found: Runs) -> str:
    """What runs the fused model on a CPU."""
    if found.onnxruntime is None:
        line = f"no onnxruntime that is known runs it on a CPU: {found.reason}"
    elif found.reason:
        line = f"runs in onnxruntime {found.onnxruntime} and later: {found.reason}"
    else:
        line = f"runs in onnxruntime {found.onnxruntime} and later; older ones are not known"
    if found.functions:
        line += "; needs local functions"
    if found.domains:
        line += f"; needs the ops of {', '.join(found.domains)}"
    if found.precise:
        line += f"; layer normalization is precise from {found.precise} on"
    return line


def advice(report: Report) -> str:
    """Where the file is fast, and what to ask for elsewhere."""
    own = "cuda" if report.provider == "cuda" else report.target
    others = [f"{asked} ({where})" for kind, (where, asked) in _FAST.items() if asked and kind != own]
    if own == "ort" and report.runs is not None and report.runs.onnxruntime is None:
        return f"ask for {', '.join(others)}"
    return f"fast {_FAST[own][0]}; elsewhere ask for {', '.join(others)}"


def sizes(report: Report) -> str:
    """The sizes that bytes and times are for and that nobody gave, and how to give them; empty if all are given."""
    example = next((f" {name}:{','.join(map(str, dims))}" for name, dims in report.shapes.items()), "")
    return f"at {report.assumed}, assumed: --shape{example}" if report.assumed else ""
