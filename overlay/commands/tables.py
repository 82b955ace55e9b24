"""Tables for the terminal. JSON is the contract; these are views of the same data, 80 columns wide.

Only what cannot be cut, the path of a file or the name of a site, may be longer. With the extra `rich`
installed and a terminal at hand, verdicts and states get a colour, unless `NO_COLOR` is set.
"""

from __future__ import annotations

import os
import sys
import textwrap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from overlay.arming.doctor import Diagnosis
    from overlay.authoring.new import Written
    from overlay.catalogue.packs import Pack
    from overlay.ledger import PatchStatus, Status
    from overlay.patch import Patch
    from overlay.verdict import Plan, TargetVerdict, Verdict

WIDTH = 80
#: Columns that the last column of a table has at least.
_LEAST = 24
_COLOURS = {
    "apply": "green",
    "applied": "green",
    "armed": "cyan",
    "unsupported": "bold red",
    "conflict": "bold red",
    "expired": "bold red",
    "failed": "bold red",
    "incomplete": "yellow",
}


def patches(items: Iterable[Patch]) -> str:
    """Return the table of `overlay list`."""
    rows = [(f"{patch.id}@{patch.revision}", _summary(patch)) for patch in items]
    return _table(("patch", "summary"), rows)


def _summary(patch: Patch) -> str:
    return f"{patch.summary} (selected by its id alone)" if patch.opt_in else patch.summary


def plan(item: Plan, *, findings: bool) -> str:
    """Return the table of `overlay plan`, with `findings` that of `overlay audit`."""
    rows = [(verdict.patch, verdict.verdict, _detail(verdict)) for verdict in item.verdicts]
    parts = [_table(("patch", "verdict", "why"), rows)]
    if findings:
        parts += [text for verdict in item.verdicts for text in _findings(verdict)]
    parts.append(f"digest {item.digest[:16]}")
    if item.site:
        parts.append(f"in {item.site}")
    return "\n".join(parts)


def status(item: Status) -> str:
    """Return the table of `overlay status`."""
    rows = [
        (
            f"{patch.patch}@{patch.revision}",
            patch.state,
            patch.reason or _sites(patch),
        )
        for patch in item.patches
    ]
    head = f"overlay {item.version} on Python {item.python}, {'strict' if item.strict else 'not strict'}"
    return f"{head}\n{_table(('patch', 'state', 'why'), rows)}"


def _sites(patch: PatchStatus) -> str:
    count = len(patch.sites)
    return f"{count} site{'s' if count != 1 else ''}" if count else "waits for its modules to be imported"


def explanation(patch: Patch, verdict: Verdict) -> str:
    """Return what `overlay explain` prints."""
    lines = [_wrap(f"{patch.id}@{patch.revision}: {patch.summary}"), "", _wrap(patch.why), ""]
    if patch.changes:
        lines.append(_wrap(f"Changes in a job: {', '.join(patch.changes)}. Met under: {patch.met}"))
    if patch.opt_in:
        lines.append(_wrap(f"Selected by its id alone: OVERLAY_PATCHES=all,{patch.id}"))
    lines.append(_wrap(f"Upstream: {', '.join(patch.upstream)}"))
    lines.append(_wrap(f"Removal: {patch.remove.when}. Test: {patch.remove.test}"))
    if patch.requires:
        lines.append(f"Requires: {', '.join(patch.requires)}")
    for target in patch.targets:
        rows = [
            (
                variant.name,
                variant.versions,
                _variant_detail(variant.verdict, variant.reason, len(variant.replacements)),
            )
            for variant in target.variants
        ]
        kind = " (optional)" if target.optional else ""
        kind += f" (for {target.serves} alone)" if target.serves else ""
        lines += ["", f"{target.project.name}{kind}", _table(("variant", "versions", "verdict"), rows)]
    detail = _detail(verdict)
    lines += ["", _wrap(f"Here: {verdict.verdict}" + (f", {detail}" if detail else ""))]
    lines += _findings(verdict)
    return "\n".join(lines)


def diagnosis(item: Diagnosis) -> str:
    """Return what `overlay doctor` prints."""
    head = "Python processes are armed at their start if OVERLAY=1 is in the environment."
    lines = [head if item.active else f"Python processes are NOT armed at their start: {item.reason}."]
    lines += [f"start-up file  {item.file or '(none)'}", f"package        {item.package}"]
    lines += [f"python         {item.python}", *(f"note: {remark}" for remark in item.remarks)]
    return "\n".join(lines)


def packs(items: Sequence[Pack], wanted: Sequence[str]) -> str:
    """Return the table of `overlay packs`."""
    rows = [
        (
            pack.name,
            "loaded" if pack.name in wanted else "not loaded",
            f"{pack.distribution} {pack.version}"
            + ("" if pack.name in wanted else f"; OVERLAY_PACKS={pack.name} loads it"),
        )
        for pack in items
    ]
    return _table(("pack", "state", "distribution"), rows)


def lock(file: str, digest: str, different: Sequence[str], loud: Sequence[str]) -> str:
    """Return what `overlay lock` prints."""
    lines = [f"{file}  sha256:{digest}"]
    lines += [
        "differs from what is here:" if different else "is what is here",
        *(f"  {text}" for text in different),
    ]
    lines += [f"locked although it cannot be applied: {name}" for name in loud]
    return "\n".join(lines)


def written(item: Written) -> str:
    """Return what `overlay new` prints."""
    lines = [f"{item.patch}/", item.test]
    if not item.listed:
        lines.append(f'Add "{item.package}" to packages in pyproject.toml')
    return "\n".join([*lines, f"Fill in what says TODO until this passes:  pytest {item.test}"])


def _variant_detail(verdict: str, reason: str, sites: int) -> str:
    return f"{verdict}: {reason}" if reason else f"{verdict}, {sites} site{'s' if sites != 1 else ''}"


def _detail(verdict: Verdict) -> str:
    if verdict.verdict == "apply":
        return ", ".join(_target(target) for target in verdict.targets if target.version)
    return verdict.reason


def _target(target: TargetVerdict) -> str:
    text = f"{target.project} {target.version}"
    if target.metadata_version:
        text += f" (its metadata says {target.metadata_version})"
    if target.verdict != "apply":
        text += f" ({target.verdict})"
    elif target.trusted:
        text += f" (trusted here: {target.trusted})"
    elif target.reason:
        text += f", {target.reason}"
    return text


def _findings(verdict: Verdict) -> list[str]:
    lines = []
    for target in verdict.targets:
        for finding in target.findings:
            mark = "ok " if finding.holds else "NOT"
            asks = f" ({finding.asks})" if finding.asks else ""
            asks += " (trusted here)" if finding.trusted else ""
            lines.append(f"  {mark} {finding.expects:<8}{finding.site}{asks}")
            if not finding.holds:
                lines.append(_wrap(finding.found, indent=" " * 6))
    return [f"{verdict.patch}:", *lines] if lines else []


def _wrap(text: str, indent: str = "") -> str:
    return textwrap.fill(
        " ".join(text.split()),
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return an aligned table whose last column is wrapped to what is left of the line."""
    if not rows:
        return "(none)"
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head) - 1)]
    left = sum(widths) + 2 * len(widths)
    # Beside long names there is no room: below them, then.
    below = left > WIDTH - _LEAST
    left = 4 if below else left
    lines = []
    for row in (head, *rows):
        chunks = textwrap.wrap(row[-1], WIDTH - left, break_on_hyphens=False) or [""]
        cells = [_colour(cell, 0 if below else width) for cell, width in zip(row[:-1], widths, strict=True)]
        if below:
            chunks.insert(0, "")
        lines.append(("  ".join([*cells, chunks[0]])).rstrip())
        lines += [" " * left + chunk for chunk in chunks[1:]]
    return "\n".join(lines)


def _colour(cell: str, width: int) -> str:
    padded = f"{cell:<{width}}"
    dull = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    if cell not in _COLOURS or dull or not sys.stdout.isatty():
        return padded
    try:
        from rich.console import Console
    except ImportError:
        return padded
    console = Console()
    with console.capture() as capture:
        console.print(padded, style=_COLOURS[cell], end="", highlight=False)
    return capture.get()
