"""What a test of counts begins with: what a patch adds to, at nothing, and its functions."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any

from overlay.catalogue.registry import load_patches, module_of

PATCHES = load_patches()
#: For a factory that reads nothing of its module.
NO_MODULE: Any = None
COUNTING = [name for name in sorted(PATCHES) if find_spec(f"{module_of(name)}.effect") is not None]


def counts_of(patch: str) -> Any:
    """Return what a patch adds to, at nothing."""
    counts = importlib.import_module(f"{module_of(patch)}.effect").EFFECT
    counts.clear()
    return counts


def fix(patch: str) -> Any:
    """Return the functions of a patch."""
    return importlib.import_module(f"{module_of(patch)}.fix")
