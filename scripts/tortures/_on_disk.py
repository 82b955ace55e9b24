"""A release on disk with one module changed, for what starts processes of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def on_disk(module: str, text: str) -> Iterator[None]:
    """Put a copy of the release with another source of one module first on `PYTHONPATH`, while this lasts.

    The copy is of links: nothing is copied but what is changed. The release is the folder of `PYTHONPATH`
    that has the module.
    """
    before = os.environ["PYTHONPATH"]
    release, file = _found(module, before.split(os.pathsep))
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for entry in release.iterdir():
            if entry.name == file.parts[0]:
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(entry, copy / entry.name, copy_function=os.symlink, ignore=ignored)
            else:
                (copy / entry.name).symlink_to(entry)
        (copy / file).unlink()
        (copy / file).write_text(text, encoding="utf-8")
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, before])
        try:
            yield
        finally:
            os.environ["PYTHONPATH"] = before


def _found(module: str, folders: list[str]) -> tuple[Path, Path]:
    """Return the folder that has a module, and the module's file from there."""
    plain = Path(*module.split("."))
    for folder in map(Path, folders):
        for file in (plain.with_suffix(".py"), plain / "__init__.py"):
            if (folder / file).is_file():
                return folder.resolve(), file
    msg = f"{module} is in none of {', '.join(folders)}"
    raise FileNotFoundError(msg)
