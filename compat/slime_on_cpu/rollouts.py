"""Rollouts for slime to split into micro-batches, drawn and adversarial, and what must hold of a split."""

from __future__ import annotations

import math
import random
from typing import TypedDict


class Case(TypedDict):
    """A rollout on all data parallel ranks."""

    name: str
    #: Tokens of each sample, by rank. All ranks have as many samples.
    ranks: list[list[int]]
    steps: int
    #: `max_tokens_per_gpu`, and the context parallel size that it is multiplied with.
    budget: int
    context: int
    #: Virtual pipeline stages, and the group size. slime 0.1 aligns to it with one stage too.
    stages: int
    group: int


class Split(TypedDict, total=False):
    """What a rank made of its part: micro-batches of sample indices by step, or an error."""

    steps: list[list[list[int]]]
    error: str
    message: str


def case(
    name: str,
    *ranks: list[int],
    budget: int,
    steps: int = 1,
    context: int = 1,
    stages: int = 1,
    group: int = 1,
) -> Case:
    """Return a case with one step, no context parallelism and no virtual stages, unless told otherwise."""
    return Case(
        name=name, ranks=list(ranks), budget=budget, steps=steps, context=context, stages=stages, group=group
    )


#: What anybody would try first.
ADVERSARIAL = (
    case("all equal", [7] * 12, budget=8),
    case("all equal, two fit", [7] * 12, budget=14),
    case("one giant", [5000, *[10] * 30], [10] * 31, budget=100),
    case("giants only", [5000, 300, 4000], [1, 1, 1], budget=100),
    case("all at the budget", [100] * 9, budget=100),
    case("budget and one", [101] * 5, budget=100),
    case("zero", [0] * 6, budget=10),
    case("zeros among others", [0, 50, 0, 100, 7, 0, 300], budget=100),
    case("one sample", [30], [100], budget=100),
    case("one sample over the budget", [300], [1], budget=100),
    case("as many micro-batches as samples", [3, 1, 2, 1, 1], [9, 9, 9, 9, 9], budget=9),
    case("two steps", [60, 50, 40, 1, 90, 90, 20, 10], [1] * 8, budget=100, steps=2),
    case("context parallel", [150, 60, 200, 90, 199, 2], budget=100, context=2),
    case("slime#1839", [5, 1, 1], budget=4),
)

#: 10 samples that first fit puts into 5, and that fit into 4: Karmarkar-Karp finds out how, or does not.
FOUND = [60, 60, 20, 35, 50, 25, 45, 35, 20, 35]
NOT_FOUND = [20, 35, 40, 35, 50, 50, 35, 20, 55, 40]

ALIGNED = (
    case("7 in groups of 4", [60] * 7 + [1], [1] * 8, budget=100, stages=2, group=4),
    case("fewer than a group", [60] * 3 + [1] * 5, [1] * 8, budget=100, stages=2, group=4),
    case("a multiple already", [60] * 4 + [1] * 4, [1] * 8, budget=100, stages=2, group=4),
    case("two steps in groups", [60] * 3 + [1] + [60] * 4, [1] * 8, budget=100, steps=2, stages=2, group=2),
    case("as many samples as micro-batches", [60] * 4, [100] * 4, budget=100, stages=2, group=2),
    case("rounded down and right", FOUND, [1] * 10, budget=100, stages=2, group=4),
    case("rounded down and tight", NOT_FOUND, [1] * 10, budget=100, stages=2, group=4),
    # 5 by first fit, which is 8 rounded up, of 7 samples.
    case("no room to round up", [25, 25, 55, 55, 40, 55, 65], [1] * 7, budget=100, stages=2, group=4),
)
#: No multiple of the group size holds the budget, and slime trains all the same.
OVER = (case("odd samples, all full", [100] * 5, [1] * 5, budget=100, stages=2, group=2),)
#: No multiple of the group size will do, for a rank or for all.
IMPOSSIBLE = (
    case("fewer samples than a group", [1, 1], [1, 1], budget=100, stages=2, group=4),
    case("one sample in groups of 2", [1], [300], budget=100, stages=2, group=2),
)

#: slime 0.1 rounds down to the pipeline parallel size, which without virtual stages nobody needs.
PIPELINE = (
    case("7 with 4 pipeline stages", [60] * 7 + [1], [1] * 8, budget=100, group=4),
    case("3 samples with 4 pipeline stages", [60] * 3, [1] * 3, budget=100, group=4),
)


def cases(seed: str, drawn: int) -> list[Case]:
    """Return the cases above, and `drawn` small ones of all kinds."""
    draw = random.Random(seed)
    fresh = [_drawn(draw, index) for index in range(drawn)]
    return [*ADVERSARIAL, *ALIGNED, *OVER, *IMPOSSIBLE, *PIPELINE, *fresh]


def _drawn(draw: random.Random, index: int) -> Case:
    budget = draw.choice([1, 2, 8, 100, 100, 8192])
    context = draw.choice([1, 1, 2])
    limit = budget * context
    steps = draw.choice([1, 1, 2, 3])
    samples = draw.choice([1, 2, 3, 5, 8, 13, 24])
    stages = draw.choice([1, 1, 2])
    ranks = []
    for _ in range(draw.choice([1, 2, 4])):
        low, high, few = draw.choice(
            (
                (1, limit, ()),
                (limit * 2 // 5, limit * 3 // 5, ()),
                (limit // 4, limit * 2 // 5, ()),
                (0, limit // 10 + 1, ()),
                (1, limit * 2, ()),
                (0, 0, (draw.randint(0, limit),)),
                (0, 0, (limit, limit // 2, limit // 3, 1)),
            )
        )
        ranks.append([draw.choice(few) if few else draw.randint(low, high) for _ in range(samples * steps)])
    group = draw.choice([2, 3, 4]) if stages > 1 else 1
    sizes = {"steps": steps, "context": context, "stages": stages, "group": group}
    return case(f"drawn {index}", *ranks, budget=budget, **sizes)


def steps_of(given: Case, rank: int) -> list[list[int]]:
    """Return a rank's lengths by step."""
    lengths = given["ranks"][rank]
    size = len(lengths) // given["steps"]
    return [lengths[start : start + size] for start in range(0, len(lengths), size)]


def first_fit(lengths: list[int], limit: int) -> int:
    """Return how many parts first fit needs, written here anew."""
    parts: list[int] = []
    for length in lengths:
        room = next((i for i, filled in enumerate(parts) if filled + length <= limit), None)
        if room is None:
            parts.append(length)
        else:
            parts[room] += length
    return len(parts)


def broken(given: Case, splits: list[Split]) -> list[str]:
    """Return what of the contract does not hold for the split of a rollout by each rank, a sentence each."""
    for split in splits:
        if "error" in split:
            return [f"{split['error']}: {split['message']}"]
    found = []
    counts = [[len(step) for step in split["steps"]] for split in splits]
    if any(count != counts[0] for count in counts):
        found.append(f"the ranks disagree: {counts}")
    if given["stages"] > 1 and any(count % given["group"] for count in counts[0]):
        found.append(f"{counts[0]} are no multiples of {given['group']}")
    for rank, split in enumerate(splits):
        for step, (lengths, parts) in enumerate(zip(steps_of(given, rank), split["steps"], strict=True)):
            limit = sum(lengths) if is_over(given, step) else given["budget"] * given["context"]
            wrong = broken_parts(lengths, parts, limit)
            found += [f"rank {rank}: {sentence}" for sentence in wrong]
    return found


def broken_parts(lengths: list[int], parts: list[list[int]], limit: int) -> list[str]:
    """Return what of the contract does not hold for one step of one rank."""
    tokens = [sum(lengths[index] for index in part) for part in parts]
    most = max((total for total, part in zip(tokens, parts, strict=True) if len(part) > 1), default=0)
    ways = {
        "not every sample once": sorted(index for part in parts for index in part)
        != list(range(len(lengths))),
        "an empty micro-batch": not all(parts),
        "indices that do not ascend": any(part != sorted(part) for part in parts),
        f"{most} tokens in a micro-batch of at most {limit}": most > limit,
        "not in descending order": tokens != sorted(tokens, reverse=True),
    }
    return [f"{sentence}: {parts}" for sentence, wrong in ways.items() if wrong]


def is_impossible(given: Case) -> bool:
    """Tell whether there are fewer samples than the group size."""
    return given["stages"] > 1 and len(given["ranks"][0]) // given["steps"] < given["group"]


def is_over(given: Case, step: int) -> bool:
    """Tell whether some rank's first fit needs more than the greatest multiple that there are samples for."""
    size = len(given["ranks"][0]) // given["steps"]
    most = size // given["group"] * given["group"]
    limit = given["budget"] * given["context"]
    needs = [first_fit(steps_of(given, rank)[step], limit) for rank in range(len(given["ranks"]))]
    return given["stages"] > 1 and math.ceil(max(needs) / given["group"]) * given["group"] > most
