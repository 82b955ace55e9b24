"""A driver that imports verl before it enables overlay, strictly."""

from __future__ import annotations

import pytest
from command_line import python

pytestmark = pytest.mark.real

PROGRAM = """
from overlay.compat.verl_imports import stand_in
stand_in()
import verl.workers.engine_workers  # which hands one of its workers to Ray at import

import overlay
overlay.enable("verl.fast-partitioner", strict=True)
print(*sorted(patch.patch for patch in overlay.status().patches if patch.state == "applied"))
"""


def test_what_ray_has_wrapped_at_import_is_no_fault() -> None:
    done = python("-W", "ignore", "-c", PROGRAM, seconds=300, OVERLAY_PATCHES="none")
    assert "verl.agreement" in done.stdout.split(), done.stderr[-4000:]
