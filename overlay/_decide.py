"""The one decision: a patch and the source of its targets in, a verdict out.

`decide` is a pure function of what it is given. The import hook, the plan and the audit all call it, so
what the audit says is what a trainer does.
"""

from __future__ import annotations

from overlay._record import TYPE_CHECKING
from overlay.errors import SourceError
from overlay.patch import Known, Present
from overlay.verdict import SiteFinding, TargetVerdict, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from packaging.version import Version

    from overlay._source import Tree
    from overlay.patch import Absent, Patch, Target, Variant


def decide(patch: Patch, tree: Tree) -> Verdict:
    """Return the verdict on one patch for the source in `tree`, other patches left aside."""
    targets = tuple(_decide_target(patch, target, tree) for target in patch.targets)
    verdict, reason = _combine(targets)
    return Verdict(patch=patch.id, revision=patch.revision, verdict=verdict, reason=reason, targets=targets)


def settle(patches: Iterable[Patch], verdicts: Mapping[str, Verdict]) -> dict[str, Verdict]:
    """Return the verdicts with what patches mean for each other taken into account.

    Two patches that would both apply to one site (or one to a class and one to its method) conflict, and a
    patch whose requirement does not apply is unsupported.
    """
    settled = dict(verdicts)
    by_id = {patch.id: patch for patch in patches}
    claims = {
        name: _claims(by_id[name], verdict)
        for name, verdict in verdicts.items()
        if verdict.verdict == "apply"
    }
    for name, sites in claims.items():
        for other, others in claims.items():
            shared = sorted(site for site in sites for taken in others if _overlap(site, taken))
            if shared and name != other:
                settled[name] = settled[name].replace(
                    verdict="conflict",
                    reason=f"{other} claims {shared[0]} too: select one of them (OVERLAY_PATCHES=-{other})",
                )
    for name in in_order(by_id):
        for needed in by_id[name].requires:
            got = settled[needed].verdict if needed in settled else "not-selected"
            if name in settled and settled[name].verdict == "apply" and got != "apply":
                settled[name] = settled[name].replace(
                    verdict="unsupported", reason=f"it needs {needed}, which is {got}"
                )
    return settled


def variant_of(patch: Patch, verdict: TargetVerdict) -> Variant | None:
    """Return the variant that a target verdict stands for, `None` if it is not to be applied."""
    if verdict.verdict != "apply":
        return None
    target = next(target for target in patch.targets if target.project.name == verdict.project)
    return next(variant for variant in target.variants if variant.name == verdict.variant)


def _decide_target(patch: Patch, target: Target, tree: Tree) -> TargetVerdict:
    project = target.project
    blank = TargetVerdict(project=project.name, verdict="unsupported", optional=target.optional)
    try:
        if not tree.has(project.marker):
            return blank.replace(verdict="not-installed", reason=f"{project.name} is not installed")
    except SourceError:
        pass  # it is there; the shape says what of it cannot be read
    stated = project.read_version(tree.read)
    metadata = tree.metadata_version(project)
    version = stated or metadata or ""
    blank = blank.replace(
        version=version or "of unknown version",
        metadata_version=metadata if metadata and stated and metadata != stated else "",
    )
    parsed = _parse_version(version)
    if parsed is None:
        return blank.replace(reason=f"the version of {project.name} cannot be told (found {version!r})")
    candidates = [variant for variant in target.variants if _contains(variant.versions, parsed)]
    best: tuple[Variant, tuple[SiteFinding, ...]] | None = None
    for variant in candidates:
        findings = tuple(_look(condition, tree) for condition in variant.shape)
        if all(finding.holds for finding in findings):
            return blank.replace(
                verdict=variant.verdict, variant=variant.name, reason=variant.reason, findings=findings
            )
        if best is None or _misses(findings) < _misses(best[1]):
            best = variant, findings
    past = target is patch.targets[0] and _reached(patch.remove.version, parsed)
    verdict = "expired" if past else "unsupported"
    if best is None:
        ranges = ", ".join(variant.versions for variant in target.variants if variant.verdict == "apply")
        return blank.replace(
            verdict=verdict, reason=_outside(patch, project.name, version, ranges, past=past)
        )
    variant, findings = best
    wrong = [finding for finding in findings if not finding.holds]
    more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    reason = (
        f"the source is not one that the patch was written for: {wrong[0].site} {wrong[0].found}{more}; "
        f"`overlay explain {patch.id}` lists the sites"
    )
    return blank.replace(verdict=verdict, reason=reason, findings=findings)


def _outside(patch: Patch, project: str, version: str, ranges: str, *, past: bool) -> str:
    if past:
        end = f"{project} {patch.remove.version} ({patch.remove.when})"
        return f"the patch ends before {end}, and {version} is new to it"
    return f"{project} {version} is outside the versions that the patch knows ({ranges or 'none'})"


def _combine(targets: tuple[TargetVerdict, ...]) -> tuple[str, str]:
    """Return the verdict on a patch: the first target leads, and no other may stand in its way."""
    first = targets[0]
    if first.verdict != "apply":
        return first.verdict, first.reason
    for target in targets[1:]:
        if target.verdict in ("unsupported", "expired", "conflict"):
            return "unsupported", f"{target.project} {target.version}: {target.reason}"
        if target.verdict == "not-installed" and not target.optional:
            return "not-installed", target.reason
    return "apply", ""


def _look(condition: Known | Present | Absent, tree: Tree) -> SiteFinding:
    site = condition.site
    try:
        if isinstance(condition, Known):
            found = tree.digest(site)
            holds = found in condition.digests
            text = "" if holds else "does not exist" if found is None else f"has an unknown digest {found}"
            return SiteFinding(site=site, expects="known", holds=holds, digest=found or "", found=text)
        exists = tree.has(site)
    except SourceError as error:
        kind = (
            "known"
            if isinstance(condition, Known)
            else "present"
            if isinstance(condition, Present)
            else "absent"
        )
        return SiteFinding(site=site, expects=kind, holds=False, found=f"cannot be checked: {error}")
    if isinstance(condition, Present):
        return SiteFinding(
            site=site, expects="present", holds=exists, found="" if exists else "does not exist"
        )
    return SiteFinding(site=site, expects="absent", holds=not exists, found="exists" if exists else "")


def _misses(findings: tuple[SiteFinding, ...]) -> int:
    return sum(not finding.holds for finding in findings)


def _parse_version(text: str) -> Version | None:
    from packaging.version import InvalidVersion, Version

    try:
        return Version(text)
    except InvalidVersion:
        return None


def _contains(versions: str, version: Version) -> bool:
    from packaging.specifiers import SpecifierSet

    # Without `prereleases=True` the answer for a release candidate depends on the version of packaging.
    return SpecifierSet(versions).contains(version, prereleases=True)


def _reached(removal: str | None, version: Version) -> bool:
    return removal is not None and _contains(f">={removal}.dev0", version)


def _claims(patch: Patch, verdict: Verdict) -> set[str]:
    variants = [variant_of(patch, target) for target in verdict.targets]
    return {
        replacement.site
        for variant in variants
        if variant is not None
        for replacement in variant.replacements
    }


def _overlap(one: str, other: str) -> bool:
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")


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
