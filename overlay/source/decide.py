"""The one decision: a patch and the source of its targets in, a verdict out.

`decide` is a pure function of what it is given. The import hook, the plan and the audit all call it, so
what the audit says is what a trainer does.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import permutations

from overlay.errors import OverlayError, SourceError
from overlay.model.record import Record
from overlay.patch import Patch, Project, Target, Variant
from overlay.source.selection import in_order
from overlay.source.source import Tree
from overlay.source.table import Table
from overlay.verdict import APPLY, LOUD, Plan, TargetVerdict, Verdict

#: The version of a project that is installed and tells none.
UNKNOWN = "of unknown version"
#: The end of the reason why a source is unknown: what shows more of it.
_SITES = "; `overlay explain {}` lists the sites"


def decide_all(patches: Collection[Patch], tree: Tree, table: Table) -> dict[str, Verdict]:
    """Return the verdict on each patch by id, with conflicts and requirements between them settled."""
    return settle(patches, {patch.id: decide(patch, tree, table) for patch in patches}, tree)


def decide(patch: Patch, tree: Tree, table: Table) -> Verdict:
    """Return the verdict on one patch for the source in `tree`, other patches left aside. Never raises."""
    found: dict[str, TargetVerdict] = {}
    for target in sorted(patch.targets, key=lambda target: bool(target.serves)):  # after what they serve
        found[target.project.name] = decide_target(patch, target, tree, table, found.get(target.serves))
    targets = tuple(found[target.project.name] for target in patch.targets)
    word, reason = combine(targets)
    return Verdict(patch=patch.id, verdict=word, reason=reason, targets=targets)


def make_plan(
    patches: Iterable[Patch], selection: Sequence[str], tree: Tree, table: Table, site: str = ""
) -> Plan:
    """Decide on every patch, as `decide_all` does. Patches that are not selected are only named."""
    by_id = {patch.id: patch for patch in patches}
    settled = decide_all([by_id[name] for name in selection], tree, table)
    for name in by_id.keys() - settled.keys():
        settled[name] = Verdict(patch=name, verdict="not-selected", reason="the selection leaves it out")
    verdicts = tuple(settled[name] for name in in_order(by_id))
    return Plan(site=site, selection=tuple(selection), verdicts=verdicts)


def settle(patches: Iterable[Patch], verdicts: Mapping[str, Verdict], tree: Tree) -> dict[str, Verdict]:
    """Return the verdicts with inclusions, conflicts and requirements between patches settled. Never raises.

    Two patches that would both apply to one site (or one to a class and one to its method) conflict. So does
    a patch with a requirement that does not apply, or with a pack that replaces what it relies on. A name
    that a module imported and the site that it is imported from count as one: else what runs would depend on
    which of them is replaced first.
    """
    settled = dict(verdicts)
    by_id = {patch.id: patch for patch in patches}
    settled.update(_included(by_id, verdicts))
    applying = {name: one for name, one in settled.items() if one.verdict == "apply"}
    claims = {name: _claims(by_id[name], one, tree) for name, one in applying.items()}
    modules = {
        name: {site.partition(":")[0] for origins in sites.values() for site in origins}
        for name, sites in claims.items()
    }
    for name, other in permutations(claims, 2):
        if modules[name].isdisjoint(modules[other]):
            continue
        if shared := _shared(claims[name], claims[other]):
            mine, theirs = shared[0]
            what = f"{mine} too" if mine == theirs else f"{theirs}, which bears on {mine}"
            reason = f"{other} claims {what}: select one of them"
            settled[name] = settled[name].replace(verdict="conflict", reason=reason)
    for name, other in permutations(claims, 2):
        if reason := _undermined(by_id[name], applying[name], by_id[other], claims[other], tree):
            settled[name] = settled[name].replace(verdict="conflict", reason=reason)
    for name in in_order(by_id):
        for needed in by_id[name].requires:
            got = settled[needed].verdict if needed in settled else "not-selected"
            if name in settled and settled[name].verdict == "apply" and got != "apply":
                reason = f"it needs {needed}, which is {got}"
                reason += ": select it, too" if needed not in settled else ""
                settled[name] = settled[name].replace(verdict="conflict", reason=reason)
    return settled


def _undermined(
    patch: Patch, verdict: Verdict, other: Patch, claimed: Mapping[str, list[str]], tree: Tree
) -> str:
    """Return why a patch cannot go with one of a pack that replaces what it relies on, empty if it can.

    Those of one maker are tested together, and a pack's with what comes with overlay; so is what the other
    one requires.
    """
    maker = other.id.rpartition("/")[0]
    if maker in ("", patch.id.rpartition("/")[0]) or patch.id in other.requires:
        return ""
    variants = [variant_of(patch, target) for target in verdict.targets]
    relied = {site: _origins(site, tree) for variant in variants if variant for site in variant.relied_on()}
    shared = _shared(relied, claimed)
    return f"{other.id} replaces {shared[0][1]}, which it relies on: select one of them" if shared else ""


def _included(patches: Mapping[str, Patch], verdicts: Mapping[str, Verdict]) -> dict[str, Verdict]:
    """Return the verdicts on patches whose work another patch that applies does as well."""
    return {
        other: verdicts[other].replace(verdict="not-needed", reason=f"{name} does it too")
        for name, verdict in verdicts.items()
        for other in (patches[name].includes if verdict.verdict == "apply" else ())
        if other in verdicts and verdicts[other].verdict == "apply"
    }


def variant_of(patch: Patch, verdict: TargetVerdict) -> Variant | None:
    """Return the variant that a target verdict stands for, `None` if it is not to be applied."""
    if verdict.verdict != "apply":
        return None
    target = next(target for target in patch.targets if target.project.name == verdict.project)
    return next(variant for variant in target.variants if variant.name == verdict.variant)


def decide_target(
    patch: Patch, target: Target, tree: Tree, table: Table, served: TargetVerdict | None = None
) -> TargetVerdict:
    """Return the verdict on one project of a patch. Never raises.

    `served`: the verdict on the project that `target.serves` names, `None` if it names none.
    """
    blank = TargetVerdict(project=target.project.name, verdict="unknown-source", optional=target.optional)
    try:
        if not _is_there(target.project.marker, tree) and not _trace(target, tree):
            return blank.replace(verdict="not-installed", reason=f"{target.project.name} is not installed")
        if served is not None and served.verdict != "apply" and served.verdict not in LOUD:
            return _unneeded(target, tree, blank, served)
        return _judge(patch, target, tree, blank, table)
    except Exception as error:  # noqa: BLE001 -- nothing in an upstream's files may end the import of a module
        # An ImportError that left here would be taken for that of the upstream's module.
        return blank.replace(version=UNKNOWN, reason=_told(error))


def _told(error: Exception) -> str:
    text = str(error)
    if isinstance(error, OverlayError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _trace(target: Target, tree: Tree) -> str:
    """Return the first of the project's modules that a target's variants would change and that is there.

    Modules of other packages do not count: a variant may also change another project's function.
    """
    package = target.project.marker.partition(".")[0]
    own = [module for module in target.modules() if module.partition(".")[0] == package]
    return next((module for module in own if _is_there(module, tree)), "")


def _unneeded(target: Target, tree: Tree, blank: TargetVerdict, served: TargetVerdict) -> TargetVerdict:
    """Return the verdict on a target that serves a project to which nothing is done. No source is read."""
    version = _told_version(target.project, tree)
    why = "which is not installed"
    if served.verdict != "not-installed":
        why = f"and {served.project} {served.version} needs nothing: {served.reason}"
    reason = f"it serves {served.project} alone, {why}"
    return blank.replace(verdict="not-needed", version=version, reason=reason)


def _judge(patch: Patch, target: Target, tree: Tree, blank: TargetVerdict, table: Table) -> TargetVerdict:
    """Return the verdict on a target that is installed. Raises whatever its files make Python raise."""
    project = target.project
    if not _is_there(project.marker, tree):
        trace = _trace(target, tree)
        reason = f"{trace} is there, and {project.marker}, which every {project.name} has, is not"
        return blank.replace(version=UNKNOWN, reason=reason)
    stated, metadata = _versions_of(project, tree)
    blank = blank.replace(
        version=stated or metadata or UNKNOWN,
        metadata_version=metadata if metadata and stated and metadata != stated else "",
    )
    row = table.find(patch, target, tree)
    if row is None:
        return _unknown(patch, target, tree, blank, table)
    return blank.replace(
        verdict=row.verdict,
        variant=row.variant,
        reason=row.proven or ("" if row.verdict == APPLY else row.reason),
        findings=row.findings(),
        tested_on=next(reversed(row.sources()), ""),
        trusted=row.proven,
    )


def _unknown(patch: Patch, target: Target, tree: Tree, blank: TargetVerdict, table: Table) -> TargetVerdict:
    """Return the verdict on a source that is none of those that a patch was tested on."""
    near = table.nearest(patch, target, tree)
    if near is None:
        return blank.replace(reason=f"the patch was not tested on any {target.project.name}")
    findings = near.findings(tree)
    misses = [finding for finding in findings if not finding.holds]
    tested_on = next(reversed(near.sources()), "")
    if misses:
        more = f" (and {len(misses) - 1} more)" if len(misses) > 1 else ""
        how = f"unlike {tested_on}, {misses[0].site} {misses[0].found}{more}"
    else:
        how = "its sites are those of tested sources that contradict each other"
    reason = f"the patch was not tested on this source: {how}{_SITES.format(patch.id + tree.options())}"
    return blank.replace(reason=reason, findings=findings, tested_on=tested_on)


def without_command(reason: str) -> str:
    """Return a reason without the command that shows more of it."""
    return re.sub(_SITES.format("[^`]*"), "", reason)


def version_of(project: Project, tree: Tree) -> str:
    """Return the version of a project, empty if it is not installed. Raises `OverlayError`."""
    stated, metadata = _versions_of(project, tree)
    return stated or metadata or ""


def _told_version(project: Project, tree: Tree) -> str:
    try:
        return version_of(project, tree) or UNKNOWN
    except OverlayError:
        return UNKNOWN


def _versions_of(project: Project, tree: Tree) -> tuple[str | None, str | None]:
    """Return the version in the project's own files, and the one in its metadata, read once for all."""
    try:
        if project not in tree.versions:
            stated = project.read_version(tree.read) if project.read_version is not None else None
            tree.versions[project] = stated, tree.metadata_version(project)
        return tree.versions[project]
    except Exception as error:
        raise OverlayError(f"the version of {project.name} cannot be read: {_told(error)}") from error


def _is_there(module: str, tree: Tree) -> bool:
    try:
        return tree.has(module)
    except SourceError:
        return True  # what cannot be read is there, and is said later


def combine(targets: tuple[TargetVerdict, ...]) -> tuple[str, str]:
    """Return the verdict on a patch: the first target leads, and no other may stand in its way."""
    first = targets[0]
    if first.verdict != "apply":
        return first.verdict, first.reason
    for target in targets[1:]:
        if target.verdict in LOUD:
            return target.verdict, f"{target.project} {target.version}: {target.reason}"
        if target.verdict == "not-installed" and not target.optional:
            return "not-installed", target.reason
    notes = [f"{t.project} {t.version} is {t.reason}" for t in targets if t.verdict == "apply" and t.reason]
    return "apply", "; ".join(notes)


def _claims(patch: Patch, verdict: Verdict, tree: Tree) -> dict[str, list[str]]:
    """Return the sites that a patch would replace, each with those that it is imported from."""
    variants = [variant_of(patch, target) for target in verdict.targets]
    return {
        replacement.site: _origins(replacement.site, tree)
        for variant in variants
        if variant is not None
        for replacement in variant.replacements
    }


def _origins(site: str, tree: Tree) -> list[str]:
    try:
        return tree.chain(site)
    except Exception:  # noqa: BLE001 -- `decide` has said what cannot be read
        return [site]


def _shared(some: Mapping[str, list[str]], others: Mapping[str, list[str]]) -> list[tuple[str, str]]:
    """Return the sites of two patches that bear on each other.

    With each come those that it is imported from.
    """
    return sorted(
        (mine, theirs)
        for mine, ours in some.items()
        for theirs, origins in others.items()
        if any(_overlap(mine, site) for site in origins) or any(_overlap(site, theirs) for site in ours)
    )


def _overlap(one: str, other: str) -> bool:
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")


class Installed(Record):
    """A project as it is found, or not found."""

    project: str
    #: Empty if it is not installed.
    version: str
    #: The entry of the path that it is imported from; empty if it is not installed.
    where: str


def installed(projects: Iterable[Project], tree: Tree) -> tuple[Installed, ...]:
    """Return what is found of each project. Never raises."""
    found = []
    for project in projects:
        where = tree.file(project.marker)
        version = _told_version(project, tree) if where else ""
        is_package = os.path.splitext(os.path.basename(where))[0] == "__init__"
        for _ in range(project.marker.count(".") + 1 + is_package):
            where = os.path.dirname(where)
        found.append(Installed(project=project.name, version=version, where=where))
    return tuple(found)
