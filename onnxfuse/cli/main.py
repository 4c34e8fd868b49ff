"""The command line: its commands, exit codes, and what becomes of errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

import click

from onnxfuse import __version__
from onnxfuse.cli.commands.guard import guarded
from onnxfuse.cli.commands.work import complain, mistake
from onnxfuse.errors import OnnxfuseError, UsageError

INTERRUPTED = 130
UNREAD = 141
COMMANDS = ("bench", "check", "diff", "optimize", "report", "rules", "run")
"""Each is the command of its name in the module of its name in `commands`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; what goes wrong becomes one line on stderr.

    0 done, 1 findings, 2 bad usage or an unreadable model, 3 the numbers differ, 4 a mistake in onnxfuse, 130
    interrupted, 141 the output is read no more; docs/commands.md has them.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A terminal that has no arrow gets a question mark, not a UnicodeEncodeError.
            stream.reconfigure(errors="replace")
    try:
        code = onnxfuse.main(arguments, prog_name="onnxfuse", standalone_mode=False)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "onnxfuse"
        return complain(UsageError(f"{error.format_message().rstrip('.')} (see {command} --help)"))
    except click.ClickException as error:
        return complain(UsageError(error.format_message()))
    except OnnxfuseError as error:
        return complain(error)
    except (click.Abort, KeyboardInterrupt):
        click.echo("onnxfuse: interrupted", err=True)
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left is for nobody
        return UNREAD
    except Exception as error:
        return complain(mistake(error))
    return int(code or 0)


def guarded_main() -> int:
    """`main`, in a process whose crash is told."""
    return guarded(main)


class _Group(click.Group):
    """Commands that are imported when they are asked for: their options take a while to make."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for name in [cmd_name] if cmd_name in COMMANDS else COMMANDS:  # all, to find what is called nearly so
            self.commands[name] = getattr(import_module(f"onnxfuse.cli.commands.{name}"), name)
        return self.commands.get(cmd_name)


@click.group(
    name="onnxfuse", cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, message="%(prog)s %(version)s")
@click.pass_context
def onnxfuse(context: click.Context) -> None:
    """Find every subgraph of an ONNX model that one kernel could run, fuse it, and prove the numbers unchanged.

    \b
    Example:
      onnxfuse report model.onnx          what can be fused, and what nearly can
      onnxfuse optimize model.onnx        write model.fused.onnx
      onnxfuse check model.onnx --expect 'Attention>=12'
      onnxfuse report - < model.onnx      a MODEL called - comes from stdin

    \b
    Exit codes:
      0  done
      1  findings: check, diff, rules test
      2  bad usage, or a model that cannot be read
      3  the numbers differ: nothing is written
      4  a mistake in onnxfuse itself
      130 interrupted, 141 nobody reads the output any more
    """
    from onnxfuse.cli import settings

    if context.invoked_subcommand in settings.READERS:
        context.obj = settings.nearest()
        context.default_map = context.obj.defaults()
