"""Plans: the verdicts of all patches in one environment."""

from __future__ import annotations

from overlay.model.record import TYPE_CHECKING
from overlay.source.decide import decide_all
from overlay.source.selection import in_order
from overlay.verdict import Plan, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from overlay.patch import Patch
    from overlay.source.source import Tree
    from overlay.source.table import Table


def make_plan(
    patches: Iterable[Patch], selection: Sequence[str], tree: Tree, table: Table, site: str = ""
) -> Plan:
    """Decide on every patch, as `decide_all` does. Patches that are not selected are only named."""
    by_id = {patch.id: patch for patch in patches}
    settled = decide_all([by_id[name] for name in selection], tree, table)
    verdicts = tuple(settled.get(name) or _left_out(by_id[name]) for name in in_order(by_id))
    return Plan(site=site, selection=tuple(selection), verdicts=verdicts)


def _left_out(patch: Patch) -> Verdict:
    return Verdict(patch=patch.id, verdict="not-selected", reason="the selection leaves it out")
