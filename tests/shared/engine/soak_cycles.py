"""Enabling, disabling and calling, very often: neither memory nor time may grow."""

from __future__ import annotations

import gc
import importlib
import os
import statistics
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fake_upstream import tables
from order_world import CONSUMER, MODULE

from overlay.runtime.engine import Engine

if TYPE_CHECKING:
    from collections.abc import Callable

    from overlay.patch import Patch

PARTS = 10


def resident() -> int:
    """Return the bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def in_parts(count: int, work: Callable[[], object]) -> dict[str, float]:
    """Do something many times, in ten parts, and return what grew.

    `time`: processor time of a part, the last three by the second to the fourth; `blocks`: blocks of memory
    that Python took and did not give back, each time in the second half (before that caches of Python's own
    fill up, such as that of the attributes of classes); `resident`: bytes by which the process grew after the
    second part, in all.
    """
    times, blocks, resident_before = [], [], 0
    for part in range(PARTS):
        begin = time.process_time()
        for _ in range(count // PARTS):
            work()
        times.append(time.process_time() - begin)
        gc.collect()
        blocks.append(sys.getallocatedblocks())
        if part == 1:
            resident_before = resident()
    return {
        "count": count,
        "microseconds": 1e6 * statistics.median(times) / (count // PARTS),
        "time": statistics.median(times[-3:]) / statistics.median(times[1:4]),
        "blocks": (blocks[-1] - blocks[PARTS // 2]) / (count // PARTS * (PARTS - 1 - PARTS // 2)),
        "resident": resident() - resident_before,
    }


def cycles(patch: Patch, count: int) -> dict[str, float]:
    """Enable and disable on modules that are there, with aliases, and call them."""
    core, consumer = _modules()
    engine = Engine(lambda: {patch.id: patch}, table=tables())
    before = _identities(core)

    def cycle() -> None:
        engine.enable()
        assert core.scale(1) == consumer["mine"](1) == 200
        engine.disable()
        assert consumer["mine"](1) == 2

    result = in_parts(count, cycle)
    assert _identities(core) == before
    return result


def imports(patch: Patch, count: int) -> dict[str, float]:
    """Import the target anew and patch it by the hook, each time under an engine of its own."""

    def cycle() -> None:
        engine = Engine(lambda: {patch.id: patch}, table=tables())
        engine.enable()
        assert importlib.import_module(MODULE).scale(1) == 200
        engine.disable()
        del sys.modules[MODULE]

    sys.modules.pop(MODULE, None)
    return in_parts(count, cycle)


def calls(patch: Patch, count: int) -> dict[str, float]:
    """Call what is patched, by every kind of site."""
    core, _ = _modules()
    engine = Engine(lambda: {patch.id: patch}, table=tables())
    engine.enable()
    child = core.Child()

    def call() -> None:
        assert core.scale(1) + child.run(99) + child.fixed(99) + child.named(99) == 800

    result = in_parts(count // 4, call)
    engine.disable()
    assert core.scale(1) == 2
    return {**result, "count": count, "microseconds": result["microseconds"] / 4}


def statuses(patch: Patch, count: int) -> dict[str, float]:
    """Enable again, and ask for the ledger."""
    _modules()
    engine = Engine(lambda: {patch.id: patch}, table=tables())

    def ask() -> None:
        engine.enable()
        assert engine.status().patches[0].state == "applied"

    result = in_parts(count, ask)
    engine.disable()
    return result


def _modules() -> tuple[Any, dict[str, Any]]:
    core = importlib.import_module(MODULE)
    consumer = ModuleType("consumer")
    sys.modules["consumer"] = consumer
    exec(CONSUMER, vars(consumer))  # noqa: S102
    return core, vars(consumer)


def _identities(core: Any) -> dict[str, int]:
    both = {**vars(core), **{f"Engine.{key}": value for key, value in vars(core.Engine).items()}}
    return {key: id(value) for key, value in both.items()}


SOAKS: dict[str, tuple[Callable[[Patch, int], dict[str, float]], int]] = {
    "enable() and disable()": (cycles, 10_000),
    "a new engine, and an import": (imports, 1_000),
    "enable() again, and status()": (statuses, 10_000),
    "calls of what is patched": (calls, 100_000),
}

#: What is taken for growth: of time, of blocks each time, and of all bytes.
MOST_TIME, MOST_BLOCKS, MOST_RESIDENT = 1.5, 0.5, 8 << 20


def grown(found: dict[str, float]) -> list[str]:
    """Return what has grown, of `time`, `blocks` and `resident`."""
    most = {"time": MOST_TIME, "blocks": MOST_BLOCKS, "resident": MOST_RESIDENT}
    return [name for name, limit in most.items() if found[name] > limit]
