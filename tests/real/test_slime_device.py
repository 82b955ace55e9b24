"""What slime asks of the device's memory has an answer on the stand-in for CUDA."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.real


@pytest.mark.parametrize("revision", ["v0.2.4", "v0.3.1"])  # the first that looks before each collective
def test_slime_finds_plenty_of_memory_and_collects_no_garbage_for_a_collective(
    revision: str, slime: Callable[[str], Path], findings: Callable[..., dict[str, Any]]
) -> None:
    found = findings(slime(revision), "slime_device_check.py")
    assert found["restored"] == [1.0, 2.0]  # from what slime has pinned
    assert found["memory"]["free_GB"] == found["memory"]["total_GB"] == 1024
    assert found["memory"]["used_GB"] == found["memory"]["allocated_GB"] == 0
    assert found["uuid"] == "00000000-0000-0000-0000-000000000000"
    assert found["free"] == 1024
    assert found["reduced"] == [3.0]
    assert found["collected"] == 0
