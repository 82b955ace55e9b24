"""The ways a module comes into a process: each is handled, or reported."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
import types
from collections.abc import Callable
from decimal import Decimal
from importlib.machinery import FileFinder, SourceFileLoader
from typing import Any

import pytest
from fake_upstream import Engines, Upstream, failing, forget, past_the_hook, triple

from overlay.errors import OverlayError, PatchError
from overlay.runtime.engine import Engine

BAD = "def scale(value, factor=2):\n    return value + factor\n"


def test_modules_keep_the_loader_they_would_have_had(upstream: Upstream, enabled: Engines) -> None:
    from importlib.machinery import SourceFileLoader

    enabled(upstream.patch())
    core = upstream.load()
    assert type(core.__loader__) is SourceFileLoader
    assert core.__spec__ is not None
    assert core.__spec__.loader is core.__loader__
    assert importlib.util.find_spec("fakeup.core") is core.__spec__


def test_a_module_being_executed_is_patched_when_it_is_done(upstream: Upstream, engines: Engines) -> None:
    """As when the target imports, by a detour, the code that enables overlay."""
    text = (upstream.root / "fakeup/core.py").read_text()
    seen: list[str] = []
    engine = engines(upstream.patch())
    # The module calls back at its top: overlay is enabled while `scale` does not exist yet.
    upstream.write(core="import fakeup\nfakeup.callback()\n" + text)
    engine = engines(upstream.patch())
    package = upstream.load("fakeup")
    package.callback = lambda: seen.append(engine.enable().patches[0].state)  # type: ignore[attr-defined]
    core = upstream.load()
    assert seen == ["waiting"]
    assert core.scale(1) == 200
    assert engine.status().patches[0].state == "applied"
    assert type(core.__spec__).__name__ == "ModuleSpec"


def test_of_a_module_that_puts_another_in_its_place_the_other_is_patched(
    upstream: Upstream, enabled: Engines
) -> None:
    text = (upstream.root / "fakeup/core.py").read_text()
    other = "import sys, types\nother = types.ModuleType(__name__)\n"
    other += "vars(other).update(vars(sys.modules[__name__]))\nsys.modules[__name__] = other\n"
    upstream.write(core=f"{text}\n{other}")
    engine = enabled(upstream.patch())
    core = upstream.load()
    assert core.scale(1) == 200
    (status,) = engine.status().patches
    assert (status.state, status.reason) == ("applied", "")


def test_a_module_being_executed_is_refused_in_strict_mode_each_time(
    upstream: Upstream, engines: Engines
) -> None:
    patch = upstream.patch()
    upstream.write(core="import fakeup\nfakeup.callback()\n" + BAD)
    engine = engines(patch)
    package = upstream.load("fakeup")
    package.callback = lambda: engine.enable(strict=True)  # type: ignore[attr-defined]
    for _ in range(2):
        with pytest.raises(PatchError, match="unknown-source"):
            upstream.load()
        assert "fakeup.core" not in sys.modules


def test_a_module_that_fails_while_overlay_waits_for_it(upstream: Upstream, engines: Engines) -> None:
    text = (upstream.root / "fakeup/core.py").read_text()
    upstream.write(core="import fakeup\nfakeup.callback()\n" + text)
    engine = engines(upstream.patch())
    package = upstream.load("fakeup")

    def fail() -> None:
        engine.enable()
        msg = "target breaks"
        raise ValueError(msg)

    package.callback = fail  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="target breaks"):
        upstream.load()
    assert engine.status().patches[0].state == "waiting"
    package.callback = lambda: None  # type: ignore[attr-defined]
    assert upstream.load().scale(1) == 200


def test_circular_imports_take_no_stale_alias(upstream: Upstream, enabled: Engines) -> None:
    """`user` takes `scale` from a half-executed `core`, before the hook can run."""
    text = (upstream.root / "fakeup/core.py").read_text()
    upstream.write(core=text + "\nimport fakeup.user\n")
    engine = enabled(upstream.patch())
    core = upstream.load()
    assert core.scale(1) == sys.modules["fakeup.user"].use(1) == 200
    assert engine.status().patches[0].state == "applied"


def test_a_reload_is_no_news(
    upstream: Upstream, enabled: Engines, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OVERLAY_LOG", "debug")
    engine = enabled(upstream.patch())
    core = upstream.load()
    for _ in range(3):
        assert importlib.reload(core) is core
        assert core.scale(1) == 200
    assert capsys.readouterr().err.count("applied") == 1
    engine.disable()
    assert "left behind" not in capsys.readouterr().err


def test_a_module_that_comes_past_the_hook_is_caught_up_with(
    upstream: Upstream, enabled: Engines, capsys: pytest.CaptureFixture[str]
) -> None:
    """And named: what called it before was not patched."""
    engine = enabled(upstream.patch())
    with past_the_hook():
        core = upstream.load()
    assert core.scale(1) == 2
    assert engine.status().patches[0].state == "applied"
    assert core.scale(1) == 200
    engine.status()
    assert capsys.readouterr().err.count("fakeup.core was imported past overlay") == 1


@pytest.mark.parametrize("ask", [Engine.enable, Engine.status])
def test_a_hook_that_somebody_took_off_the_path_is_put_back(
    upstream: Upstream, enabled: Engines, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Engine], object]
) -> None:
    before = [*sys.meta_path]
    engine = enabled(upstream.patch())
    monkeypatch.setattr(sys, "meta_path", before)
    ask(engine)
    assert upstream.load().scale(1) == 200


def test_annotations_mean_what_they_mean_upstream(upstream: Upstream, enabled: Engines) -> None:
    """The replacement lies in another module, where their names mean nothing."""
    upstream.write(
        core="from __future__ import annotations\nfrom decimal import Decimal\n"
        "def scale(value: Decimal | None, factor: Unknown = 2) -> list[Decimal]:\n    return value * factor\n"
    )
    enabled(upstream.patch())
    core = upstream.load()
    assert core.scale(1) == 200
    assert core.scale.__annotations__ == {
        "value": Decimal | None, "factor": "Unknown", "return": list[Decimal],
    }  # fmt: skip


def test_a_finder_that_asks_everybody_without_a_guard(upstream: Upstream, enabled: Engines) -> None:
    class Asking:
        def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
            others = (finder for finder in sys.meta_path if finder is not self)
            return next((found for other in others if (found := other.find_spec(name, path, target))), None)

    finder = Asking()
    sys.meta_path.insert(0, finder)
    try:
        enabled(upstream.patch())
        assert upstream.load().scale(1) == 200
    finally:
        sys.meta_path.remove(finder)


def test_a_module_that_is_done_at_this_very_moment_is_reported(upstream: Upstream) -> None:
    """Another thread may end its import between the question and the waiting."""
    from overlay.runtime.loader import when_executed

    core = upstream.load()
    assert core.__spec__
    told: list[str] = []
    when_executed(core.__spec__, "fakeup.core", lambda name, module: told.append(name))
    assert told == ["fakeup.core"]
    assert type(core.__spec__).__name__ == "ModuleSpec"


@pytest.mark.parametrize("said", ["unknown-source", "ModuleNotFoundError: gone"])
def test_in_strict_mode_a_failed_target_stays_failed(upstream: Upstream, enabled: Engines, said: str) -> None:
    make = triple if said == "unknown-source" else failing("gone", ModuleNotFoundError)
    patch = upstream.patch({"fakeup.core:scale": make})
    if make is triple:
        upstream.write(core=BAD)
    engine = enabled(patch, strict=True)
    for _ in range(3):
        # Not an ImportError: Megatron swallows those around its optional imports.
        with pytest.raises(PatchError, match=said) as caught:
            upstream.load()
        assert not isinstance(caught.value, ImportError)
        assert "fakeup.core" not in sys.modules
    engine.disable()
    assert upstream.load().scale(1) == (3 if make is triple else 2)


def test_a_target_that_raises_on_import(upstream: Upstream, enabled: Engines) -> None:
    good = (upstream.root / "fakeup/core.py").read_text()
    engine = enabled(upstream.patch())
    upstream.write(core="raise OSError('no driver')\n")
    with pytest.raises(OSError, match="no driver"):
        upstream.load()
    assert engine.status().patches[0].state == "waiting"
    upstream.write(core=good)
    assert upstream.load().scale(1) == 200


def test_two_threads_import_two_modules_whose_factories_import_each_other(
    upstream: Upstream, enabled: Engines
) -> None:
    """The engine's lock must not be held over an import, or this never ends."""
    barrier = threading.Barrier(2, timeout=60)
    upstream.write(left="import fakeup\nfakeup.barrier.wait()\ndef scale(value, factor=2):\n    return 1\n")
    upstream.write(right="import fakeup\nfakeup.barrier.wait()\ndef scale(value, factor=2):\n    return 2\n")

    def reach(name: str) -> Any:
        def make(original: Any, module: Any) -> Any:
            __import__(name)  # as the statement does: unlike `import_module` it gets past a circle
            return triple(original, module)

        return make

    sites = {"fakeup.left:scale": reach("fakeup.right"), "fakeup.right:scale": reach("fakeup.left")}
    enabled(upstream.patch(sites))
    upstream.load("fakeup").barrier = barrier  # type: ignore[attr-defined]
    threads = [
        threading.Thread(target=upstream.load, args=(f"fakeup.{name}",), daemon=True)
        for name in ("left", "right")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert sys.modules["fakeup.left"].scale(1) == 100
    assert sys.modules["fakeup.right"].scale(1) == 200


def test_a_loader_that_cannot_be_asked_for_the_source_has_a_file(
    upstream: Upstream, enabled: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of pytest, which writes assertions anew."""

    class Finder:
        create_module = staticmethod(lambda _: None)

        def exec_module(self, module: Any) -> None:
            file = upstream.root / "fakeup/core.py"
            exec(compile(file.read_text(), file, "exec", dont_inherit=True), vars(module))  # noqa: S102

        def find_spec(self, name: str, *_: object) -> Any:
            if name != "fakeup.core":
                return None
            file = str(upstream.root / "fakeup/core.py")
            return importlib.util.spec_from_file_location(name, file, loader=self)  # type: ignore[arg-type]

    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    engine = enabled(upstream.patch(), strict=True)
    assert upstream.load().scale(1) == 200
    assert engine.status().patches[0].state == "applied"


def test_a_target_without_source(upstream: Upstream, enabled: Engines) -> None:
    import py_compile

    patch = upstream.patch()
    source = upstream.root / "fakeup/core.py"
    py_compile.compile(str(source), cfile=str(source.with_suffix(".pyc")))
    source.unlink()
    importlib.invalidate_caches()
    engine = enabled(patch)
    assert upstream.load().scale(1) == 2
    status = engine.status().patches[0]
    assert status.verdict is not None
    assert status.verdict.verdict == "unknown-source"
    assert "installed without its source" in status.reason


@pytest.mark.parametrize("version", ["1.2.0", "of unknown version"])
def test_a_target_in_an_archive(
    upstream: Upstream, engines: Engines, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """A package without `__init__.py` has no loader there that could be asked for its other files."""
    import shutil

    if version != "1.2.0":
        (upstream.root / "fakeup/__init__.py").unlink()
    patch = upstream.patch()
    archive = shutil.make_archive(str(tmp_path / "packed"), "zip", upstream.root)
    shutil.rmtree(upstream.root / "fakeup")
    monkeypatch.syspath_prepend(archive)
    engine = engines(patch)
    assert engine.plan().verdicts[0].verdict == "apply"
    verdict = engine.plan(site=archive).verdicts[0]
    assert (verdict.verdict, verdict.where()) == ("apply", f"fakeup {version}")
    engine.enable()
    assert upstream.load().scale(1) == 200


def test_what_a_late_patch_imports_does_not_patch_its_module_first(
    upstream: Upstream, engines: Engines, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A finder stands in front by then, so that whatever is imported has the engine catch up."""

    def reach(original: Any, module: Any) -> Any:
        sys.meta_path.insert(0, in_front)
        importlib.util.find_spec("no_such_module")
        return triple(original, module)

    in_front: Any = types.SimpleNamespace(find_spec=lambda *_: None)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    core, engine = upstream.load(), engines(upstream.patch({"fakeup.core:scale": reach}))
    assert engine.enable().patches[0].state == "applied"
    assert core.scale(1) == 200
    assert capsys.readouterr().err == ""
    engine.disable()


def test_an_interrupted_import_leaves_its_module_as_it_is(upstream: Upstream, engines: Engines) -> None:
    """Another one may have it, by a circular import."""

    def interrupted(original: Any, module: Any) -> Any:
        raise KeyboardInterrupt

    text = (upstream.root / "fakeup/core.py").read_text()
    upstream.write(core=text + "import sys, fakeup\nfakeup.held = sys.modules[__name__]\n")
    package, engine = upstream.load("fakeup"), engines(upstream.patch({"fakeup.core:scale": interrupted}))
    engine.enable()
    with pytest.raises(KeyboardInterrupt):
        upstream.load()
    assert package.held.scale(1) == 2


def test_a_lazy_module_is_not_executed_for_us(upstream: Upstream, enabled: Engines) -> None:
    engine = enabled(upstream.patch(), upstream.patch({"fakeup.user:use": triple}, name="fakeup.user"))
    upstream.load("fakeup")
    spec = importlib.util.find_spec("fakeup.core")
    assert spec is not None
    assert spec.loader is not None
    loader = importlib.util.LazyLoader(spec.loader)
    spec.loader = loader
    core = importlib.util.module_from_spec(spec)
    sys.modules["fakeup.core"] = core
    loader.exec_module(core)
    engine.status()
    assert type(core).__name__ == "_LazyModule"
    assert core.scale(1) == 200
    assert engine.status().patches[0].state == "applied"


def test_a_finder_of_lazy_modules_stays_lazy(
    upstream: Upstream, enabled: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the recipe of Python's own documents."""
    patch = upstream.patch()
    lazy: Any = importlib.util.LazyLoader.factory(SourceFileLoader)  # type: ignore[arg-type]
    hooks = [FileFinder.path_hook((lazy, [".py"])), *sys.path_hooks]
    monkeypatch.setattr(sys, "path_hooks", hooks)
    monkeypatch.setattr(sys, "path_importer_cache", {})
    engine = enabled(patch)
    core = upstream.load()
    engine.status()
    assert type(core).__name__ == "_LazyModule"
    assert core.scale(1) == 200
    assert engine.status().patches[0].state == "applied"


@pytest.mark.parametrize("early", [True, False])
def test_a_thread_that_waits_for_a_module_that_is_refused_gets_the_error_too(
    upstream: Upstream, engines: Engines, early: bool
) -> None:
    """Python gives it a module whose import failed in another thread. `early`: the hook was there before."""
    engine, inside = engines(upstream.patch({"fakeup.core:scale": failing("no")})), threading.Event()
    caught: list[OverlayError] = []

    def refused() -> None:
        try:
            from fakeup.core import scale  # noqa: F401
        except OverlayError as error:
            caught.append(error)

    def callback() -> None:
        if not engine.enabled:
            engine.enable(strict=True)
        if threads[1].ident is None:
            threads[1].start()
        inside.wait(0.5)  # by then it waits: if not, it imports the module itself

    text = (upstream.root / "fakeup/core.py").read_text()
    upstream.write(core=text + "import fakeup, sys\nfakeup.held = sys.modules[__name__]\nfakeup.callback()\n")
    package = upstream.load("fakeup")
    package.callback = callback  # type: ignore[attr-defined]
    threads = [threading.Thread(target=refused, daemon=True) for _ in range(2)]
    if early:
        engine.enable(strict=True)
    threads[0].start()
    for thread in threads:
        thread.join(20)
    assert [type(error) for error in caught] == [PatchError] * 2
    with pytest.raises(PatchError):
        package.held.scale(1)
    engine.disable()
    assert package.held.scale(1) == 2


@pytest.mark.parametrize("strict", [False, True])
def test_a_patch_whose_module_has_moved_is_named_when_its_package_is_used(
    upstream: Upstream, enabled: Engines, engines: Engines, capsys: pytest.CaptureFixture[str], strict: bool
) -> None:
    """No import of the module can say it."""
    upstream.write(late="def late():\n    return 1\n")
    moved = upstream.patch({"fakeup.late:late": lambda original, _: original}, name="fakeup.late")
    (upstream.root / "fakeup/late.py").rename(upstream.root / "fakeup/later.py")
    importlib.invalidate_caches()
    engine = enabled(moved, upstream.patch(), strict=strict)
    said = "fakeup.late:late does not exist"
    if strict:
        for _ in range(2):
            with pytest.raises(PatchError, match=rf"fakeup\.late is unknown-source: .*{said}"):
                upstream.load()
        return
    assert upstream.load().scale(1) == 200
    assert [one.state for one in engine.status().patches if one.patch == "fakeup.late"] == ["skipped"]
    assert capsys.readouterr().err.count("NOT applied fakeup.late to fakeup 1.2.0: unknown-source: ") == 1
    engine.disable()
    alone = engines(moved)
    alone.enable("fakeup.late", strict=True)
    forget()
    importlib.import_module("fakeup")
    alone._at_exit()
    assert "NOT applied fakeup.late to fakeup 1.2.0: unknown-source: " in capsys.readouterr().err


def test_a_finder_that_imports_the_parents_of_what_it_is_asked_for_imports_nothing(
    upstream: Upstream, enabled: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python asks for a module when its parents are there, and some finders rely on that."""

    class Sniffer:
        asked: set[str] = set()  # noqa: RUF012

        @classmethod
        def find_spec(cls, name: str, _path: object = None, _target: object = None) -> None:
            if name not in cls.asked:
                cls.asked.add(name)
                importlib.util.find_spec(name)

    engine = enabled(upstream.patch())
    monkeypatch.setattr(sys, "meta_path", [Sniffer, *sys.meta_path])
    assert engine.plan().verdicts[0].verdict == "apply"
    assert "fakeup" in Sniffer.asked
    assert "fakeup" not in sys.modules
    assert upstream.load().scale(1) == 200


def test_an_error_that_somebody_keeps_holds_nothing_of_a_module_that_was_refused(
    upstream: Upstream, engines: Engines
) -> None:
    """A notebook keeps the last one. What its message advises must work then."""
    bad = upstream.patch({"fakeup.core:Engine.run": failing("no")}, name="fakeup.bad")
    good = upstream.patch()
    engine = engines(bad, good)
    engine.enable(strict=True)
    try:
        upstream.load()
    except PatchError as error:
        kept = error
    engine.disable()
    engine.enable("all,-fakeup.bad", strict=True)
    assert upstream.load().scale(1) == 200
    assert engine.status().patches[0].state == "applied"
    assert kept.__traceback__ is not None
