"""What one rank says of itself, and whether several say the same.

The facts are those of a lock, with the state of each patch. Ranks with one digest run the same patches on the
same sources. A patch that is armed and one that is applied count as the same: the module was not used yet.
"""

from __future__ import annotations

from overlay import _lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from overlay.ledger import PatchStatus, Status
    from overlay.verdict import Verdict

_IN_FORCE = ("armed", "applied")
#: The fact of a process in which overlay is not enabled.
NOT_ENABLED = {"overlay": "not enabled"}


def facts_of(lock: _lock.Lock, status: Status) -> dict[str, str]:
    """Return what a rank says of itself."""
    found = _lock.facts(lock)
    for patch in status.patches:
        found[f"{patch.patch}: state"] = _state(patch)
    for number, sentence in enumerate(status.half_patched):
        found[f"half-patched {number + 1}"] = sentence
    return found


def _state(patch: PatchStatus) -> str:
    if patch.state in _IN_FORCE:
        return "in force"
    return f"{patch.state}: {' '.join(patch.reason.split())}" if patch.reason else patch.state


def digest_of(facts: Mapping[str, str]) -> str:
    """Return the digest by which ranks are compared first."""
    return _lock.digest_of(facts)


def files_of(verdicts: Iterable[Verdict]) -> dict[str, str]:
    """Return the file of the module of each site that was decided on, for a person to look at."""
    from overlay._source import InstalledTree

    tree = InstalledTree()
    sites = {f.site for verdict in verdicts for target in verdict.targets for f in target.findings}
    return {module: tree.file(module) for module in sorted({site.partition(":")[0] for site in sites})}


def compare(
    ranks: Mapping[int, str], facts: Mapping[str, Mapping[str, str]], files: Mapping[str, str]
) -> str:
    """Return a table of what differs, empty if nothing does.

    Args:
        ranks: The digest of each rank.
        facts: The facts that each digest stands for.
        files: For each digest and module, as `digest module`, the file it was read from.
    """
    if len(set(ranks.values())) <= 1:
        return ""
    names = sorted({name for said in facts.values() for name in said})
    different = [name for name in names if len({said.get(name) for said in facts.values()}) > 1]
    sites = [name for name in different if " source of " in name]
    rows = []
    for name in different:
        if sites and name.endswith(" source"):
            continue  # the digest of all sites, of which those that differ are listed
        by_value: dict[str, list[int]] = {}
        for rank, digest in sorted(ranks.items()):
            value = facts[digest].get(name)
            where = (
                files.get(f"{digest} {name.rpartition(' ')[2].partition(':')[0]}", "")
                if name in sites
                else ""
            )
            shown = _lock.shown(value) + (f" in {where}" if where else "")
            by_value.setdefault(shown, []).append(rank)
        rows += [
            (name if first else "", spans(group), value)
            for first, (value, group) in zip((True, *[False] * len(by_value)), by_value.items(), strict=False)
        ]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    return "\n".join(f"  {a:<{widths[0]}}  {b:<{widths[1]}}  {c}".rstrip() for a, b, c in rows)


def spans(ranks: Iterable[int]) -> str:
    """Return ranks as a person would write them: `ranks 0-2,5`."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    text = ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"rank{'s' if len(runs) > 1 or len(runs[0]) > 1 else ''} {text}" if runs else "no rank"
