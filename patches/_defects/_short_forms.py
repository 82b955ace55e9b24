"""Short forms in which the records are written: conditions that hold together, and three kinds of sources."""

from __future__ import annotations

from overlay.patch import Variant, variant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from overlay.defect import Condition as OnSettings
    from overlay.patch import Condition


def all_of(*conditions: OnSettings) -> tuple[tuple[OnSettings, ...], ...]:
    """Return the one way to meet a defect: all of these conditions hold."""
    return (conditions,)


def present(name: str, versions: str, *conditions: Condition) -> Variant:
    """Return the sources that have a defect."""
    return variant(name, versions, *conditions)


def fixed(name: str, versions: str, *conditions: Condition, reason: str) -> Variant:
    """Return the sources that have it no more."""
    return variant(name, versions, *conditions, verdict="fixed-upstream", reason=reason)


def absent(name: str, versions: str, *conditions: Condition, reason: str) -> Variant:
    """Return the sources that never had it."""
    return variant(name, versions, *conditions, verdict="not-affected", reason=reason)
