"""What is said where onnxruntime does not run on CUDA, which it does not say itself."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import onnxfuse
from onnxfuse.errors import DependencyError
from onnxfuse.runtime import installed, session
from onnxfuse.runtime.installed import CPU, CUDA
from tests.bridge_models import one_node


class FakeRuntime:
    """onnxruntime's build for CUDA.  Sessions have CUDA only if its libraries were loaded, and a GPU is there."""

    __version__ = "1.31"
    SessionOptions = SimpleNamespace

    def __init__(self, folder: Path) -> None:
        self.__file__ = str(folder / "__init__.py")
        self.loaded, self.gpu, self.prints = False, True, ""

    def get_available_providers(self) -> list[str]:
        return [CUDA, CPU]

    def preload_dlls(self) -> None:
        self.loaded = True
        if self.prints:
            print(self.prints)

    def InferenceSession(self, model: Any, options: Any, *, providers: list[str]) -> Any:  # noqa: N802
        assert providers == [CUDA, CPU]
        if not self.gpu:
            print("EP Error CUDA failure 100: no CUDA-capable device is detected when using [...]\nFalling back")
        return SimpleNamespace(get_providers=lambda: providers if self.loaded and self.gpu else [CPU])


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRuntime]:
    fake = FakeRuntime(tmp_path)
    monkeypatch.setitem(sys.modules, "onnxruntime", fake)  # type: ignore[arg-type]
    forget()
    yield fake
    forget()


def forget() -> None:
    installed.why_not_cuda.cache_clear()
    installed.has_cuda.cache_clear()


def test_the_libraries_of_packages_are_loaded_before_the_provider_is_asked_for(runtime: FakeRuntime) -> None:
    assert installed.why_not_cuda() == ""
    assert installed.has_cuda()
    assert runtime.loaded


def test_a_session_that_falls_back_says_why(runtime: FakeRuntime, capsys: pytest.CaptureFixture[str]) -> None:
    runtime.gpu = False
    runtime.prints = "Failed to load libcudart.so.13: no such file\nPlease follow ..."
    assert installed.why_not_cuda() == (
        "onnxruntime 1.31 cannot use CUDA: EP Error CUDA failure 100: no CUDA-capable device is detected "
        "when using [...]"
    )
    assert not installed.has_cuda()
    assert capsys.readouterr().out == "", "what onnxruntime prints is part of the reason"


@pytest.mark.skipif(sys.platform != "linux", reason="the linker that is asked is Linux's")
def test_the_library_that_is_missing_is_named(runtime: FakeRuntime, tmp_path: Path) -> None:
    runtime.gpu = False
    (tmp_path / "capi").mkdir()
    (tmp_path / "capi" / "libonnxruntime_providers_cuda.so").write_text("no library")
    reason = installed.why_not_cuda()
    assert "libonnxruntime_providers_cuda.so: " in reason
    assert reason.endswith("(pip install 'onnxfuse[gpu]')")


def test_an_older_onnxruntime_has_nothing_to_load(runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(FakeRuntime, "preload_dlls")
    assert installed.why_not_cuda() == "onnxruntime 1.31 cannot use CUDA: is there a GPU, and its driver?"


def test_the_build_for_a_cpu_says_what_to_install() -> None:
    forget()
    reason = installed.why_not_cuda()
    assert "is built without CUDA: pip install 'onnxfuse[gpu]'" in reason
    forget()


def test_who_asks_for_cuda_is_told_why_the_cpu_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "why_not_cuda", lambda: "libcublas.so.13 is missing")
    monkeypatch.setattr(session, "has_cuda", lambda: False)
    data, x = one_node().SerializeToString(), np.ones((2, 3), np.float32)
    with (
        pytest.warns(RuntimeWarning, match=r"^the session runs on the CPU: libcublas\.so\.13 is missing$"),
        pytest.warns(UserWarning, match="Specified provider"),
    ):
        made = onnxfuse.InferenceSession(data, providers=[CUDA, CPU])
    assert made.run(None, {"x": x})[0].shape == x.shape
    with (
        pytest.raises(DependencyError, match=r"^no session on CUDA: libcublas\.so\.13 is missing$"),
        pytest.warns(UserWarning, match="Specified provider"),
    ):
        onnxfuse.InferenceSession(data, providers=[(CUDA, {"device_id": "0"})])


def test_without_providers_the_build_for_cuda_says_why_it_is_the_cpu(
    runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime.gpu = False
    with pytest.warns(
        RuntimeWarning, match=r"^the session runs on the CPU: onnxruntime 1\.31 cannot use CUDA: EP Error"
    ):
        assert session.default_providers() == [CPU]
    runtime.gpu = True
    forget()
    assert session.default_providers() == [CUDA, CPU]
