"""The known defects: their records, and whether an installation has one of them, and a patch fixes it there.

The records lie beside the patches, in `_defects`. Commands load them, and the first rank of a job that knows
its settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from overlay.defect import READ, Defect, Dialect
from overlay.errors import OverlayError
from overlay.model.record import Record
from overlay.patch import Patch, Target
from overlay.source.decide import decide_target, without_command
from overlay.source.registry import COMPAT, PACK, import_module, tables
from overlay.source.source import Tree
from overlay.source.table import Table
from overlay.verdict import TargetVerdict, Verdict

#: The states of a defect in an installation, in the order in which people are told.
DEFECT_STATES: dict[str, str] = {
    "open": "not patched",
    "unknown-source": "not known for this source",
    "mended": "patched",
    "not-needed": "not in this release, which does not have the code that is wrong",
    "not-installed": "the project is not installed",
}
#: Said where neither a setting nor a release is known to help.
NO_WORKAROUND = "no workaround is known"
_OF_VERDICTS = {"apply": "open", "not-needed": "not-needed", "not-installed": "not-installed"}


def load_defects(patches: Mapping[str, Patch]) -> dict[str, Defect]:
    """Return all defects by id, each made whole."""
    table = tables()
    return {defect.id: whole(defect, patches, table) for defect in records(patches)}


def records(patches: Mapping[str, Patch]) -> list[Defect]:
    """Return all defects as they are recorded. Raises `OverlayError` if records are missing."""
    try:
        found: Sequence[Defect] = import_module(f"{PACK}._defects").DEFECTS
    except ImportError as error:
        raise OverlayError(f"known defects are missing ({error}): install overlay again") from error
    # Without its patch, a defect cannot be judged.
    return [defect for defect in found if not defect.patch or defect.patch in patches]


def dialects() -> tuple[Dialect, ...]:
    """Return the formats in which the settings of jobs are written."""
    known: tuple[Dialect, ...] = import_module(f"{COMPAT}.dialects").DIALECTS
    return known


def whole(defect: Defect, patches: Mapping[str, Patch], table: Table) -> Defect:
    """Return a defect with the fields that its record leaves to its patch and to the table filled in."""
    patch = patches.get(defect.patch)
    of = defect.id if defect.sites else defect.patch
    fixed = defect.fixed or (table.first_without(of, defect.project.name, defect.only) if of else None)
    defect = defect.replace(fixed=fixed)
    if patch is None:
        return defect.replace(shown=defect.shown or READ)
    return defect.replace(
        met=defect.met or patch.met,
        upstream=defect.upstream or patch.upstream,
        shown=defect.shown or f"overlay prove {patch.id}",
    )


class Finding(Record):
    """What was found of one defect in an installation."""

    defect: str
    project: str
    version: str
    harm: str
    #: One of `DEFECT_STATES`.
    state: str
    #: Why it is not patched, or cannot be told; empty if there is nothing to say.
    reason: str = ""
    #: What to do about it, empty if there is nothing to be done.
    way_out: str = ""
    patch: str = ""
    #: A site that shows it, for a reader of the code.
    site: str = ""


def judge(defect: Defect, patch: Patch | None, verdict: Verdict | None, tree: Tree, table: Table) -> Finding:
    """Return the finding on a defect (one that `whole` has filled in) in a tree. Never raises.

    `patch` is the one that fixes it, `verdict` the verdict on it, which has targets even if the selection
    leaves it out; both are `None` if no patch does.
    """
    found = _look(defect, verdict, tree, table)
    state = _OF_VERDICTS.get(found.verdict, "unknown-source")
    if state == "open" and defect.only and found.variant not in defect.only:
        state = "not-needed"
    finding = Finding(
        defect=defect.id,
        project=defect.project.name,
        version=found.version,
        harm=defect.harm,
        state=state,
        patch=defect.patch,
        site=next((one.site for one in found.findings if ":" in one.site), ""),
    )
    if state == "unknown-source":
        # `overlay explain` takes patches alone.
        reason = without_command(found.reason)
        return finding.replace(reason=reason, way_out=_later(defect))
    if state != "open" or patch is None or verdict is None:
        return finding.replace(way_out=_way_out(defect) if state == "open" else "")
    if verdict.verdict == "apply" or verdict.included:
        return finding.replace(state="mended")
    if verdict.verdict == "not-selected":
        why = "its patch is opt-in" if patch.opt_in else "its patch is not selected"
        return finding.replace(reason=why, way_out=f"OVERLAY_PATCHES=all,{patch.id}")
    why = f"{patch.id} is {verdict.verdict}: {verdict.reason}"
    return finding.replace(reason=why, way_out=_way_out(defect))


def _look(defect: Defect, verdict: Verdict | None, tree: Tree, table: Table) -> TargetVerdict:
    """Return the verdict by a defect's own sites, or by those of the patch that fixes it."""
    if verdict is not None and not defect.sites:
        return next(one for one in verdict.targets if one.project == defect.project.name)
    patch = as_patch(defect)
    return decide_target(patch, patch.targets[0], tree, table)


def as_patch(defect: Defect) -> Patch:
    """Return a defect with sites of its own as a patch that replaces nothing: both are decided on alike."""
    return Patch(
        id=defect.id,
        summary=defect.summary,
        why=defect.summary,
        upstream=defect.upstream,
        targets=(Target(project=defect.project, variants=(), tells=defect.sites),),
    )


def _way_out(defect: Defect) -> str:
    return "; or ".join(filter(None, [advice(defect), _later(defect)])) or NO_WORKAROUND


def advice(defect: Defect) -> str:
    """Return what to do about a defect, and whether anybody tried it; empty if nothing is known."""
    untried = "" if defect.tried or not defect.way_out else "(untested) "
    return untried + defect.way_out


def _later(defect: Defect) -> str:
    return f"{defect.project.name} {defect.fixed} has the fix" if defect.fixed else ""
