"""Compares two runs of the same tests: what is lost, won, still failing or flaky."""

from __future__ import annotations

from fnmatch import fnmatchcase

from overlay.base.record import TYPE_CHECKING, Record
from overlay.suite.results import FAILING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from overlay.suite.recipe import Known
    from overlay.suite.results import Results, Test

#: What a test is that one of the two runs does not have.
MISSING = "missing"

_GOOD = frozenset({"passed", "xpassed", "xfailed"})


class Change(Record):
    """A node id, its outcome in both runs, and the first line of why it did not pass."""

    id: str
    before: str
    after: str
    reason: str = ""
    #: Why the recipe knows it to fail, empty if it does not.
    known: str = ""


class Difference(Record):
    """What differs between two runs."""

    #: Passed before, and does not now; or fails now and did not before.
    lost: tuple[Change, ...]
    #: Failed before, and passes now.
    won: tuple[Change, ...]
    #: Fails in both.
    failing: tuple[Change, ...]
    #: Has different outcomes in one and the same run.
    flaky: tuple[Change, ...]
    #: Any other difference: skipped in one of them.
    changed: tuple[Change, ...]
    #: Tests that pass in both.
    passing: int


def compare(before: Results, after: Results, known: Sequence[Known] = ()) -> Difference:
    """Return what differs between two runs, by node id."""
    first, second = before.outcomes(), after.outcomes()
    found: dict[str, list[Change]] = {
        kind: [] for kind in ("lost", "won", "failing", "flaky", "changed", "passing")
    }
    for name in dict.fromkeys((*first, *second)):
        kind, change = _judge(name, first.get(name, []), second.get(name, []))
        reason = next((item.reason for item in known if fnmatchcase(name, _literal(item.test))), "")
        if kind:
            found[kind].append(change.replace(known=reason))
    passing = len(found.pop("passing"))
    return Difference(passing=passing, **{kind: tuple(changes) for kind, changes in found.items()})


def _literal(pattern: str) -> str:
    """Return a pattern in which a bracket, which many node ids have, stands for itself."""
    return pattern.replace("[", "[[]")


def _judge(name: str, before: Sequence[Test], after: Sequence[Test]) -> tuple[str, Change]:
    one, other = _outcome(before), _outcome(after)
    reason = next((test.reason for test in (*after, *before) if test.outcome not in _GOOD), "")
    change = Change(id=name, before=one, after=other, reason=reason)
    if "/" in one or "/" in other:
        return "flaky", change
    if other in FAILING:
        return ("failing" if one in FAILING else "lost"), change
    if one in FAILING:
        return ("won" if other in _GOOD else "changed"), change
    if one in _GOOD:
        return ("passing" if other in _GOOD else "lost"), change
    return ("changed" if one != other else ""), change


def _outcome(attempts: Sequence[Test]) -> str:
    """Return the outcome of all attempts, or both if they differ in whether it failed."""
    if not attempts:
        return MISSING
    other = next(
        (test for test in attempts if (test.outcome in _GOOD) != (attempts[0].outcome in _GOOD)), None
    )
    return attempts[0].outcome if other is None else f"{attempts[0].outcome}/{other.outcome}"


def table(difference: Difference) -> str:
    """Return a difference as text: the counts, and each test that was lost, won or is flaky."""
    counts = {
        "pass in both": difference.passing,
        "lost": len(difference.lost),
        "won": len(difference.won),
        "still failing": len(difference.failing),
        "flaky": len(difference.flaky),
        "otherwise changed": len(difference.changed),
    }
    lines = [", ".join(f"{count} {what}" for what, count in counts.items())]
    for kind in ("lost", "won", "flaky", "changed"):
        for change in getattr(difference, kind):
            lines.append(f"{kind:<8}{change.id}: {change.before} -> {change.after}")
            lines += [f"        {text}" for text in (change.reason, change.known) if text]
    return "\n".join(lines)
