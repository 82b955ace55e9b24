"""`verl.sft-balance` on verl's SFT trainer and a local Ray cluster, release by release.

Each release runs once, in a process of its own, first with overlay and then without (`sft_balance_check.py`);
the tests ask what was found there. What is stood in for is in `sft_stand_in.py`.
"""

from __future__ import annotations

import ast
import json
import os
import secrets
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from overlay.patches._partition import karmarkar_karp

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

pytestmark = pytest.mark.real

HERE = Path(__file__).resolve().parent
SEED = os.environ.get("OVERLAY_TEST_SEED") or str(secrets.randbelow(2**31))
#: Release -> workers. 0.9.0 has the source of 0.9.1 at every site.
RUN = {"0.7.0": 2, "0.7.1": 4, "0.8.0": 4, "0.9.1": 2}
#: The runs that are made with overlay and without.
RUNS = ("default", "shared", "one", "images", "padded")

Steps = list[dict[str, Any]]


@pytest.fixture(scope="session")
def sft_reports() -> dict[str, dict[str, Any]]:
    return {}


@pytest.fixture(params=RUN)
def found(
    request: pytest.FixtureRequest, release: Callable[[str], Path], sft_reports: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """What `sft_balance_check.py` found on one release."""
    version = str(request.param)
    print(f"OVERLAY_TEST_SEED={SEED}")
    if version not in sft_reports:
        folder = release(f"verl=={version}")
        sft_reports[version] = {"folder": str(folder), **_report(folder, RUN[version])}
    report = sft_reports[version]
    assert "error" not in report, report["error"]
    return report


def _report(folder: Path, ranks: int) -> dict[str, Any]:
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OVERLAY_")}
    command = [sys.executable, str(HERE / "sft_balance_check.py"), "--seed", SEED, "--ranks", str(ranks)]
    try:
        done = subprocess.run(
            command,
            env={**clean, "PYTHONPATH": path}, capture_output=True, text=True, timeout=400, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        return {"error": f"no end after {error.timeout} s"}
    if done.returncode:
        return {"error": done.stderr[-4000:] or f"exit status {done.returncode}"}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def work(length: int) -> int:
    """Return the work of a sample by verl's estimate, written anew."""
    return 24576 * length + length**2


def imbalance(step: dict[str, Any], measure: Callable[[int], int] = work) -> float:
    """Return the most that a rank got over the mean."""
    loads = [sum(map(measure, share["lengths"])) for share in step["shares"]]
    return max(loads) * len(loads) / sum(loads)


def samples(step: dict[str, Any]) -> list[Any]:
    return sorted(uid for share in step["shares"] for uid in share["uids"])


def in_order(steps: Steps) -> list[Any]:
    return [uid for step in steps for share in step["shares"] for uid in share["uids"]]


def more_even(ours: Steps, upstream: Steps) -> bool:
    """Return whether no step is less even, and some step is more so."""
    pairs = [(imbalance(one), imbalance(other)) for one, other in zip(ours, upstream, strict=True)]
    return all(one <= other for one, other in pairs) and any(one < other for one, other in pairs)


def shares(steps: Steps) -> Sequence[Any]:
    return [[share["uids"] for share in step["shares"]] for step in steps]


def test_it_is_the_release_that_runs(found: dict[str, Any]) -> None:
    assert Path(found["path"]).is_relative_to(found["folder"])
    workers = {share["verl"] for step in found["plain"]["default"] for share in step["shares"]}
    assert workers == {found["path"]}
    assert found["states"]["verl.sft-balance"] == "applied"
    # Nothing that the other patches of verl claim.
    assert {found["states"][name] for name in found["states"]} <= {"applied", "skipped"}
    assert found["states"]["verl.fast-partitioner"] == "applied"


def test_upstream_is_uneven_or_slow(found: dict[str, Any]) -> None:
    # Why the patch is there.
    if found["version"] < "0.8":
        assert found["plain_partitions"] == []
        assert more_even(found["overlay"]["default"], found["plain"]["default"])
    else:
        assert found["plain_partitions"] == ["Tensor of Tensor"]
        assert found["overlay_partitions"] == ["list of int"]
        assert more_even(found["overlay"]["padded"], found["plain"]["padded"])


@pytest.mark.xfail(
    strict=True, reason="once this passes on a release, verl.sft-balance has had its day there"
)
def test_upstream_alone_balances(found: dict[str, Any]) -> None:
    assert found["plain_partitions"] == ["list of int"]
    assert all(imbalance(step) <= 1.02 for step in found["plain"]["default"])


def test_ranks_get_equal_work(found: dict[str, Any]) -> None:
    for step in found["overlay"]["default"]:
        assert imbalance(step) <= 1.02
        assert imbalance(step, int) <= 1.02
    for name in RUNS:
        for ours, upstream in zip(found["overlay"][name], found["plain"][name], strict=True):
            assert imbalance(ours) <= imbalance(upstream)


def test_ranks_get_the_same_number_of_the_same_samples(found: dict[str, Any]) -> None:
    for name in RUNS:
        for ours, upstream in zip(found["overlay"][name], found["plain"][name], strict=True):
            assert samples(ours) == samples(upstream)
            assert len({len(share["uids"]) for share in ours["shares"]}) == 1


def test_loss_and_gradient_are_those_of_the_same_batch(found: dict[str, Any]) -> None:
    for name in RUNS:
        for ours, upstream in zip(found["overlay"][name], found["plain"][name], strict=True):
            assert ours["train/loss"] == pytest.approx(upstream["train/loss"], rel=1e-6)
            size = max(map(abs, upstream["gradient"]))
            assert ours["gradient"] == pytest.approx(upstream["gradient"], rel=0, abs=1e-6 * size)
            assert ours["train/global_tokens"] == upstream["train/global_tokens"]


def test_the_batch_is_counted_whole(found: dict[str, Any]) -> None:
    for name in RUNS:
        for step, upstream in zip(found["overlay"][name], found["plain"][name], strict=True):
            lengths = sorted(length for share in step["shares"] for length in share["lengths"])
            for share in step["shares"]:
                assert share["global_token_num"] == upstream["shares"][0]["global_token_num"]
                assert sorted(share["global_token_num"]) == lengths


def test_fields_stay_with_their_sample(found: dict[str, Any]) -> None:
    # Nested tensors, positions of three dimensions, images and lists: what the worker got is compared there.
    for name in RUNS:
        for step in found["overlay"][name]:
            assert all(share["intact"] for share in step["shares"])


def test_one_data_parallel_rank_gets_the_batch_as_verl_gives_it(found: dict[str, Any]) -> None:
    # Dynamic context parallelism, for one: every worker is data parallel rank 0.
    assert shares(found["overlay"]["one"]) == shares(found["plain"]["one"])
    assert len(found["overlay"]["one"][0]["shares"]) == 1


def test_what_verl_balances_well_on_integers_stays_as_it_is(found: dict[str, Any]) -> None:
    if found["version"] < "0.8":
        pytest.skip("verl 0.7 balances nothing")
    even = 0
    for step in (step for name in RUNS if name != "padded" for step in found["overlay"][name]):
        lengths, ranks = step["shares"][0]["global_token_num"], len(step["shares"])
        expected = []
        for share in karmarkar_karp(list(map(work, lengths)), ranks, equal_size=True):
            rising = sorted(lengths[index] for index in share)
            expected.append(rising[::2] + rising[1::2][::-1])
        if imbalance({"shares": [{"lengths": share} for share in expected]}) <= 1.001:
            even += 1
            assert [share["lengths"] for share in step["shares"]] == expected
    assert even


def test_the_setting_is_honoured_and_said_once(found: dict[str, Any]) -> None:
    settings = found["settings"]
    assert more_even(settings["set"]["steps"], settings["off"]["steps"])
    assert settings["off"]["said"].count("verl.sft-balance") == 1
    assert "balance_batch=False, so batches are not balanced" in settings["off"]["said"]
    assert settings["set"]["said"].count("verl.sft-balance") == 1
    absent = found["version"] < "0.8"
    assert ("is not set" in settings["set"]["said"]) == absent
    for off, on in zip(settings["off"]["steps"], settings["set"]["steps"], strict=True):
        assert samples(off) == samples(on)
        assert imbalance(on) <= imbalance(off)
    if absent:
        # The order of the loader, which is that of the release.
        loaded = [
            uid for step in settings["off"]["steps"] for share in step["shares"] for uid in share["uids"]
        ]
        untouched = [
            uid for step in found["plain"]["shared"] for share in step["shares"] for uid in share["uids"]
        ]
        assert loaded == untouched


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
