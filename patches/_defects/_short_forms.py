"""Short forms in which the records are written: conditions that hold together, and three kinds of sources."""

from __future__ import annotations

from itertools import product

from overlay.defect import Setting
from overlay.patch import Variant, variant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from overlay.defect import Condition as OnSettings
    from overlay.patch import Condition

#: slime's own loss and miles' divide by themselves without a loss per token, and say that there is one token.
NOT_SLIME = Setting(key="rollout_batch_size", among=(None,))


def all_of(*conditions: OnSettings | tuple[OnSettings, ...]) -> tuple[tuple[OnSettings, ...], ...]:
    """Return the ways to meet a defect where all of these conditions hold, of `one_of` any one."""
    return tuple(product(*(one if isinstance(one, tuple) else (one,) for one in conditions)))


def one_of(*conditions: OnSettings) -> tuple[OnSettings, ...]:
    """Return conditions of which one is enough, for `all_of`."""
    return conditions


def present(name: str, versions: str, *conditions: Condition) -> Variant:
    """Return the sources that have a defect."""
    return variant(name, versions, *conditions)


def fixed(name: str, versions: str, *conditions: Condition, reason: str) -> Variant:
    """Return the sources that have it no more."""
    return variant(name, versions, *conditions, verdict="fixed-upstream", reason=reason)


def absent(name: str, versions: str, *conditions: Condition, reason: str) -> Variant:
    """Return the sources that never had it."""
    return variant(name, versions, *conditions, verdict="not-affected", reason=reason)
