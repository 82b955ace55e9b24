"""The row of a patch that passed on a source, without a run."""

from __future__ import annotations

from overlay.desk.prove.rows import trial
from overlay.patch import Patch, Target
from overlay.source.source import Tree
from overlay.source.table import Row, Table


def row_of(patch: Patch, target: Target, tree: Tree, name: str) -> Row | None:
    """Return the row of the first variant that fits a source, `None` if none does."""
    found = trial(patch.replace(targets=(target,)), tree, Table(), name)
    return found.choices[0][0] if found.choices else None
