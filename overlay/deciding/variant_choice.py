"""Which variant of a target a source is, by its version and its shape."""

from __future__ import annotations

from overlay.base.record import Record
from overlay.deciding import versions
from overlay.deciding.conditions import look, obstacle
from overlay.patch import Absent, Known, Variant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from packaging.version import Version

    from overlay.patch import Patch, Target
    from overlay.reading.source import Tree
    from overlay.verdict import SiteFinding, TargetVerdict


class _Fit(Record):
    """A variant, and how the source is to its shape."""

    variant: Variant
    findings: tuple[SiteFinding, ...]

    @property
    def misses(self) -> list[SiteFinding]:
        """The conditions that the source does not meet."""
        return [finding for finding in self.findings if not finding.holds]


def choose_variant(
    patch: Patch, target: Target, tree: Tree, blank: TargetVerdict, version: Version
) -> TargetVerdict:
    """Return the verdict, made from `blank`, of the variant whose version and shape are those of the tree.

    The variants whose range has the version come first. If the source is of none of them, those are asked of
    which only the upper bound is passed: a source that is known to the letter is applied to whatever it is
    called, as what a patch was proven on does not change with a label.
    """
    within = _fits((v for v in target.variants if versions.contains(v.versions, version)), tree)
    chosen = next((fit for fit in within if not fit.misses), None)
    if chosen is not None:
        return _verdict(chosen, tree, blank, chosen.variant.reason)
    newer = _fits(
        (v for v in target.variants if _tells_itself(v) and versions.exceeds(v.versions, version)), tree
    )
    past = target is patch.targets[0] and versions.reached(patch.remove.version, version)
    refused = blank.replace(verdict="expired" if past else "unsupported")
    proven = next((fit for fit in newer if not fit.misses), None)
    if proven is not None:
        other = _other(proven.variant, target, tree)
        if other is None:
            return _verdict(proven, tree, blank, _note(patch, proven.variant, past=past))
        reason = f"newer than {proven.variant.versions}, and its source is as in {_said(proven.variant)} and "
        reason += f"as in {_said(other)}: which of them it is cannot be told"
        return refused.replace(reason=reason, findings=proven.findings)
    nearest = min(within or newer, key=lambda fit: len(fit.misses), default=None)
    if nearest is None:
        return refused.replace(reason=_outside(patch, target, blank.version, past=past))
    source = _unknown(patch, nearest.misses)
    if within:
        reason = f"the source is not one that the patch was written for: {source}"
    else:
        reason = (
            f"{_outside(patch, target, blank.version, past=past)}, and its source is none of theirs: {source}"
        )
    return refused.replace(reason=reason, findings=nearest.findings)


def _fits(variants: Iterable[Variant], tree: Tree) -> list[_Fit]:
    """Return what the variants find, up to the first whose shape is that of the tree."""
    found = []
    for variant in variants:
        found.append(_Fit(variant=variant, findings=tuple(look(one, tree) for one in variant.shape)))
        if not found[-1].misses:
            break
    return found


def _verdict(fit: _Fit, tree: Tree, blank: TargetVerdict, reason: str) -> TargetVerdict:
    """Return the verdict of a variant that fits, unless something is in the way of its replacements."""
    wrong = next(filter(None, (obstacle(item.site, tree) for item in fit.variant.replacements)), "")
    if wrong:
        return blank.replace(reason=wrong, findings=fit.findings)
    return blank.replace(
        verdict=fit.variant.verdict, variant=fit.variant.name, reason=reason, findings=fit.findings
    )


def _tells_itself(variant: Variant) -> bool:
    """Return whether a variant applies, and to a source that is known to the letter where it is replaced."""
    known = {one.site for one in variant.shape if isinstance(one, Known)}
    absent = {one.site for one in variant.shape if isinstance(one, Absent)}
    return (
        variant.verdict == "apply"
        and bool(known)
        and all(item.site in (absent if item.new else known) for item in variant.replacements)
    )


def _other(proven: Variant, target: Target, tree: Tree) -> Variant | None:
    """Return another variant, of whatever versions, that the source is as well: two mean two things."""
    fits = _fits((one for one in target.variants if one is not proven and one.shape), tree)
    return next((fit.variant for fit in fits if not fit.misses), None)


def _note(patch: Patch, variant: Variant, *, past: bool) -> str:
    """Return what is to be said of a version past the end of those that a patch was tried on."""
    note = f"newer than {variant.versions}, on which it was tried; its source is known to the letter"
    return (
        f"{note}, although {patch.remove.version} was to end the patch ({patch.remove.when})"
        if past
        else note
    )


def _said(variant: Variant) -> str:
    return f"{variant.versions} ({variant.verdict})"


def _unknown(patch: Patch, misses: list[SiteFinding]) -> str:
    more = f" (and {len(misses) - 1} more)" if len(misses) > 1 else ""
    return f"{misses[0].site} {misses[0].found}{more}; `overlay explain {patch.id}` lists the sites"


def _outside(patch: Patch, target: Target, version: str, *, past: bool) -> str:
    project = target.project.name
    if past:
        end = f"{project} {patch.remove.version} ({patch.remove.when})"
        return f"the patch ends before {end}, and {version} is new to it"
    ranges = ", ".join(variant.versions for variant in target.variants if variant.verdict == "apply")
    return f"{project} {version} is outside the versions that the patch knows ({ranges or 'none'})"
