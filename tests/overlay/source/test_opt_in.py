"""A patch that only its id selects: not by default, nor by `all`, nor by a glob."""

from __future__ import annotations

from typing import Any

from fake_upstream import Engines, Upstream

from overlay.desk.commands import explanation, patch_table
from overlay.runtime.engine import Engine

ALL = ("fakeup.reading", "fakeup.scale")


def reading(original: Any, _module: Any) -> Any:
    def run(self: Any, value: Any) -> Any:
        return original(self, value) + 1

    return run


def two(upstream: Upstream, engines: Engines) -> Engine:
    """Return an engine with two patches, of which one is selected by its id alone."""
    sites = {"fakeup.core:Engine.run": reading}
    return engines(upstream.patch(), upstream.patch(sites, name="fakeup.reading", opt_in=True))


def test_it_is_not_put_in_unless_it_is_named(upstream: Upstream, engines: Engines) -> None:
    engine = two(upstream, engines)
    for terms, run in (("all", 200), ("all,fakeup.reading", 201), ("fakeup.reading", 3), (None, 200)):
        engine.enable(terms)
        assert upstream.load().Engine().run(1) == run, terms
        engine.disable()


def test_an_audit_decides_on_it_and_a_list_says_how_to_get_it(upstream: Upstream, engines: Engines) -> None:
    engine = two(upstream, engines)
    assert {one.patch: one.verdict for one in engine.plan_each().verdicts} == dict.fromkeys(ALL, "apply")
    assert {one.patch: one.verdict for one in engine.plan().verdicts}["fakeup.reading"] == "not-selected"
    assert "(opt-in)" in patch_table(engine.known().values(), dict.fromkeys(ALL, "apply"))
    patch = engine.known()["fakeup.reading"]
    verdict = engine.plan([patch.id]).verdicts[0]
    assert "OVERLAY_PATCHES=all,fakeup.reading" in explanation(patch, verdict, patch.id, engine.tested())


def test_what_stands_in_for_another_is_decided_on_without_it(upstream: Upstream, engines: Engines) -> None:
    usual = upstream.patch()
    other = upstream.patch(name="fakeup.instead").replace(opt_in=True)
    engine = engines(usual, other)
    each = {one.patch: one.verdict for one in engine.plan_each().verdicts}
    assert each == {"fakeup.scale": "apply", "fakeup.instead": "apply"}
    both = {one.patch: one.verdict for one in engine.plan(["all", "fakeup.instead"]).verdicts}
    assert both == {"fakeup.scale": "conflict", "fakeup.instead": "conflict"}
