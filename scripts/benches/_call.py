"""Benchmark (b): what a patched function costs per call.

The functions of a small upstream are replaced or wrapped by the engine, as those of patches are.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from contextvars import ContextVar
from itertools import repeat
from pathlib import Path
from typing import Any

from fake_upstream import Upstream, forget, tables

from benches._timing import Row, seconds, summary, take_turns
from overlay.effect import effect
from overlay.runtime.engine import Engine

ACTIVE: ContextVar[Any] = ContextVar("ACTIVE", default=None)
EFFECT = effect(__name__, "call")
CALLS = 100_000


def replacing(_original: Any, _module: Any) -> Any:
    """Make a function that does without the original."""
    return lambda x: x


def wrapping(original: Any, _module: Any) -> Any:
    """Make a function that calls the original."""

    def wrapped(x: Any) -> Any:
        return original(x)

    return wrapped


def guarding(original: Any, _module: Any) -> Any:
    """Make what most wrappers are: it acts in a run of the kind that needs it, and passes on otherwise."""

    def guarded(x: Any) -> Any:
        if ACTIVE.get() is None:
            return original(x)
        raise RuntimeError

    return guarded


def counting(original: Any, _module: Any) -> Any:
    """Make a wrapper that counts each call, as `effect.py` of a patch has it."""

    def counted(x: Any) -> Any:
        EFFECT.calls += 1
        EFFECT.changed += 1
        return original(x)

    return counted


def passing(original: Any, _module: Any) -> Any:
    """Make a wrapper that counts, on the way on which it hands the call on."""

    def passed(x: Any) -> Any:
        if ACTIVE.get() is None:
            return original(x)
        EFFECT.calls += 1
        raise RuntimeError

    return passed


#: What is measured: the factory, and the nanoseconds more that are allowed. A replacement may cost nothing at
#: all; its 5 ns are what the clock and the machine leave undecided. Who counts asks first whether it is being
#: compiled.
KINDS = {
    "replacement": (replacing, 5.0),
    "wrapper": (wrapping, 130.0),
    "guarded wrapper": (guarding, 130.0),
    "counting wrapper": (counting, 1500.0),
    "counting wrapper, passing on": (passing, 130.0),
}


def seconds_per_call(module: object, name: str) -> Callable[[], float]:
    """Return a function that measures one call of `module.name`, as a caller in the upstream makes it."""

    def run() -> float:
        here = module
        begin = seconds()
        for _ in repeat(None, CALLS):
            here.NAME(1)  # type: ignore[attr-defined]
        return (seconds() - begin) / CALLS

    # The name goes into the bytecode, as in a real caller; `getattr` would cost more than the call.
    names = tuple(name if each == "NAME" else each for each in run.__code__.co_names)
    run.__code__ = run.__code__.replace(co_names=names)
    return run


def measure(turns: int) -> list[Row]:
    """Compare a patched function of each kind with a plain one. Nothing stays enabled."""
    names = {kind: make.__name__ for kind, (make, _) in KINDS.items()}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        upstream = Upstream(Path(folder))
        upstream.write()
        upstream.write(core="".join(f"def {name}(x):\n    return x\n" for name in ("plain", *names.values())))
        patch = upstream.patch({f"fakeup.core:{names[kind]}": make for kind, (make, _) in KINDS.items()})
        engine = Engine(lambda: {patch.id: patch}, table=tables())
        sys.path.insert(0, folder)
        try:
            engine.enable([patch.id], strict=True)
            core = upstream.load()
            for kind, (_, target) in KINDS.items():
                if getattr(core, names[kind]).__code__.co_filename != __file__:
                    raise RuntimeError(f"a {kind} was not applied")
                plain, patched = seconds_per_call(core, "plain"), seconds_per_call(core, names[kind])
                take_turns(plain, patched, 3)
                name = f"call through a {kind} / plain call"
                pairs = take_turns(plain, patched, turns)
                rows.append(summary(name, "ns", pairs, scale=1e9, target=target, held="more_min"))
        finally:
            engine.disable()
            sys.path.remove(folder)
            forget()
    return rows
