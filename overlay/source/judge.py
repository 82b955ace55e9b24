"""Whether an installation has a defect, by its source, and whether a patch fixes it there."""

from __future__ import annotations

from overlay.model.record import TYPE_CHECKING, Record
from overlay.patch import Patch, Target
from overlay.source.decide import decide_target, sites_in

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from overlay.defect import Defect
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


def judge(  # noqa: PLR0913, PLR0917 -- what a defect is judged by
    defect: Defect,
    patches: Mapping[str, Patch],
    everything: Mapping[str, Verdict],
    planned: Mapping[str, Verdict],
    tree: Tree,
    table: Table,
) -> Finding:
    """Return the finding on a defect (one that `known_defects.whole` has filled in) in a tree. Never raises.

    `everything`: the verdict on each patch if all are selected. `planned`: by the selection that counts.
    """
    found = _look(defect, everything, tree, table)
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
        reason = found.reason.removesuffix(sites_in(defect.id))
        return finding.replace(reason=reason, way_out=_later(defect))
    if state != "open" or not defect.patch:
        return finding.replace(way_out=_way_out(defect) if state == "open" else "")
    verdict = planned[defect.patch]
    if verdict.verdict == "apply":
        return finding.replace(state="mended")
    if verdict.verdict == "not-selected":
        opt_in = patches[defect.patch].opt_in
        why = "its patch is opt-in" if opt_in else "its patch is not selected"
        return finding.replace(reason=why, way_out=f"OVERLAY_PATCHES=all,{defect.patch}")
    why = f"{defect.patch} is {verdict.verdict}: {verdict.reason}"
    return finding.replace(reason=why, way_out=_way_out(defect))


def _look(defect: Defect, verdicts: Mapping[str, Verdict], tree: Tree, table: Table) -> TargetVerdict:
    """Return the verdict by a defect's own sites, or by those of the patch that fixes it."""
    if not defect.sites:
        name = defect.project.name
        return next(one for one in verdicts[defect.patch].targets if one.project == name)
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


def concerns(finding: Finding, harms: Container[str]) -> bool:
    """Return whether the project of a finding is installed, and its harm is one of `harms`."""
    return finding.state != "not-installed" and finding.harm in harms
