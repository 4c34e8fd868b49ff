"""Only versions of onnxruntime whose C API is known are taken, and a table that differs is refused."""

from __future__ import annotations

import onnxruntime as ort
import pytest

from onnxfuse.errors import DependencyError
from onnxfuse.runtime import abi, custom_op
from tests.bridge_models import one_node
from tests.runtime.test_session import opened

pytestmark = pytest.mark.usefixtures("kernel_of_shift")


@pytest.mark.parametrize("version", ["1.22.1", "1.32.0", "2.0.1", "dev"])
def test_another_onnxruntime_is_refused(version: str) -> None:
    with pytest.raises(DependencyError, match=f"tested with onnxruntime 1.23 to 1.31, this is {version}: install"):
        abi.check(version)


def test_the_installed_onnxruntime_is_not_refused() -> None:
    abi.check(ort.__version__)
    abi.check("1.23.0")
    abi.check("1.31.99")


def test_a_table_that_is_not_as_the_header_says_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made = opened(one_node())
    api = list(custom_op._nodes.values())[-1]._api
    monkeypatch.setattr(api, "GetErrorCode", lambda status: 7)
    with pytest.raises(DependencyError, match="another C API"):
        api._try()
    del made
