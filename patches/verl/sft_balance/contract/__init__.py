"""What `verl.sft-balance` is held to: upstream's samples, gradient and loss, and more even ranks."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from overlay.errors import PatchError
from overlay.model.settings import is_alone
from overlay.patch import Contract

PATCH = "verl.sft-balance"
#: What is started: it prints what each run found, as JSON in its last line.
PROGRAM = Path(__file__).with_name("trainer_runs.py")
#: Until the trainer and its workers are killed.
SECONDS = 900


def check(seed: str) -> str:
    """Compare two workers of a Ray cluster with the patch and without."""
    from overlay.patches.verl.sft_balance.contract.judge import RUNS, broken, more_even

    said = _printed([str(PROGRAM), "--seed", seed, "--ranks", "2", "--batch", "16"])
    if not said:
        return f"the trainer did not end within {SECONDS} s"
    found = json.loads(said[-1])
    if found["states"].get(PATCH) != "applied" and not is_alone():
        raise PatchError(f"{PATCH} is {found['states'].get(PATCH)}")
    pairs = {name: (found["overlay"][name], found["plain"][name]) for name in RUNS}
    for name, pair in pairs.items():
        if wrong := broken(*pair):
            return f"{name}: {wrong[0]}"
    if found["overlay_counts"] != ["by row"] * sum(len(steps) for steps, _ in pairs.values()):
        return "lengths are counted a second time, or partitioned by verl"
    better = any(more_even(*pair) for pair in pairs.values())
    return "" if better else "nothing is more even than without the patch"


def _printed(command: list[str]) -> list[str]:
    """Return the lines that a Python program prints, none if it does not end, and then it is killed."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", *command],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        printed, said = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return []
    if process.returncode:
        raise RuntimeError((said.strip().splitlines() or [f"exit status {process.returncode}"])[-1])
    return printed.splitlines()


CONTRACT = Contract(check=check, starts=True)
