"""Files that are written as a whole, or not at all."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress


def write_whole(path: str, data: bytes) -> None:
    """Write a file completely, or leave it as it was. Raises `OSError`."""
    path = os.path.realpath(path)  # replace the file that a link leads to, not the link
    if os.path.exists(path) and not os.path.isfile(path):  # a terminal or a pipe cannot be replaced
        with open(path, "wb") as file:
            file.write(data)
        return
    fresh = f"{path}.{os.urandom(4).hex()}.new"
    try:
        with open(fresh, "xb") as file:
            file.write(data)
        if os.path.exists(path):
            shutil.copymode(path, fresh)
        os.replace(fresh, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(fresh)
        raise
