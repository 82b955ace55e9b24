"""`verl.sft-balance` on verl's SFT trainer and a local Ray cluster, release by release.

Each release runs once, in a process of its own, first with overlay and then without (`trainer_runs.py`
of the contract); the tests ask what was found there. What is stood in for is in `stand_in.py` there.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from checks import SEED

from overlay.patches._partition import karmarkar_karp
from overlay.patches.verl.sft_balance.contract import PROGRAM
from overlay.patches.verl.sft_balance.contract.judge import (
    EVEN,
    RUNS,
    Steps,
    broken,
    imbalance,
    more_even,
    samples,
    work,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

pytestmark = [
    pytest.mark.real,
    pytest.mark.nightly("the contract runs the same program"),
]

#: Release -> workers.
RUN = {"0.7.0": 4, "0.7.1": 2, "0.8.0": 4, "0.9.0": 2, "0.9.1": 2}


@pytest.fixture(params=RUN)
def found(
    request: pytest.FixtureRequest, release: Callable[[str], Path], findings: Callable[..., dict[str, Any]]
) -> dict[str, Any]:
    """What `trainer_runs.py` of the contract found on one release."""
    version = str(request.param)
    print(f"OVERLAY_TEST_SEED={SEED}")
    folder = release(f"verl=={version}")
    ranks = str(RUN[version])
    return {
        "folder": str(folder),
        **findings(folder, str(PROGRAM), "--seed", SEED, "--ranks", ranks),
    }


def of(lengths: list[list[int]]) -> dict[str, Any]:
    """Return a step of shares with such lengths."""
    return {"shares": [{"lengths": share} for share in lengths]}


def in_order(steps: Steps) -> list[Any]:
    return [uid for step in steps for share in step["shares"] for uid in share["uids"]]


def shares(steps: Steps) -> Sequence[Any]:
    return [[share["uids"] for share in step["shares"]] for step in steps]


def test_it_is_the_release_that_runs(found: dict[str, Any]) -> None:
    assert Path(found["path"]).is_relative_to(found["folder"])
    workers = {share["verl"] for step in found["plain"]["default"] for share in step["shares"]}
    assert workers == {found["path"]}
    assert found["states"]["verl.sft-balance"] == "applied"
    # Nothing that the other patches of verl claim; modules of some are not imported.
    assert {*found["states"].values()} <= {"applied", "skipped", "armed"}
    assert found["states"]["verl.fast-partitioner"] == "applied"


def test_upstream_is_uneven_or_slow(found: dict[str, Any]) -> None:
    # Why the patch is there.
    steps = sum(len(found["plain"][name]) for name in RUNS)
    assert found["overlay_counts"] == ["by row"] * steps
    if found["version"] < "0.8":
        assert found["plain_counts"] == ["by row"] * steps
        assert more_even(found["overlay"]["default"], found["plain"]["default"])
    else:
        # For a partition all rows are gone through again.
        assert found["plain_counts"] == ["by row", "Tensor of Tensor"] * steps
        assert more_even(found["overlay"]["padded"], found["plain"]["padded"])


@pytest.mark.xfail(
    strict=True, reason="once this passes on a release, verl.sft-balance has had its day there"
)
def test_upstream_alone_balances(found: dict[str, Any]) -> None:
    assert set(found["plain_counts"]) == {"by row", "list of int"}
    assert all(imbalance(step) <= 1.02 for step in found["plain"]["default"])


def test_ranks_get_equal_work(found: dict[str, Any]) -> None:
    for step in found["overlay"]["default"]:
        assert imbalance(step) <= 1.02
        assert imbalance(step, int) <= 1.02


def test_each_rank_gets_as_much_of_the_same_samples_gradient_and_loss(found: dict[str, Any]) -> None:
    # Nested tensors, positions of three dimensions, images and lists: what the worker got is compared there.
    for name in RUNS:
        assert broken(found["overlay"][name], found["plain"][name]) == []
        for ours, upstream in zip(found["overlay"][name], found["plain"][name], strict=True):
            assert ours["train/global_tokens"] == upstream["train/global_tokens"]


def test_the_batch_is_counted_whole(found: dict[str, Any]) -> None:
    for name in RUNS:
        for step, upstream in zip(found["overlay"][name], found["plain"][name], strict=True):
            lengths = sorted(length for share in step["shares"] for length in share["lengths"])
            for share in step["shares"]:
                assert share["global_token_num"] == upstream["shares"][0]["global_token_num"]
                assert sorted(share["global_token_num"]) == lengths


def in_verls_order(lengths: list[int]) -> list[int]:
    """Return what verl 0.8 makes of a share: the least work at both ends."""
    rising = sorted(lengths)
    return rising[::2] + rising[1::2][::-1]


def test_one_data_parallel_rank_gets_the_batch_as_verl_0_8_gives_it(found: dict[str, Any]) -> None:
    # Dynamic context parallelism, for one: every worker is data parallel rank 0.
    for ours, upstream in zip(found["overlay"]["one"], found["plain"]["one"], strict=True):
        assert len(ours["shares"]) == 1
        if found["version"] < "0.8":
            assert ours["shares"][0]["lengths"] == in_verls_order(upstream["shares"][0]["lengths"])
        else:
            assert ours["shares"] == upstream["shares"]


def test_what_verl_balances_well_on_integers_stays_as_it_is(found: dict[str, Any]) -> None:
    if found["version"] < "0.8":
        pytest.skip("verl 0.7 balances nothing")
    even = 0
    for step in (step for name in RUNS if name != "padded" for step in found["overlay"][name]):
        lengths, ranks = step["shares"][0]["global_token_num"], len(step["shares"])
        size = len(lengths) // ranks
        loaded = [lengths[start : start + size] for start in range(0, len(lengths), size)]
        parts = karmarkar_karp(list(map(work, lengths)), ranks, equal_size=True)
        expected = [in_verls_order([lengths[index] for index in part]) for part in parts]
        if imbalance(of(expected)) <= min(EVEN, imbalance(of(loaded))):
            even += 1
            assert [share["lengths"] for share in step["shares"]] == expected
    assert even


def test_the_setting_is_honoured_and_said_once(found: dict[str, Any]) -> None:
    on, absent, off = (found["settings"][name] for name in ("on", "absent", "off"))
    for run in (on, absent, off):
        assert run["said"].count("verl.sft-balance") == 1
    assert "balance_batch=True, so batches are balanced" in on["said"]
    assert "balance_batch is not set, so batches are balanced" in absent["said"]
    assert "balance_batch=False, so batches are not balanced" in off["said"]
    assert shares(on["steps"]) == shares(absent["steps"])
    assert more_even(on["steps"], off["steps"])
    for ours, loaded in zip(on["steps"], off["steps"], strict=True):
        assert samples(ours) == samples(loaded)
        assert imbalance(ours) <= imbalance(loaded)
    if found["version"] < "0.8":
        # The order of the loader, which is that of the release.
        assert in_order(off["steps"]) == in_order(found["plain"]["shared"])


def test_a_batch_that_the_ranks_do_not_divide_is_refused_by_verl(found: dict[str, Any]) -> None:
    odd = {name: end for name, end in found["settings"].items() if name.startswith("batch of ")}
    assert len(odd) == 2
    for end in odd.values():
        assert end["error"]  # an AssertionError of verl's own
        assert set(end["calls"]) == {0}


def test_a_resumed_run_gets_the_same_order(found: dict[str, Any]) -> None:
    whole, resumed = found["settings"]["whole"], found["settings"]["resumed"]
    assert [step["step"] for step in resumed] == [3, 4]
    assert shares(resumed) == shares(whole)[2:]


@pytest.mark.parametrize("version", ["0.7.0", "0.7.1", "0.8.0", "0.9.0", "0.9.1"])
def test_each_rank_of_the_spmd_trainer_loads_its_own_samples(
    version: str, release: Callable[[str], Path]
) -> None:
    # Why that trainer is left alone: its sampler is given this rank, before any length is known.
    source = (release(f"verl=={version}") / "verl/trainer/sft_trainer.py").read_text()
    samplers = [
        {word.arg: ast.unparse(word.value) for word in call.keywords}
        for call in ast.walk(ast.parse(source))
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "DistributedSampler"
    ]
    assert [(sampler["num_replicas"], sampler["rank"]) for sampler in samplers] == [
        ("dp_size", "dp_rank")
    ] * 2
    assert "dp_rank = self.engine.get_data_parallel_rank()" in source
    assert "balance_batch" not in source
