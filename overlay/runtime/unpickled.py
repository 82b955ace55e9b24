"""Replacements that came here pickled, from a process that is patched.

A class that is pickled by value, as Ray does with actor classes, takes its methods along, ours included; the
modules that it calls stay what they are here. So a process that is not patched is half-patched then. A
replacement therefore carries a mark, which notes where it is unpickled.
"""

from __future__ import annotations

import gc
from types import FunctionType

from overlay import log
from overlay.errors import PatchError
from overlay.ledger import CAME

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from overlay.ledger import PatchStatus, Status

#: What has arrived: label and site of each replacement, in order, once.
_arrived: dict[tuple[str, str], None] = {}
#: Returns the state of this process. The engine sets it; `None` as long as there is no engine.
tell: Callable[[], Status] | None = None
#: Returns which patch replaces each site here.
claims: Callable[[], dict[str, str]] = dict


class Mark(str):
    """The label of a patch, such as `verl.dynamic-cp-loss`, on one of its replacements."""

    __slots__ = ("site",)
    site: str

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return arrive, (str(self), self.site)


def mark(label: str, site: str) -> Mark:
    """Return the mark of a replacement."""
    made = Mark(label)
    made.site = site
    return made


def arrive(label: str, site: str) -> Mark:
    """Note that a replacement has been unpickled, and warn of it if its patch is not in force here.

    Raises `PatchError` if this process is enabled in strict mode, or pinned, and leaves the patch out.
    """
    known = (label, site) in _arrived
    _arrived[label, site] = None
    status = None if tell is None else tell()
    state = _lack(status.patches if status is not None and status.enabled else (), label)
    if state:
        text = f"half-patched: {site} of {label} {CAME}, and here that patch is {state}"
        if not known:
            log.warning(text)
        if status is not None and status.enabled and (status.strict or status.pinned):
            raise PatchError(text)
    return mark(label, site)


def look_for_plain(module: str, space: dict[str, Any]) -> None:
    """Warn of functions that came by value from a process that ran their module unpatched.

    `space` is their namespace. A patch that applies here replaces them in the module, but not in what came.
    Raises `PatchError` if this process is enabled in strict mode, or pinned.
    """
    from overlay.runtime.search import ORIGINAL, OWNER

    replaced = claims()
    for function in [one for one in gc.get_referrers(space) if type(one) is FunctionType]:
        site = f"{module}:{function.__qualname__}"
        # Of a patched process, the replacement came along, and holds its original.
        behind = any(
            type(one) is dict and one.get(ORIGINAL) is function for one in gc.get_referrers(function)
        )
        if site not in replaced or behind or OWNER in vars(function):
            continue
        text = f"half-patched: {site} came here pickled by a process that is not patched: {replaced[site]} "
        text += "does not reach it. Start that process with overlay, too"
        log.warning(text)
        if tell is not None and ((status := tell()).strict or status.pinned):
            raise PatchError(text)


def half_patched(patches: Iterable[PatchStatus]) -> tuple[str, ...]:
    """Name each replacement that arrived and whose patch is not in force here now: `site of label`."""
    patches = tuple(patches)
    return tuple(f"{site} of {label}" for label, site in _arrived if _lack(patches, label))


def _lack(patches: Iterable[PatchStatus], label: str) -> str:
    """Return the state of a patch that is not whole here, nor will be; empty if it is."""
    for patch in patches:
        if patch.patch == label:
            return patch.lack
    return "not selected or not enabled"
