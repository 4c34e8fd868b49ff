"""Everything onnxfuse raises on purpose.

    OnnxfuseError            exit code 2
    ├── UsageError           a bad option or argument
    ├── ModelError           a file that is missing, unreadable, not ONNX, or not valid
    │   └── CrashedError     native code, such as onnxruntime's, crashed on it
    ├── OutputError          a place that cannot be written
    ├── RuleError            a .rule file with a mistake: says file, line, column and a suggestion
    ├── DependencyError      an optional package that this command needs is not installed
    ├── KernelError          a kernel that cannot be compiled or launched, or inputs that do not fit its op
    ├── NumericsError        exit code 3: the fused model computes something else
    └── InternalError        exit code 4: a mistake in onnxfuse itself

Each message is one line for a user: it names the file, the node where there is one, and the next step.
"""

from __future__ import annotations


class OnnxfuseError(Exception):
    """The root of the tree; `exit_code` is what the command line exits with."""

    exit_code = 2


class UsageError(OnnxfuseError):
    """A bad option or argument."""


class ModelError(OnnxfuseError):
    """A model file that is missing, unreadable, not ONNX, or not valid."""


class CrashedError(ModelError):
    """A model on which native code crashed, such as onnxruntime's."""


class OutputError(OnnxfuseError):
    """A place that cannot be written."""


class RuleError(OnnxfuseError):
    """A mistake in a .rule file.

    The text reads like a compiler's: ``file:line:column: message``, the source line, a caret, and a suggestion.
    """

    def __init__(self, message: str, file: str, line: int, column: int, source: str, hint: str = "") -> None:
        self.message, self.file, self.line, self.column = message, file, line, column
        self._given = (message, file, line, column, source, hint)
        caret = f"\n    {source.rstrip()}\n    {' ' * (column - 1)}^" if source.strip() else ""
        super().__init__(f"{file}:{line}:{column}: {message}{caret}" + (f"\n    {hint}" if hint else ""))

    def __reduce__(self) -> tuple[type[RuleError], tuple[object, ...]]:
        return type(self), self._given


class DependencyError(OnnxfuseError):
    """An optional package that this command needs is not installed."""


class KernelError(OnnxfuseError):
    """A kernel that cannot be compiled or launched, or inputs that do not fit its op."""


class NumericsError(OnnxfuseError):
    """The fused model computes something else than the original."""

    exit_code = 3


class InternalError(OnnxfuseError):
    """A mistake in onnxfuse itself, which met with what nobody foresaw."""

    exit_code = 4
