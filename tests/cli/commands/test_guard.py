"""What takes a process down is told in one line by another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from onnxfuse.cli.main import main
from onnxfuse.model import files
from tests import broken

SCRIPT = """
import os, signal, sys, time
from pathlib import Path
from onnxfuse.cli.commands import guard
from onnxfuse.cli.commands.guard import guarded
from onnxfuse.cli.commands.work import begin

guard.GRACE = {grace}

def rest():
    # A signal that comes just before one long sleep begins is seen when that ends.
    for _ in range(600):
        time.sleep(0.1)

def work():
    begin(Path("first.onnx"))
    begin(Path("m.onnx"))
    {body}

sys.exit(guarded(work))
"""
PATIENT, IMPATIENT = 50.0, 0.5
"""Seconds that work has to end: more than any machine needs that is busy with something else, and few."""


def script_of(body: str, grace: float = PATIENT) -> str:
    return SCRIPT.format(body=body, grace=grace)


def run(body: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script_of(body)], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("name", ["SIGFPE", "SIGSEGV", "SIGABRT"])
def test_a_crash_is_one_line_that_names_the_model(name: str) -> None:
    done = run(f"os.kill(os.getpid(), signal.{name})")
    assert done.returncode == 2
    assert done.stderr.startswith("onnxfuse: error: m.onnx: ")
    assert f"crashed with {name} on this model and nothing was written" in done.stderr
    assert done.stderr.count("\n") == 1


def test_memory_that_is_gone_is_told_too() -> None:
    done = run("os.kill(os.getpid(), signal.SIGKILL)")
    assert done.returncode == 128 + signal.SIGKILL
    assert done.stderr == "onnxfuse: m.onnx: killed, as a system does that has no memory left\n"


def test_when_the_work_has_ended_nothing_waits_to_kill_it() -> None:
    """Its number may be another process's, and at the end of Python an alarm ends whoever set it."""
    script = script_of("os.kill(os.getppid(), signal.SIGINT); rest()").replace(
        "sys.exit(guarded(work))", "code = guarded(work); print(signal.getitimer(signal.ITIMER_REAL)); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 128 + signal.SIGINT
    assert set(done.stdout.splitlines()) == {"(0.0, 0.0)"}


@pytest.mark.parametrize("code", [0, 1, 3])
def test_the_exit_code_is_that_of_the_work(code: int) -> None:
    done = run(f"print('done'); return {code}")
    assert (done.returncode, done.stdout, done.stderr) == (code, "done\n", "")


def test_no_cycles_are_looked_for_before_the_work_ends_or_after_it() -> None:
    done = run("import atexit, gc; atexit.register(lambda: print(gc.get_freeze_count() > 0)); print(gc.isenabled())")
    assert done.stdout.split() == ["False", "True"], "what is left was frozen"


def test_who_ends_the_parent_ends_the_work() -> None:
    script = script_of("print(os.getpid(), flush=True); time.sleep(60)")
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.terminate()
        assert parent.wait(30) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_who_kills_the_parent_ends_the_work() -> None:
    script = script_of("print('begun', flush=True); time.sleep(60); print('went on')")
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "begun\n"
        parent.kill()
        # The child holds the other end, so that this returns when both are gone.
        assert parent.stdout.read() == ""


DEAF = "signal.signal(signal.SIGINT, signal.SIG_IGN); signal.signal(signal.SIGTERM, signal.SIG_IGN); "
DEAF += "signal.signal(signal.SIGHUP, signal.SIG_IGN); "
"""As native code is, during which Python sees no signal."""


@pytest.mark.parametrize("deaf", ["", DEAF], ids=["heard", "deaf"])
@pytest.mark.parametrize(("name", "said"), [("SIGINT", "onnxfuse: interrupted\n"), ("SIGTERM", ""), ("SIGHUP", "")])
def test_work_that_is_asked_to_end_does(name: str, said: str, deaf: str) -> None:
    body = (
        deaf
        + """
    try:
        print("begun", flush=True)
        rest()
    finally:
        print("cleaned up", flush=True)
"""
    )
    number = getattr(signal, name)
    with subprocess.Popen(
        [sys.executable, "-c", script_of(body.strip(), IMPATIENT if deaf else PATIENT)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "begun\n"
        parent.send_signal(number)
        out, err = parent.communicate(timeout=60)
    assert (parent.returncode, out, err) == (128 + number, "" if deaf else "cleaned up\n", said)


def test_the_file_that_is_being_written_goes_with_it(tmp_path: Path) -> None:
    script = script_of(
        """
    from onnxfuse.system import atomic_write
    os.fsync = lambda _: (print("begun", flush=True), rest())
    atomic_write.replace(Path("out"), [b"new"])
""".strip()
    )
    (tmp_path / "out").write_text("old")
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "begun\n"
        parent.send_signal(signal.SIGINT)
        out, err = parent.communicate(timeout=60)
    assert (parent.returncode, out, err) == (130, "", "onnxfuse: interrupted\n")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("out", "old")]


IMPORTING = """
import os, signal, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {!r}:
            os.kill({}, signal.SIGINT)
            import time; time.sleep(60)
sys.meta_path.insert(0, Interrupt())
sys.argv = ["onnxfuse", "report", "m.onnx"]
from onnxfuse.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    "module", ["onnxfuse.cli.main", "click", "onnxfuse.cli.commands.report", "onnx", "onnxfuse.pipeline"]
)
@pytest.mark.parametrize("who", ["os.getpid()", "0"], ids=["one", "group"])
def test_an_interrupt_is_one_line_from_the_first_import_on(module: str, who: str, tmp_path: Path) -> None:
    onnx.save(broken.good(), tmp_path / "m.onnx")
    command = [sys.executable, "-c", IMPORTING.format(module, who)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, start_new_session=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "onnxfuse: interrupted\n")


def test_a_mistake_of_onnxfuse_is_one_line_and_the_other_models_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("good.onnx", "strange.onnx"):
        onnx.save(broken.good(), name)
    read = files.read

    def fails(path: Path, **options: bool) -> onnx.ModelProto:
        if path.name == "strange.onnx":
            raise ValueError("negative dimensions\nare not allowed")
        return read(path, **options)

    monkeypatch.setattr(files, "read", fails)
    assert main(["optimize", "strange.onnx", "good.onnx"]) == 4
    (said,) = [line for line in capsys.readouterr().err.splitlines() if "strange.onnx" in line]
    assert said.startswith("onnxfuse: error: strange.onnx: ValueError: negative dimensions are not allowed: a mistake")
    assert Path("good.fused.onnx").exists()
    monkeypatch.setenv("ONNXFUSE_TRACEBACK", "1")
    with pytest.raises(ValueError, match="negative dimensions"):
        main(["optimize", "strange.onnx"])


def test_work_that_is_done_leaves_at_once_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """What was printed arrives, what was to be done at exit is done, threads come to their end; the exit code stays."""
    kept = tmp_path / "kept"
    body = f"""
    import atexit, threading
    atexit.register(lambda: Path({str(kept)!r}).write_text("done"))
    {{thread}}
    print("x" * 100_000)
    return 7"""
    late = 'threading.Thread(target=lambda: (time.sleep(0.3), print("late"))).start()'
    for thread, last in (("", "x"), (late, "late")):
        kept.unlink(missing_ok=True)
        done = run(body.format(thread=thread))
        assert (done.returncode, kept.read_text()) == (7, "done")
        assert done.stdout.split()[0] == "x" * 100_000
        assert done.stdout.split()[-1].endswith(last)
