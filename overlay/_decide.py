"""The one decision: a patch and the source of its targets in, a verdict out.

`decide` is a pure function of what it is given. The import hook, the plan and the audit all call it, so
what the audit says is what a trainer does.
"""

from __future__ import annotations

from overlay._record import TYPE_CHECKING
from overlay.errors import OverlayError, SourceError
from overlay.verdict import TargetVerdict, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from packaging.version import Version

    from overlay._source import Tree
    from overlay.patch import Patch, Project, Target, Variant
    from overlay.verdict import SiteFinding


def decide(patch: Patch, tree: Tree) -> Verdict:
    """Return the verdict on one patch for the source in `tree`, other patches left aside. Never raises."""
    targets = tuple(_decide_target(patch, target, tree) for target in patch.targets)
    verdict, reason = _combine(targets)
    return Verdict(patch=patch.id, revision=patch.revision, verdict=verdict, reason=reason, targets=targets)


def settle(
    patches: Iterable[Patch], verdicts: Mapping[str, Verdict], tree: Tree | None = None
) -> dict[str, Verdict]:
    """Return the verdicts with what patches mean for each other taken into account. Never raises.

    Two patches that would both apply to one site (or one to a class and one to its method) conflict, and a
    patch whose requirement does not apply is unsupported. With `tree`, a name that a module imported and what
    it is imported from count as one site: which of them is replaced first would decide what runs.
    """
    settled = dict(verdicts)
    by_id = {patch.id: patch for patch in patches}
    claims = {
        name: _claims(by_id[name], verdict, tree)
        for name, verdict in verdicts.items()
        if verdict.verdict == "apply"
    }
    for name, sites in claims.items():
        for other, others in claims.items():
            shared = sorted(
                (mine, theirs)
                for mine in sites
                for theirs in others
                if any(_overlap(mine, site) for site in others[theirs])
                or any(_overlap(site, theirs) for site in sites[mine])
            )
            if shared and name != other:
                mine, theirs = shared[0]
                what = f"{mine} too" if mine == theirs else f"{theirs}, which bears on {mine}"
                settled[name] = settled[name].replace(
                    verdict="conflict",
                    reason=f"{other} claims {what}: select one of them (OVERLAY_PATCHES=-{other})",
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
    blank = TargetVerdict(project=target.project.name, verdict="unsupported", optional=target.optional)
    try:
        return _judge(patch, target, tree, blank)
    except Exception as error:  # noqa: BLE001 -- nothing in an upstream's files may end the import of a module
        # Also for a reason: an ImportError that left here would be taken for that of the upstream's module.
        return blank.replace(version="of unknown version", reason=_told(error))


def _told(error: Exception) -> str:
    text = str(error)
    if isinstance(error, OverlayError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _judge(patch: Patch, target: Target, tree: Tree, blank: TargetVerdict) -> TargetVerdict:
    """Return the verdict on a target, made from `blank`. Raises whatever its files make Python raise."""
    project = target.project
    if not _is_there(project.marker, tree):
        trace = next((module for module in _modules(target) if _is_there(module, tree)), None)
        if trace is None:
            return blank.replace(verdict="not-installed", reason=f"{project.name} is not installed")
        reason = f"{trace} is there, and {project.marker}, which every {project.name} has, is not"
        return blank.replace(version="of unknown version", reason=reason)
    stated, metadata = _versions(project, tree)
    version = stated or metadata or ""
    blank = blank.replace(
        version=version or "of unknown version",
        metadata_version=metadata if metadata and stated and metadata != stated else "",
    )
    parsed = _parse_version(version)
    if parsed is None:
        return blank.replace(reason=f"the version of {project.name} cannot be told (found {version!r})")
    return _match(patch, target, tree, blank, parsed)


def _match(patch: Patch, target: Target, tree: Tree, blank: TargetVerdict, parsed: Version) -> TargetVerdict:
    """Return the verdict of the variant whose version and shape are those of the tree."""
    from overlay._conditions import look, obstacle

    candidates = [variant for variant in target.variants if _contains(variant.versions, parsed)]
    best: tuple[Variant, tuple[SiteFinding, ...]] | None = None
    for variant in candidates:
        findings = tuple(look(condition, tree) for condition in variant.shape)
        if all(finding.holds for finding in findings):
            sites = [replacement.site for replacement in variant.replacements]
            wrong = next(filter(None, (obstacle(site, tree) for site in sites)), "")
            if wrong:
                return blank.replace(reason=wrong, findings=findings)
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
            verdict=verdict, reason=_outside(patch, target.project.name, blank.version, ranges, past=past)
        )
    variant, findings = best
    failed = [finding for finding in findings if not finding.holds]
    more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
    reason = (
        f"the source is not one that the patch was written for: {failed[0].site} {failed[0].found}{more}; "
        f"`overlay explain {patch.id}` lists the sites"
    )
    return blank.replace(verdict=verdict, reason=reason, findings=findings)


def version_of(project: Project, tree: Tree) -> str:
    """Return the version of a project, empty if it is not installed. Raises `OverlayError`."""
    stated, metadata = _versions(project, tree)
    return stated or metadata or ""


def _versions(project: Project, tree: Tree) -> tuple[str | None, str | None]:
    """Return the version in the project's own files, and the one in its metadata."""
    try:
        return project.read_version(tree.read), tree.metadata_version(project)
    except Exception as error:
        msg = f"the version of {project.name} cannot be read: {_told(error)}"
        raise OverlayError(msg) from error


def _is_there(module: str, tree: Tree) -> bool:
    try:
        return tree.has(module)
    except SourceError:
        return True  # and the shape says what of it cannot be read


def _modules(target: Target) -> list[str]:
    """Return the modules that a target's variants would change: a trace of its project, cheap to look for."""
    sites = [replacement.site for variant in target.variants for replacement in variant.replacements]
    return list(dict.fromkeys(site.partition(":")[0] for site in sites))


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


def _misses(findings: tuple[SiteFinding, ...]) -> int:
    return sum(not finding.holds for finding in findings)


def _parse_version(text: str) -> Version | None:
    try:
        from packaging.version import InvalidVersion, Version
    except ImportError as error:
        msg = f"the package `packaging`, by which versions are compared, cannot be imported: {error}"
        raise OverlayError(msg) from error
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


def _claims(patch: Patch, verdict: Verdict, tree: Tree | None) -> dict[str, list[str]]:
    """Return the sites that a patch would replace, each with those that it is imported from."""
    variants = [variant_of(patch, target) for target in verdict.targets]
    return {
        replacement.site: _origins(replacement.site, tree)
        for variant in variants
        if variant is not None
        for replacement in variant.replacements
    }


def _origins(site: str, tree: Tree | None) -> list[str]:
    if tree is None:
        return [site]
    from overlay._shape import import_chain

    try:
        return import_chain(site, tree)
    except Exception:  # noqa: BLE001 -- what cannot be read has been said by `decide`
        return [site]


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
