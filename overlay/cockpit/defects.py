"""The known defects of what is installed here: which are there, which are mended, and which are not."""

from __future__ import annotations

from overlay.base.record import Record
from overlay.verdict import LOUD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from overlay.patch import Patch
    from overlay.verdict import Plan


class Defects(Record):
    """Known defects of what is installed, each by the id under which it is known."""

    #: Present, and mended by a patch that is selected.
    mended: tuple[str, ...]
    #: Present, and left as they are: a patch is there for them, and is not selected.
    left: tuple[str, ...]
    #: Neither known to be there nor not to be there: the source is one that nobody has looked at.
    unknown: tuple[str, ...]

    @property
    def present(self) -> int:
        """How many there are."""
        return len(self.mended) + len(self.left)


def defects(everything: Plan, applied: Collection[str], known: Mapping[str, Patch]) -> Defects:
    """Return the defects that patches know of: each is for one, but for the companions.

    Args:
        everything: The plan of all patches.
        applied: The ids of the patches that are selected and apply.
        known: All patches, by id.

    """
    verdicts = [one for one in everything.verdicts if not known[one.patch].companion]
    there = [one.patch for one in verdicts if one.verdict == "apply" or one.patch in applied]
    return Defects(
        mended=tuple(name for name in there if name in applied),
        left=tuple(name for name in there if name not in applied),
        unknown=tuple(one.patch for one in verdicts if one.verdict in LOUD and one.patch not in applied),
    )
