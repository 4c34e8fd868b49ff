"""Where the command `onnxfuse` begins: an interrupt is one line from here on, whatever is still being imported."""

from __future__ import annotations

import os
import signal
import sys


def _interrupted(*_: object) -> None:
    os.write(2, b"onnxfuse: interrupted\n")
    os._exit(130)


if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _interrupted)


def main() -> int:
    """The command line, in a process whose crash is told."""
    from onnxfuse.cli.late_methods import compile_late
    from onnxfuse.cli.postponed import postpone

    postpone()
    compile_late()
    from onnxfuse.cli.main import guarded_main

    return guarded_main()


if __name__ == "__main__":
    sys.exit(main())
