"""What `overlay report` reads is in the wheel."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def test_the_wheel_has_the_template_and_the_matrix(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert names >= {"overlay/report/page.html", "overlay/report/page.css", "overlay/compat/support.json"}
