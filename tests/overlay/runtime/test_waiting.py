"""A process that is armed loads patches when it first imports an upstream, and not before."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import runpy
import sys
import threading
import time
import types
import warnings
from collections.abc import Iterator
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import pytest
from fake_upstream import PACKAGE, Upstream, forget, tables, triple
from threads import at_once

from overlay.errors import OverlayError, SelectionError
from overlay.patch import Patch, Project
from overlay.runtime import main_module
from overlay.runtime.engine import Engine
from overlay.runtime.session import Session
from overlay.source import registry
from overlay.source.registry import awaited, load_patches


class Armed:
    """An engine that waits for the toy upstream, and how often its patches were loaded."""

    def __init__(self) -> None:
        self.loads = 0
        self.patches: list[Patch] = []
        self.error: Exception | None = None
        self.engine = Engine(self._load, table=tables())

    def _load(self) -> dict[str, Patch]:
        self.loads += 1
        if self.error is not None:
            raise self.error
        return {patch.id: patch for patch in self.patches}


@pytest.fixture
def armed(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> Iterator[Armed]:
    """Return an engine that is armed with a patch of the toy upstream."""
    for name in ("OVERLAY_PACKS", "OVERLAY_PIN", "OVERLAY_TRUST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(registry, "awaited", lambda: (frozenset({PACKAGE}), ["fakeup.scale"]))
    made = Armed()
    made.patches = [upstream.patch({"fakeup.core:scale": triple})]
    made.engine.arm(at_start=True)
    yield made
    made.engine.disable()


def core() -> Any:
    return importlib.import_module("fakeup.core")


def test_nothing_is_loaded_before_an_upstream_is_imported(armed: Armed) -> None:
    assert armed.engine.enabled
    importlib.import_module("colorsys")
    assert armed.loads == 0
    assert core().scale(1) == 200
    assert armed.loads == 1


@pytest.fixture
def in_front() -> Iterator[None]:
    """Put a finder in front that answers for the toy upstream itself."""

    def found(name: str, path: Any, target: object = None) -> Any:
        return PathFinder.find_spec(name, path) if name.startswith(PACKAGE) else None

    finder: Any = types.SimpleNamespace(find_spec=found)
    sys.meta_path.insert(0, finder)
    yield
    sys.meta_path.remove(finder)


@pytest.mark.parametrize("before", [[], [PACKAGE]])
def test_a_finder_that_comes_first_does_not_keep_it_out(
    armed: Armed, before: list[str], in_front: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever is imported next brings overlay to the front again."""
    for name in before:
        importlib.import_module(name)
    assert importlib.util.find_spec("no_such_module") is None
    assert core().scale(1) == 200
    assert "past overlay" not in capsys.readouterr().err


def test_a_package_that_is_kept_out_was_not_imported_past_overlay(
    armed: Armed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, PACKAGE, None)
    armed.engine._at_exit()
    assert capsys.readouterr().err == ""
    monkeypatch.setitem(sys.modules, f"{PACKAGE}.core", sys)  # executed by hand, and no package was imported
    armed.engine._at_exit()
    assert f"NOT patched: {PACKAGE} was imported past overlay" in capsys.readouterr().err


@pytest.mark.parametrize("entry", ["lib", "core"])
def test_a_folder_that_is_gone_fails_no_import(
    armed: Armed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str
) -> None:
    core()  # from now on, what is called like one of its modules is looked at
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    monkeypatch.syspath_prepend(entry)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_such_module")


def test_an_upstream_that_a_finder_in_front_imports_is_patched_late_and_named(
    armed: Armed, in_front: None, capsys: pytest.CaptureFixture[str]
) -> None:
    there = core()
    assert there.scale(1) == 2
    armed.engine._at_exit()
    assert "NOT patched: fakeup was imported past overlay" in capsys.readouterr().err
    assert importlib.util.find_spec("no_such_module") is None
    assert there.scale(1) == 200
    assert "fakeup.core was imported past overlay" in capsys.readouterr().err


def test_no_thread_waits_for_what_the_session_imports(armed: Armed, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be importing the very module that a factory is about to import."""
    waits: list[bool] = []

    def catch_up(_: object) -> None:
        finder: Any = next(one for one in sys.meta_path if getattr(one, "overlay_finder", False))
        other = threading.Thread(target=finder.find_spec, args=(f"{PACKAGE}.other", []), daemon=True)
        other.start()
        other.join(10)
        waits.append(other.is_alive())

    monkeypatch.setattr("overlay.runtime.session.Session.catch_up_late", catch_up)
    core()
    assert waits == [False]


@pytest.fixture
def met(armed: Armed) -> threading.Event:
    """Return what is set as soon as a thread comes to the finder of the engine that is armed."""
    waiting: Any = armed.engine._waiting
    came, wake = threading.Event(), waiting.wake

    def waking() -> None:
        came.set()
        wake()

    waiting.wake = waking
    return came


def test_who_asks_while_another_thread_imports_the_upstream_does_not_hang(
    armed: Armed, met: threading.Event
) -> None:
    """Python holds a lock that each import needs while it asks a finder."""
    loads = threading.Event()

    def load() -> dict[str, Patch]:
        met.clear()
        loads.set()
        met.wait(20)
        time.sleep(0.5)  # the other is at the engine's lock by now: if not, there is nothing to see
        sys.modules.pop("colorsys", None)
        __import__("colorsys")
        return {patch.id: patch for patch in armed.patches}

    armed.engine._load = load
    asks = threading.Thread(target=armed.engine.status, daemon=True)
    asks.start()
    assert loads.wait(20)
    imports = threading.Thread(target=core, daemon=True)
    imports.start()
    for thread in (asks, imports):
        thread.join(30)
        assert not thread.is_alive()
    assert core().scale(1) == 200


def test_what_a_session_catches_up_with_may_import_what_another_thread_imports(
    armed: Armed, met: threading.Event, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That thread is importing a module of its own, and comes to wait for the session."""
    inside, going = threading.Event(), threading.Event()
    catch_up = Session.catch_up_late

    def catching_up(session: Session) -> None:
        if threading.current_thread() is asks:
            __import__("fakeup_user")
        catch_up(session)

    def callback() -> None:
        inside.set()
        going.wait(20)

    def load() -> dict[str, Patch]:
        met.clear()
        going.set()
        met.wait(20)
        time.sleep(0.5)
        return {patch.id: patch for patch in armed.patches}

    monkeypatch.setattr(Session, "catch_up_late", catching_up)
    monkeypatch.setattr(armed, "callback", callback, raising=False)
    monkeypatch.setitem(sys.modules, "armed_of_test", armed)
    (upstream.root / "fakeup_user.py").write_text(
        "import armed_of_test\narmed_of_test.callback()\nimport fakeup.core\n"
    )
    armed.engine._load = load
    asks = threading.Thread(target=armed.engine.status, daemon=True)
    imports = threading.Thread(target=__import__, args=("fakeup_user",), daemon=True)
    imports.start()
    assert inside.wait(20)
    asks.start()
    for thread in (asks, imports):
        thread.join(30)
        assert not thread.is_alive()
    assert core().scale(1) == 200


def test_whoever_asks_does_not_wait(armed: Armed) -> None:
    (status,) = armed.engine.status().patches
    assert (status.state, armed.loads) == ("waiting", 1)
    assert core().scale(1) == 200


def test_enabling_again_goes_on_from_there(armed: Armed) -> None:
    assert armed.engine.enable().patches[0].state == "waiting"
    with pytest.raises(OverlayError, match="already enabled"):
        armed.engine.enable("none")


@pytest.mark.parametrize(
    ("terms", "rank", "said"),
    [
        ("fakeup.*", "0", ""),
        ("none", "0", ""),
        ("fakeup.*,-fakeup.scale", "0", "the selection fakeup.*,-fakeup.scale has no patch"),
        ("gone.*", "", "the selection gone.* has no patch for what is found here so far (not gone)"),
        ("gone.*", "1", ""),
        ("gone.*,fakeup.scale", "0", ""),
    ],
)
def test_a_selection_that_is_in_vain_is_named_by_who_speaks(
    armed: Armed, upstream: Upstream, terms: str, rank: str, said: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """A slip in a selection leaves a job without patches, and no verdict of those that are left is loud."""
    armed.engine.disable()
    project = Project(name="gone", distributions=("gone-dist",), marker="gone.core")
    targets = (upstream.patch().targets[0].replace(project=project),)
    armed.patches.append(armed.patches[0].replace(id="gone.f", targets=targets))
    for name in ("LOCAL_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("OVERLAY_PATCHES", terms)
    ids = ["fakeup.scale", "gone.f"]
    monkeypatch.setattr(registry, "awaited", lambda: (frozenset({PACKAGE}), ids))
    armed.engine = Engine(armed._load, table=tables(), speaks=True)
    # By the environment, by a call before the upstream is imported, and by one after that.
    for enable in (armed.engine.arm, armed.engine.enable, armed.engine.enable):
        capsys.readouterr()
        if enable == armed.engine.arm:
            armed.engine.arm(at_start=True)
        else:
            armed.engine.enable(terms)
        core()
        found = "".join(line for line in capsys.readouterr().err.splitlines() if "selection" in line)
        assert found.removeprefix("overlay: ").partition(" [rank=")[0] == said
        armed.engine.disable()
        if enable == armed.engine.arm:
            forget()


def finders() -> list[Any]:
    """Return overlay's finders on the path, but one that is out and could not be taken away."""
    return [one for one in sys.meta_path if getattr(one, "overlay_finder", False) and not one.is_out]  # type: ignore[attr-defined]


def test_it_can_be_disarmed_before(armed: Armed) -> None:
    before = finders()
    armed.engine.disable()
    assert not armed.engine.enabled
    assert core().scale(1) == 2
    assert armed.loads == 0
    assert len(before) == 1 + len(finders())


def test_an_upstream_that_is_there_is_patched_at_once(armed: Armed) -> None:
    armed.engine.disable()
    assert core().scale(1) == 2
    armed.engine.arm()
    assert core().scale(1) == 200


@pytest.mark.parametrize("name", ["fakeup/train.py", "a_link.py"])
def test_a_file_that_is_run_wakes_it(
    armed: Armed, upstream: Upstream, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (upstream.root / "a_link.py").symlink_to("fakeup/train.py")
    upstream.write(
        train="import colorsys\ndef loss():\n    return 1\nif __name__ == '__main__':\n    print(loss())\n"
    )
    armed.patches = [upstream.patch({"fakeup.train:loss": lambda original, _: lambda: original() * 100})]
    sys.modules.pop("colorsys", None)
    runpy.run_path(str(upstream.root / name), run_name="__main__")
    assert capsys.readouterr().out == "100\n"
    assert armed.loads == 1


@pytest.mark.parametrize(
    ("kinds", "before"),
    [("ddb", 2), ("bdb", 2), ("bd", 2), ("dbdb", 3), ("dbd", 1), ("dx", 1), ("xbx", 1), ("xx", 2)],
)
def test_a_module_that_is_run_is_reported_when_it_is_defined(kinds: str, before: int) -> None:
    """`d`: a definition, `b`: a block for `__main__`, `x`: something else."""
    texts = {"d": "def f(): pass", "b": "if __name__ == '__main__': pass", "x": "x = 1"}
    body = ast.parse("\n".join(texts[kind] for kind in kinds)).body
    assert main_module._after_definitions(body) == before


def test_of_a_module_that_is_run_python_warns_alone() -> None:
    """And not at all if it has compiled it before."""
    text = 'def loss(x):\n    return "\\d", x is 1\nif __name__ == "__main__":\n    loss(1)\n'
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = compile(text, "train.py", "exec", dont_inherit=True)
        warnings.simplefilter("error")
        assert main_module.code(None, "train", text, plain, print) is not plain


@pytest.mark.parametrize("error", [ImportError("gone"), OverlayError("broken"), SyntaxError("bad")])
def test_what_cannot_be_loaded_is_said_and_in_strict_mode_ends_each_import(
    armed: Armed, error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    armed.error = error
    monkeypatch.setenv("OVERLAY_STRICT", "1")
    for _ in range(2):
        with pytest.raises(OverlayError, match=str(error)) as raised:
            core()
        assert not isinstance(raised.value, ImportError)
    monkeypatch.setenv("OVERLAY_STRICT", "0")
    assert core().scale(1) == 2
    assert "NOT enabled" in capsys.readouterr().err
    assert not armed.engine.enabled


def test_a_variable_that_nobody_knows_is_named_once(
    armed: Armed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    armed.engine.disable()
    monkeypatch.setenv("OVERLAY_STRCIT", "1")
    armed.engine.arm()
    assert core().scale(1) == 200
    assert capsys.readouterr().err.count("OVERLAY_STRCIT") == 1


def test_a_fork_waits_as_well(armed: Armed) -> None:
    child = os.fork()
    if not child:
        os._exit(0 if core().scale(1) == 200 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert armed.loads == 0


def test_threads_that_import_at_once_find_it_patched(armed: Armed) -> None:
    assert at_once(lambda _: core().scale(1), 8) == [200] * 8
    assert armed.loads == 1


def test_each_package_that_a_patch_changes_is_watched() -> None:
    """Else a patch of a module in another package would be loaded too late."""
    changed = {name.partition(".")[0] for patch in load_patches().values() for name in patch.modules()}
    assert changed <= awaited()[0]


@pytest.mark.parametrize("at", ["choose", "Session.catch_up_late", "Engine._say_if_in_vain"])
def test_the_next_import_goes_on_with_what_was_interrupted(
    armed: Armed, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by Ctrl-C in a notebook, where the cell is run again."""

    def interrupted(*_given: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        where = "overlay.runtime.session" if at[0] == "S" else "overlay.runtime.engine"
        patched.setattr(f"{where}.{at}", interrupted)
        with pytest.raises(KeyboardInterrupt):
            importlib.import_module("fakeup.user")
    assert armed.engine.enabled
    assert core().scale(1) == 200


def test_a_module_that_was_only_asked_for_is_named_at_the_end(
    armed: Armed, capsys: pytest.CaptureFixture[str]
) -> None:
    """A check by `find_spec` does not load it."""
    package = importlib.import_module(PACKAGE)
    assert importlib.util.find_spec("fakeup.core") is not None
    spec = PathFinder.find_spec("fakeup.core", package.__path__)
    assert spec is not None
    assert spec.loader is not None
    sys.modules["fakeup.core"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["fakeup.core"])
    armed.engine._at_exit()
    assert "NOT patched: fakeup.core was imported past overlay" in capsys.readouterr().err


@pytest.mark.parametrize("at", ["opening", "patching"])
def test_a_fork_waits_until_another_thread_has_patched(
    armed: Armed, upstream: Upstream, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """The child has the locks of what another thread imports, and not that thread."""
    engine, opens, go, said = armed.engine, threading.Event(), threading.Event(), list[str]()

    def working(*_given: Any) -> Any:
        engine.before_fork()  # a fork by the thread itself does not
        engine.after_fork()
        opens.set()
        go.wait(20)
        said.append("patched")
        return lambda value, factor=2: 200

    def forks() -> None:
        engine.before_fork()
        said.append("forks")
        engine.after_fork()

    if at == "opening":
        monkeypatch.setattr(Session, "catch_up_late", working)
    else:
        armed.patches = [upstream.patch({"fakeup.core:scale": working})]
    threads = [threading.Thread(target=call, daemon=True) for call in (core, forks)]
    threads[0].start()
    assert opens.wait(20)
    threads[1].start()
    threads[1].join(0.2)
    go.set()
    for thread in threads:
        thread.join(20)
    assert said == ["patched", "forks"]
    assert armed.engine._lock.acquire(timeout=1)


def test_a_hook_that_imports_as_it_is_made_comes_onto_the_path(armed: Armed) -> None:
    """`insert` is taken from the list before its argument is made."""
    made: Any = types.SimpleNamespace(find_spec=lambda *_: None)

    def hook() -> Any:
        core()
        return made

    sys.meta_path.insert(0, hook())
    assert made in sys.meta_path
    sys.meta_path.remove(made)


def test_a_finder_that_another_thread_removes_does_not_come_back(armed: Armed) -> None:
    finder: Any = next(one for one in sys.meta_path if getattr(one, "overlay_finder", False))
    install = finder.install

    def removed() -> None:
        armed.engine.disable()
        install()

    finder.install = removed
    sys.meta_path.insert(0, types.SimpleNamespace(find_spec=lambda *_: None))
    try:
        importlib.util.find_spec("no_such_module")
        assert finder not in finders()
    finally:
        del sys.meta_path[0]


def test_what_enable_is_given_holds_when_the_upstream_is_imported(armed: Armed, upstream: Upstream) -> None:
    other = upstream.patch({"fakeup.user:use": lambda original, _: lambda value: 7}, name="fakeup.user")
    armed.patches.append(other)
    armed.engine.disable()
    armed.engine.arm(["fakeup.scale"], strict=True)
    assert armed.loads == 0
    assert importlib.import_module("fakeup.user").use(1) == 200
    assert [patch.patch for patch in armed.engine.status().patches] == ["fakeup.scale"]
    assert armed.engine.strict


def test_a_program_that_empties_its_environment_changes_nothing(
    armed: Armed, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = upstream.patch({"fakeup.user:use": lambda original, _: lambda value: 7}, name="fakeup.user")
    armed.patches.append(other)
    armed.engine.disable()
    monkeypatch.setenv("OVERLAY_PATCHES", "fakeup.scale")
    monkeypatch.setenv("OVERLAY_STRICT", "1")
    armed.engine.arm(at_start=True)
    monkeypatch.delenv("OVERLAY_PATCHES")
    monkeypatch.delenv("OVERLAY_STRICT")
    core()
    status = armed.engine.status()
    assert (status.selection, status.strict) == (("fakeup.scale",), True)
    armed.engine.disable()
    forget()
    armed.engine.arm(at_start=True)
    monkeypatch.setenv("OVERLAY_PATCHES", "none")  # until an upstream is imported, a program may choose
    assert armed.engine.status().selection == ()


@pytest.mark.parametrize(
    ("patches", "message"),
    [
        ("fakeup.scael", "names no patch"),
        (["fakeup.scale", 7], "must be patch ids"),
        ("no*", "names no patch"),
        (None, "names no patch"),  # but the environment does
    ],
)
def test_enable_refuses_what_names_no_patch_at_once(
    armed: Armed, patches: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    armed.engine.disable()
    monkeypatch.setenv("OVERLAY_PATCHES", "fakeup.scael")
    with pytest.raises(SelectionError, match=message):
        armed.engine.arm(patches)
    assert not armed.engine.enabled


def test_a_glob_that_names_opt_in_patches_alone_is_refused_at_once(armed: Armed) -> None:
    armed.engine.disable()
    armed.patches = [armed.patches[0].replace(opt_in=True)]
    with pytest.raises(SelectionError, match="matches only opt-in patches"):
        armed.engine.arm("fakeup.*")


def test_a_fork_while_another_thread_opens_the_session_waits_again(armed: Armed) -> None:
    """Of the parent the child has no thread but the one that forked."""
    engine, opened, forked = armed.engine, threading.Event(), threading.Event()

    def opening(*_given: Any) -> None:
        opened.set()
        forked.wait(60)

    vars(engine)["_begin_session"] = opening
    thread = threading.Thread(target=engine._waiting.wake)  # type: ignore[union-attr]
    thread.start()
    assert opened.wait(60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of just this
        child = os.fork()
    if not child:
        status = 1
        with suppress(BaseException):
            engine.note_fork()
            del vars(engine)["_begin_session"]
            status = 0 if engine.enabled and core().scale(1) == 200 else 2
        os._exit(status)
    forked.set()
    thread.join(60)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_thread_that_walks_along_the_path_as_overlay_leaves_it_misses_no_finder(
    armed: Armed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As through the finder of an editable installation, which stands behind ours."""
    (tmp_path / "behind.py").write_text("")
    monkeypatch.delitem(sys.modules, "behind", raising=False)
    find = lambda name, *_: PathFinder.find_spec(name, [str(tmp_path)])  # noqa: E731
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])

    def leaves(name: str, *_: Any) -> None:
        if name == "behind":
            armed.engine.disable()

    behind = (types.SimpleNamespace(find_spec=each) for each in (leaves, find, PathFinder.find_spec))
    sys.meta_path[:] = [*finders(), *behind]

    def walks() -> None:
        importlib.import_module("behind")
        # What is left stands aside, and gives way to the next.
        for _ in range(3):
            armed.engine.arm()
            core()
            armed.engine.disable()
            forget()

    walking = threading.Thread(target=walks)
    walking.start()
    walking.join(20)
    assert "behind" in sys.modules
    left = [one for one in sys.meta_path if getattr(one, "overlay_finder", False)]
    assert [one.is_out for one in left] == [True]  # type: ignore[attr-defined]
