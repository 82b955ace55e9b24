"""Sources that no patch knows, and that one is trusted on all the same: it was proven on them here.

What was proven is the whole: every site that the patch asks about, in every project that it touches, to the
letter. One byte of syntax that is not as it was then, and it is as unknown as before.
"""

from __future__ import annotations

from overlay.base.record import Record
from overlay.deciding import versions
from overlay.deciding.conditions import look, obstacle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from overlay.patch import Patch, Target, Variant
    from overlay.reading.source import Tree
    from overlay.verdict import SiteFinding, TargetVerdict, Verdict


class TrustedTarget(Record):
    """One project as it was when a patch was proven on it."""

    project: str
    version: str
    verdict: str
    variant: str
    #: Each site that was looked at and has a digest, in the order of the names.
    sites: tuple[tuple[str, str], ...]
    #: Those of them whose digests the patch does not know.
    trusted: tuple[str, ...] = ()


class Trusted(Record):
    """A patch that was proven here on a source that it does not know."""

    patch: str
    targets: tuple[TrustedTarget, ...]
    #: When and how, such as `proven on 2026-11-22`.
    proven: str
    #: The file that says so.
    file: str = ""
    #: Why it is not believed any more, empty if it is.
    void: str = ""


def with_trust(
    patch: Patch, verdict: Verdict, trusted: Trusted, tree: Tree
) -> tuple[TargetVerdict, ...] | str:
    """Return the verdicts on the targets of an unsupported patch with what was proven, or why not so."""
    if trusted.void:
        return f"what {trusted.file} says of it is void: {trusted.void}"
    said = {one.project: one for one in trusted.targets}
    found = []
    for target, here in zip(patch.targets, verdict.targets, strict=True):
        then = said.get(here.project)
        if then is None:
            return f"what {trusted.file} says of it does not tell of {here.project}"
        now: TargetVerdict | str = here
        if here.verdict == "unsupported":
            variant = next((one for one in target.variants if one.name == then.variant), None)
            if variant is None:
                return f"what {trusted.file} says of it is of a variant that there is not, {then.variant!r}"
            now = accepted(variant, here, tree, trusted.proven)
        if isinstance(now, str):
            return f"what {trusted.file} says of it does not hold: {now}"
        if different := difference(then, as_trusted(now)):
            return f"what {trusted.file} says of it is of another source: {different}"
        found.append(now)
    return tuple(found)


def candidate(patch: Patch, verdict: Verdict, tree: Tree) -> tuple[TargetVerdict, ...] | str:
    """Return what the verdicts on the targets would be if their digests were known, or why that is not so.

    It is so where a patch is `unsupported` because of digests alone, and one variant is nearest.
    """
    found = []
    for target, here in zip(patch.targets, verdict.targets, strict=True):
        if here.verdict != "unsupported":
            found.append(here)
            continue
        nearest = _nearest(target, here, tree)
        if isinstance(nearest, str):
            return nearest
        found.append(nearest)
    if not any(target.trusted for target in found):
        return f"it is {verdict.verdict}, and not because of digests: {verdict.reason}"
    return tuple(found)


def _nearest(target: Target, here: TargetVerdict, tree: Tree) -> TargetVerdict | str:
    """Return the verdict with the variant of which the least is unknown, all of it digests."""
    version = versions.parse(here.version)
    tried = [
        accepted(variant, here, tree, "")
        for variant in target.variants
        if version is not None and variant.verdict == "apply" and versions.contains(variant.versions, version)
    ]
    if not tried:
        return f"{here.project} {here.version}: {here.reason}"
    fit = [one for one in tried if not isinstance(one, str)]
    if not fit:
        return next(one for one in tried if isinstance(one, str))
    least = min(len(_unknown(one)) for one in fit)
    nearest = [one for one in fit if len(_unknown(one)) == least]
    if len(nearest) > 1:
        names = ", ".join(one.variant for one in nearest)
        return f"which of the variants {names} {here.project} {here.version} is cannot be told"
    return nearest[0]


def accepted(variant: Variant, here: TargetVerdict, tree: Tree, proven: str) -> TargetVerdict | str:
    """Return the verdict with one variant whose unknown digests are taken as known, or why it cannot be.

    All else of the shape has to hold, and every replaced site has to be one that can be replaced.
    """
    findings = []
    for finding in (look(one, tree) for one in variant.shape):
        if finding.holds:
            findings.append(finding)
        elif finding.expects == "known" and finding.digest:
            findings.append(finding.replace(holds=True, trusted=True, found=""))
        else:
            return f"{finding.site} {finding.found}, which is more than a digest"
    if not any(finding.trusted for finding in findings):
        return f"all digests of the variant {variant.name} are known here"
    wrong = next(filter(None, (obstacle(item.site, tree) for item in variant.replacements)), "")
    if wrong:
        return wrong
    return here.replace(
        verdict="apply",
        variant=variant.name,
        reason=f"trusted here: {proven}",
        trusted=proven or "not yet proven",
        findings=tuple(findings),
    )


def _unknown(target: TargetVerdict) -> list[SiteFinding]:
    return [finding for finding in target.findings if finding.trusted]


def as_trusted(target: TargetVerdict) -> TrustedTarget:
    """Return a target as it is written down."""
    return TrustedTarget(
        project=target.project,
        version=target.version,
        verdict=target.verdict,
        variant=target.variant,
        sites=tuple(sorted((one.site, one.digest) for one in target.findings if one.digest)),
        trusted=tuple(sorted({finding.site for finding in _unknown(target)})),
    )


def difference(then: TrustedTarget, now: TrustedTarget) -> str:
    """Return the first thing that is not as it was when it was proven, empty if all is."""
    for field in ("version", "verdict", "variant"):
        before, after = getattr(then, field), getattr(now, field)
        if before != after:
            return f"the {field} of {now.project} was {before or 'none'} then, and is {after or 'none'}"
    before_sites, now_sites = dict(then.sites), dict(now.sites)
    for site in sorted({*before_sites, *now_sites}):
        before, after = before_sites.get(site, "absent"), now_sites.get(site, "absent")
        if before != after:
            return f"{site} was {before} then, and is {after}"
    return "" if then.trusted == now.trusted else f"other digests of {now.project} were unknown then"
