"""What a start reads: thousands of processes do it at once, from one file system."""

from __future__ import annotations

from pathlib import Path

from benches import _files


def test_a_start_reads_few_files(tmp_path: Path) -> None:
    _files.place(tmp_path)
    plain, armed = (_files.read(tmp_path, armed=armed) for armed in (False, True))
    assert "overlay.runtime.engine" in armed.modules
    more = armed.files.keys() - plain.files.keys()
    assert len(more) <= _files.MOST_FILES, sorted(more)
    assert armed.size - plain.size <= _files.MOST_BYTES
    # Neither a patch nor what decides on one.
    inside = [name for name in armed.modules if name.startswith("overlay.patches.")]
    assert inside == []
