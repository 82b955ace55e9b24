"""What a rank says of itself to the others, and how ranks differ.

Ranks compare what is in force: the code of overlay and of packs, each patch that applies with the digest of
each site, strict mode, and which patches are in place. A rank says nothing of a patch until it has imported
one of its modules. Reasons are not compared: they hold paths, and follow the order of imports.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence

from overlay.ledger import PatchStatus, Status
from overlay.model.rank import host
from overlay.model.record import Record
from overlay.records import lock as locks
from overlay.verdict import Verdict

#: The most runs of ranks, such as `0-2`, that a line of a report names: there may be thousands of them.
RUNS = 64
_DROPPED = "selection drops the patch that compares"


class Account(Record):
    """What is in place in one process: what the one line in the job's log says."""

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
        some = sorted({*self.applied} - {*shared})
        partly = f" on all, {len(some)} on some ({', '.join(some)})" if some else ""
        refused = f" ({', '.join(self.refused)})" if self.refused else ""
        half = f", {self.half_patched} half-patched" if self.half_patched else ""
        return (
            f"{len(shared)} applied{partly}, {len(self.refused)} refused{refused}{half}, "
            f"digest {locks.shown(self.digest)}"
        )


class Statement(Record):
    """What one rank says of itself. The default is that of a process in which overlay is not enabled."""

    #: What must be the same on all ranks: a value by the name of each fact.
    facts: Mapping[str, str] = {"overlay": "not enabled"}
    #: What helps a person with a fact, such as the file of a site. It is not compared.
    notes: Mapping[str, str] = {}
    #: What became of a patch, by its id, if one of its modules has been imported. Ranks that both say
    #: something of a patch must say the same.
    outcome: Mapping[str, str] = {}
    account: Account | None = None


def account_of(status: Status, lock: locks.Lock) -> Account:
    """Return the account of a process, from its ledger and its lock."""
    return Account(
        applied=tuple(patch.patch for patch in status.patches if patch.in_force),
        refused=tuple(
            patch.patch
            for patch in status.patches
            if patch.state == "failed"
            or (patch.state == "incomplete" and not patch.in_force)
            or (patch.state == "skipped" and patch.verdict is not None and patch.verdict.loud)
        ),
        half_patched=len(status.half_patched),
        digest=str(lock["digest"]),
    )


def statement_of(lock: locks.Lock, verdicts: Iterable[Verdict], status: Status) -> Statement:
    """Return what a rank says of itself: what was decided from the sources alone, and what is in place."""
    from overlay.source.source import Tree

    tree = Tree()
    by_patch = {verdict.patch: verdict for verdict in verdicts}
    notes = {"overlay": f"on {host()}, {os.path.dirname(os.path.dirname(__file__))}"}
    facts = {
        "overlay": _version(lock["overlay"]),
        "strict": "yes" if status.strict else "no",
        "pinned": "yes" if status.pinned else "no",
        **{f"pack {pack['name']}": _version(pack) for pack in lock["pack"]},
        **{f"half-patched: {what}": "yes" for what in status.half_patched},
    }
    for patch in lock["patch"]:
        name, verdict = patch["id"], by_patch[patch["id"]]
        if patch["verdict"] != "apply":
            sites = [finding.site for target in verdict.targets for finding in target.findings]
            files = [tree.file(site.partition(":")[0]) for site in sites[:1]]
            notes[name] = f"{patch['verdict']}: {', '.join(filter(None, [verdict.where(), *files]))}"
            continue
        found = [target for target in patch["target"] if target["verdict"] == "apply"]
        variants = ", ".join(f"{target['project']} {target['variant']}" for target in found)
        facts[name] = f"in force, variant {variants}"
        notes[name] = ", ".join(f"{target['project']} {target['version']}" for target in found)
        for target in found:
            for site, digest in target["sites"].items():
                facts[f"{name}{locks.SOURCE_OF}{site}"] = digest
                file = tree.file(site.partition(":")[0])
                notes[f"{name}{locks.SOURCE_OF}{site}"] = f"{target['project']} {target['version']}, {file}"
    told = {patch.patch: _outcome(patch) for patch in status.patches if patch.patch in facts}
    outcome = {name: word for name, word in told.items() if word}
    return Statement(facts=facts, notes=notes, outcome=outcome, account=account_of(status, lock))


def _version(about: locks.Lock) -> str:
    return f"{about['version']}, code {about['content'][:12]}"


def _outcome(patch: PatchStatus) -> str:
    """Return what became of a patch that applies, empty as long as none of its modules has been imported."""
    if patch.state in ("failed", "skipped"):
        return "left out"
    return "in place" if patch.in_force else "incomplete" if patch.state == "incomplete" else ""


class Difference(Record):
    """One fact on which ranks differ."""

    fact: str
    #: Each value, what helps a person with it, and the ranks that say so; the lowest rank first.
    said: tuple[tuple[str, str, tuple[int, ...]], ...]

    @property
    def is_source(self) -> bool:
        """Whether it is the source of a site: where versions differ, there are many."""
        return locks.SOURCE_OF in self.fact


def compare(kinds: Sequence[tuple[Statement, Sequence[int]]]) -> list[Difference]:
    """Return what ranks differ in. `kinds`: each statement, with the ranks that make it."""
    copies = [(said.facts["overlay"], said.notes.get("overlay", ""), ranks) for said, ranks in kinds]
    found = [_difference("overlay", copies)]
    kinds = [(said, ranks) for said, ranks in kinds if said.facts != Statement.facts]
    partly: set[str] = set()
    for name in sorted({name for said, _ in kinds for name in said.facts} - {"overlay"}):
        if name.partition(locks.SOURCE_OF)[0] in partly:
            continue
        if not all(name in said.facts for said, _ in kinds):
            partly.add(name)
        values = [(locks.shown(said.facts.get(name)), said.notes.get(name, ""), of) for said, of in kinds]
        found.append(_difference(name, values))
    for name in sorted({name for said, _ in kinds for name in said.outcome}):
        answers = [(said, of) for said, of in kinds if name in said.outcome]
        values = [(said.outcome[name], said.notes.get(name, ""), of) for said, of in answers]
        found.append(_difference(name, values))
    return [one for one in found if len(one.said) > 1]


def _difference(fact: str, values: Iterable[tuple[str, str, Sequence[int]]]) -> Difference:
    """Return what ranks say of a fact. It has one value if all say the same."""
    groups: dict[str, tuple[str, list[int]]] = {}
    for value, note, ranks in values:
        if ranks:
            groups.setdefault(value, (note, []))[1].extend(ranks)
    said = [(value, note, tuple(sorted(ranks))) for value, (note, ranks) in groups.items()]
    return Difference(fact=fact, said=tuple(sorted(said, key=lambda one: one[2][0])))


def differences(kinds: Sequence[tuple[Statement, Sequence[int]]]) -> str:
    """Return what ranks differ in as a table, empty if they do not. See `compare`."""
    return "\n".join(rows(compare(kinds), spans))


def rows(found: Iterable[Difference], who: Callable[[Sequence[int]], str]) -> list[str]:
    """Return differences as lines: each fact, and below it who says what. `who` names ranks."""
    lines = []
    for one in found:
        width = max(len(who(ranks)) for _, _, ranks in one.said)
        lines.append(f"  {one.fact}")
        for value, note, ranks in one.said:
            lines.append(f"    {who(ranks):<{width}}  {value}{f' ({note})' if note else ''}")
    return lines


def silence(ranks: Iterable[int], timeout: float) -> str:
    """Return a sentence on ranks that nothing was heard of, nothing if there are none."""
    silent = list(ranks)
    if not silent:
        return ""
    return (
        f"{spans(silent)} did not take part within {timeout:g} s: overlay was not enabled there, or its "
        f"{_DROPPED}, when the process groups were made, or the process hangs or has ended\n"
    )


def lateness(ranks: Iterable[int], waited: float, timeout: float) -> str:
    """Return a sentence on ranks that are waited for."""
    return (
        f"{spans(ranks)} did not join the comparison of patches within {waited:.0f} s: overlay is not "
        f"enabled there, or its {_DROPPED}, or start-up is slow; waiting another {timeout - waited:.0f} s"
    )


def spans(ranks: Iterable[int]) -> str:
    """Return ranks as a person would write them: `ranks 0-2,5`. Of many runs, only the first `RUNS`."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    text = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs[:RUNS])
    more = sum(last - first + 1 for first, last in runs[RUNS:])
    many = len(runs) > 1 or any(first != last for first, last in runs)
    return f"rank{'s' if many else ''} {text}{f' and {more} more' if more else ''}" if runs else "no rank"
