"""The known defects that affect this very job, by the settings that its upstream has parsed.

Nothing is guessed: an option that the upstream does not have, and a condition that no setting tells, are not
met. So the list is never longer than the truth, and may be shorter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from overlay import log
from overlay.defect import HARMS, Defect, Dialect, Setting
from overlay.ledger import Met
from overlay.model.rank import is_first
from overlay.patch import Patch
from overlay.runtime.engine import Engine
from overlay.source.conditions import answer, means
from overlay.source.known_defects import judge, records, whole
from overlay.source.selection import SET_BY_RUN
from overlay.source.source import Tree
from overlay.verdict import Verdict

#: The most defects that the line names.
_NAMED = 3


def meet(engine: Engine, dialect: Dialect, parts: Iterable[Mapping[str, object]]) -> None:
    """Find the known defects that affect this job, keep them for the ledger, and log them in a line.

    Only the first rank does. Never raises: its log must not fail a job. `parts` are the settings by
    key, once for each part of the job that has its own, such as the actor and the critic. A defect is met if
    one part meets all its conditions. A list meets what a member meets.
    """
    if not is_first():
        return
    try:
        engine.met = found = defects_of(engine, dialect, list(map(Indexed, parts)))
        if found:
            (log.warning if any(one.state != "mended" for one in found) else log.info)(sentence(found))
    except Exception as error:  # noqa: BLE001 -- see above
        log.warning(f"the known defects that affect this job cannot be told: {error!r}")


def defects_of(engine: Engine, dialect: Dialect, parts: Sequence[Indexed]) -> tuple[Met, ...]:
    """Return the known defects that affect a job, those that are not patched first, then the worst."""
    patches = engine.known()
    statuses = engine.status().patches
    tree, table = Tree(), engine.tested()
    found = []
    for record in records(patches):
        reasons = why(record, dialect, parts)
        if reasons is None:
            continue
        defect = whole(record, patches, table)
        verdict = _verdict(engine, defect, patches, tree)
        finding = judge(defect, patches.get(defect.patch), verdict, tree, table)
        state, way_out, by = finding.state, finding.way_out or finding.reason, defect.patch
        if verdict is not None and verdict.included:
            by = next((one.id for one in patches.values() if defect.patch in one.includes), by)
        if state == "open" and verdict is not None and verdict.verdict == "not-selected":
            way_out = engine.chosen().including(patches[defect.patch])
        if state in ("open", "unknown-source", "mended"):
            met = Met(defect=defect.id, harm=defect.harm, state=state, why=reasons, way_out=way_out, patch=by)
            found.append(met.now(statuses))
    worst = list(HARMS)
    return tuple(sorted(found, key=lambda one: (one.state == "mended", worst.index(one.harm), one.defect)))


class Indexed:
    """Settings by key, with lists as tuples, and with an index by the last part of the key."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        self.settings = {
            key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()
        }
        self._by_end: dict[str, list[str]] = {}
        for key in settings:
            self._by_end.setdefault(key.rpartition(".")[2], []).append(key)

    def look_up(self, dialect: Dialect, condition: Setting) -> list[tuple[str, object, str]]:
        """Return each place of a setting, with its value and no remark; nothing if nothing is known."""
        key, settings = condition.key, self.settings
        if key in dialect.negated and dialect.negated[key] in settings:
            return [(key, not settings[dialect.negated[key]], "")]
        if key in settings:
            return [(key, settings[key], "")]
        aside, end = dialect.aside.get(key, ()), key.rpartition(".")[2]
        like = settings if "*" in end else self._by_end.get(end, ())
        named = [(full, settings[full], "") for full in like if means(full, key, aside)]
        # `actor.strategy` decides, and not the `strategy` that `actor.fsdp_config` has as well.
        depth = min((full.count(".") for full, _, _ in named), default=0)
        named = [one for one in named if one[0].count(".") == depth]
        # An option that this upstream does not have counts as not set: if the upstream has others beside it,
        # or if the condition asks for just that.
        root, dot, _ = key.partition(".")
        beside = dot and any(one.startswith(root + dot) for one in settings)
        return named or ([(key, None, "")] if beside or None in condition.among else [])


def why(defect: Defect, dialect: Dialect, parts: Iterable[Indexed]) -> str | None:
    """Return the settings by which a job meets a defect, `None` if it does not, or if they do not tell."""
    if defect.project.name not in dialect.projects:
        return None
    for part in parts:
        found = answer(defect, partial(part.look_up, dialect), dialect.assumes.get(defect.project.name, ()))
        if found.word == "met":
            return found.why
    return None


def _verdict(engine: Engine, defect: Defect, patches: Mapping[str, Patch], tree: Tree) -> Verdict | None:
    """Return the verdict on the patch of a defect by what is selected here, `None` if it has no patch."""
    if not defect.patch:
        return None
    for verdict in engine.decided():
        if verdict.patch == defect.patch:
            return verdict
    alone = engine.plan([defect.patch, *patches[defect.patch].requires], tree).verdicts
    verdict = next(one for one in alone if one.patch == defect.patch)
    return verdict.replace(verdict="not-selected")


def sentence(found: Sequence[Met]) -> str:
    """Return what the log says of the defects that affect a job."""
    left = [one for one in found if one.state != "mended"]
    patched = len(found) - len(left)
    count = f"{len(found)} known defect{'s affect' if len(found) != 1 else ' affects'} this job"
    if not left:
        return f"{count}, {'all ' if patched > 1 else ''}patched here"
    named = "; ".join(f"{one.defect} ({one.harm}): {one.way_out}" for one in left[:_NAMED])
    more = f"; and {len(left) - _NAMED} more: overlay report" if len(left) > _NAMED else ""
    if "OVERLAY_PATCHES=" in named:
        more += SET_BY_RUN
    return f"{count}, {patched} patched here, {len(left)} not: {named}{more}"
