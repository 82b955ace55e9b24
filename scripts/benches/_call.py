"""Benchmark (b): what a patched function costs per call.

A small upstream and two patches for it are written to a temporary folder: one patch replaces a function, the
other wraps it. They go through the engine as the patches that come with overlay do. Measured in a process of
its own, because `enable()` is for the whole process.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from importlib import import_module
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING

from benches._timing import Row, clean_environment, seconds, summary, take_turns
from environment import inside
from overlay.catalogue.registry import load_patches
from overlay.deciding.table import NAME
from overlay.proving.rows import row_of, text_of
from overlay.reading.source import InstalledTree

if TYPE_CHECKING:
    from collections.abc import Callable

#: What is called: nothing, which is all that is measured beside what a patch adds.
UPSTREAM = "\n\n".join(
    f"def {name}(x):\n    return x\n"
    for name in ("plain", "replaced", "wrapped", "guarded", "counted", "passed")
)

PATCH = """\
from overlay.patch import Patch, Present, Project, one_target, replaced, variant


{make}


UPSTREAM = Project(
    name="bench-upstream",
    distributions=("bench-upstream",),
    marker="bench_upstream.core",
    read_version=lambda read: "1.0",
)
SITE = "bench_upstream.core:{site}"
PATCH = Patch(
    id="bench.{id}",
    revision=1,
    summary="Measure a call",
    why="Nothing is wrong.",
    upstream=("none/none#1",),
    targets=one_target(UPSTREAM, variant("1", Present(site=SITE), replaced(SITE, make))),
)
"""

REPLACE = """\
def make(original, module):
    def replaced(x):
        return x

    return replaced
"""

WRAP = """\
def make(original, module):
    def wrapped(x):
        return original(x)

    return wrapped
"""

# As most wrappers here: they act while the run is of the kind that needs them, and pass on otherwise.
GUARD = """\
from contextvars import ContextVar

ACTIVE = ContextVar("ACTIVE", default=None)


def make(original, module):
    def guarded(x):
        if ACTIVE.get() is None:
            return original(x)
        raise RuntimeError

    return guarded
"""

# The same, and each call that it acts on is counted: as `effect.py` of a patch has it.
COUNT = """\
from overlay.effect import effect

EFFECT = effect(__name__, "call")


def make(original, module):
    def counted(x):
        EFFECT.calls += 1
        EFFECT.changed += 1
        return original(x)

    return counted
"""

# One that counts, on the way on which it hands the call on: that is that of the guarded wrapper.
PASS_ON = f"""{GUARD.replace("guarded", "passed").replace("raise RuntimeError", "EFFECT.calls += 1")}

from overlay.effect import effect

EFFECT = effect(__name__, "call")
"""

#: name -> (site, the factory's source, allowed nanoseconds more). A replacement may cost nothing at all; its
#: 5 ns are what the clock and the machine leave undecided.
KINDS = {
    "replacement": ("replaced", REPLACE, 5.0),
    "wrapper": ("wrapped", WRAP, 130.0),
    "guarded wrapper": ("guarded", GUARD, 130.0),
    "counting wrapper": ("counted", COUNT, 130.0),
    "counting wrapper, passing on": ("passed", PASS_ON, 130.0),
}
CALLS = 100_000


def write(folder: Path) -> None:
    """Write the upstream, and the patches for it in the layout of `patches/`."""
    package = folder / "bench_upstream"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "core.py").write_text(UPSTREAM)
    patches = folder / "patches" / "bench"
    patches.mkdir(parents=True)
    (patches / "__init__.py").write_text("")
    for site, make, _ in KINDS.values():
        text = PATCH.format(make=make, site=site, id=site)
        (patches / f"{site}.py").write_text(text)


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


def in_this_process(folder: Path, turns: int) -> list[dict[str, object]]:
    """Enable the patches of `folder` and measure; meant for a process of its own."""
    import overlay

    sys.path.insert(0, str(folder))
    pack = import_module("overlay.patches")
    pack.__path__.append(str(folder / "patches"))
    _write_table(folder)
    overlay.enable([f"bench.{site}" for site, _, _ in KINDS.values()], strict=True)
    core = import_module("bench_upstream.core")
    rows = []
    for name, (site, _, target) in KINDS.items():
        origin = getattr(core, site).__code__.co_filename
        if Path(origin).parent.name != "bench":
            raise RuntimeError(f"bench.{site} was not applied: {site} still comes from {origin}")
        plain, patched = seconds_per_call(core, "plain"), seconds_per_call(core, site)
        take_turns(plain, patched, 3)
        pairs = take_turns(plain, patched, turns)
        row = summary(
            f"call through a {name} / plain call", "ns", pairs, scale=1e9, target=target, held="more_min"
        )
        rows.append(dict(row._asdict()))
    return rows


def _write_table(folder: Path) -> None:
    """Say of each patch that it was tested on the upstream in the folder."""
    ours = [patch for name, patch in load_patches().items() if name.startswith("bench.")]
    tree = InstalledTree(str(folder))
    found = [row_of(patch, patch.targets[0], tree, "bench") for patch in ours]
    text = text_of({}, [row for row in found if row is not None], {})
    (folder / "patches" / "bench" / NAME).write_text(text)


def measure(turns: int) -> list[Row]:
    """Measure in a fresh process and return its rows."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        command = [sys.executable, str(inside.__file__), "benches._call", folder, str(turns)]
        done = subprocess.run(
            command, env=clean_environment(), stdout=subprocess.PIPE, text=True, check=False
        )
    if done.returncode:
        raise RuntimeError("the benchmark of calls failed, see above")
    return [Row(**row) for row in json.loads(done.stdout.splitlines()[-1])]


def main(arguments: list[str]) -> int:
    """Measure in this process, and print the rows as JSON: `FOLDER TURNS`."""
    folder, turns = arguments
    print(json.dumps(in_this_process(Path(folder), int(turns))))
    return 0
