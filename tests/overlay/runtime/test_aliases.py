"""References to the original that were taken before the patch."""

from __future__ import annotations

import atexit
import builtins
import gc
import pickle
import sys
import threading
import types
import weakref
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from fake_upstream import Engines, Upstream, triple

from overlay.errors import PatchError
from overlay.runtime import session
from overlay.runtime.search import Rebinding, rebind

USER = """
from fakeup.core import scale
from fakeup.core import scale as other

class Holder:
    copied = staticmethod(scale)

def default(value, call=scale):
    return call(value)
"""


def load(upstream: Upstream) -> Any:
    upstream.write(user=USER)
    return upstream.load("fakeup.user")


def test_a_site_that_is_an_imported_name_is_that_name_alone(
    upstream: Upstream, engines: Engines, capsys: pytest.CaptureFixture[str]
) -> None:
    user, core = load(upstream), upstream.load()
    original = core.scale
    engine = engines(upstream.patch({"fakeup.user:scale": triple}))
    assert engine.enable().patches[0].state == "applied"
    assert user.scale(1) == 200
    assert core.scale is user.other is original
    assert pickle.loads(pickle.dumps(user.scale)) is user.scale  # noqa: S301
    alias, held = ModuleType("alias"), [user.scale]
    alias.scale = user.scale  # type: ignore[attr-defined]
    engine.disable()
    assert user.scale is vars(alias)["scale"] is original
    assert held[0] is not original
    assert "left behind by fakeup.scale: fakeup.user:scale: something still holds" in capsys.readouterr().err


def test_a_holder_that_cannot_be_changed_is_told_and_in_strict_mode_the_patch_taken_out(
    upstream: Upstream, engines: Engines, capsys: pytest.CaptureFixture[str]
) -> None:
    core = upstream.load()
    held = [core.scale]
    engine = engines(upstream.patch())
    status = engine.enable().patches[0]
    fault = "fakeup.core:scale is still held by something that took it earlier"
    assert status.state == "incomplete"
    assert fault in status.reason
    said = capsys.readouterr().err
    assert f"overlay: incomplete fakeup.scale on fakeup 1.2.0: {fault}; enable overlay" in said
    engine.disable()
    with pytest.raises(PatchError, match=f"incomplete: {fault}"):
        engine.enable(strict=True)
    assert core.scale is held[0]


def test_who_held_an_original_for_a_moment_leaves_the_patch_whole(
    upstream: Upstream, enabled: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a monitor of memory does that looks at all objects."""
    held: list[object] = []
    text = (upstream.root / "fakeup/core.py").read_text()
    upstream.write(core=f"{text}\nimport builtins\nbuiltins.held.append(scale)\n")
    monkeypatch.setattr(builtins, "held", held, raising=False)
    monkeypatch.setattr(session, "sleep", lambda _: held.clear())
    monkeypatch.setattr(sys, "path_importer_cache", {})  # nobody has imported it before
    engine = enabled(upstream.patch())
    assert upstream.load().scale(1) == 200
    assert (held, engine.status(looks=False).patches[0].state) == ([], "applied")


def test_what_is_not_held_any_more_is_seen_by_the_next_status(upstream: Upstream, engines: Engines) -> None:
    core = upstream.load()
    held = [core.scale]
    engine = engines(upstream.patch())
    assert engine.enable().patches[0].state == "incomplete"
    held.clear()
    assert engine.status(looks=False).patches[0].state == "incomplete"
    assert engine.status().patches[0].state == "applied"


# -- the search itself, without an engine ------------------------------------------------------------


def new_scale(value: Any, factor: int = 2) -> Any:
    return "new"


def new_other(value: Any, factor: int = 2) -> Any:
    return "new other"


PAIR = """
def scale(value, factor=2):
    return value * factor

def other(value, factor=2):
    return value + factor
"""


@pytest.fixture
def held() -> Iterator[Any]:
    """Make a module with two functions, to be filled with holders of them."""
    module = ModuleType("held_by_test")
    exec(PAIR, vars(module))  # noqa: S102
    sys.modules[module.__name__] = module
    yield module
    del sys.modules[module.__name__]


def add(held: Any, source: str) -> Any:
    exec(source, vars(held))  # noqa: S102
    return held


def pop(held: Any, *names: str) -> list[tuple[object, object]]:
    """Take functions out of the module, and return them with their replacements."""
    new = {"scale": new_scale, "other": new_other}
    return [(vars(held).pop(name), new[name]) for name in names]


def search(held: Any) -> Rebinding:
    return rebind(pop(held, "scale"))[0]


def turn(pairs: list[tuple[object, object]]) -> None:
    """Turn pairs round, in place: any other list of them would be one more holder."""
    pairs[:] = [(after, before) for before, after in pairs]


REBOUND = """
import functools
g = {"__name__": "gone", "f": scale}
exec("def gone(): return f", g)
gone = g.pop("gone")
del g
name = scale
class H:
    plain = scale
    static = staticmethod(scale)
    of_class = classmethod(scale)
class I:
    static = vars(H)["static"]
def use(a=1, b=scale, *, c=scale): ...
function = functools.partial(scale, 1)
argument = functools.partial(map, scale)
keyword = functools.partial(map, key=scale)
"""


def test_what_can_be_rebound_is_and_is_restored(held: Any) -> None:
    add(held, REBOUND)
    pairs = pop(held, "scale")
    original, statics = id(pairs[0][0]), id(vars(held.H)["static"])

    def now() -> set[int]:
        _, default = held.use.__defaults__
        places = [
            held.gone(),
            held.name,
            held.H.plain,
            held.H.static,
            held.I.static,
            held.H.of_class.__func__,
        ]
        places += [default, held.use.__kwdefaults__["c"], held.function.func, held.argument.args[0]]
        return {*map(id, places), id(held.keyword.keywords["key"])}

    for place in (id(new_scale), original):
        (found,) = rebind(pairs)
        assert (found.rebound, found.held) == (True, False)
        assert now() == {place}
        assert id(vars(held.H)["static"]) == id(vars(held.I)["static"]) == statics
        turn(pairs)


def test_a_raw_attribute_that_is_a_site_is_passed_over(held: Any) -> None:
    add(held, "class H:\n    fn = staticmethod(scale)\nclass I:\n    fn = vars(H)['fn']")
    pairs = [*pop(held, "scale"), (vars(held.H)["fn"], staticmethod(new_scale))]
    held.H.fn = pairs[1][1]
    assert not any(item.held for item in rebind(pairs))
    assert vars(held.H)["fn"] is vars(held.I)["fn"] is pairs[1][1]
    assert pairs[1][0].__func__ is pairs[0][0]


#: Each is all that has the function, once it is taken out of its module.
KEPT = [
    "class Slots: __slots__ = 'f'\nkept = Slots(); kept.f = scale",
    "class Plain: pass\nkept = Plain(); kept.f = scale",
    "class Looked: pass\nkept = Looked(); kept.f = scale; vars(kept)",
    "class Partial(functools.partial): __slots__ = 'f'\nkept = Partial(len); kept.f = scale",
    "kept = collections.defaultdict(scale)",
    "class Dict(dict): __slots__ = 'f'\nkept = Dict(); kept.f = scale",
    "class Dict(dict):\n    def items(self): raise RuntimeError\nkept = Dict(f=scale)",
    "class Tuple(tuple): pass\nkept = Tuple([scale])",
    "class Static(staticmethod): pass\nclass H: kept = Static(scale)",
    "class H: kept = property(scale)",
    "class H: kept = functools.cached_property(scale)",
    "class H: kept = functools.partialmethod(scale)",
    "kept = [scale]",
    "kept = {scale}",
    "kept = frozenset([scale])",
    "kept = collections.deque([scale])",
    "kept = (scale, 1)",
    "kept = {scale: 1}",
    "kept = {'k': scale}",
    "kept = {(1, 2): scale}",
    "kept = types.SimpleNamespace(f=scale)",
    "kept = map(scale, [1])",
    "kept = filter(scale, [1])",
    "kept = functools.lru_cache(scale)",
    "kept = contextvars.ContextVar('x'); kept.set(scale)",
    "kept = (lambda f: lambda: f)(scale)",
    "kept = scale.__get__(object())",
    "def kept(): ...\nkept.f = scale",
    # A weak reference does not know the replacement.
    *(
        f"kept = {kept}\ndef use(f=scale): ..."
        for kept in (
            "weakref.WeakSet([scale])",
            "weakref.WeakKeyDictionary({scale: 1})",
            "types.SimpleNamespace(f=weakref.ref(scale))",
            "[weakref.ref(scale)]",
            "(weakref.ref(scale, id),)",
            "(lambda r: lambda: r())(weakref.ref(scale))",
            "weakref.proxy(scale)",
        )
    ),
]
IMPORTS = "import collections, contextvars, functools, types, weakref"


@pytest.mark.parametrize("source", KEPT)
def test_whoever_keeps_an_original_is_noticed(held: Any, source: str) -> None:
    add(held, f"{IMPORTS}\n{source}")
    assert search(held).held


class Named(weakref.WeakMethod[Any]):
    """As observers are that know what they are called."""


@pytest.mark.parametrize("kind", [weakref.WeakMethod, Named])
def test_a_weak_reference_to_a_method_is_rebound(upstream: Upstream, engines: Engines, kind: Any) -> None:
    # Observers and callbacks are kept so.
    upstream.write(core="class Layer:\n    def scale(self, value):\n        return value * 2\n")
    layer = upstream.load().Layer()
    gone: list[object] = []
    kept: Any = kind(layer.scale, gone.append)

    def make(original: Any, _module: object) -> Any:
        return lambda self, value: original(self, value) + 100

    engine = engines(upstream.patch({"fakeup.core:Layer.scale": make}))
    assert engine.enable().patches[0].state == "applied"
    assert kept()(1) == 102
    assert kept == kind(layer.scale)
    engine.disable()
    assert kept()(1) == 2
    del layer
    assert gone == [kept]


def test_a_callback_of_atexit_is_noticed(held: Any) -> None:
    atexit.register(held.scale, 1)
    scale = weakref.proxy(held.scale)
    try:
        assert search(held).held
        assert atexit._ncallbacks() > 0
    finally:
        atexit.unregister(scale)


HOSTILE = """
def refuse(*_): raise RuntimeError("outside of a request")
class Proxy:
    __slots__ = ("f", "g")
    __class__ = __dict__ = property(refuse)
    __getattr__ = refuse
proxy = Proxy()
proxy.f = scale
class Meta(type):
    __setattr__ = __getattribute__ = refuse
class Frozen(metaclass=Meta):
    f = scale
class Odd(str):
    __hash__ = str.__hash__
def keyword(*, value=scale): ...
keyword.__kwdefaults__[Odd("odd")] = scale
Odd.__hash__ = refuse
def after(value=scale): ...
"""


def test_objects_that_do_not_want_to_be_looked_at(held: Any) -> None:
    add(held, HOSTILE)
    assert search(held).held
    assert type.__getattribute__(held.Frozen, "f") is new_scale
    assert held.after.__defaults__ == (new_scale,)


TWO = """
import functools
def use(a=scale, b=other, *, c=other): ...
p = functools.partial(scale, other, key=scale)
"""


def test_one_holder_of_two_functions_is_changed_and_restored_in_one_step(held: Any) -> None:
    add(held, TWO)
    defaults, arguments = held.use.__defaults__, held.p.args
    pairs = pop(held, "scale", "other")
    assert not any(item.held for item in rebind(pairs))
    assert held.use.__defaults__ == (new_scale, new_other)
    assert held.use.__kwdefaults__ == {"c": new_other}
    assert (held.p.func, held.p.args, held.p.keywords) == (new_scale, (new_other,), {"key": new_scale})
    turn(pairs)
    rebind(pairs)
    assert held.use.__defaults__ == defaults
    assert held.p.args == arguments
    assert held.p.func is held.p.keywords["key"] is defaults[0]


def test_what_others_have_changed_since_is_left_alone(held: Any) -> None:
    add(held, REBOUND)
    pairs = pop(held, "scale")
    rebind(pairs)
    held.name = held.H.plain = held.H.static = len
    held.use.__defaults__ = (len, 7)
    held.function.__setstate__((len, (), {}, None))
    turn(pairs)
    rebind(pairs)
    assert held.use.__defaults__ == (len, 7)
    assert held.name is held.H.plain is held.H.static is held.function.func is len


# -- calls that are going on -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        "from held_by_test import scale as mine; found = search()",
        "mine = scale; locals(); found = search()",
        "mine = scale; found = search(); (lambda: mine)",
    ],
)
def test_a_variable_of_a_running_call_is_noticed(held: Any, body: str) -> None:
    add(held, f"def main(search): {body}; return found")
    assert held.main(lambda: search(held).held)


LETS_GO = """
import weakref
def main(search, thing):
    from held_by_test import scale as mine
    thing = thing.pop()
    found, gone = search(), weakref.ref(thing)
    del thing
    return found, gone()
"""


def test_what_a_running_call_lets_go_of_later_is_released(held: Any) -> None:
    add(held, LETS_GO)
    assert held.main(lambda: search(held).held, [ModuleType("thing")]) == (True, None)


def test_another_thread_is_looked_at_too(held: Any) -> None:
    add(held, "def main(started, go):\n    mine = scale\n    started.set()\n    go.wait(30)")
    started, go = threading.Event(), threading.Event()
    thread = threading.Thread(target=held.main, args=(started, go))
    thread.start()
    try:
        started.wait(30)
        assert search(held).held
    finally:
        go.set()
        thread.join()


@pytest.mark.parametrize(
    ("main", "is_held"),
    [
        ("def main():\n    mine = scale\n    yield mine", True),
        ("def main():\n    mine = {'a': scale}\n    yield mine", True),
        ("def main():\n    mine = scale\n    yield (lambda: mine)()\n    yield mine", True),
        ("def main():\n    mine = scale\n    return (mine(n) for n in [1, 2])", True),
        ("async def main():\n    mine = scale\n    await A()", True),
        ("async def main():\n    mine = scale\n    yield mine", True),
        ("def main():\n    yield scale", False),
        ("def scale():\n    yield 1\nmain = scale", False),
    ],
    ids=[
        "generator",
        "dictionary",
        "closure",
        "expression",
        "coroutine",
        "async generator",
        "global",
        "of the original",
    ],
)
def test_a_variable_of_a_suspended_call_is_a_holder(held: Any, main: str, is_held: bool) -> None:
    add(held, f"class A:\n    def __await__(self): yield\n{main}\nx = main(); del main")
    if hasattr(held.x, "asend"):
        with pytest.raises(StopIteration):
            held.x.asend(None).send(None)
    else:
        held.x.send(None)
    assert search(held).held is is_held
    del held.x


ENDED = """
def main():
    mine = scale
    locals()
    raise ValueError
kept = []
for reads in (False, True):
    try:
        main()
    except ValueError as error:
        kept.append(error)
kept[1].__traceback__.tb_next.tb_frame.f_locals
"""


def test_a_call_that_has_ended_holds_nothing(held: Any) -> None:
    add(held, ENDED)
    assert not search(held).held


def test_the_usual_search_does_not_look_at_calls(held: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Python 3.13 that leaves traces in them."""
    looked: list[object] = []
    old = types.SimpleNamespace(**{**vars(sys), "version_info": (3, 12)})
    monkeypatch.setattr("overlay.runtime.search.sys", old)
    monkeypatch.setattr("overlay.runtime.search._Search._look_at_calls", looked.append)
    add(held, "class H:\n    f = scale\ndef use(f=scale): ...")
    assert (search(held).held, looked) == (False, [])


# -- a frozen heap -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("whole_heap")
def test_a_frozen_heap_is_searched_as_well_and_stays_frozen(held: Any) -> None:
    """After `gc.freeze()`, which servers call, the collector no longer tells who holds what."""
    add(held, "class H:\n    f = scale\ndef use(a=scale): ...\nx = [[[[[scale]]]]]")
    gc.freeze()
    frozen = gc.get_freeze_count()
    try:
        assert search(held).held
        assert held.H.f is held.use.__defaults__[0] is new_scale
        assert gc.get_freeze_count() >= frozen
    finally:
        gc.unfreeze()


# -- the other direction -----------------------------------------------------------------------------


OURS = """
def make(original):
    def helper(value):
        return original(value), scale
    def scale(value, factor=2):
        return helper(value), scale
    scale.__overlay_original__ = original
    return scale
"""


@pytest.mark.parametrize("module", ["overlay.patches.of_test", "pack_of_test"])
def test_who_took_the_replacement_is_given_the_original_back(held: Any, module: str) -> None:
    patch: dict[str, Any] = {"__name__": module}
    exec(OURS, patch)  # noqa: S102
    add(held, "def use(f=scale): ...\nclass H:\n    fn = staticmethod(scale)")
    pairs: list[tuple[object, object]] = [(vars(held).pop("scale"), patch["make"](held.use.__defaults__[0]))]
    assert not rebind(pairs)[0].held
    vars(held)["late"] = held.use.__defaults__[0]
    add(held, "class Late:\n    f = staticmethod(late)\nx = [late]")
    turn(pairs)
    assert rebind(pairs)[0].held
    made: Any = pairs[0][0]
    assert held.late is held.Late.f is held.H.fn is made.__overlay_original__ is pairs[0][1]
    assert held.use.__defaults__[0] is held.late
    assert made(3)[0][0] == 6
    assert made(3)[1] is made
    held.x.clear()
    # Once more: what is left of the replacement is not taken for a holder.
    pairs[:] = [(pairs[0][1], new_scale)]
    assert not rebind(pairs)[0].held or module == "pack_of_test"


def test_what_an_interrupted_search_has_rebound_is_taken_back_by_the_next(
    held: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted() -> list[object]:
        raise KeyboardInterrupt

    add(held, "def use(f=scale): ...")
    pairs = pop(held, "scale")
    with monkeypatch.context() as patched:
        patched.setattr("overlay.runtime.search._atexit_callbacks", interrupted)
        with pytest.raises(KeyboardInterrupt):
            rebind(pairs)
    assert held.use.__defaults__ == (new_scale,)
    turn(pairs)
    rebind(pairs)
    assert held.use.__defaults__ == (pairs[0][1],)
