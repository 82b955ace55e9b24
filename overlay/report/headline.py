"""The headline of a report: whether the processes agree, and how many patches are in place."""

from __future__ import annotations

from overlay.base.record import TYPE_CHECKING, Record
from overlay.verdict import LOUD

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from overlay.patch import Patch
    from overlay.report.ledgers import Difference, Group

#: What an installation says of a patch that `all` leaves out.
OPT_IN = "opt-in"

#: What becomes of a patch, the worst first, as it stands after a number; and its tone.
OUTCOMES: dict[str, str] = {
    "asked for, and not there": "bad",
    "incomplete": "care",
    "taken out": "care",
    "in place": "good",
    "to be applied": "good",
    "not reached": "plain",
    OPT_IN: "plain",
    "nothing to mend": "plain",
    "not installed": "plain",
    "not selected": "plain",
    "not known": "plain",
}
#: What a view says of a patch, a state or else a verdict, and what that comes to.
_OF_WORD = {
    **dict.fromkeys((*LOUD, "failed"), "asked for, and not there"),
    "incomplete": "incomplete",
    "reverted": "taken out",
    "applied": "in place",
    "apply": "to be applied",
    OPT_IN: OPT_IN,
    "armed": "not reached",
    **dict.fromkeys(("fixed-upstream", "superseded", "not-affected", "skipped"), "nothing to mend"),
    "not-installed": "not installed",
    "not-selected": "not selected",
}
#: Facts that are named in a sentence; the table has the others.
_FACTS = 3


class Headline(Record):
    """The outcome in a sentence, and the rest of it."""

    tone: str
    text: str
    #: How many patches came to what, those that came to something.
    counts: tuple[tuple[str, int], ...]

    def tally(self) -> str:
        """Return the numbers as text."""
        return " \u00b7 ".join(f"{count} {outcome}" for outcome, count in self.counts)


def outcome(words: Iterable[str]) -> str:
    """Return the outcome of a patch, from what all views say of it."""
    found = {_OF_WORD.get(word, "not known") for word in words}
    if found & {"not reached", "not selected"}:
        # What an installation could take is not what processes took; whatever else they say says more.
        found -= {"to be applied", OPT_IN}
    for said_by_some in ("not selected", "not reached"):
        if len(found) > 1:
            found.discard(said_by_some)
    return next(name for name in OUTCOMES if name in found or name == "not known")


def headline(
    outcomes: Mapping[str, str],
    processes: int,
    groups: Sequence[Group],
    differences: Sequence[Difference],
    gaps: Sequence[str] = (),
) -> Headline:
    """Return what is said first.

    Args:
        outcomes: By patch, what became of it.
        processes: How many processes said something; of none, the report is on installations alone.
        groups: Those that say the same.
        differences: What they differ in.
        gaps: Sentences on processes of which too little is known: what is said is not on all of a job.

    """
    counts = tuple(
        (name, number) for name in OUTCOMES if (number := sum(one == name for one in outcomes.values()))
    )
    bad = [name for name, one in outcomes.items() if OUTCOMES[one] == "bad"]
    care = [name for name, one in outcomes.items() if OUTCOMES[one] == "care"]
    sentences = [*_agreement(processes, groups, differences, whole=not gaps), *gaps]
    sentences += [f"{_names(bad)} {_is(bad)} asked for, and not there."] if bad else []
    sentences += [f"{_names(care)} {_is(care)} not completely in place."] if care else []
    if not bad and not care:
        sentences.append(_good(dict(counts), processes, alike=not differences))
    tone = "bad" if bad or differences else "care" if care or gaps else "good"
    if tone == "good" and not any(OUTCOMES[name] == "good" for name, _ in counts):
        tone = "plain"
    return Headline(tone=tone, text=" ".join(sentences), counts=counts)


def unmet(patches: Mapping[str, Patch], met: Iterable[str], waiting: Iterable[str]) -> dict[str, list[str]]:
    """Return the patches that wait for a project that no process has reported on, by project.

    Args:
        patches: All that are known, by id.
        met: Projects of which a process or an audit has named a version.
        waiting: Ids of the patches that were not reached.

    """
    seen = set(met)
    found: dict[str, list[str]] = {}
    for name in waiting:
        patch = patches.get(name)
        projects = [target.project.name for target in patch.targets] if patch is not None else []
        if projects and not seen.intersection(projects):
            found.setdefault(projects[0], []).append(name)
    return found


def _agreement(
    processes: int, groups: Sequence[Group], differences: Sequence[Difference], *, whole: bool
) -> list[str]:
    if differences:
        # Of a patch that differs, the table says in what.
        facts = [one.fact.partition(": ")[0] for one in differences if not one.is_source]
        facts = list(dict.fromkeys(facts or [one.fact for one in differences]))
        who = _names([group.name for group in groups])
        return [f"The {processes} processes do not agree: {who} differ in {_names(facts, _FACTS)}."]
    if processes > 1:
        return [f"All {processes} processes agree." if whole else f"The {processes} processes here agree."]
    return ["One process, with nobody to compare it with."] if processes else []


def _good(counts: Mapping[str, int], processes: int, *, alike: bool) -> str:
    there, wanted = counts.get("in place", 0), counts.get("to be applied", 0)
    if there:
        where = "in place" if alike else "in place on some"
        return f"{_patches(there)} {'is' if there == 1 else 'are'} {where}, and none was refused."
    if wanted:
        return f"{_patches(wanted)} would be applied here, and none is refused."
    if counts.get("not reached"):
        return "No patch has been reached: none of the modules that they are for was imported."
    return "No patch is in place." if processes else "There is nothing here that a patch would mend."


def _patches(count: int) -> str:
    return f"{count} patch{'es' if count != 1 else ''}"


def _is(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _names(names: Sequence[str], most: int = 4) -> str:
    shown, rest = list(names[:most]), len(names) - most
    if rest > 0:
        return f"{', '.join(shown)} and {rest} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
