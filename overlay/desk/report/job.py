"""Reads what the processes of a job left in the folder that `OVERLAY_LEDGER_DIR` names, and compares them.

`overlay.records.run` describes the files.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from glob import glob
from typing import Any

from overlay.defect import HARMS
from overlay.desk.reading import record_of
from overlay.effect import Effect, Number, combined, told
from overlay.errors import ReportError
from overlay.ledger import CAME, Met, PatchStatus, Status
from overlay.model.record import Record
from overlay.model.text import counted, listed, wrap
from overlay.records import agreement
from overlay.records.lock import SOURCE_OF
from overlay.records.run import ENDING, LEDGER, PROCESS
from overlay.source.source import is_endless
from overlay.verdict import Verdict

_MOST_RANKS = 1 << 22
#: Processes and files that a sentence names one by one.
_MOST_NAMES = 8
#: What the annotations of the records in a ledger name, and their modules import for a type checker alone.
_NAMES = {"Effect": Effect, "Verdict": Verdict}


class Process(Record):
    """The file of one process."""

    #: The digest in the name of its ledger, which it may share with other processes.
    ledger: str
    #: `None` in a process that is no rank.
    rank: int | None
    world: int | None
    host: str
    pid: int
    #: Whether it reached its end, and was not killed.
    ended: bool
    #: Its figures, by patch.
    effects: dict[str, dict[str, Number]]


class Group(Record):
    """Processes that say the same."""

    name: str
    processes: int
    #: What they say together.
    status: Status


class Job(Record):
    """What the processes of a job reported."""

    #: The rank of each process if no other process has it, else a name.
    names: tuple[int | str, ...]
    #: By patch, what all processes counted together, and how many of them reached it.
    effects: dict[str, tuple[Effect, int]]
    #: Ranks that left no ledger.
    missing: tuple[int, ...]
    #: Ranks with fewer ledgers than others: in a job with several groups of ranks, one may be missing.
    fewer: tuple[int, ...]
    #: Places in `names` of processes that did not reach their end: what they counted last may be missing.
    cut_short: tuple[int, ...]
    #: The files that cannot be read, each with the reason.
    unreadable: tuple[str, ...]
    #: The known defects that affect the job by its own settings, those that are not patched first.
    met: tuple[Met, ...] = ()
    groups: tuple[Group, ...] = ()
    #: They name processes by their places in `names`, not by rank.
    differences: tuple[agreement.Difference, ...] = ()

    def who(self, places: Iterable[int]) -> str:
        """Return processes as a person would write them: `ranks 0-2,5`."""
        found = [self.names[place] for place in places]
        ranks = [name for name in found if isinstance(name, int)]
        others = [name for name in found if isinstance(name, str)]
        parts = [agreement.spans(ranks)] if ranks else []
        return ", ".join([*parts, *([listed(others, _MOST_NAMES)] if others else [])])

    def open(self) -> list[Met]:
        """Return the known defects that affect the job and that no patch fixes in it."""
        return [one for one in self.met if one.state != "mended"]

    def never(self) -> list[str]:
        """Return the patches that were in place and that no process reached."""
        return [name for name, (_, count) in self.effects.items() if not count]

    def half_patched(self) -> list[str]:
        """Return what came pickled to processes in which its patch is not in force."""
        return sorted({what for group in self.groups for what in group.status.half_patched})

    def gaps(self) -> list[str]:
        """Return sentences on what is not known: missing ranks, early ends, unreadable files."""
        found = [f"There is no ledger of {agreement.spans(self.missing)}."] if self.missing else []
        if self.fewer:
            who = agreement.spans(self.fewer)
            why = "a process left none, or others were started again"
            found.append(f"Fewer ledgers of {who} than of other ranks: {why}.")
        if self.cut_short:
            who = self.who(self.cut_short)
            found.append(f"Killed or still running, so that what came last may be missing: {who}.")
        if self.unreadable:
            files = listed(self.unreadable, _MOST_NAMES, "; ")
            found.append(f"Left out, as these files cannot be read (copy the folder again): {files}.")
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as `overlay report DIR --json` prints it."""
        return {
            "processes": len(self.names),
            "groups": [
                {
                    "name": group.name,
                    "processes": group.processes,
                    "half_patched": list(group.status.half_patched),
                    "patches": {patch.patch: patch.state for patch in group.status.patches},
                }
                for group in self.groups
            ],
            "differences": [
                {
                    "fact": one.fact,
                    "said": [[self.who(places), noted(value, note)] for value, note, places in one.said],
                }
                for one in self.differences
            ],
            "effects": {
                name: {"values": effect.values, "processes": count, "told": told(effect)}
                for name, (effect, count) in self.effects.items()
            },
            "missing": list(self.missing),
            "fewer": list(self.fewer),
            "cut_short": [self.who([place]) for place in self.cut_short],
            "unreadable": list(self.unreadable),
            "met": [one.to_dict() for one in self.met],
        }

    def table(self) -> str:
        """Return a summary for a terminal."""
        count, kinds = len(self.names), len(self.groups)
        things = (
            f" that say {kinds} different things" if kinds > 1 else " that say the same" if count > 1 else ""
        )
        lines = [f"{counted(count, 'process')}{things}"]
        for group in self.groups:
            states: dict[str, list[str]] = {}
            for patch in group.status.patches:
                states.setdefault(patch.state, []).append(patch.patch)
            said = [f"{state}: {', '.join(names)}" for state, names in states.items()]
            said += [f"half-patched: {what} {CAME}" for what in group.status.half_patched]
            lines += [wrap(group.name), *(wrap(text, "    ", first="  ") for text in said)]
        if self.met:
            patched = [one.defect for one in self.met if one.state == "mended"]
            lines.append("by its settings, these known defects affect this job:")
            left = [f"{one.defect} ({one.harm}): {one.why} -> {one.way_out}" for one in self.open()]
            left += [f"patched here: {', '.join(patched)}"] if patched else []
            lines += [wrap(text, "    ", first="  ") for text in left]
        if self.differences:
            lines += ["they differ in", *agreement.rows(self.differences, self.who)]
        lines.append("in this job, over all processes that reached it:")
        reached = {name: said for name, said in self.effects.items() if said[1]}
        did = [f"{name} {told(one)} ({counted(n, 'process')})" for name, (one, n) in reached.items()]
        did += [f"nothing to do for: {', '.join(self.never())}"] if self.never() else []
        return "\n".join([*lines, *(wrap(text, "    ", first="  ") for text in did), *map(wrap, self.gaps())])


def read(folder: str) -> Job:
    """Read the ledgers in a folder. Raises `ReportError` if there is none that can be read."""
    if not os.path.isdir(folder):
        raise ReportError(f"{folder!r} is not a folder: name the OVERLAY_LEDGER_DIR of the job")
    found: list[Process] = []
    unreadable: list[str] = []
    statuses: dict[str, Status] = {}
    for name in sorted(glob(f"{PROCESS}*{ENDING}", root_dir=folder)):
        try:
            process: Process = _load(Process, folder, name)
            if process.ledger not in statuses:
                file = f"{LEDGER}{process.ledger}{ENDING}"
                statuses[process.ledger] = _load(Status, folder, file, pid=0)
        except ReportError as error:
            said = str(error)
            unreadable.append(said if said.startswith(name) else f"{name}: {said}")
            continue
        # A damaged file may have any number in it: nobody has so many ranks.
        if 0 <= (process.rank or 0) < _MOST_RANKS and 0 <= (process.world or 0) <= _MOST_RANKS:
            found.append(process)
        else:
            unreadable.append(f"{name}: rank {process.rank} of {process.world} ranks")
    if not found:
        why = f": {listed(unreadable, _MOST_NAMES, '; ')}" if unreadable else ""
        raise ReportError(
            f"no readable ledger in {folder}{why}: start the job with OVERLAY_LEDGER_DIR={folder}"
        )
    found.sort(key=lambda one: (one.rank is None, one.rank or 0, one.host, one.pid))
    worlds: dict[int, Counter[int]] = {}
    for one in found:
        if one.rank is not None:
            worlds.setdefault(one.world or 0, Counter())[one.rank] += 1
    missing = {rank for world, ranks in worlds.items() for rank in range(world) if rank not in ranks}
    fewer = {rank for ranks in worlds.values() for rank in ranks if ranks[rank] < max(ranks.values())}
    found_met = [one for status in statuses.values() for one in status.met]
    found_met.sort(key=lambda one: one.state != "mended")  # what is open in one process is
    met = [*{one.defect: one for one in found_met}.values()]
    met.sort(key=lambda one: (one.state == "mended", [*HARMS].index(one.harm), one.defect))
    job = Job(
        names=tuple(_names(found)),
        effects=_together(found, statuses),
        missing=tuple(sorted(missing)),
        fewer=tuple(sorted(fewer)),
        cut_short=tuple(place for place, one in enumerate(found) if not one.ended),
        unreadable=tuple(unreadable),
        met=tuple(met),
    )
    return _compared(job, [one.ledger for one in found], statuses)


def noted(value: str, note: str) -> str:
    """Return a value with what helps a person with it."""
    return f"{value} ({note})" if note else value


def _load(kind: type[Record], folder: str, name: str, **more: Any) -> Any:
    """Return the record in a file. Raises `ReportError` if there is none."""
    path = os.path.join(folder, name)
    try:
        if is_endless(path):
            raise OSError("it is no regular file, or far too large")  # noqa: TRY301
        with open(path, encoding="utf-8") as file:
            return record_of(kind, {**more, **json.load(file)}, _NAMES)
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise ReportError(f"{name}: {error}") from error


def _names(found: Sequence[Process]) -> list[int | str]:
    """Return what each process is called: in a job of several roles each may have a rank 0."""
    count = Counter(one.rank for one in found)
    names: list[int | str] = []
    for one in found:
        process = f"process {one.pid} on {one.host}"
        if one.rank is None:
            names.append(f"{process} (no rank)")
        else:
            names.append(one.rank if count[one.rank] == 1 else f"rank {one.rank} ({process})")
    return names


def _together(found: Sequence[Process], statuses: Mapping[str, Status]) -> dict[str, tuple[Effect, int]]:
    """Return the figures of all processes as one, by patch, and how many processes have any."""
    declared: dict[str, Effect] = {}
    whole: set[str] = set()
    for status in statuses.values():
        for patch in status.patches:
            if patch.effect is not None:
                declared.setdefault(patch.patch, patch.effect)
                whole.update([patch.patch] * patch.was_whole)
    effects = {}
    for name, effect in declared.items():
        values: dict[str, Number] = {}
        reached = [one.effects[name] for one in found if name in one.effects]
        for figures in reached:
            values = combined(values, figures, effect)
        if reached or name in whole:  # an incomplete one does not count all
            effects[name] = (effect.replace(values=values), len(reached))
    return effects


def _compared(job: Job, ledgers: Sequence[str], statuses: Mapping[str, Status]) -> Job:
    """Return a job with the groups of processes that say the same, and what these differ in.

    `ledgers`: the digest of each process's ledger. `statuses`: the ledgers by digest.
    """
    common = set.intersection(*(set(_selected(status)) for status in statuses.values()))
    of_ledger: dict[str, list[int]] = {}
    for place, ledger in enumerate(ledgers):
        of_ledger.setdefault(ledger, []).append(place)
    kinds = [(_statement(statuses[ledger], common), places) for ledger, places in of_ledger.items()]
    differences = agreement.compare(kinds)
    said: dict[int, list[tuple[str, str]]] = {place: [] for place in range(len(ledgers))}
    for one in differences:
        for value, _, sayers in one.said:
            for place in sayers:
                said[place].append((one.fact, value))
    alike: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for place, facts in said.items():
        alike.setdefault(tuple(facts), []).append(place)
    groups = []
    for places in alike.values():
        found = [statuses[ledger] for ledger in dict.fromkeys(ledgers[place] for place in places)]
        groups.append(Group(name=job.who(places), processes=len(places), status=_joined(found)))
    return job.replace(groups=tuple(groups), differences=tuple(differences))


def _joined(alike: Sequence[Status]) -> Status:
    """Return the ledger of processes that say the same: of each patch, what the one says that knows most.

    Each process may have imported other modules, and a patch waits in all others. Here it is applied if it is
    in place in some of its modules: a job need not import the others.
    """
    patches: dict[str, PatchStatus] = {}
    for one in (patch for status in alike for patch in status.patches):
        patches[one.patch] = max(patches.get(one.patch, one), one, key=_known)
    found = [one.replace(state="applied") if one.has_begun else one for one in patches.values()]
    return alike[0].replace(patches=tuple(found))


def _known(patch: PatchStatus) -> tuple[bool, int, bool]:
    """Return how much a process knows of a patch, as a key to compare."""
    imported = sum(site.state != "waiting" for site in patch.sites)
    return patch.state != "waiting", imported, patch.verdict is not None


def _selected(status: Status) -> Sequence[str]:
    """Return what was selected. `disable()` forgets the selection, and keeps what became of each patch."""
    return status.selection if status.enabled else [patch.patch for patch in status.patches]


def _statement(status: Status, common: set[str]) -> agreement.Statement:
    """Return what a ledger says, as ranks say it to each other. `common`: patches that all have selected.

    A patch that waits for its modules says nothing yet, which is no difference. One that `disable()` took
    out was in place until then, or incomplete, which is its reason: ranks that disable at their end must have
    had the same in place.
    """
    own = [name for name in _selected(status) if name not in common]
    code = {name: f"code {digest[:12]}" for name, digest in status.code.items()}
    facts = {
        **code,
        "overlay": ", ".join(filter(None, [status.version, code.get("overlay", "")])),
        "enabled at the end": "yes" if status.enabled else "no",
        "Python": status.python,
        "selection": ", and ".join([f"{len(common)} that all have", *([", ".join(own)] if own else [])]),
        **{f"half-patched: {what}": "yes" for what in status.half_patched},
    }
    outcome: dict[str, str] = {}
    notes: dict[str, str] = {}
    if status.enabled:  # `disable()` forgets these
        outcome = {"strict": "yes" if status.strict else "no", "pinned to": status.pinned or "nothing"}
    for patch in status.patches:
        if patch.has_begun or patch.state != "waiting":
            out = patch.state == "reverted" and not status.enabled
            whole = patch.has_begun or (out and patch.was_whole)
            outcome[patch.patch] = "applied" if whole else "incomplete" if out else patch.state
            notes[patch.patch] = "taken out since" if out else patch.reason
        for target in patch.verdict.targets if patch.verdict is not None else ():
            if target.version:
                outcome[f"{target.project} version"] = target.version
            for finding in target.findings:
                outcome[f"{patch.patch}{SOURCE_OF}{finding.site}"] = finding.digest or "none"
    return agreement.Statement(facts=facts, outcome=outcome, notes=notes)
