"""The file that a report is written to: asked before any work whether it can be, and said afterwards."""

from __future__ import annotations

import os
import tempfile

from overlay.errors import ReportError


def check(path: str) -> None:
    """Raise `ReportError` if no page can be written to a path. Nothing is changed there."""
    folder = os.path.dirname(os.path.abspath(path))
    if os.path.isdir(path):
        raise ReportError(f"the report cannot be written: {path} is a folder; name a file in it")
    if not os.path.isdir(folder):
        what = "is no folder" if os.path.exists(folder) else "does not exist"
        raise ReportError(f"the report cannot be written: {folder} {what}")
    try:
        if os.path.isfile(path):
            with open(path, "ab"):
                pass
        elif not os.path.exists(path):
            # Rights say little on network drives and in containers: a file that can be made says all.
            with tempfile.TemporaryFile(dir=folder):
                pass
    except OSError as error:
        raise ReportError(f"the report cannot be written: {error}") from error


def write(path: str, text: str) -> str:
    """Write a page and return a sentence on it. Raises `ReportError`."""
    data = text.encode("utf-8", errors="backslashreplace")
    try:
        with open(path, "wb") as file:
            file.write(data)
    except OSError as error:
        raise ReportError(f"the report cannot be written: {error}") from error
    return f"wrote {os.path.abspath(path)} ({len(data) / 1e6:.1f} MB)"
