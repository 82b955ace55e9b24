"""What tests and contracts of a patch need: the patch in place, and the form that it is held to."""

from __future__ import annotations

from contextlib import contextmanager

from overlay.desk import lint
from overlay.errors import PatchError
from overlay.model.settings import in_company, is_alone

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, TypeVar

    from overlay.ledger import PatchStatus
    from overlay.patch import Patch
    from overlay.source.table import Table

    Result = TypeVar("Result")

__all__ = ["applied", "as_without", "assert_applied", "assert_form", "enable", "with_patches", "without"]


def assert_form(patch: Patch) -> None:
    """Hold a patch to the form that all have.

    Raises:
        AssertionError: With a sentence for each rule that the patch breaks.

    """
    found = lint.faults(patch)
    if found:
        msg = "\n  ".join([f"{patch.id} is not of the form:", *found])
        raise AssertionError(msg)


def without(made: Callable[[], Result]) -> tuple[Result, Result]:
    """Return what is made with the patches that were enabled, and without them: they are out from then on."""
    from overlay.runtime.process import here

    ours = made()
    here().disable()
    return ours, made()


def as_without(made: Callable[..., object]) -> Callable[..., str]:
    """Return the `alike` of a contract: what `made` returns is the same with the patches and without."""

    def alike(*given: Any) -> str:
        ours, theirs = without(lambda: made(*given))
        return "" if ours == theirs else f"{ours}, and without the patch {theirs}"

    return alike


@contextmanager
def applied(patch: Patch) -> Iterator[None]:
    """Put a patch and those that it requires in place in this process, and restore the originals at the end.

    A source that the patch was not tested on counts as tested: this is the test.

    Raises:
        PatchError: It does not apply to what is installed here, as in strict mode.
        AssertionError: It was never in place, so that nothing has been tested.

    """
    from overlay.runtime.engine import Engine
    from overlay.runtime.loading import load_all

    engine = Engine(lambda: {**load_all(), patch.id: patch}, table=_table_with(patch))
    try:
        engine.enable([patch.id, *patch.requires], strict=True)
        yield
        found = _of(patch, engine.status().patches)
        if found.state != "applied":
            what = found.reason or "none of the modules that it changes was imported"
            msg = f"{patch.id} is {found.state}, so none of it was tested: {what}"
            raise AssertionError(msg)
    finally:
        engine.disable()


def enable(*patches: str) -> None:
    """Enable patches by their ids, in strict mode. Raises `PatchError` if one cannot be applied.

    Where `overlay prove` tries a contract on upstream alone, nothing is enabled. Where a contract is tried in
    company, so is every patch that `all` selects; some of these may not apply to what is installed.
    """
    if is_alone():
        return
    from overlay.runtime.process import here

    company = in_company()
    here().enable(["all", *patches] if company else list(patches), strict=not company)


def assert_applied(*patches: str) -> None:
    """Raise `PatchError` unless patches that were enabled are in place: one that waits proves nothing.

    Where `overlay prove` tries a contract on upstream alone, there is nothing to be in place.
    """
    if is_alone():
        return
    from overlay.runtime.process import here

    states = {one.patch: one.state for one in here().status().patches}
    for patch in patches:
        if states[patch] != "applied":
            raise PatchError(f"{patch} is {states[patch]}")


def with_patches(wrong: Callable[[str], str], *patches: str) -> Callable[[str], str]:
    """Return the `check` of a contract: it gets a seed, and returns what `wrong` finds with patches in place.

    Where `overlay prove` tries a contract on upstream alone, it is what `wrong` finds there. Each is run in a
    process of its own: the patches stay.

    Args:
        wrong: Gets the seed, and returns what does not hold, empty if all does. It imports what is patched.
        patches: The ids of the patch, and of those that it requires.

    """

    def check(seed: str) -> str:
        enable(*patches)
        found = wrong(seed)
        assert_applied(*patches)
        return found

    return check


def _table_with(patch: Patch) -> Table:
    """Return what patches were tested on, with what is installed here for one patch."""
    from overlay.desk.prove.rows import trial
    from overlay.source.registry import tables
    from overlay.source.source import InstalledTree

    known = tables()
    found = trial(patch, InstalledTree(), known, "here")
    rows = found.choices[0] if found.choices else ()
    return known.plus(rows)


def _of(patch: Patch, patches: tuple[PatchStatus, ...]) -> PatchStatus:
    return next(found for found in patches if found.patch == patch.id)
