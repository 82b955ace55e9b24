"""Records of what long runs have found: JSON with a line for each cell, which a diff then shows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def read(path: Path) -> Any:
    """Return a record, empty if there is none."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def write(path: Path, record: Any, depth: int) -> None:
    """Write a record so that a reader sees either the old one or the new one."""
    fresh = path.with_suffix(".json.new")
    fresh.write_text(text(record, depth) + "\n", encoding="utf-8")
    fresh.replace(path)


def text(record: Any, depth: int, indent: str = "") -> str:
    """Return a record of tables inside each other, with a line for each cell of the one at some depth."""
    if not depth:
        return json.dumps(record)
    inner = f"{indent} "
    rows = [f"{inner}{json.dumps(key)}: {text(cell, depth - 1, inner)}" for key, cell in record.items()]
    return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
