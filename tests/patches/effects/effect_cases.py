"""What a test of counts begins with: what a patch adds to, at nothing, and its functions."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any

from overlay.source.registry import load_patches, module_of

PATCHES = load_patches()
#: For a factory that reads nothing of its module.
NO_MODULE: Any = None


def part(patch: str, name: str) -> str:
    """Return the module that has a part of a patch: a file of its own, or that of the patch."""
    own = f"{module_of(patch)}.{name}"
    return own if find_spec(own) is not None else module_of(patch)


def effect_of(patch: str) -> Any:
    """Return what a patch adds to, `None` if it counts nothing."""
    return getattr(importlib.import_module(part(patch, "effect")), "EFFECT", None)


COUNTING = [name for name in sorted(PATCHES) if effect_of(name) is not None]


def counts_of(patch: str) -> Any:
    """Return what a patch adds to, at nothing."""
    counts = effect_of(patch)
    counts.clear()
    return counts


def fix(patch: str) -> Any:
    """Return the functions of a patch."""
    return importlib.import_module(part(patch, "fix"))
