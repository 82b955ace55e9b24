"""Layouts of four ranks, and the rollouts that are split on each."""

from __future__ import annotations

from typing import TypedDict

from overlay.compat.slime_on_cpu.rollouts import Case, cases


class Layout(TypedDict):
    """Parallel sizes; what is left of the four ranks is data parallel."""

    name: str
    data: int
    pipeline: int
    #: Virtual pipeline stages on a rank.
    stages: int
    context: int


LAYOUTS: tuple[Layout, ...] = (
    {"name": "DP 4", "data": 4, "pipeline": 1, "stages": 1, "context": 1},
    {"name": "DP 2, CP 2", "data": 2, "pipeline": 1, "stages": 1, "context": 2},
    {"name": "DP 2, PP 2", "data": 2, "pipeline": 2, "stages": 1, "context": 1},
    {"name": "DP 2, PP 2, VPP 2", "data": 2, "pipeline": 2, "stages": 2, "context": 1},
    {"name": "PP 2, VPP 2, CP 2", "data": 1, "pipeline": 2, "stages": 2, "context": 2},
)


def cases_of(layout: Layout, seed: str) -> list[Case]:
    """Return the cases of `rollouts` that mean something on a layout, changed to its sizes.

    A case of fewer data parallel ranks is repeated, so that ranks that need much meet ranks that need little.
    """
    found = []
    for given in cases(f"{seed}/{layout['name']}", drawn=40):
        if (given["stages"] > 1) != (layout["stages"] > 1):
            continue
        ranks = [given["ranks"][rank % len(given["ranks"])] for rank in range(layout["data"])]
        sizes = {"stages": layout["stages"], "context": layout["context"]}
        group = given["group"] if layout["stages"] > 1 else layout["pipeline"]
        name = f"{layout['name']}/{given['name']}"
        found.append(Case(**{**given, **sizes, "name": name, "ranks": ranks, "group": group}))  # type: ignore[typeddict-item]
    return found
