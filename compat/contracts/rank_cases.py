"""Contracts whose cases are run by ranks that are started for them, with Megatron alone.

The module of the contract has them as `cases`, which `overlay.compat.ranks.megatron_main` runs. What a rank
returns of one are figures by their names.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from overlay.patch import Contract
from overlay.source.registry import PACK

#: What a rank found in a case.
Row = dict[str, Any]
#: Cases as `cases(world)` returns them: name, sizes of the layout, and what each rank runs.
Cases = list[tuple[str, dict[str, int], Callable[[], Row]]]


def within(tolerance: float) -> Callable[[Row], list[str]]:
    """Return what finds a rank off any of whose figures is no error below a tolerance. A NaN is none."""

    def off(row: Row) -> list[str]:
        return [] if all(error < tolerance for error in row.values()) else [""]

    return off


class RankCases:
    """The cases of a patch, what makes one of them wrong, and what is said of one that is."""

    def __init__(
        self,
        patch: str,
        said: str,
        off: Callable[[Row], list[str]],
        *,
        te: bool | str = False,
        left: str = "",
    ) -> None:
        """Take what is the patch's own.

        Args:
            patch: Its id.
            said: What is wrong where a case is, as a clause before the name of the case.
            off: What is wrong with what a rank found, as endings of the case's name, nothing if all is right.
            te: Whether there is a stand-in for Transformer Engine, or the version that it stands for.
            left: What the names of cases end in that the patch leaves as they are.

        """
        self.patch, self.said, self.off, self.te, self.left = patch, said, off, te, left

    def wrong(
        self,
        seed: str,
        te: bool | str | None = None,
        *,
        patched: bool = True,
        release: Path | None = None,
        ranks: int = 2,
        left: bool = False,
    ) -> list[str]:
        """Return the names of the cases in which something is wrong on some rank.

        Args:
            seed: Of what is drawn.
            te: As of all cases, if it is not given.
            patched: Whether the patch is to be in place.
            release: A folder that comes first on the ranks' path.
            ranks: Their number.
            left: Whether to name what the patch leaves as it is, too.

        Raises:
            RuntimeError: A case raised, or a rank did not come back from one.
            TimeoutError: No rank came back from the first case.

        """
        from overlay.compat.ranks.findings import megatron_ranks

        found = megatron_ranks(
            seed,
            f"{PACK}.{self.patch.replace('-', '_')}.contract",
            self.patch if patched else "",
            release=release,
            te=self.te if te is None else te,
            ranks=ranks,
        )
        names = [
            f"{name}{ending}"
            for name, rows in found.items()
            for ending in dict.fromkeys(ending for row in rows for ending in self.off(row))
        ]
        return [name for name in names if left or not self.left or not name.endswith(self.left)]

    def check(self, seed: str) -> str:
        """Return what is wrong with the patch in place, empty if nothing is: what a contract asks."""
        off = self.wrong(seed)
        return f"{self.said}: {off[0]}" if off else ""

    def contract(self) -> Contract:
        """Return the contract that asks this."""
        return Contract(check=self.check, starts=True)
