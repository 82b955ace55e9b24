"""The known defects of what is installed here: which are there, which are mended, and which are not."""

from __future__ import annotations

from overlay.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from overlay.auditing.audit import Audit


class Defects(Record):
    """Known defects of what is installed, each by the id under which it is known."""

    #: Present, and mended by a patch that is selected.
    mended: tuple[str, ...]
    #: Present, and left as they are: no patch mends them, or it is not selected.
    left: tuple[str, ...]
    #: Neither known to be there nor not to be there: the source is one that nobody has looked at.
    unknown: tuple[str, ...]

    @property
    def present(self) -> int:
        """How many there are."""
        return len(self.mended) + len(self.left)


def defects(audit: Audit) -> Defects:
    """Return the defects that an audit found, by what it says of each."""

    def named(state: str) -> tuple[str, ...]:
        return tuple(one.defect for one in audit.of(state))

    return Defects(mended=named("mended"), left=named("open"), unknown=named("unknown"))
