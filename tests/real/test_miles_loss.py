"""The loss and the advantages of miles, the fork of slime, on gloo ranks: slime's cases, run on the fork."""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from checks import UPSTREAMS
from overlay.compat.ranks.launcher import run_cases

if TYPE_CHECKING:
    from collections.abc import Callable

    Run = Callable[..., dict[str, list[Any]]]

pytestmark = [pytest.mark.distributed, pytest.mark.real]

SEED = os.environ.setdefault("OVERLAY_TEST_SEED", str(secrets.randbelow(2**31)))
REVISION = "31f1ca961"
#: Of values and gradients, as slime's, and of advantages of about one.
TOLERANCE, WHITENED = 1e-6, 1e-5
SHORT = {"LOSS_CASES": "tp1 cp1 packed memory", "COLLECTIVE_TIMEOUT": "15"}

_FOUND: dict[tuple[str, ...], Any] = {}


@pytest.fixture
def run(miles: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return the function that gets what four ranks found, which are started once for each way to ask."""

    def get(module: str, patches: str, **environ: str) -> dict[str, list[Any]]:
        key = (module, patches, *environ.values())
        if key not in _FOUND:
            folder = miles(REVISION)
            monkeypatch.setenv("SLIME_FORK", "miles")
            for name, value in environ.items():
                monkeypatch.setenv(name, value)
            program = str(UPSTREAMS / "slime_loss_main.py")
            with tempfile.TemporaryDirectory() as scratch:
                _FOUND[key] = run_cases(
                    4, module, Path(scratch), timeout=300, program=program, patches=patches, release=folder
                )
        found: dict[str, list[Any]] = _FOUND[key]
        return found

    return get


@pytest.fixture
def losses(run: Run) -> dict[str, list[Any]]:
    """What the ranks found of the loss with the patch."""
    found = run("loss_memory_cases", "miles.loss-memory")
    wanted = {name: ranks for name, ranks in found.items() if not name.endswith("refused")}
    lost = {name: ranks for name, ranks in wanted.items() if any(not r or "error" in r for r in ranks)}
    assert not lost, f"seed {SEED}: {lost}"
    return found


def test_values_losses_and_gradients_are_those_of_one_process_in_float64(
    losses: dict[str, list[Any]],
) -> None:
    errors = [
        (error, name, key)
        for name, ranks in losses.items()
        for rank in ranks
        for key, error in rank.get("errors", {}).items()
    ]
    assert len(errors) > 500
    assert max(errors)[0] <= TOLERANCE, f"seed {SEED}: {max(errors)}"
    assert all(error >= 0 for error, _, _ in errors)
    assert all(rank.get("same", True) for ranks in losses.values() for rank in ranks)
    # There were ranks that had nothing to do.
    assert [rank["rows"] for rank in losses["tp1 cp4 packed only none coef 0.0"]] == [0] * 4


def test_a_step_needs_no_more_than_the_gradient_on_any_rank(losses: dict[str, list[Any]]) -> None:
    peaks = {name: [rank["peak"] for rank in ranks] for name, ranks in losses.items() if "memory" in name}
    assert len(peaks) >= 8
    assert {name: ranks for name, ranks in peaks.items() if max(ranks) > 1.1} == {}


def test_allgather_of_padded_sequences_is_refused_on_every_rank(losses: dict[str, list[Any]]) -> None:
    found = {name: ranks for name, ranks in losses.items() if name.endswith("refused")}
    assert len(found) == 2
    for ranks in found.values():
        assert {rank["error"] for rank in ranks} == {"ValueError"}
        assert all("qkv_format" in rank["message"] for rank in ranks)


@pytest.mark.xfail(strict=True, reason="once this passes, miles.loss-memory has had its day")
def test_upstream_alone_needs_no_more_than_the_gradient(run: Run) -> None:
    (ranks,) = run("loss_memory_cases", "none", **SHORT).values()
    assert all(rank["peak"] <= 1.1 for rank in ranks)


def test_upstream_alone_needs_three_times_the_logits(run: Run) -> None:
    (ranks,) = run("loss_memory_cases", "none", **SHORT).values()
    assert all(rank["peak"] > 2.9 for rank in ranks), ranks


# --- whitening ---


def test_advantages_are_those_of_one_process(run: Run) -> None:
    found = dict(run("whiten_cases", "miles.whiten-over-cp"))
    masked = found.pop("masked, cp2")
    assert all("loss masks of all ranks are empty" in rank["message"] for rank in masked)
    assert len(found) == 3 * 4 * 2
    for name, ranks in found.items():
        for rank in ranks:
            assert rank is not None, (SEED, name)
            assert "message" not in rank, (SEED, name, rank)
            assert rank["finite"]
            assert rank["error"] <= WHITENED, (SEED, name, rank)
    assert any(rank["tokens"] == 0 for rank in found["late, cp4, rewards"])


def alone(run: Run, case: str) -> list[Any]:
    """Return what the ranks of miles alone make of a case."""
    (ranks,) = run("whiten_cases", "none", WHITEN_CASE=case, COLLECTIVE_TIMEOUT="15").values()
    return ranks


@pytest.mark.xfail(strict=True, reason="once this passes, miles.whiten-over-cp has had its day")
def test_upstream_alone_whitens_over_all_ranks(run: Run) -> None:
    assert all(rank["error"] <= WHITENED for rank in alone(run, "plain, cp2, rewards"))


def test_upstream_alone_waits_for_a_rank_without_a_token(run: Run) -> None:
    assert any("trace" in rank for rank in alone(run, "late, cp2, rewards") if rank)
