"""The library that onnxruntime calls is small and well formed, and what is not Linux is named."""

from __future__ import annotations

import pytest

from onnxfuse.errors import DependencyError
from onnxfuse.runtime import library


@pytest.mark.parametrize("machine", library.MACHINES)
def test_the_library_is_small_and_well_formed(machine: str) -> None:
    data = library.image(machine)
    assert len(data) < 1024
    assert data[:4] == b"\x7fELF"
    assert int.from_bytes(data[18:20], "little") == library.MACHINES[machine][0]
    # Every segment lies in the file, and at an address that fits its offset.
    for start in range(64, 64 + 3 * 56, 56):
        offset, address, size, alignment = (
            int.from_bytes(data[start + at : start + at + 8], "little") for at in (8, 16, 32, 48)
        )
        assert offset + size <= len(data)
        assert (address - offset) % alignment == 0


def test_the_jump_on_arm_is_a_literal_load() -> None:
    # ldr x16, #0x10020; br x16, as GNU as assembles them
    assert library._jump_aarch64(0x10020).hex() == "10010858" + "00021fd6"


def test_a_system_without_such_a_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library.platform, "machine", lambda: "riscv64")
    with pytest.raises(DependencyError, match="on x86_64 and aarch64, not on linux riscv64: open the model with onnxr"):
        library.loaded.__wrapped__()
