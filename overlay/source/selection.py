"""What was selected, by whom, and how to ask for less."""

from __future__ import annotations

import os

from overlay.model import settings
from overlay.model.record import TYPE_CHECKING, Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from overlay.patch import Patch


#: What to do where advice to set `OVERLAY_PATCHES` may not help.
SET_BY_RUN = "; if `overlay run --patches` set it, change it there"


class Selection(Record):
    """The selected patches, and the terms that selected them."""

    #: Sorted.
    ids: tuple[str, ...]
    #: The companions among them that nobody named by id. Neither a glob nor `all` names one: it asks for
    #: fixes, and a companion is none.
    companions: tuple[str, ...]
    #: As they were given, empty if nothing was.
    terms: tuple[str, ...] = ()
    #: Whether the terms are an argument of `enable()`, and not from the environment.
    given: bool = False
    #: The other argument of `enable()`: strict mode, `None` if the environment decides.
    strict: bool | None = None

    def without(self, drop: Iterable[str]) -> str:
        """Return what to set, or to call, to select the same without some patches."""
        return self._asked(*self.terms, *(f"-{name}" for name in sorted(drop)))

    def including(self, patch: Patch) -> str:
        """Return what to set, or to call, to select the same and a patch, with what it requires."""
        more = [name for name in (*sorted(patch.requires), patch.id) if name not in self.ids]
        # A term that drops it stays: as the first one, it says that all others are selected.
        terms = () if self.terms == ("none",) else self.terms or ("all",)
        return self._asked(*terms, *more)

    def _asked(self, *terms: str) -> str:
        if not self.given:
            return f"OVERLAY_PATCHES={','.join(terms)}"
        strict = "" if self.strict is None else f", strict={self.strict}"
        return f'overlay.enable("{",".join(terms)}"{strict})'


def choose(
    known: Mapping[str, Patch],
    patches: str | Iterable[str] | None = None,
    strict: bool | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Selection:
    """Return what `patches` selects, or without it the environment. Raises `SelectionError`."""
    companions = tuple(sorted(patch.id for patch in known.values() if patch.companion))
    opt_in = tuple(sorted(patch.id for patch in known.values() if patch.opt_in))
    terms = settings.asked(patches, environ)
    ids = settings.select(known, None if patches is None else terms, environ, companions, opt_in)
    return Selection(
        ids=ids,
        companions=tuple(name for name in companions if name in ids and name not in terms),
        terms=tuple(terms),
        given=patches is not None,
        strict=strict,
    )


def in_order(patches: Mapping[str, Patch]) -> list[str]:
    """Return the ids so that each comes after those that it requires, else by name."""
    done: list[str] = []

    def visit(name: str, above: tuple[str, ...]) -> None:
        if name in done or name not in patches or name in above:
            return
        for needed in sorted(patches[name].requires):
            visit(needed, (*above, name))
        done.append(name)

    for name in sorted(patches):
        visit(name, ())
    return done
