"""What shows that patches work: the figures and contracts that come with them. It needs no checkout."""

from __future__ import annotations

import ast
import os
import re
from importlib import import_module
from importlib.util import find_spec

from overlay.base.record import TYPE_CHECKING, Record
from overlay.catalogue.registry import module_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from importlib.machinery import ModuleSpec
    from typing import Any

    Support = Mapping[str, Mapping[str, Mapping[str, str]]]


class Tried(Record):
    """What the contract of a patch promises, and where that was tried."""

    patch: str
    #: A sentence.
    promise: str
    #: Releases of this report on which it was tried, and what came of it.
    here: tuple[tuple[str, str], ...]
    #: Releases, heads and images on which it passed, and on which it was tried.
    passed: int
    tried: int


def figures(patch: str) -> list[Any]:
    """Return the figures of a patch that was loaded, from `figures.py` in its folder; none without one."""
    spec = _file(patch, "figures")
    found: list[Any] = import_module(spec.name).figures() if spec is not None else []
    return [{**figure, "title": f"{patch}: {figure['title']}"} for figure in found]


def contracts(patches: Iterable[str], support: Support, here: Iterable[str]) -> dict[str, Tried]:
    """Return the contracts of patches that have one, by patch.

    Args:
        patches: Ids.
        support: The matrix that comes with overlay, which has what came of trying them.
        here: The releases of a report, such as `verl 0.8.0`.

    """
    releases = sorted({release.replace(" ", "==") for release in here})
    found = {}
    for name in patches:
        promise = _promise(name)
        if promise:
            tried = {
                place: row[name]["check"] for place, row in support.items() if row.get(name, {}).get("check")
            }
            said = tuple((place.replace("==", " "), tried[place]) for place in releases if place in tried)
            passed = sum(one == "passed" for one in tried.values())
            found[name] = Tried(patch=name, promise=promise, here=said, passed=passed, tried=len(tried))
    return found


def _promise(patch: str) -> str:
    """Return what the file of a contract says first of it; it is read and not run."""
    spec = _file(patch, "contract")
    if spec is None or not spec.origin or not os.path.isfile(spec.origin):
        return ""
    with open(spec.origin, encoding="utf-8") as file:
        text = (ast.get_docstring(ast.parse(file.read())) or "").partition("\n\n")[0]
    said = re.sub(r"^(What|The contract of) `[^`]*`( is held to)?: ", "", " ".join(text.split()))
    return said[:1].upper() + said[1:]


def _file(patch: str, name: str) -> ModuleSpec | None:
    """Return where a module in the folder of a loaded patch lies, `None` if there is none."""
    home = module_of(patch)
    is_folder = home and hasattr(import_module(home), "__path__")
    return find_spec(f"{home}.{name}") if is_folder else None
