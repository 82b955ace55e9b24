"""The sources of a defect that has other bounds than a patch, or none: three kinds of variants."""

from __future__ import annotations

from overlay.patch import Variant, variant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from overlay.patch import Condition


def present(name: str, versions: str, *conditions: Condition) -> Variant:
    """Return the sources that have a defect."""
    return variant(name, versions, *conditions)


def fixed(name: str, versions: str, *conditions: Condition, reason: str) -> Variant:
    """Return the sources that have it no more."""
    return variant(name, versions, *conditions, verdict="fixed-upstream", reason=reason)


def absent(name: str, versions: str, *conditions: Condition, reason: str) -> Variant:
    """Return the sources that never had it."""
    return variant(name, versions, *conditions, verdict="not-affected", reason=reason)
