"""Benchmark (c): `overlay audit` of this environment's site-packages, with verl, Megatron and torch in it."""

from __future__ import annotations

import json
import subprocess

from bench_timing import Row, clean_environment, interpreter, run_time, summary, take_turns

AUDIT = interpreter("-m", "overlay", "audit", "--json")
TARGET_MS = 1000.0


def measure(turns: int) -> list[Row]:
    """Compare a fresh process that audits with one that does nothing."""
    done = subprocess.run(AUDIT, env=clean_environment(), capture_output=True, text=True, check=False)
    try:
        json.loads(done.stdout)  # its exit status tells what it found, so the output must tell that it worked
    except ValueError as error:
        raise RuntimeError(f"`overlay audit --json` printed no JSON:\n{done.stdout}{done.stderr}") from error
    empty = interpreter("-c", "pass")
    pairs = take_turns(lambda: run_time(empty), lambda: run_time(AUDIT), turns)
    return [
        summary(
            "overlay audit / empty interpreter", "ms", pairs, scale=1e3, target=TARGET_MS, held="measured"
        )
    ]
