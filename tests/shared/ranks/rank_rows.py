"""What tests share of cases on ranks: started once, each rank back from each case, and its row of figures."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from checks import SEED

from overlay.compat.ranks.launcher import run_cases


@functools.cache
def run_once(world: int, module: str | Path, **options: Any) -> dict[str, list[Any]]:
    """Return what `run_cases` does. The same is asked once: it is the start of ranks that takes time."""
    with tempfile.TemporaryDirectory() as folder:
        return run_cases(world, module, Path(folder), **options)


def answers(found: Mapping[str, list[Any]], case: str) -> list[dict[str, Any]]:
    """Return what each rank found in a case, or raised, if all of them came back from it."""
    rows = found.get(case)
    assert rows is not None, f"the ranks did not come as far as {case!r} (seed {SEED})"
    assert None not in rows, f"rank {rows.index(None)} did not come back from {case!r} (seed {SEED})"
    return rows


def rows_of(found: Mapping[str, list[Any]], case: str) -> list[dict[str, Any]]:
    """Return what each rank found in a case in which none of them may raise."""
    rows = answers(found, case)
    for rank, row in enumerate(rows):
        # `error` is a figure where nothing was raised.
        assert not isinstance(row.get("error"), str), f"rank {rank}, {case!r}, seed {SEED}: {row}"
    return rows
