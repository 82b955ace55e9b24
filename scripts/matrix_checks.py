"""The cheap check of each patch on a release: programs of `tests/real`, and what must hold of their findings.

Each program runs in a process of its own with the release first on the path, with overlay and without. What
it prints is judged here in a few lines; the tests that start the same programs judge it in full. A patch
without such a program is held to its contract, as its mutants are.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PROGRAMS = Path(__file__).resolve().parent.parent / "tests" / "real"
sys.path.insert(0, str(PROGRAMS))

import slime_cases  # noqa: E402 -- beside the programs

from tortures._contracts import CONTRACTS  # noqa: E402
from tortures._run_contracts import HOLDS  # noqa: E402

RUNNER = Path(__file__).resolve().parent / "tortures" / "_run_contracts.py"

SEED = os.environ.get("OVERLAY_TEST_SEED") or str(secrets.randbelow(2**31))
SECONDS = 300
#: Rollouts that are drawn for slime's `get_data_iterator`, beside those that are always the same.
DRAWN = 20
PASSED = "passed"


class Check(NamedTuple):
    """One program, and what it shows of patches."""

    program: str
    arguments: tuple[str, ...]
    judges: dict[str, Callable[[dict[str, Any]], bool]]
    #: A file that a release must have for the program to be the one for it, and one that it must not have.
    having: str = ""
    lacking: str = ""

    def fits(self, folder: Path) -> bool:
        """Return whether this is the program for what lies in a folder."""
        return (not self.having or (folder / self.having).exists()) and not (
            self.lacking and (folder / self.lacking).exists()
        )


def run(folder: Path, patches: Iterable[str]) -> dict[str, str]:
    """Return `passed`, or what went wrong, for each patch that has a check on the release in a folder."""
    wanted, found = set(patches), {}
    for check in CHECKS:
        concerned = sorted(wanted & check.judges.keys())
        if concerned and check.fits(folder):
            findings = _findings(folder, check)
            for patch in concerned:
                found[patch] = (
                    findings if isinstance(findings, str) else _judge(check.judges[patch], findings)
                )
    judged = {patch for check in CHECKS for patch in check.judges}
    for patch in sorted(wanted & CONTRACTS.keys() - judged):
        found[patch] = _contract(folder, patch)
    return found


def _contract(folder: Path, patch: str) -> str:
    answer = _output(folder, RUNNER, (SEED, str(SECONDS)), json.dumps([patch, "", ""]))
    if not answer.ended:
        return answer.said
    outcome, why = json.loads(answer.said)
    return PASSED if outcome == HOLDS else f"{outcome}: {why}"


def _findings(folder: Path, check: Check) -> dict[str, Any] | str:
    answer = _output(folder, PROGRAMS / check.program, check.arguments)
    if not answer.ended:
        return answer.said
    found: dict[str, Any] = json.loads(answer.said)
    return found


class _Answer(NamedTuple):
    """Whether a program ended well, and the last line of what it said."""

    ended: bool
    said: str


def _output(folder: Path, program: Path, arguments: Iterable[str], given: str = "") -> _Answer:
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OVERLAY")}
    command = [sys.executable, "-W", "ignore", str(program), *arguments]
    try:
        done = subprocess.run(
            command, env={**clean, "PYTHONPATH": path}, input=given,
            capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return _Answer(False, f"no end within {SECONDS} s")  # noqa: FBT003 -- by its name in the class
    if done.returncode:
        said = done.stderr.strip().splitlines()
        return _Answer(False, said[-1] if said else f"exit status {done.returncode}")  # noqa: FBT003
    return _Answer(True, done.stdout.splitlines()[-1])  # noqa: FBT003


def _judge(judge: Callable[[dict[str, Any]], bool], findings: dict[str, Any]) -> str:
    try:
        return PASSED if judge(findings) else f"its contract does not hold (seed {SEED})"
    except (KeyError, TypeError, ValueError) as error:
        return f"what the check found cannot be judged: {type(error).__name__}: {error}"


def _budget(found: dict[str, Any]) -> bool:
    """No micro-batch over the budget: eight samples of 7 tokens in 8, and sixteen of 30,720 in 32,768."""
    alone = [[1] * 8, [1] * 16]
    return [[len(part) for part in result["indices"]] for result in found["overlay"]["issue"]] == alone


def _same_partitions(found: dict[str, Any]) -> bool:
    """The partitions of upstream itself, several times as fast."""
    fast, slow = found["overlay"]["calls"], found["released"]["calls"]
    return bool(found["overlay"]["partitions"] == found["released"]["partitions"] and fast[1] < slow[1] / 2)


def _same_partitions_of_slime(found: dict[str, Any]) -> bool:
    fast, slow = found["overlay"]["calls"], found["plain"]["calls"]
    return bool(found["overlay"]["drawn"] == found["plain"]["drawn"] and fast[1] < slow[1] / 2)


def _splits(found: dict[str, Any]) -> bool:
    given = slime_cases.cases(SEED, DRAWN)
    pairs = list(zip(given, found["overlay"]["splits"], strict=True))
    return all(not slime_cases.broken(*pair) for pair in pairs if not slime_cases.is_impossible(pair[0]))


def _schedules(found: dict[str, Any]) -> bool:
    """No micro-batch of several samples over the budget, and none empty, where a schedule was found."""
    for given, schedule in zip(found["cases"], found["overlay"]["by FLOPs"], strict=True):
        limit = given["budget"] * given["context"]
        parts = [part for step in schedule.get("steps", ()) for rank in step for part in rank]
        tokens = [sum(given["lengths"][index] for index in part) for part in parts if len(part) > 1]
        if max(tokens, default=0) > limit or not all(parts):
            return False
    return True


def _memory(found: dict[str, Any]) -> bool:
    """One tensor of the logits' size, the gradient, and without a gradient a part of one."""
    return all(
        rows["overlay"]["peak"] <= (0.2 if "no gradient" in case else 1.1)
        for case, rows in found["cases"].items()
    )


def _released(found: dict[str, Any]) -> bool:
    """The input and its gradient of two layers are let go of, and gradients stay what they are to the bit."""
    for name, stock in found["stock"]["layers"].items():
        ours = found["overlay"]["layers"][name]
        if (
            stock["retained"] - ours["retained"] != 4 * stock["input"]
            or ours["gradients"] != stock["gradients"]
        ):
            return False
    return True


def _offloaded(found: dict[str, Any]) -> bool:
    """No value is lost, and what nobody else holds is freed as early as before."""
    ours = found["overlay"]
    kept = ours["lost"] == ours["again"]["lost"] == 0
    return bool(kept and ours["live"] == found["released"]["live"])


_SCHEDULE = "slime/utils/dp_schedule.py"
CHECKS = (
    Check("recompute_check.py", (), {"megatron.recompute": _released}),
    Check(
        "token_budget_check.py",
        (SEED, "60"),
        {"verl.strict-token-budget": _budget, "verl.fast-partitioner": _same_partitions},
    ),
    Check("offload_check.py", (SEED, "60"), {"verl.offload-shared-storage": _offloaded}),
    Check("slime_partitioner_check.py", (SEED,), {"slime.fast-partitioner": _same_partitions_of_slime}),
    Check(
        "slime_check.py",
        (SEED, str(DRAWN)),
        {"slime.capped-partitions": _splits, "slime.vpp-ceiling": _splits},
        lacking=_SCHEDULE,
    ),
    Check("slime_schedule_check.py", (SEED,), {"slime.capped-partitions": _schedules}, having=_SCHEDULE),
    Check(
        "loss_memory_check.py",
        ("--turns", "1", "--tokens", "1024", "--vocabulary", "2048"),
        {"slime.loss-memory": _memory},
    ),
)
