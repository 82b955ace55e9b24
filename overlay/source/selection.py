"""What was selected, by whom, and how to ask for less."""

from __future__ import annotations

from overlay.errors import SelectionError
from overlay.model import settings
from overlay.model.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from overlay.patch import Patch


class Selection(Record):
    """The patches that were asked for, and the words in which they were."""

    #: Sorted.
    ids: tuple[str, ...]
    #: Companions among them that came along: not asked for by their ids. A glob does not name one, and
    #: neither does `all`: who writes it wants the fixes, of which a companion is none.
    companions: tuple[str, ...]
    #: As they were given, empty if nothing was.
    terms: tuple[str, ...] = ()
    #: Whether they are an argument of `enable()`: none (the environment has them), a string or a list.
    argument: type | None = None
    known: tuple[str, ...] = ()
    all_companions: tuple[str, ...] = ()
    #: The patches that `all` and globs leave out.
    opt_in: tuple[str, ...] = ()

    def without(self, drop: Iterable[str], *, strict: bool = False) -> str:
        """Return what to set, or to call, to select the same without some patches.

        It is the whole selection: one that begins with a term that drops starts from everything.

        Args:
            drop: Ids.
            strict: Whether strict mode is an argument of `enable()` as well.
        """
        gone = sorted(set(drop))
        left = tuple(name for name in self.ids if name not in gone)
        plain = tuple(term for term in self.terms if term not in gone)
        words = [plain, (*self.terms, *(f"-{name}" for name in gone))]
        chosen = next((terms for terms in words if self._means(terms) == left), words[1])
        return self._written(chosen if self._means(chosen) else ("none",), strict=strict)

    def _means(self, terms: tuple[str, ...]) -> tuple[str, ...]:
        try:
            return settings.select(self.known, terms, companions=self.all_companions, opt_in=self.opt_in)
        except SelectionError:
            return ()

    def _written(self, terms: tuple[str, ...], *, strict: bool) -> str:
        text = ",".join(terms)
        if self.argument is None:
            from shlex import quote

            return f"OVERLAY_PATCHES={quote(text)}"
        said = _quoted(text) if self.argument is str else f"[{', '.join(map(_quoted, terms))}]"
        return f"overlay.enable({said}{', strict=True' if strict else ''})"


def _quoted(text: str) -> str:
    return f'"{text}"' if text.isprintable() and not {'"', "\\"} & {*text} else repr(text)


def choose(
    known: Mapping[str, Patch],
    patches: str | Iterable[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Selection:
    """Return what an argument of `enable()` selects, or else the environment. Raises `SelectionError`."""
    on = {name: settings.is_on(name, environ) for name in {patch.switch for patch in known.values()} if name}
    companions = tuple(
        sorted(patch.id for patch in known.values() if patch.companion or on.get(patch.switch, False))
    )
    opt_in = tuple(sorted(patch.id for patch in known.values() if patch.opt_in))
    if patches is not None and not isinstance(patches, str):
        patches = settings.terms(patches)
    ids = settings.select(known, patches, environ, companions, opt_in)
    terms = settings.asked(patches, environ)
    return Selection(
        ids=ids,
        companions=tuple(name for name in companions if name in ids and name not in terms),
        terms=tuple(terms),
        argument=None if patches is None else str if isinstance(patches, str) else list,
        known=tuple(sorted(known)),
        all_companions=companions,
        opt_in=opt_in,
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
