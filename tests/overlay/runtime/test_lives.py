"""Modules and sites that come, go, and come again: the ledger says what is, and what was done is undone."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import py_compile
import shutil
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import Mock

import pytest
import wrapt
from fake_upstream import PROJECT, TESTED, Engines, Upstream, failing, forget, past_the_hook, triple, untested
from order_world import Subject, make_fixed, make_run, what_came, write_upstream

from overlay.errors import PatchError
from overlay.patch import Project, Target, replaced, variant
from overlay.runtime.search import ORIGINAL
from overlay.source.source import Tree
from overlay.source.table import Row

CHANGED = "def scale(value, factor=2):\n    return value + factor\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize("order", ["AE", "EA", "AER", "EIXI", "EIRR", "EIRXI", "EAEDR", "EIDEXA"])
def test_after_each_step_all_is_in_place_or_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    """Steps: enable, disable, import, import by alias, reload, and take the module out of `sys.modules`."""
    monkeypatch.setenv("OVERLAY_LOG", "off")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    patch = write_upstream(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert what_came(order, Subject({patch.id: patch})) == ("right", [])


def test_a_site_that_fails_inside_the_factory_of_another(upstream: Upstream, enabled: Engines) -> None:
    def reach(original: Any, module: Any) -> Any:
        __import__("fakeup.user")
        return triple(original, module)

    engine = enabled(upstream.patch({"fakeup.core:scale": reach, "fakeup.user:use": failing("no")}))
    assert upstream.load().scale(1) == 2
    status = engine.status().patches[0]
    assert status.state == "failed"
    assert {site.state for site in status.sites} <= {"failed"}


@pytest.mark.parametrize("disables", [False, True])
def test_a_function_of_a_module_that_a_factory_returns_stays_what_it_is(
    upstream: Upstream, engines: Engines, monkeypatch: pytest.MonkeyPatch, disables: bool
) -> None:
    pack: Any = ModuleType("of_a_pack")
    exec("def scale(value, factor=2): return value * factor * 100", vars(pack))  # noqa: S102
    monkeypatch.setitem(sys.modules, "of_a_pack", pack)
    engine = engines(upstream.patch({"fakeup.core:scale": lambda original, module: pack.scale}))
    for _ in range(3):
        engine.enable(strict=True)
        assert upstream.load().scale(1) == 200
        assert pack.scale.__module__ == "of_a_pack"
        if disables:
            engine.disable()
            assert upstream.load().scale(1) == 2
            assert pack.scale(1) == 200
        importlib.reload(upstream.load())


@pytest.mark.parametrize("strict", [False, True])
def test_a_reload_from_another_source_is_decided_anew(
    upstream: Upstream, enabled: Engines, strict: bool
) -> None:
    engine = enabled(upstream.patch(), strict=strict)
    core = upstream.load()
    upstream.write(core=CHANGED)
    with pytest.raises(PatchError, match="unknown-source") if strict else nullcontext():
        importlib.reload(core)
    assert core.scale(1) == 3
    status = engine.status().patches[0]
    assert status.verdict == engine.plan().verdicts[0]
    assert status.verdict.verdict == "unknown-source"
    assert status.state == "skipped"


@pytest.mark.parametrize("site", ["scale", "Engine.run"])
@pytest.mark.parametrize("again", ["reload", "second import"])
def test_where_a_module_is_executed_again_nobody_has_replaced_ours(
    upstream: Upstream, enabled: Engines, again: str, site: str
) -> None:
    made = [triple if site == "scale" else make_run, lambda original, module: None]

    def make(original: Any, module: Any) -> Any:
        return made.pop(0)(original, module)

    enabled(upstream.patch({f"fakeup.core:{site}": make}), strict=True)
    core = upstream.load()
    old = core.Engine()
    before = core.scale(1), old.run(1)
    if again == "second import":
        del sys.modules["fakeup.core"]
    with pytest.raises(PatchError, match="not a plain function"):
        importlib.reload(core) if again == "reload" else upstream.load()
    assert before == ((200, 200) if site == "scale" else (2, 102))
    assert (core.scale(1), old.run(1)) == (2, 2)


@pytest.mark.parametrize(("ran", "value"), [("value - factor", 3), ("value * factor + 12", 22)])
def test_a_file_that_changed_after_it_was_imported(
    upstream: Upstream, enabled: Engines, ran: str, value: int
) -> None:
    """The file on disk is known; what runs is not what stands in it, be it by a number alone."""
    text = (upstream.root / "fakeup/core.py").read_text()
    good = text.replace("value * factor", "value * factor + 11")
    upstream.write(core=good)
    patch = upstream.patch()
    upstream.write(core=text.replace("value * factor", ran))
    core = upstream.load()
    upstream.write(core=good)
    engine = enabled(patch)
    assert core.scale(5) == value
    status = engine.status().patches[0]
    assert status.verdict is not None
    assert status.verdict.verdict == "conflict"
    assert "its file has changed since it was imported" in status.reason


@pytest.mark.parametrize("stale", [False, True])
def test_a_compiled_file_of_another_source(upstream: Upstream, enabled: Engines, stale: bool) -> None:
    """Python takes it for that of a source of the same size and time, and runs it."""
    core = upstream.root / "fakeup/core.py"
    text, patch = core.read_text(), upstream.patch()
    core.write_text(text.replace("value * factor", "value + factor") if stale else text)
    os.utime(core, (1, 1))
    py_compile.compile(str(core), cfile=importlib.util.cache_from_source(str(core)))
    core.write_text(text)
    os.utime(core, (1, 1))
    engine = enabled(patch)
    assert upstream.load().scale(3) == (5 if stale else 600)
    reason = engine.status().patches[0].reason
    assert ("its file has changed since it was imported" in reason) is stale


def test_a_site_that_is_replaced_after_us_is_told(
    upstream: Upstream, enabled: Engines, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = enabled(upstream.patch({"fakeup.core:scale": triple, "fakeup.core:Engine.run": make_run}))
    core = upstream.load()

    def theirs(value: int, factor: int = 2) -> int:
        return 0

    core.scale = theirs  # type: ignore[attr-defined]
    for _ in range(2):
        status = engine.status().patches[0]
        assert status.state == "incomplete"
        assert "fakeup.core:scale was replaced since by test_lives:" in status.reason
        assert [site.state for site in status.sites] == ["incomplete", "applied"]
    assert (
        capsys.readouterr().err.count("overlay: lost fakeup.scale: fakeup.core:scale was replaced since by")
        == 1
    )
    assert core.scale is theirs
    core.Engine = type("Engine", (), {"run": lambda self, value: 0})  # type: ignore[attr-defined]
    assert [site.state for site in engine.status().patches[0].sites] == ["incomplete", "incomplete"]


class Nothing:
    """What a class can be replaced by that has none of its methods."""


def deeper(engine: Any) -> Any:
    class Mine(engine):
        def run(self, value: int) -> int:
            found: int = super().run(value)
            return found

    return Mine


def other(engine: Any) -> Any:
    class Mine(engine):
        def run(self, value: int) -> int:
            return 0

    return Mine


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    ("made", "state", "in_force"),
    [
        (lambda engine: type("Mine", (engine,), {}), "applied", True),
        (deeper, "incomplete", True),
        (other, "incomplete", False),
        (lambda _: Nothing, "incomplete", False),
        (lambda _: Nothing(), "incomplete", False),
    ],
    ids=["inherits", "calls super", "overrides", "has none", "is no class"],
)
def test_a_class_that_is_replaced_after_us_leaves_the_patch_in_the_old_one(
    upstream: Upstream, enabled: Engines, strict: bool, made: Any, state: str, in_force: bool
) -> None:
    engine = enabled(upstream.patch({"fakeup.core:Engine.run": make_run}), strict=strict)
    core = upstream.load()
    old = core.Engine
    core.Engine = made(old)  # type: ignore[attr-defined]
    for _ in range(2):
        status = engine.status().patches[0]
        assert (status.state, status.in_force) == (state, in_force)
        assert ("fakeup.core:Engine.run was replaced since by " in status.reason) is (state == "incomplete")
    assert old().run(1) == 102
    engine.disable()
    assert old().run(1) == 2


def test_a_subclass_in_place_of_a_class_inherits_the_classes_inside(
    upstream: Upstream, enabled: Engines
) -> None:
    upstream.write(
        core="class Engine:\n    class Inner:\n        def run(self, value):\n            return value\n"
    )
    engine = enabled(upstream.patch({"fakeup.core:Engine.Inner.run": make_run}), strict=True)
    core = upstream.load()
    core.Engine = type("Mine", (core.Engine,), {})  # type: ignore[attr-defined]
    assert core.Engine.Inner().run(1) == 101
    assert engine.status().patches[0].state == "applied"


def by_closure(ours: Any) -> Any:
    return lambda value, factor=2: ours(value, factor)


def by_list(ours: Any) -> Any:
    held = [ours]
    return lambda value, factor=2: held[0](value, factor)


def by_text(ours: Any, text: str) -> Any:
    """Return the function `scale` that a module of its own defines, with ours in that module."""
    module = ModuleType("theirs")
    vars(module).update(ours=ours, kept=SimpleNamespace(ours=lambda *_: 0), core=sys.modules["fakeup.core"])
    vars(module).update(__package__="fakeup")
    sys.modules["fakeup.core"].theirs = ours  # type: ignore[attr-defined]
    exec(f"def scale(value, factor=2):\n    {text}", vars(module))  # noqa: S102 -- with globals of its own
    return vars(module)["scale"]


class Registry:
    kept: ClassVar[dict[str, Any]] = {}

    @classmethod
    def original(cls, name: str) -> Any:
        return cls.kept[name]


def by_registry(ours: Any) -> Any:
    Registry.kept["scale"] = ours
    return lambda value, factor=2: Registry.original("scale")(value, factor)


class Timed:
    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)

    def timed(self, value: int, factor: int = 2) -> Any:
        return self.function(value, factor)


def kept(ours: Any) -> Any:
    """Return a function that has ours, say to restore it, and calls another."""
    by = by_closure(lambda *_: 0)
    by.original = ours
    return by


def kept_apart(ours: Any) -> Any:
    """Return a function that has an object, which has ours."""
    holder = type("Holder", (), {})()
    holder.original = ours
    return lambda *_: len(vars(holder)) * 0


class Kept(Timed):
    def mine(self, value: int, factor: int = 2) -> int:
        return value * factor * 0


def by_class(ours: Any) -> Any:
    return type(
        "Theirs", (), {"theirs": staticmethod(ours), "go": lambda self, *given: self.theirs(*given)}
    )().go


def by_itself(ours: Any) -> Any:
    """As an operation of weave's, which another function resolves."""

    @functools.wraps(ours)
    def wrapper(*given: Any, **named: Any) -> Any:
        return resolved(wrapper)(*given, **named)

    return wrapper


def resolved(wrapper: Any) -> Any:
    return wrapper.__wrapped__


@pytest.mark.parametrize(
    ("wrap", "in_force"),
    [
        (by_closure, True),
        (by_class, True),
        (kept, False),
        (kept_apart, False),
        (lambda ours: Kept(ours).mine, False),
        (lambda ours: Mock(side_effect=ours), True),
        (lambda ours: (lambda *_, table={ours: 0}: len(table) * 0), False),
        (lambda ours: by_text(ours, "return ours(value, factor)"), True),
        (lambda ours: functools.wraps(ours)(by_closure(ours)), True),
        (lambda ours: functools.wraps(ours)(by_text(ours, "return 0")), False),
        (by_itself, True),
        (lambda ours: by_closure(by_closure(ours)), True),
        (functools.partial, True),
        (functools.lru_cache, True),
        (lambda ours: wrapt.FunctionWrapper(ours, lambda ours, _, given, named: ours(*given, **named)), True),
        (Timed, True),
        (lambda ours: Timed(ours).timed, True),
        (lambda ours: Mock(wraps=ours), True),
        (by_list, True),
        (lambda ours: lambda value, factor=2, ours=ours: ours(value, factor), True),
        (by_registry, True),
        (lambda ours: by_text(ours, "return core.theirs(value, factor)"), True),
        (lambda ours: by_text(ours, "import fakeup.core as at; return at.theirs(value, factor)"), True),
        (lambda ours: by_text(ours, "from fakeup import core; return core.theirs(value, factor)"), True),
        (lambda ours: by_text(ours, "from .core import theirs as at; return at(value, factor)"), True),
        (lambda ours: by_text(ours, "from . import core; return core.theirs(value, factor)"), True),
        (lambda ours: by_text(ours, "return (lambda: ours(value, factor))()"), True),
        (lambda ours: by_text(ours, "return kept.ours(value, factor)"), False),
        (lambda ours: by_text(ours, "return core.Engine and 0"), False),
        (lambda ours: by_text(ours, "return 0"), False),
    ],
    ids=[
        "closure", "class", "kept", "kept apart", "kept by an instance", "side effect",
        "key", "name", "wraps", "only wraps", "itself", "twice",
        "partial", "lru_cache", "wrapt", "object", "method", "mock", "list", "default",
        "registry", "attribute of a module", "import", "from import", "relative", "relative module",
        "nested", "attribute of another",
        "another attribute", "another",
    ],
)  # fmt: skip
def test_ranks_agree_beside_a_wrapper_of_one_of_them(
    upstream: Upstream, enabled: Engines, wrap: Any, in_force: bool
) -> None:
    """It is told all the same, as a wrapper need not call what it wraps."""
    engine = enabled(upstream.patch())
    core = upstream.load()
    core.scale = wrap(core.scale)  # type: ignore[attr-defined]
    assert core.scale(1) == (200 if in_force else 0)
    status, said = engine.status().patches[0], engine.statement()
    assert (status.state, status.in_force) == ("incomplete", in_force)
    assert said.outcome == {"fakeup.scale": "in place" if in_force else "incomplete"}
    assert said.account is not None
    assert bool(said.account.applied) is in_force is not bool(said.account.refused)


LATE = Project(name="latepkg", distributions=("latepkg",), marker="latepkg", read_version=lambda read: "1.0")


def late(folder: Path, *, optional: bool) -> Target:
    """Write a project of one function into a folder, and return it as a target of a patch."""
    folder.mkdir(exist_ok=True)
    (folder / "latepkg.py").write_text("def g(value):\n    return value\n")
    sites = {"latepkg:g": Tree(str(folder)).digest("latepkg:g")}
    for patch in ("fakeup.scale", "late"):
        TESTED.append(Row(patch=patch, target="latepkg", verdict="apply", variant="1", sites=sites))
    changed = replaced("latepkg:g", make_fixed)
    return Target(project=LATE, variants=(variant("1", changed),), optional=optional)


def test_a_project_that_becomes_importable_later(
    upstream: Upstream, enabled: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = upstream.root / "later"
    engine = enabled(upstream.patch(others=(late(folder, optional=True),)))
    assert upstream.load().scale(1) == 200
    assert engine.status().patches[0].state == "applied"
    monkeypatch.syspath_prepend(str(folder))
    module = importlib.import_module("latepkg")
    states = [site.state for site in engine.status().patches[0].sites]
    del sys.modules["latepkg"]
    assert module.g(1) == 101
    assert states == ["applied", "applied"]


@pytest.mark.parametrize("other", ["right", "unknown"])
def test_what_is_decided_on_is_the_copy_that_is_imported(
    upstream: Upstream, enabled: Engines, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    """A path that a trainer adds may lead to another copy than the one that was there at first."""
    first, second = upstream.root, upstream.root / "second"
    shutil.copytree(first / "fakeup", second / "fakeup")
    patch = upstream.patch()
    (first if other == "right" else second).joinpath("fakeup/core.py").write_text(CHANGED)
    engine = enabled(patch, patch.replace(id="late", targets=(late(first, optional=False),)))
    importlib.import_module("latepkg")  # both patches are decided on
    del sys.modules["latepkg"]
    monkeypatch.syspath_prepend(str(second))
    core = upstream.load()
    status = engine.status().patches[0]
    assert status.verdict == engine.plan().verdicts[0]
    assert (core.scale(1), status.state) == ((200, "applied") if other == "right" else (3, "skipped"))


@pytest.mark.parametrize(("optional", "state"), [(True, "applied"), (False, "waiting")])
def test_an_optional_target_that_is_never_imported_is_not_waited_for(
    upstream: Upstream, enabled: Engines, optional: bool, state: str
) -> None:
    engine = enabled(upstream.patch(others=(late(upstream.root, optional=optional),)))
    upstream.load()
    status = engine.status().patches[0]
    assert [site.state for site in status.sites] == ["applied", "waiting"]
    assert status.state == state


def test_a_project_that_cannot_be_found_although_it_is_imported(
    upstream: Upstream, enabled: Engines, capsys: pytest.CaptureFixture[str]
) -> None:
    hidden = PROJECT.replace(marker="fakeup.hidden")
    patch = upstream.patch()
    target = patch.targets[0].replace(project=hidden)
    engine = enabled(patch.replace(targets=(target,)))
    assert upstream.load().scale(1) == 2
    for _ in range(3):
        status = engine.status().patches[0]
        assert status.verdict is not None
        assert status.verdict.loud, status
    assert capsys.readouterr().err.count("NOT applied") == 1


def test_a_module_that_would_load_lazily_is_patched_at_once(upstream: Upstream, engines: Engines) -> None:
    patch = upstream.patch()
    for enable_first in (True, False):
        engine = engines(patch)
        if enable_first:
            engine.enable()
        spec = importlib.util.find_spec("fakeup.core")
        assert spec is not None
        assert spec.loader is not None
        spec.loader = importlib.util.LazyLoader(spec.loader)
        core = sys.modules["fakeup.core"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(core)
        engine.enable()
        assert core.scale(1) == 200
        engine.disable()
        forget()


def test_a_refusal_does_not_hold_up_others(upstream: Upstream, enabled: Engines) -> None:
    bad = untested(upstream.patch({"fakeup.core:scale": triple}, name="fakeup.bad"))
    good = upstream.patch({"fakeup.user:use": lambda original, module: lambda value: 7}, name="fakeup.good")
    engine = enabled(bad, good, strict=True)
    with past_the_hook():
        user = upstream.load("fakeup.user")
    states = {status.patch: status.state for status in engine.status().patches}
    assert states == {"fakeup.bad": "skipped", "fakeup.good": "applied"}
    assert user.use(1) == 7


@pytest.mark.parametrize("order", [("core", "apart"), ("apart", "core")])
def test_requirements_hold_while_things_happen(
    upstream: Upstream, enabled: Engines, order: tuple[str, str]
) -> None:
    upstream.write(apart="def f(value):\n    return value\n")
    needed = upstream.patch({"fakeup.apart:f": failing("no")}, name="fakeup.needed")
    needing = upstream.patch(name="fakeup.needing", requires=("fakeup.needed",))
    engine = enabled(needed, needing)
    modules = {name: upstream.load(f"fakeup.{name}") for name in order}
    assert modules["core"].scale(1) == 2
    states = {status.patch: status.state for status in engine.status().patches}
    assert states == {"fakeup.needed": "failed", "fakeup.needing": "failed"}


def test_all_that_needs_a_patch_goes_before_its_failure_is_raised(
    upstream: Upstream, enabled: Engines
) -> None:
    upstream.write(apart="def f(value):\n    return value\n")
    needed = upstream.patch({"fakeup.apart:f": failing("no")}, name="fakeup.needed")
    first = upstream.patch(name="fakeup.first", requires=("fakeup.needed",))
    second = upstream.patch(
        {"fakeup.user:use": lambda original, module: lambda value: 7},
        name="fakeup.second",
        requires=("fakeup.needed",),
    )
    engine = enabled(first, needed, second, strict=True)
    core, user = upstream.load("fakeup.core"), upstream.load("fakeup.user")
    assert (core.scale(1), user.use(1)) == (200, 7)
    left = r"OVERLAY_PATCHES=-fakeup\.first,-fakeup\.needed,-fakeup\.second leaves it out"
    with pytest.raises(PatchError, match=rf"^fakeup\.needed failed.*{left}"):
        upstream.load("fakeup.apart")
    assert core.scale(1) == 2
    assert user.use(1) != 7
    assert {status.state for status in engine.status().patches} == {"failed"}


def test_functions_keep_what_upstream_hung_on_them(upstream: Upstream, enabled: Engines) -> None:
    text = (upstream.root / "fakeup/core.py").read_text()
    upstream.write(core=text + "\nscale.calls = 7\n")
    enabled(upstream.patch())
    assert upstream.load().scale.calls == 7


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("stays", [False, True])
def test_a_ledger_says_what_was_replaced_when_it_was_disabled(
    upstream: Upstream, enabled: Engines, stays: bool, asked: bool
) -> None:
    """Whether or not somebody asked for the state meanwhile."""
    engine, core = enabled(upstream.patch()), vars(upstream.load())
    ours, core["scale"] = core["scale"], lambda *_: 0
    if asked:
        assert engine.status().patches[0].state == "incomplete"
    if not stays:
        core["scale"] = ours
    engine.disable()
    out = engine.status().patches[0]
    assert (out.state, out.reason.startswith("was incomplete: ")) == ("reverted", stays)


@pytest.mark.parametrize("again", ["reload", "reload with one line more", "second import"])
def test_what_was_taken_from_an_earlier_import_is_told(
    upstream: Upstream, engines: Engines, again: str
) -> None:
    """It is neither what is replaced nor anything of which its module still knows."""
    core, user = upstream.load(), upstream.load("fakeup.user")
    if again.startswith("reload"):
        file = upstream.root / "fakeup" / "core.py"
        file.write_text("\n" * again.endswith("more") + file.read_text())
        importlib.reload(core)
    else:
        del sys.modules["fakeup.core"]
        core = upstream.load()
    engine = engines(upstream.patch())
    status = engine.enable().patches[0]
    assert core.scale(1) == 200
    assert user.use(1) == 2
    assert status.state == "incomplete"
    fault = "fakeup.core:scale is still held by something that took it from an earlier import of its module"
    assert status.reason == fault
    taken = id(user.scale)
    engine.disable()
    out = engine.status().patches[0]
    assert (out.state, out.reason) == ("reverted", f"was incomplete: {fault}")
    assert id(user.scale) == taken
    with pytest.raises(PatchError, match=fault):
        engine.enable(strict=True)
    del user.scale
    del core
    assert engine.enable().patches[0].state == "applied"


def test_what_nobody_has_of_an_earlier_import_is_no_fault(upstream: Upstream, engines: Engines) -> None:
    core = upstream.load()
    importlib.reload(core)  # its first class is garbage that only a collection finds
    del sys.modules["fakeup.core"], core
    core = upstream.load()
    engine = engines(upstream.patch({"fakeup.core:scale": triple, "fakeup.core:Engine.run": make_run}))
    assert engine.enable(strict=True).patches[0].state == "applied"
    assert core.Engine().run(1) == 300


def test_an_original_that_somebody_has_restored_is_patched_again_and_that_is_told(
    upstream: Upstream, enabled: Engines, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = enabled(upstream.patch())
    core = upstream.load()
    core.scale = core.scale.__overlay_original__  # type: ignore[attr-defined]
    assert core.scale(1) == 2
    said = "fakeup.scale: the original of fakeup.core:scale had been restored: it is patched again"
    for told in (True, False):
        assert engine.status().patches[0].state == "applied"
        assert (core.scale(1), said in capsys.readouterr().err) == (200, told)


def test_an_original_that_gets_other_code_is_told(upstream: Upstream, enabled: Engines) -> None:
    """As by jurigged, which looks for functions by their code."""
    engine = enabled(upstream.patch({"fakeup.core:scale": triple}))
    core = upstream.load()
    vars(core.scale)[ORIGINAL].__code__ = (lambda value, factor=2: 7).__code__
    assert core.scale(1) == 700
    status = engine.status().patches[0]
    assert (status.state, "has other code or defaults since" in status.reason) == ("incomplete", True)
