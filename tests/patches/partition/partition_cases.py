"""Lengths that partitioners stumble over, and the upstreams' own functions to hold the module against."""

from __future__ import annotations

import ast
import heapq
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from checks import SEED


def drawing(test: str) -> random.Random:
    """Return the random numbers of one test, and say on a failure how to get the same ones again."""
    print(f"OVERLAY_TEST_SEED={SEED}")
    return random.Random(f"{SEED}/{test}")


def functions(path: Path, *names: str) -> list[Any]:
    """Return functions of a module of an upstream, without all that the module imports."""
    tree = ast.parse(path.read_text())
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in names]
    # Their annotations name what is not there.
    flags = __import__("__future__").annotations.compiler_flag
    namespace: dict[str, Any] = {"heapq": heapq}
    exec(compile(tree, str(path), "exec", flags=flags), namespace)  # noqa: S102 -- the upstream's own code
    return [namespace[name] for name in names]


def drawn_values(draw: random.Random, most: int) -> list[Any]:
    """Return up to `most` values with ties, zeros, outliers, huge numbers, or floats that round."""
    few = [draw.randint(0, 1000) for _ in range(3)]
    kinds: list[Callable[[], Any]] = [
        lambda: few[0],
        lambda: draw.choice([0, 7]),
        lambda: draw.randint(0, draw.choice([2, 12])),
        lambda: draw.choice(few),
        lambda: 10**40 + draw.randint(0, 3),
        draw.random,
        lambda: draw.choice([0.1, 0.2, 0.3, 1, 0, True]),
        lambda: draw.randint(1, 50),
        lambda: max(1, int(draw.lognormvariate(7.3, 1))),
    ]
    one = draw.choice(kinds)
    values = [one() for _ in range(draw.randint(1, most))]
    if draw.random() < 0.2:
        values[-1] = draw.choice([0, 10**6])
    return sorted(values) if draw.random() < 0.2 else values


def drawn_lengths(draw: random.Random, most: int) -> tuple[list[int], int]:
    """Return up to `most` lengths and a cap, of which about a third leave Karmarkar-Karp over it."""
    cap = draw.choice([1, 8, 30, 1000, 16384])
    same = draw.randint(0, cap)
    kinds: list[Callable[[], int]] = [
        lambda: same,
        lambda: cap,
        lambda: draw.choice([cap, cap + 1, 1, 0]),
        lambda: 0,
        lambda: draw.randint(cap // 3, cap // 2 + 1),
        lambda: draw.randint(0, 2 * cap),
        lambda: 7 * cap // 8,
        lambda: draw.randint(0, cap // 4),
        *[lambda: max(1, min(cap, int(draw.lognormvariate(-2, 1) * cap)))] * 4,
    ]
    one = draw.choice(kinds)
    count = draw.randint(1, most)
    lengths = [one() for _ in range(count)]
    if draw.random() < 0.3:
        lengths = full_parts(draw, count, cap)
    if draw.random() < 0.15:
        lengths[draw.randrange(len(lengths))] = 5 * cap
    return lengths, cap


def full_parts(draw: random.Random, count: int, cap: int) -> list[int]:
    """Return lengths that can fill parts to the last token, which packing longest first often misses."""
    lengths: list[int] = []
    while len(lengths) < count:
        cuts = sorted(draw.randint(0, cap) for _ in range(min(draw.randint(0, 3), count - len(lengths) - 1)))
        lengths += [end - begin for begin, end in zip([0, *cuts], [*cuts, cap], strict=True)]
    draw.shuffle(lengths)
    return lengths


def drawn_costs(draw: random.Random, lengths: list[int]) -> list[Any] | None:
    """Return costs for the lengths: none, FLOPs, or what has nothing to do with them."""
    kind = draw.randrange(4)
    if kind == 0:
        return [24576 * length + length**2 for length in lengths]
    if kind == 1:
        return [draw.randint(0, 100) for _ in lengths]
    return None


def naive_first_fit(lengths: list[int], cap: int) -> list[list[int]]:
    """First fit in the order of the samples, one part after the other."""
    parts: list[list[int]] = []
    sums: list[int] = []
    for index, length in enumerate(lengths):
        for place, tokens in enumerate(sums):
            if tokens + length <= cap:
                parts[place].append(index)
                sums[place] += length
                break
        else:
            parts.append([index])
            sums.append(length)
    return parts


def grown(parts: list[list[int]], count: int, costs: list[Any]) -> list[list[int]]:
    """Grow the parts to `count` as slime 0.3.1 does, but never into an empty one."""
    parts = list(parts)
    while len(parts) < count:
        cost, at = max(
            (sum(costs[index] for index in part), at) for at, part in enumerate(parts) if len(part) > 1
        )
        ordered = sorted(parts[at], key=lambda index: -costs[index])
        if cost == 0:
            sides: list[list[int]] = [ordered[:-1], ordered[-1:]]
        else:
            sides = [[], []]
            sums: list[Any] = [0, 0]
            for index in ordered:
                side = int(sums[0] > sums[1])
                sides[side].append(index)
                sums[side] += costs[index]
        parts[at] = sides[0]
        parts.append(sides[1])
    return parts


def totals(parts: list[list[int]], costs: list[Any]) -> list[Any]:
    """Return the cost of each part."""
    return [sum(costs[index] for index in part) for part in parts]


def divisors(number: int) -> Iterator[int]:
    """Yield what divides a number."""
    return (one for one in range(1, number + 1) if number % one == 0)
