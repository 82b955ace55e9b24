"""Compares the ledgers of processes: which of them agree, and in what the others differ."""

from __future__ import annotations

import re
from collections import Counter

from overlay.base.record import TYPE_CHECKING, Record
from overlay.pinning.agreement import spans

if TYPE_CHECKING:
    from collections.abc import Sequence

    from overlay.ledger import PatchStatus
    from overlay.report.inputs import Ledger

#: States in which a patch counts as the same: a rank may not have used its modules yet.
_IN_FORCE = ("armed", "applied")
#: What a process says that does not have the patch, or knows nothing of the kind.
NOTHING = "(nothing)"
#: The fact that says which patches somebody has asked for.
SELECTION = "selection"
#: Names of processes that are written out, where they are no ranks.
_MOST_NAMES = 8
#: How a fact about the source of a site begins, after the patch.
SOURCE_OF = "source of "


class Group(Record):
    """Processes whose ledgers agree, and one that speaks for them."""

    name: str
    ledgers: tuple[Ledger, ...]

    @property
    def first(self) -> Ledger:
        """Return the one with the most verdicts: a patch that is only armed has none yet."""
        return max(self.ledgers, key=lambda item: sum(p.verdict is not None for p in item.status.patches))


class Difference(Record):
    """One fact, and who says what."""

    fact: str
    #: Names of processes, and their value.
    said: tuple[tuple[str, str], ...]
    #: Whether it is the source of a site: where versions differ, there are many.
    is_source: bool


def compare(ledgers: Sequence[Ledger]) -> tuple[tuple[Group, ...], tuple[Difference, ...]]:
    """Return groups of processes that agree, and the facts in which the groups differ."""
    # Thousands of ranks may have one ledger.
    of_status = {id(ledger.status): _facts(ledger) for ledger in ledgers}
    facts = {ledger.name: of_status[id(ledger.status)] for ledger in ledgers}
    waiting = {ledger.name: _waiting(ledger) for ledger in ledgers}
    selected = {ledger.name: ledger.status.selection for ledger in ledgers}
    differences = []
    said: dict[str, list[str]] = {ledger.name: [] for ledger in ledgers}
    for fact in dict.fromkeys(name for found in facts.values() for name in found):
        patch, _, of_patch = fact.partition(": ")
        # A patch that waits for its modules says nothing yet, which is no difference. That it was left out is
        # said once, by the selection.
        asked = [
            name
            for name in facts
            if fact in facts[name]
            or (patch not in waiting[name] and (not of_patch or patch in selected[name]))
        ]
        values = {name: facts[name].get(fact, NOTHING) for name in asked}
        if len(set(values.values())) > 1:
            by_value: dict[str, list[str]] = {}
            for name, value in values.items():
                by_value.setdefault(value, []).append(name)
                said[name].append(f"{fact}={value}")
            shown = _without_common(list(by_value)) if fact == SELECTION else list(by_value)
            rows = tuple((label(names), value) for value, names in zip(shown, by_value.values(), strict=True))
            differences.append(Difference(fact=fact, said=rows, is_source=SOURCE_OF in fact))
    groups: dict[tuple[str, ...], list[Ledger]] = {}
    for ledger in ledgers:
        groups.setdefault(tuple(said[ledger.name]), []).append(ledger)
    named = (
        Group(name=label([ledger.name for ledger in group]), ledgers=tuple(group))
        for group in groups.values()
    )
    return tuple(named), tuple(differences)


def _without_common(selections: Sequence[str]) -> list[str]:
    """Return selections without the patches that they share, of which only the number is given."""
    found = [dict.fromkeys(filter(None, one.split(", "))) for one in selections]
    common = set(found[0]).intersection(*found)
    count = f"{len(common)} that all have"
    own = [", ".join(name for name in one if name not in common) for one in found]
    return [f"{count}, and {names}" if names else count for names in own]


def distinct(ledgers: Sequence[Ledger]) -> list[Ledger]:
    """Return ledgers under names that differ, in their order: actor and critic each have a rank 0."""
    count, seen, found = Counter(ledger.name for ledger in ledgers), Counter[str](), []
    for ledger in ledgers:
        seen[ledger.name] += 1
        name = f"{ledger.name} ({seen[ledger.name]})" if count[ledger.name] > 1 else ledger.name
        found.append(ledger.replace(name=name))
    return found


def label(names: Sequence[str]) -> str:
    """Return names of files as a person would write them: `ranks 0-2,5` if they end in numbers."""
    numbers = [re.search(r"(\d+)$", name) for name in names]
    found = [int(match[1]) for match in numbers if match]
    if len(set(found)) == len(names):
        return spans(found)
    if len(names) > _MOST_NAMES:
        return f"{', '.join(names[:_MOST_NAMES])} and {len(names) - _MOST_NAMES} more"
    return ", ".join(names)


def _waiting(ledger: Ledger) -> set[str]:
    return {
        patch.patch for patch in ledger.status.patches if patch.state in _IN_FORCE and patch.verdict is None
    }


def _facts(ledger: Ledger) -> dict[str, str]:
    """Return what a process says of itself, by name of the fact."""
    status = ledger.status
    found = {
        "overlay": status.version if status.enabled else "not enabled",
        "Python": status.python,
        "strict": "yes" if status.strict else "no",
        "pinned to": status.pinned or "nothing",
        SELECTION: ", ".join(status.selection),
    }
    for number, sentence in enumerate(status.half_patched, 1):
        found[f"half-patched {number}"] = sentence
    for patch in status.patches:
        found.update({f"{patch.patch}: {name}": value for name, value in _of_patch(patch).items()})
    return found


def _of_patch(patch: PatchStatus) -> dict[str, str]:
    state = "in force" if patch.state in _IN_FORCE else patch.state
    found = {"revision": str(patch.revision), "state": f"{state}: {patch.reason}" if patch.reason else state}
    if patch.verdict is not None:
        found["verdict"] = patch.verdict.verdict
        for target in patch.verdict.targets:
            found[f"{target.project} version"] = target.version or "not installed"
            found.update(
                {f"{SOURCE_OF}{finding.site}": finding.digest or NOTHING for finding in target.findings}
            )
    return found
