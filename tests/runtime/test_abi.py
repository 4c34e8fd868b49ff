"""The C API is asked for by version: a newer onnxruntime is taken, one that is too old or differs is refused."""

from __future__ import annotations

import ctypes
from ctypes import CFUNCTYPE, POINTER, addressof, c_uint32, c_void_p
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from onnxfuse.errors import DependencyError
from onnxfuse.runtime import abi, custom_op, registration
from onnxfuse.runtime.abi import Api
from tests.bridge_models import one_node
from tests.runtime.test_session import opened, run

pytestmark = pytest.mark.usefixtures("kernel_of_shift")

OWN = int(ort.__version__.split(".")[1])
"""The version of the C API that the installed onnxruntime has."""


class Base:
    """An OrtApiBase of another version, in front of the installed onnxruntime's, which stands at `real`."""

    def __init__(self, real: int, version: str, newest: int) -> None:
        members = ctypes.cast(real, POINTER(c_void_p))
        ask = CFUNCTYPE(c_void_p, c_uint32)(members[0])
        self.asked: list[int] = []

        def table(wanted: int) -> int | None:
            self.asked.append(wanted)
            found: int | None = ask(wanted) if wanted <= newest else None
            return found

        self._text = ctypes.create_string_buffer(version.encode())
        self._functions = CFUNCTYPE(c_void_p, c_uint32)(table), CFUNCTYPE(c_void_p)(lambda: addressof(self._text))
        self._struct = (c_void_p * 2)(*(ctypes.cast(function, c_void_p) for function in self._functions))
        self.address = addressof(self._struct)


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> int:
    """The address of the installed onnxruntime's OrtApiBase, which it hands to who registers ops."""
    found: list[int] = []
    made = registration._api
    monkeypatch.setattr(registration, "_api", lambda base: (found.append(base), made(base))[1])
    opened(one_node())
    return found[0]


@pytest.mark.parametrize("version", ["1.99.0", "2.0.1", "1.33.0.dev20261122"])
def test_an_onnxruntime_of_tomorrow_answers_for_the_table_that_is_known(real: int, version: str) -> None:
    base = Base(real, version, newest=OWN)
    assert Api(base.address).version == min(max(abi.API_VERSIONS), OWN)
    assert base.asked[0] == max(abi.API_VERSIONS), "nothing newer is asked for than what is known"


def test_an_onnxruntime_is_not_asked_for_what_it_lacks(real: int) -> None:
    """It would complain on stderr."""
    base = Base(real, "1.23.2", newest=23)
    assert Api(base.address).version == 23
    assert base.asked == [23]


@pytest.mark.parametrize(("version", "asked"), [("1.22.1", []), ("2.0.0", list(abi.API_VERSIONS))])
def test_an_onnxruntime_without_the_table_is_refused(real: int, version: str, asked: list[int]) -> None:
    base = Base(real, version, newest=22)
    with pytest.raises(DependencyError, match=f"version 23 of onnxruntime's C API, and onnxruntime {version} has"):
        Api(base.address)
    assert base.asked == asked


def test_who_opens_a_session_is_told_of_the_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(base: int) -> Any:
        raise DependencyError("too old")

    options = ort.SessionOptions()
    with monkeypatch.context() as patched:
        patched.setattr(registration, "_api", refuse)
        with pytest.raises(DependencyError, match=r"^too old$"):
            opened(one_node(), sess_options=options)
    assert not registration.known(options)
    # The options are as they were: the next try tells them of the ops.
    assert run(opened(one_node(), sess_options=options), x=np.ones((1, 1), np.float32))[0].tolist() == [[101]]


def test_a_table_that_is_not_as_the_header_says_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made = opened(one_node())
    api = list(custom_op._nodes.values())[-1]._api
    monkeypatch.setattr(api, "GetErrorCode", lambda status: 7)
    with pytest.raises(DependencyError, match="C API is not as its header says"):
        api._try()
    del made
