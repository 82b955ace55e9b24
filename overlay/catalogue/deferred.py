"""Patches that are not imported until more is asked of them than arming takes.

Every process of a job arms all patches, and most processes never import what they are for. What arming asks
of a patch stands for all of them in one module, the index of the pack. It is written from the patches, and
compared with each one that is imported.
"""

from __future__ import annotations

import sys

from overlay.errors import OverlayError
from overlay.patch import Patch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

#: The name of the index in a pack, which has it as `INDEX`: by the id of a patch what `facts` returns.
INDEX = "_index"
#: The fields of a patch that arming asks for.
_INDEXED = ("id", "revision", "requires", "companion", "opt_in", "switch")


class _Late:
    """A field that is not indexed: asking for it imports the patch."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, patch: Deferred | None, _owner: type) -> Any:
        return self if patch is None else getattr(whole(patch), self._name)


class Deferred(Patch):
    """A patch that has been indexed and not imported. Once it is, it is a `Patch` like any other."""

    def __init__(self, known: Mapping[str, Any], module: str, load: Callable[[str, str], Patch]) -> None:
        """Take what the index says, the module that has the patch, and what imports that, given the id."""
        own = {name: known.get(name, getattr(Patch, name, None)) for name in _INDEXED}
        self.__dict__.update(own, _known=known, _load=lambda: load(module, own["id"]))

    def modules(self) -> tuple[str, ...]:
        """Return the modules that it would change in any variant."""
        # (Another thread may have imported the patch since this was called.)
        known = self.__dict__.get("_known")
        return Patch.modules(self) if known is None else tuple(known["modules"])

    def __eq__(self, other: object) -> bool:
        own = vars(whole(self))
        return own == vars(whole(other)) if isinstance(other, Patch) else NotImplemented

    def __hash__(self) -> int:
        return hash(Patch(**vars(whole(self))))

    def __repr__(self) -> str:
        return repr(Patch(**vars(whole(self))))

    def replace(self, **changes: Any) -> Patch:  # type: ignore[override]
        """Return a copy with `changes` made."""
        return Patch(**{**vars(whole(self)), **changes})

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return Patch.to_dict(whole(self))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return Patch(**vars(whole(self))).__reduce_ex__(protocol)


for _name in Patch._fields:
    if _name not in _INDEXED:
        setattr(Deferred, _name, _Late(_name))


def whole(patch: Patch) -> Patch:
    """Return a patch with all its fields: one that was deferred is imported, and becomes what it stands for.

    Raises:
        OverlayError: The index says something else of it, or its module is not as it should be.

    """
    own = patch.__dict__
    if "_load" in own:
        found: Patch = own["_load"]()
        if facts(found) != own["_known"]:
            msg = (
                f"the index of the patches is not that of {found.id}: in a checkout `./scripts/matrix index` "
                "writes it anew, and elsewhere overlay is to be installed again"
            )
            raise OverlayError(msg)
        # Each in one step: other threads ask the same patch.
        object.__setattr__(patch, "__dict__", dict(vars(found)))
        object.__setattr__(patch, "__class__", Patch)
    return patch


def facts(patch: Patch) -> dict[str, Any]:
    """Return what the index says of a patch: what arming asks for, defaults left out."""
    found = {name: getattr(patch, name) for name in _INDEXED}
    said = {name: value for name, value in found.items() if value != getattr(Patch, name, None)}
    return {**said, "modules": patch.modules()}


def index_of(pack: str) -> dict[str, dict[str, Any]]:
    """Return the index of a pack, empty if it has none."""
    name = f"{pack}.{INDEX}"
    try:
        __import__(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return {}
    found: dict[str, dict[str, Any]] = sys.modules[name].INDEX
    return found
