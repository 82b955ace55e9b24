"""What one rank says of itself, and whether several say the same.

The facts are those of a lock, with the state of each patch. Ranks with one digest run the same patches on the
same sources. A patch that is armed and one that is applied count as the same: the module was not used yet.
"""

from __future__ import annotations

from overlay.base.record import Record
from overlay.pinning import lock as locks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from overlay.ledger import PatchStatus, Status
    from overlay.verdict import Verdict

_IN_FORCE = ("armed", "applied")
#: The fact of a process in which overlay is not enabled.
NOT_ENABLED = {"overlay": "not enabled"}
#: How many runs of ranks one line of a report names: every rank reads the report, and there may be 65,536.
RUNS = 64
_STATE = ": state"
_HALF = "half-patched "


class Account(Record):
    """What one process has, in the words of the one line that a job's log has on it."""

    #: Ids of patches that are in place.
    applied: tuple[str, ...]
    #: Ids of patches that were asked for, are for what is installed here, and are not in place.
    refused: tuple[str, ...]
    #: How many replacements came here pickled while their patch is not in force here.
    half_patched: int
    #: The digest of the lock of this process.
    digest: str

    def sentence(self, everywhere: Iterable[str] | None = None) -> str:
        """Return the account in words. `everywhere`: of those applied, the ones that are on all ranks."""
        shared = self.applied if everywhere is None else tuple(everywhere)
        some = "" if everywhere is None else _counted(self.applied, shared)
        refused = f" ({', '.join(self.refused)})" if self.refused else ""
        half = f", {self.half_patched} half-patched" if self.half_patched else ""
        return (
            f"{len(shared)} applied{some}, {len(self.refused)} refused{refused}{half}, "
            f"digest {locks.shown(self.digest)}"
        )


def _counted(applied: Iterable[str], shared: Iterable[str]) -> str:
    some = sorted(set(applied) - set(shared))
    return f" on all, {len(some)} on some ({', '.join(some)})" if some else ""


def account_of(patches: Iterable[PatchStatus], half_patched: Sequence[str], digest: str) -> Account:
    """Return what a process has, by the ledger of its patches and the digest of its lock."""
    patches = tuple(patches)
    return Account(
        applied=tuple(patch.patch for patch in patches if patch.state == "applied"),
        refused=tuple(patch.patch for patch in patches if _is_refused(patch)),
        half_patched=len(half_patched),
        digest=digest,
    )


def lock_digest(facts: Mapping[str, str]) -> str:
    """Return the digest of the lock of a process, of which `facts` are what it says to other ranks."""
    return locks.digest_of(
        {
            name: value
            for name, value in facts.items()
            if name != "overlay" and not name.endswith(_STATE) and not name.startswith(_HALF)
        }
    )


def _is_refused(patch: PatchStatus) -> bool:
    if patch.state == "skipped":
        return patch.verdict is not None and patch.verdict.loud
    return patch.state in ("failed", "incomplete")


def facts_of(lock: locks.Lock, status: Status) -> dict[str, str]:
    """Return what a rank says of itself."""
    found = {"overlay": "enabled", **locks.facts(lock)}
    for patch in status.patches:
        found[f"{patch.patch}{_STATE}"] = _state(patch)
    for number, sentence in enumerate(status.half_patched):
        found[f"{_HALF}{number + 1}"] = sentence
    return found


def _state(patch: PatchStatus) -> str:
    if patch.state in _IN_FORCE:
        return "in force"
    return f"{patch.state}: {' '.join(patch.reason.split())}" if patch.reason else patch.state


def digest_of(facts: Mapping[str, str]) -> str:
    """Return the digest by which ranks are compared first."""
    return locks.digest_of(facts)


def files_of(verdicts: Iterable[Verdict]) -> dict[str, str]:
    """Return the file of the module of each site that was decided on, for a person to look at."""
    from overlay.reading.source import InstalledTree

    tree = InstalledTree()
    sites = {f.site for verdict in verdicts for target in verdict.targets for f in target.findings}
    return {module: tree.file(module) for module in sorted({site.partition(":")[0] for site in sites})}


def compare(
    ranks: Mapping[int, str],
    facts: Mapping[str, Mapping[str, str]],
    files: Mapping[str, Mapping[str, str]],
) -> str:
    """Return a table of what differs.

    Args:
        ranks: The digest of each rank.
        facts: The facts that each digest stands for.
        files: For each digest, the file of each module: that of one of the ranks that have this digest.
    """
    lines = (
        _rows("overlay", ranks, facts, files) if len({said["overlay"] for said in facts.values()}) > 1 else []
    )
    enabled = {digest: said for digest, said in facts.items() if said != NOT_ENABLED}
    ranks = {rank: digest for rank, digest in ranks.items() if digest in enabled}
    for name in locks.different(list(enabled.values())):
        lines += _rows(name, ranks, enabled, files)
    return "\n".join(lines)


def _rows(
    name: str,
    ranks: Mapping[int, str],
    facts: Mapping[str, Mapping[str, str]],
    files: Mapping[str, Mapping[str, str]],
) -> list[str]:
    """Return the rows on one fact: its name, and below that who says what."""
    values = {digest: _told(name, facts[digest], files[digest]) for digest in facts}
    groups: dict[str, list[int]] = {}
    for rank, digest in sorted(ranks.items()):
        groups.setdefault(values[digest], []).append(rank)
    width = max(len(spans(group)) for group in groups.values())
    return [f"  {name}", *(f"    {spans(group):<{width}}  {value}" for value, group in groups.items())]


def _told(name: str, facts: Mapping[str, str], files: Mapping[str, str]) -> str:
    value = facts.get(name)
    module = name.partition(locks.SOURCE_OF)[2].partition(":")[0]
    where = files.get(module) if value is not None else None
    return locks.shown(value) + (f" in {where}" if where else "")


def spans(ranks: Iterable[int]) -> str:
    """Return ranks as a person would write them: `ranks 0-2,5`; of very many runs the first `RUNS`."""
    runs = runs_of(ranks)
    text = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs[:RUNS])
    more = sum(last - first + 1 for first, last in runs[RUNS:])
    many = len(runs) > 1 or any(first != last for first, last in runs)
    return f"rank{'s' if many else ''} {text}{f' and {more} more' if more else ''}" if runs else "no rank"


def runs_of(ranks: Iterable[int]) -> list[list[int]]:
    """Return the first and the last of each run of ranks that follow each other, ascending."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return runs


def ranks_of(runs: Iterable[Sequence[int]]) -> list[int]:
    """Return the ranks of some runs."""
    return [rank for first, last in runs for rank in range(first, last + 1)]


def silence(ranks: Iterable[int], timeout: float) -> str:
    """Return a sentence on ranks that nothing was heard of, nothing if there are none."""
    silent = list(ranks)
    if not silent:
        return ""
    return (
        f"{spans(silent)} did not take part within {timeout:g} s: overlay was not enabled there when the "
        "process groups were made, or the process hangs or has ended\n"
    )


def gave_up(ranks: Iterable[int], first: int) -> str:
    """Return a sentence on ranks that came before the first rank did, and did not wait for it long enough."""
    left = list(ranks)
    return f"{spans(left)} had given up waiting for rank {first}, which came later\n" if left else ""


def no_verdict(first: int, seconds: float) -> str:
    """Return a sentence on a first rank that asked the others, and did not say what came of it."""
    return (
        f"rank {first} asked, and has not said what came of it within {seconds:g} s: it hangs or has ended\n"
    )


def without(rank: int, said: str) -> str:
    """Return what a comparison said that had ended before a rank came."""
    return f"a comparison had ended before rank {rank} came, and said: {said.strip()}\n"
