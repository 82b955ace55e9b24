"""Which saved parameter group is which, where a job asks for other rates than were saved.

Neither groups nor checkpoints have names, and a checkpoint does not say whose parameters a group has. So the
evidence is what a scheduler reads of groups, and their order, which is that of their rates. A pairing says
what has been edited since: a rate that was set anew, or a factor for some or all. The one with the fewest
edits is right, and of several such the one that keeps the order.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

#: What the scheduler reads of a group, beyond the identifiers that upstream pairs by.
READ = ("max_lr", "min_lr", "start_wd", "end_wd", "optimizer")
#: Changes of one group: of each the field, and a factor or both values.
Edits = frozenset[tuple[Any, ...]]


def identity(group: Any, keys: Sequence[str]) -> tuple[Any, ...]:
    """Return the values of some fields of a group; NeMo has some of them under other names."""
    return tuple(group.get(key, group.get(f"pre_{key}")) for key in keys)


def paired(here: Sequence[Any], there: Sequence[Any], known: Edits) -> tuple[list[int], Edits, str]:
    """Return the places in `there` of the groups in `here`, all edits, and what is in doubt, if anything.

    `known`: edits that the job has made of groups that are told apart: the same again are no further ones.
    """
    changes = [[_edits(new, old) for old in there] for new in here]

    def edits(order: Sequence[int]) -> Edits:
        return known.union(*(changes[place][other] for place, other in enumerate(order)))

    candidates = list(_candidates(changes))
    best = min(candidates, key=lambda order: len(edits(order)))
    swaps = _swaps(best)
    while better := next((order for order in swaps if len(edits(order)) < len(edits(best))), None):
        best, swaps = better, _swaps(better)
    equal = [order for order in (*candidates, *_swaps(best)) if len(edits(order)) == len(edits(best))]
    reads = [identity(one, READ) for one in there]
    doubts = {
        place for order in equal for place, (one, two) in enumerate(zip(order, best, strict=True))
        if reads[one] != reads[two]
    }  # fmt: skip
    told = (f"{_told(here[place])} (saved: {_told(there[best[place]])})" for place in sorted(doubts))
    return best, edits(best), "; ".join(told)


def _candidates(changes: list[list[Edits]]) -> Iterator[list[int]]:
    """Yield orders: that of the groups, and those in which most have not changed, or have changed alike."""
    count = len(changes)
    yield list(range(count))
    times = Counter(one for row in changes for one in row)
    for likely in (Edits(), *(one for one, number in times.items() if one and number > 1)):
        found: dict[int, int] = {}
        left = list(range(count))
        for wanted in (likely, Edits()):
            for place in (one for one in range(count) if one not in found):
                same = next((other for other in left if changes[place][other] == wanted), None)
                if same is not None:
                    found[place] = same
                    left.remove(same)
        rest = iter(left)
        yield [found[place] if place in found else next(rest) for place in range(count)]


def _swaps(order: list[int]) -> Iterator[list[int]]:
    """Yield the orders in which two groups have changed sides."""
    for one in range(len(order)):
        for two in range(one):
            other = list(order)
            other[one], other[two] = order[two], order[one]
            yield other


def _edits(new: Any, old: Any) -> Edits:
    """Return what has been changed of a group, if these are the same."""
    found: set[tuple[Any, ...]] = set()
    for field, one, two in zip(READ, identity(new, READ), identity(old, READ), strict=True):
        if one == two:
            continue
        if isinstance(one, int | float) and isinstance(two, int | float) and two:
            # As digits: a factor that somebody has multiplied by is not quite the same each time.
            factor = f"{one / two:.6g}"
            if factor != "1":
                found.add((field, factor))
        else:
            found.add((field, two, one))
    return Edits(found)


def _told(group: Any) -> str:
    """Return by what a user knows a group."""
    return ", ".join(
        f"{key} {value:g}" for key in ("max_lr", "min_lr") if (value := group.get(key)) is not None
    )
