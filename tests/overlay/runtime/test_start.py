"""What a start reads: thousands of processes do it at once, from one file system."""

from __future__ import annotations

import shutil
from pathlib import Path

from benches import _files

ROOT = Path(__file__).resolve().parents[3]


def test_a_start_reads_few_files(tmp_path: Path) -> None:
    """As a wheel installs it: where this checkout is installed, more is imported before."""
    for folder, place in (
        ("overlay", "overlay"),
        ("patches", "overlay/patches"),
        ("compat", "overlay/compat"),
    ):
        shutil.copytree(ROOT / folder, tmp_path / place, ignore=shutil.ignore_patterns("__pycache__"))
    plain, armed = (_files.read(str(tmp_path), armed=armed) for armed in (False, True))
    assert "overlay.runtime.engine" in armed.modules
    more = armed.files.keys() - plain.files.keys()
    assert len(more) <= _files.MOST_FILES, sorted(more)
    assert armed.size - plain.size <= _files.MOST_BYTES
    # Neither a patch nor what decides on one.
    inside = [name for name in armed.modules if name.startswith("overlay.patches.")]
    assert inside == []
