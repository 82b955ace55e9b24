"""What is said of a run: what each patch changed, and which had nothing to do."""

from __future__ import annotations

from overlay.effect import told

TYPE_CHECKING = False
if TYPE_CHECKING:
    from overlay.ledger import PatchStatus, Status

#: States of a patch that was in place.
_WAS_IN_PLACE = ("applied", "incomplete", "reverted", "armed")


def lines(status: Status) -> list[str]:
    """Return what this process has to say at its end: what was changed, line by line, and then the rest."""
    counted = [patch for patch in status.patches if _counted(patch)]
    changed = [patch for patch in counted if patch.effect is not None and patch.effect.values.get("changed")]
    looked = [
        patch
        for patch in counted
        if patch not in changed and patch.effect is not None and patch.effect.reached
    ]
    never = [patch.patch for patch in counted if patch.effect is not None and not patch.effect.reached]
    found = [f"in this run: {one.patch} {told(one.effect)}" for one in changed if one.effect is not None]
    found += [f"in this run: {one.patch} {told(one.effect)}" for one in looked if one.effect is not None]
    if never:
        found.append(f"in this run: nothing to do for: {', '.join(never)}")
    return found


def _counted(patch: PatchStatus) -> bool:
    """Return whether a patch was in place in this process and counts what it does."""
    return patch.effect is not None and patch.state in _WAS_IN_PLACE
