"""Benchmark (a): what `overlay.enable()` adds to the start of an interpreter."""

from __future__ import annotations

import json
import subprocess

from benches._timing import Row, clean_environment, interpreter, run_time, summary, take_turns

ENABLE = "import overlay; overlay.enable()"
#: What must not have been imported by it: the upstreams, and what costs more than all the rest.
HEAVY = ("torch", "megatron", "verl", "slime", "numpy", "wrapt")
TARGET_MS = 10.0


def imported() -> list[str]:
    """Return which of the heavy packages `enable()` imports, in an interpreter of its own."""
    code = f"{ENABLE}; import sys, json; print(json.dumps([m for m in {HEAVY!r} if m in sys.modules]))"
    done = subprocess.run(
        interpreter("-c", code), env=clean_environment(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"enable() fails in a fresh interpreter:\n{done.stderr}")
    heavy = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(heavy, list)
    return heavy


def measure(turns: int) -> list[Row]:
    """Compare an interpreter that enables overlay with one that does nothing."""
    heavy = imported()
    if heavy:
        raise RuntimeError(f"enable() imports {', '.join(heavy)}")
    empty, enabled = interpreter("-c", "pass"), interpreter("-c", ENABLE)
    take_turns(lambda: run_time(empty), lambda: run_time(enabled), 3)  # warm the disk cache and the bytecode
    pairs = take_turns(lambda: run_time(empty), lambda: run_time(enabled), turns)
    return [summary("start with enable() / empty interpreter", "ms", pairs, scale=1e3, target=TARGET_MS)]
