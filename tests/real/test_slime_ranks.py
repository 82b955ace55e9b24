"""slime's real `get_data_iterator` on four gloo ranks with Megatron's real groups: DP, PP, VPP and CP."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from checks import SEED, UPSTREAMS
from slime_layouts import LAYOUTS, cases_of

from overlay.compat.ranks.launcher import run_cases
from overlay.compat.slime_on_cpu.rollouts import IMPOSSIBLE, REALISTIC, broken, is_impossible, is_over

if TYPE_CHECKING:
    from collections.abc import Callable

    from slime_layouts import Layout

    from overlay.compat.slime_on_cpu.rollouts import Case, Split

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.real,
    pytest.mark.nightly("v0.2.4 stands for it, and one process", revision=("v0.1.0", "v0.2.0", "286750aa3")),
]

PATCHES = "slime.capped-partitions,slime.vpp-ceiling"

#: The first and the last release of each source of `get_data_iterator`, and the commit with upstream's cure.
RUN = ("v0.1.0", "v0.2.0", "v0.2.4", "286750aa3")


@pytest.fixture(scope="session")
def runs() -> dict[tuple[str, bool], dict[str, list[Any]]]:
    return {}


@pytest.fixture
def on_ranks(
    slime: Callable[[str], Path], runs: dict[tuple[str, bool], dict[str, list[Any]]]
) -> Callable[..., dict[str, list[Any]]]:
    """Return the function that gets what the ranks of a revision found, by case. They are started once."""

    def get(revision: str, *, overlay: bool = True) -> dict[str, list[Any]]:
        folder = slime(revision)
        key = revision, overlay
        if key not in runs:
            with tempfile.TemporaryDirectory() as scratch:
                runs[key] = run_cases(
                    4,
                    "",
                    Path(scratch),
                    timeout=300,
                    program=str(UPSTREAMS / "slime_ranks_main.py"),
                    overlay=overlay,
                    patches=PATCHES,
                    release=folder,
                )
        return runs[key]

    return get


def by_data_rank(layout: Layout, given: Case, found: dict[str, list[Any]]) -> list[Split]:
    """Return the split of each data parallel rank, on which all ranks that share its data must agree."""
    results = found.get(given["name"])
    assert results is not None, f"the ranks did not come as far as {given['name']!r} (seed {SEED})"
    assert None not in results, (
        f"rank {results.index(None)} did not come back from {given['name']!r} ({SEED})"
    )
    splits = []
    for rank in range(layout["data"]):
        same = [result["split"] for result in results if result["rank"] == rank]
        assert len(same) == 4 // layout["data"]
        assert all(split == same[0] for split in same), (SEED, given, same)
        splits.append(same[0])
    return splits


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout["name"])
@pytest.mark.parametrize("revision", RUN)
def test_all_ranks_agree_and_hold_the_budget(
    on_ranks: Callable[..., dict[str, list[Any]]], revision: str, layout: Layout
) -> None:
    refused = []
    found = on_ranks(revision)
    for given in cases_of(layout, SEED):
        splits = by_data_rank(layout, given, found)
        over = any(is_over(given, step) for step in range(given["steps"]))
        refusable = is_impossible(given) or (over and revision.startswith("286750a"))
        if refusable and all("error" in split for split in splits):
            # On every rank, the very same, and the ranks go on to the next case together.
            assert all(split == splits[0] for split in splits), (SEED, given, splits)
            assert splits[0]["error"] == "ValueError", (SEED, given, splits)
            assert "Raise global_batch_size" in splits[0]["message"]
            refused.append(given["name"].partition("/")[2])
        else:
            assert not broken(given, splits), (SEED, given, broken(given, splits))
    if layout["stages"] > 1 and layout["context"] == 1:
        assert {given["name"] for given in IMPOSSIBLE} <= set(refused)
    if layout["stages"] == 1:
        assert not refused


def test_upstream_alone_does_not(on_ranks: Callable[..., dict[str, list[Any]]]) -> None:
    found = on_ranks("v0.2.4", overlay=False)
    for layout in LAYOUTS:
        if layout["name"] == "DP 2, CP 2":
            continue  # with twice the budget, what always exceeds it does not
        name = f"{layout['name']}/{'7 in groups of 4' if layout['stages'] > 1 else REALISTIC}"
        given = next(given for given in cases_of(layout, SEED) if given["name"] == name)
        said = broken(given, by_data_rank(layout, given, found))
        assert any("tokens in a micro-batch of at most" in sentence for sentence in said), name
