"""What contracts need: their patches in place, or upstream without them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from overlay.errors import PatchError
from overlay.model.settings import in_company, is_alone
from overlay.runtime.process import here

Result = TypeVar("Result")


__all__ = ["as_without", "assert_applied", "enable", "with_patches", "without"]


def without(made: Callable[[], Result]) -> tuple[Result, Result]:
    """Return what `made` returns with the enabled patches, and then without them. They stay out."""
    ours = made()
    here().disable()
    return ours, made()


def as_without(made: Callable[..., object]) -> Callable[..., str]:
    """Return the `alike` of a contract: it compares what `made` returns with the patches and without."""

    def alike(*given: Any) -> str:
        ours, theirs = without(lambda: made(*given))
        return "" if ours == theirs else f"{ours}, and without the patch {theirs}"

    return alike


def enable(*patches: str) -> None:
    """Enable patches by their ids, in strict mode. Raises `PatchError` if one cannot be applied.

    Where `overlay prove` tries a contract on upstream alone, nothing is enabled. Where a contract is tried in
    company, so is every patch that `all` selects; some of these may not apply to what is installed.
    """
    if is_alone():
        return
    company = in_company()
    here().enable(["all", *patches] if company else list(patches), strict=not company)


def assert_applied(*patches: str) -> None:
    """Raise `PatchError` unless patches that were enabled are in place: one that waits proves nothing.

    Where `overlay prove` tries a contract on upstream alone, there is nothing to be in place.
    """
    if is_alone():
        return
    states = {one.patch: one.state for one in here().status().patches}
    for patch in patches:
        if states[patch] != "applied":
            raise PatchError(f"{patch} is {states[patch]}")


def with_patches(wrong: Callable[[str], str], *patches: str) -> Callable[[str], str]:
    """Return the `check` of a contract: it gets a seed, and returns what `wrong` finds with patches in place.

    `wrong` gets the seed, imports what is patched, and returns what does not hold, empty if all does.
    `patches` are the ids of the patch, and of those that it requires. Each check is run in a process of its
    own, in which the patches stay. Where `overlay prove` tries a contract on upstream alone, none is there.
    """

    def check(seed: str) -> str:
        enable(*patches)
        found = wrong(seed)
        assert_applied(*patches)
        return found

    return check
