"""The pin: a lock that this process must reproduce.

What can be told without an upstream is compared at the start. The rest waits for the import of a target: at
the start the path is not complete, and parsing every target would be paid for by processes that never use
one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from overlay.errors import PinError
from overlay.model.settings import DIGEST_PREFIX
from overlay.model.text import listed
from overlay.patch import Patch
from overlay.records import lock as locks
from overlay.source.registry import Pack, load_patches, wanted_packs
from overlay.source.selection import Selection
from overlay.source.source import Tree
from overlay.verdict import LOUD, Verdict

#: The most differences that are named, and the most patches in one line.
_NAMED = 12


class Pin:
    """What this process is held to: a lock, or the digest of one."""

    def __init__(self, wanted: str, patches: Sequence[Patch], chosen: Selection) -> None:
        """Read the lock and compare what can be told now. Raises `LockError` or `PinError`.

        `patches`: those that `chosen` selects.
        """
        self.name = wanted
        self._terms = chosen.terms
        self._static = locks.static_part(patches, wanted_packs())
        self._digest = wanted.removeprefix(DIGEST_PREFIX) if wanted.startswith(DIGEST_PREFIX) else ""
        #: The lock, as soon as it is known: a digest alone does not tell what it stands for.
        self._lock: locks.Lock | None = None
        if self._digest:
            return
        self._lock = locks.read(wanted)
        here, locked = locks.facts(self._static), locks.facts(self._lock)
        early = {
            name: value
            for name, value in locked.items()
            if name in here or name.startswith("pack ") or name.endswith(locks.SELECTED)
        }
        found = locks.compare(early, here)
        way_out = ""
        if found and all(line.startswith(locks.HELD[2:]) for line in found):
            selection = locks.selection_of(self._lock, load_patches())
            way_out = (
                f'the selection differs: overlay.enable("{selection}") is what was locked; '
                if chosen.given
                else f"the selection differs: OVERLAY_PATCHES='{selection}' is what was locked; "
                "`overlay run --pin` takes it where neither OVERLAY_PATCHES nor --patches is given; "
            )
        if found:
            lines = [listed(line.split(", "), _NAMED) for line in found]
            raise PinError(_told(wanted, [listed(lines, _NAMED, "\n  ", "\n  ")], chosen.terms, way_out))

    def difference(self, verdict: Verdict, verdicts: Iterable[Verdict], tree: Tree) -> str:
        """Return how the verdict on one patch differs from the locked one, empty if it does not."""
        here = locks.make_lock(self._static, verdicts, tree)
        if self._lock is None:
            if here["digest"] != self._digest:
                digests = f"locked {self._digest[:12]}, here {here['digest'][:12]}"
                found = [f"digest: {digests} (with a path, OVERLAY_PIN says what differs)"]
                return _told(self.name, found, self._terms)
            self._lock = here
        names = {**here["environment"], **self._lock["environment"]}
        concerned = (f"{verdict.patch}: ", *(f"{name} version" for name in names))
        found = locks.compare(locks.facts(self._lock, concerned), locks.facts(here, concerned))
        return _told(self.name, found, self._terms) if found else ""

    def accepts(self, patch: str, outcome: str) -> bool:
        """Return whether the lock was made where a patch was left out for this very reason."""
        locked = {entry["id"]: entry["verdict"] for entry in (self._lock or {}).get("patch", ())}
        return outcome in LOUD and locked.get(patch) == outcome


def check_packs(wanted: str, packs: Sequence[Pack]) -> None:
    """Compare packs with a lock before their code is loaded. Raises `LockError` or `PinError`.

    A digest stands for the whole lock and cannot be compared so early.
    """
    if wanted.startswith(DIGEST_PREFIX):
        return
    if found := locks.compare(
        locks.facts(locks.read(wanted), ("pack ",)), locks.facts(locks.static_part((), packs), ("pack ",))
    ):
        raise PinError(_told(wanted, found))


def _told(name: str, found: list[str], terms: Sequence[str] = (), way_out: str = "") -> str:
    way_out += f"to accept what is here: {locks.writer(name, '--update', terms=terms)}"
    return "\n  ".join([f"this process differs from {name}:", *found, f"({way_out})"])
