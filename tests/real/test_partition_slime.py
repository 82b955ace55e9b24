"""The partitioner beside the functions of slime itself: the same partitions, and never worse packed."""

from __future__ import annotations

import ast
import random
import runpy
from typing import TYPE_CHECKING, Any

import pytest
from checks import SEED

from overlay.patches._partition import capped_partitions, first_fit_count, karmarkar_karp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.real


def drawn(test: str, cases: int) -> Iterator[tuple[list[int], int, random.Random]]:
    """Yield lengths and caps, none longer than its cap: the first of these slimes cannot do with it."""
    print(f"OVERLAY_TEST_SEED={SEED}")
    draw = random.Random(f"{SEED}/{test}")
    for _ in range(cases):
        cap = draw.choice([8, 100, 16384])
        kind = draw.randrange(4)
        lengths = [
            draw.choice([cap, cap // 2 + 1, 1])
            if kind == 0
            else draw.randint(cap // 3, cap // 2 + 1)
            if kind == 1
            else max(1, min(cap, int(draw.lognormvariate(-2, 1) * cap)))
            for _ in range(draw.randint(1, 60))
        ]
        yield lengths, cap, draw


def spread(parts: list[list[int]], lengths: list[int]) -> tuple[int, int]:
    """Return the largest part and the difference to the smallest."""
    sums = [sum(lengths[index] for index in part) for part in parts]
    return max(sums), max(sums) - min(sums)


def function(path: Path, name: str, **known: Any) -> Any:
    """Return a function of a module that needs more than there is to be imported."""
    tree = ast.parse(path.read_text())
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    exec(compile(tree, str(path), "exec"), known)  # noqa: S102 -- the upstream's own code
    return known[name]


@pytest.mark.parametrize("tag", ["v0.1.0", "v0.2.0", "v0.2.4", "v0.3.0", "v0.3.1"])
def test_same_partitions(slime: Callable[[str], Path], tag: str) -> None:
    theirs = runpy.run_path(str(slime(tag) / "slime/utils/seqlen_balancing.py"))["karmarkar_karp"]
    for lengths, _, draw in drawn(f"slime/{tag}", 500):
        parts = draw.randint(1, len(lengths))
        assert karmarkar_karp(lengths, parts, equal_size=False) == theirs(lengths, parts, False)
        parts = draw.choice([one for one in range(1, len(lengths) + 1) if len(lengths) % one == 0])
        assert karmarkar_karp(lengths, parts, equal_size=True) == theirs(lengths, parts, True)


def test_first_fit_counts_the_same(slime: Callable[[str], Path]) -> None:
    theirs = function(slime("v0.2.4") / "slime/utils/data.py", "get_minimum_num_micro_batch_size")
    for lengths, cap, draw in drawn("slime/first fit", 1000):
        lengths[0] += draw.choice([0, cap])
        assert first_fit_count(lengths, cap) == theirs(lengths, cap), (lengths, cap)


def test_never_worse_than_the_fallback_that_was_reverted(slime: Callable[[str], Path]) -> None:
    path = slime("286750aa3") / "slime/backends/megatron_utils/data.py"
    theirs = function(path, "_get_capped_partitions", Sequence=list)
    for lengths, cap, draw in drawn("slime/286750aa3", 1000):
        parts = draw.randint(first_fit_count(lengths, cap), len(lengths))
        largest, apart = spread(capped_partitions(lengths, parts, cap), lengths)
        assert largest <= cap
        if max(spread([part], lengths)[0] for part in karmarkar_karp(lengths, parts, equal_size=False)) > cap:
            assert apart <= spread(theirs(lengths, parts, cap), lengths)[1], (lengths, parts, cap)


def test_never_worse_than_the_scheduler_of_0_3_1(slime: Callable[[str], Path]) -> None:
    module = runpy.run_path(str(slime("v0.3.1") / "slime/utils/seqlen_balancing.py"))
    for lengths, cap, draw in drawn("slime/0.3.1", 1000):
        theirs = module["first_fit_pack"](lengths, cap)
        parts = draw.randint(len(theirs), len(lengths))
        module["expand_bins_by_splitting"](theirs, parts, lengths)
        found = spread(capped_partitions(lengths, parts, cap), lengths)
        assert found[0] <= cap
        if max(spread([part], lengths)[0] for part in karmarkar_karp(lengths, parts, equal_size=False)) > cap:
            assert found[0] <= spread(theirs, lengths)[0], (lengths, parts, cap)
            assert found[1] <= spread(theirs, lengths)[1], (lengths, parts, cap)
