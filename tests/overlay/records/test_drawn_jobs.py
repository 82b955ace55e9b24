"""Jobs as they are drawn: healthy ones go on, and half-patched ones stop and are named.

Each rank has a session of its own: what it imports, in which order, and a wrapper of the user's from its own
folder. What is expected follows from what was drawn alone.
"""

from __future__ import annotations

import os
import random
import sys
from typing import Any, NamedTuple

import pytest
from fake_upstream import TESTED, Engines, Upstream, forget
from simulated_ranks import compare, named

from overlay.records.agreement import Statement

SEED = int(os.environ.get("OVERLAY_TEST_SEED") or random.randrange(2**32))
JOBS = 24
MODULES = ("fakeup.core", "fakeup.user", "fakeup.more")
#: The patches that apply, by their ids, and where.
SITES = {
    "a.core": ("fakeup.core:scale",),
    "b.user": ("fakeup.user:use",),
    "c.both": ("fakeup.core:Engine.run", "fakeup.more:more"),
}
#: What may be wrong with some ranks of a job.
FAULTS = ("silent", "selection", "source", "strict", "wrapper", "pickled")


class Rank(NamedTuple):
    """What is drawn of one rank. Two that are the same say the same."""

    imports: tuple[str, ...]
    #: How many of these come before overlay is enabled.
    early: int
    #: The module of which the user wraps a function, if there is one, and the folder where that lies.
    wrapped: str = ""
    folder: int = 0
    fault: str = ""


class Job(NamedTuple):
    """A job, and which of its ranks are not like the others."""

    ranks: dict[int, Rank]
    odd: frozenset[int]
    fault: str
    late: dict[int, float]
    patience: float


def drawn(draw: random.Random, fault: str) -> Job:
    world = draw.randint(2, 24)
    wrapped = draw.choice(["", "", "fakeup.core", "fakeup.user"]) if fault != "strict" else ""
    wrapped = wrapped or ("fakeup.core" if fault == "wrapper" else "")
    odd = frozenset(draw.sample(range(world), draw.randint(1, world - 1))) if fault else frozenset()
    before = fault == "wrapper" or draw.random() < 0.5
    ranks = {}
    for rank in range(world):
        imports = draw.sample(MODULES, draw.randint(0, len(MODULES)))
        if fault == "wrapper" and rank in (min(odd), min({*range(world)} - odd)):
            imports = [wrapped, *(name for name in imports if name != wrapped)]  # both sides have met it
        # A wrapper that is there first keeps the patch out. One that comes later may be on some ranks.
        some = rank in odd if fault == "wrapper" else before or draw.random() < 0.5
        has = wrapped and some
        early = (
            next((n for n, name in enumerate(imports, 1) if wrapped in brings(name)), 0)
            if has and before
            else 0
        )
        ranks[rank] = Rank(
            tuple(imports), early, wrapped if has else "", rank % 3, fault if rank in odd else ""
        )
    patience = draw.choice([8.0, 40.0, 170.0])
    late = {rank: draw.choice([0.0, 0.0, draw.random() * 0.9 * patience]) for rank in ranks}
    return Job(ranks, odd, fault, late, patience)


def brings(name: str) -> set[str]:
    """Return which modules are there when one has been imported."""
    return {name, "fakeup.core"} if name == "fakeup.user" else {name}


class Site:
    """Where the sessions of ranks are made, one after the other."""

    def __init__(self, upstream: Upstream, engines: Engines, set_variable: Any) -> None:
        self._upstream, self._engines, self._set = upstream, engines, set_variable
        upstream.write(more="def more(value):\n    return value\n")
        self._patches = [
            *(upstream.patch(dict.fromkeys(sites, unchanged), name=name) for name, sites in SITES.items()),
            # These are for nothing that is here, for one reason or another, and say so where it is imported.
            upstream.patch({"fakeup.core:Engine.fixed": unchanged}, name="d.old"),
            upstream.patch({"fakeup.core:Engine.named": unchanged}, name="e.mended"),
        ]
        # The one was tested on no such source, and the other is not needed on it.
        (mended,) = [row for row in TESTED if row.patch == "e.mended"]
        TESTED[:] = [row for row in TESTED if row.patch in SITES]
        TESTED.append(mended.replace(verdict="not-needed", variant=""))
        self._core = (upstream.root / "fakeup/core.py").read_text()
        self._said: dict[Rank, Statement] = {}
        set_variable("OVERLAY_LOG", "off")

    def says(self, rank: Rank) -> Statement:
        """Return what such a rank says of itself."""
        if rank not in self._said:
            self._said[rank] = self._session(rank)
        return self._said[rank]

    def _session(self, rank: Rank) -> Statement:
        from overlay.runtime import unpickled

        source = (
            "\n\ndef scale(value, factor=2):\n    return factor * value\n" if rank.fault == "source" else ""
        )
        self._upstream.write(core=self._core + source)
        engine = self._engines(*(one for one in self._patches if rank.fault != "strict" or one.id in SITES))
        selection = "a.core,c.both,d.old,e.mended" if rank.fault == "selection" else "all"
        try:
            for name in rank.imports[: rank.early]:
                self._import(name, rank)
            engine.enable(selection, strict=rank.fault == "strict")
            for name in rank.imports[rank.early :]:
                self._import(name, rank)
            if rank.fault == "pickled":
                unpickled.arrive("z.other", "fakeup.core:Engine.named")
            return engine.statement()
        finally:
            unpickled._arrived.clear()
            engine.disable()
            forget()
            self._upstream.write(core=self._core)

    def _import(self, name: str, rank: Rank) -> None:
        first = rank.wrapped in brings(name) and rank.wrapped not in sys.modules
        self._upstream.load(name)
        if first:
            module, site = sys.modules[rank.wrapped], "scale" if rank.wrapped == "fakeup.core" else "use"
            path = self._upstream.root / f"wd{rank.folder}" / "x.py"
            space: dict[str, Any] = {}
            exec(compile(WRAPPER, str(path), "exec"), space)  # noqa: S102 -- a user's module of another folder
            setattr(module, site, space["wrap"](getattr(module, site)))


WRAPPER = "def wrap(f):\n    def user(*given, **named):\n        return f(*given, **named)\n    return user\n"


def unchanged(original: Any, _module: Any) -> Any:
    import inspect

    words = ", ".join(inspect.signature(original).parameters)
    text = f"lambda original: lambda {str(inspect.signature(original))[1:-1]}: original({words})"
    return eval(text)(original)  # noqa: S307 -- the very parameters


@pytest.mark.parametrize("fault", ["", *FAULTS])
def test_healthy_jobs_go_on_and_half_patched_ones_are_named(
    fault: str, upstream: Upstream, engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    print(f"OVERLAY_TEST_SEED={SEED}")
    draw, site = random.Random(f"{SEED}/{fault}"), Site(upstream, engines, monkeypatch.setenv)
    for number in range(JOBS if not fault else JOBS // 4):
        job = drawn(draw, fault)
        there = {rank: site.says(one) for rank, one in job.ranks.items() if one.fault != "silent"}
        found = compare(monkeypatch, there, len(job.ranks), patience=job.patience, late=job.late)
        (said,) = {*found.values()}  # all ranks are told the same
        about = (SEED, number, job, said)
        if not fault:
            assert said == "", about
        elif fault == "silent":
            who = said.partition(" did not take part")[0]
            assert named(who) == job.odd, about
            assert "\n  " not in said, about
        else:
            assert said.startswith("the ranks do not run the same:\n"), about
            rows = [line for line in said.splitlines() if line.startswith("    ")]
            assert job.odd <= named("\n".join(rows)) or fault == "wrapper", about
            assert any(named(row) and named(row) <= job.odd for row in rows), about
            assert "wd" not in said, about
