"""Which files of a tree a recipe means."""

from __future__ import annotations

import os
import re

from overlay.base.record import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from overlay.suite.recipe import Excluded


def expand(tree: str, patterns: Sequence[str]) -> list[str]:
    """Return the files that match a pattern, sorted. `**` stands for any folders, `*` for part of a name."""
    found = _files(tree)
    return [name for name in found if any(_matches(name, pattern) for pattern in patterns)]


def excluded(files: Iterable[str], groups: Iterable[Excluded]) -> dict[str, str]:
    """Return the files that are not run, with the reason."""
    reasons: dict[str, str] = {}
    names = list(files)
    for group in groups:
        for name in names:
            if any(_matches(name, pattern) for pattern in group.files):
                reasons.setdefault(name, group.reason)
    return reasons


def _files(tree: str) -> list[str]:
    found = []
    for folder, _, names in os.walk(tree):
        inside = os.path.relpath(folder, tree)
        found += [os.path.normpath(os.path.join(inside, name)) for name in names]
    return sorted(found)


def _matches(name: str, pattern: str) -> bool:
    parts = re.split(r"(\*\*/|\*)", pattern)
    kinds = {"**/": "(.*/)?", "*": "[^/]*"}
    return re.fullmatch("".join(kinds.get(part, re.escape(part)) for part in parts), name) is not None
