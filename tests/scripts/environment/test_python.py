"""Which Python the environment is made with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from environment.python import SetupError, find_python

if TYPE_CHECKING:
    from pathlib import Path


def fake_python(path: Path, answer: str) -> str:
    path.write_text(f"#!/bin/sh\n{answer}\n")
    path.chmod(0o755)
    return str(path)


def test_finds_the_first_python_of_the_right_version(tmp_path: Path) -> None:
    paths = [
        None,
        str(tmp_path / "missing"),
        str(tmp_path),
        fake_python(tmp_path / "broken", "exit 127"),
        fake_python(tmp_path / "newer", "printf '3\\n12\\nCPython\\n/usr/bin/python3.12\\n'"),
        fake_python(tmp_path / "other", "printf '3\\n11\\nPyPy\\n/usr/bin/pypy\\n'"),
        fake_python(tmp_path / "shim", "printf '3\\n11\\nCPython\\n/real/python3.11\\n'"),
        fake_python(tmp_path / "later", "printf '3\\n11\\nCPython\\n/other/python3.11\\n'"),
    ]
    assert find_python(paths) == "/real/python3.11"


def test_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"python3\.11 with venv is needed and was not found") as caught:
        find_python([fake_python(tmp_path / "python3", "exit 1")])
    assert "python3.11-venv" in str(caught.value)
    assert "brew install python@3.11\n" in str(caught.value)
    assert "uv python install 3.11 " in str(caught.value)
