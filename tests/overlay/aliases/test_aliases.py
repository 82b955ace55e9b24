"""References to the original that were taken before the patch."""

from __future__ import annotations

import atexit
import gc
import pickle
import sys
import threading
import types
import weakref
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from fake_upstream import triple

from overlay.aliases.search import rebind
from overlay.errors import PatchError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fake_upstream import Engines, Upstream

    from overlay.aliases.search import Rebinding


USER = """
import functools
import fakeup.core
from fakeup.core import scale
from fakeup.core import scale as other

alias = fakeup.core.Engine.fixed

class Holder:
    attribute = scale
    copied = staticmethod(scale)

def default(value, call=scale, *, keyword=scale):
    return call(value), keyword(value)

bound = functools.partial(scale, factor=5)
mapped = functools.partial(map, scale)
"""


def load(upstream: Upstream) -> Any:
    upstream.write(user=USER)
    return upstream.load("fakeup.user")


def test_modules_classes_defaults_and_partials_are_rebound_and_restored(
    upstream: Upstream, engines: Engines
) -> None:
    user = load(upstream)
    core = upstream.load()
    # A variable for one of these would be found as well.
    before, copied, defaults = id(core.scale), id(vars(user.Holder)["copied"]), user.default.__defaults__
    engine = engines(upstream.patch())
    status = engine.enable().patches[0]
    assert status.state == "applied"
    assert user.scale is user.other is core.scale
    assert id(core.scale) != before
    assert vars(user.Holder)["attribute"] is user.Holder.copied is core.scale
    assert user.default(1) == (200, 200)
    assert user.bound(1) == 500
    assert list(user.mapped([1])) == [200]
    assert set(status.sites[0].rebound) == {
        "fakeup.user:scale", "fakeup.user:other", "fakeup.user:Holder.attribute", "a staticmethod",
        "a functools.partial", "an argument of a functools.partial",
        "a default of fakeup.user:default", "the default of keyword in fakeup.user:default",
    }  # fmt: skip
    engine.disable()
    assert user.scale is user.other is core.scale is vars(user.Holder)["attribute"] is user.Holder.copied
    assert id(core.scale) == before
    assert user.default.__defaults__ == defaults
    assert id(vars(user.Holder)["copied"]) == copied
    assert user.default(1) == (2, 2)
    assert user.bound(1) == 5
    assert user.bound.func is user.mapped.args[0] is core.scale


def test_a_site_that_is_an_imported_name_is_that_name_alone(upstream: Upstream, engines: Engines) -> None:
    user, core = load(upstream), upstream.load()
    original = core.scale
    engine = engines(upstream.patch({"fakeup.user:scale": triple}))
    status = engine.enable().patches[0]
    assert status.state == "applied"
    assert status.sites[0].rebound == ()
    assert user.scale(1) == 200
    assert core.scale is user.other is original
    assert pickle.loads(pickle.dumps(user.scale)) is user.scale  # noqa: S301
    engine.disable()
    assert user.scale is original


def test_an_alias_in_the_module_itself(upstream: Upstream, enabled: Engines) -> None:
    text = (upstream.root / "fakeup/core.py").read_text()
    upstream.write(core=text + "\nagain = scale\n")
    core = upstream.load()
    enabled(upstream.patch())
    assert core.again(1) == core.scale(1) == 200


def test_a_holder_that_cannot_be_changed_is_named_and_in_strict_mode_the_patch_taken_out(
    upstream: Upstream, engines: Engines, capsys: pytest.CaptureFixture[str]
) -> None:
    core = upstream.load()
    held = [core.scale]
    engine = engines(upstream.patch())
    status = engine.enable().patches[0]
    fault = "fakeup.core:scale is still held by a list"
    assert status.state == "incomplete"
    assert fault in status.reason
    said = capsys.readouterr().err
    assert f"overlay: incomplete fakeup.scale (revision 3) on fakeup 1.2.0: {fault}; enable overlay" in said
    engine.disable()
    with pytest.raises(PatchError, match=f"incomplete: {fault}"):
        engine.enable(strict=True)
    assert core.scale is held[0]


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


@pytest.mark.parametrize("wrapper", ["staticmethod", "classmethod"])
def test_what_a_class_keeps_a_function_in_is_changed_and_restored(held: Any, wrapper: str) -> None:
    add(held, f"class H:\n    fn = {wrapper}(scale)\n    fn.mine = 1\nclass I:\n    fn = vars(H)['fn']")
    kept, pairs = vars(held.H)["fn"], pop(held, "scale")
    original = id(pairs[0][0])
    (found,) = rebind(pairs)
    assert (found.rebound, found.stale) == ([f"a {wrapper}"], [])
    assert vars(held.H)["fn"] is vars(held.I)["fn"] is kept
    assert held.H().fn(1) == held.I.fn(1) == "new"
    turn(pairs)
    assert rebind(pairs)[0].stale == []
    assert vars(held.H)["fn"] is kept
    assert id(kept.__func__) == original
    assert kept.mine == 1


def test_a_raw_attribute_that_is_a_site_is_passed_over(held: Any) -> None:
    add(held, "class H:\n    fn = staticmethod(scale)\nclass I:\n    fn = vars(H)['fn']")
    pairs = [*pop(held, "scale"), (vars(held.H)["fn"], staticmethod(new_scale))]
    held.H.fn = pairs[1][1]
    assert [item.stale for item in rebind(pairs)] == [[], []]
    assert vars(held.H)["fn"] is vars(held.I)["fn"] is pairs[1][1]
    assert pairs[1][0].__func__ is pairs[0][0]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("class S:\n    __slots__ = ('f',)\nx = S(); x.f = scale", "a S"),
        ("class Thing: pass\nx = Thing(); x.loss = scale", "a Thing"),
        ("class Thing: pass\nx = Thing(); x.__dict__['loss'] = scale; vars(x)", "a Thing"),
        ("import types\nx = types.SimpleNamespace(f=scale)", "a SimpleNamespace"),
        ("import collections\nx = collections.deque([scale])", "a deque"),
        ("x = [scale]", "a list"),
        ("x = {scale}", "a set"),
        ("x = frozenset([scale])", "a frozenset"),
        ("x = (scale, 1)", "a tuple"),
        ("class T(tuple):\n    pass\nx = T([scale])", "a T"),
        ("x = {scale: 1}", "a key of a dict"),
        ("x = {'k': scale}", "a dict"),
        ("x = {(1, 2): scale}", "a dict"),
        ("class F(dict):\n    def items(self):\n        raise RuntimeError\nx = F(f=scale)", "a F"),
        ("x = map(scale, [1])", "a map"),
        ("x = filter(scale, [1])", "a filter"),
        (
            "import weakref\nx = weakref.WeakKeyDictionary(); x[scale] = 1",
            "a weak reference in a dict or a set",
        ),
        ("import weakref\nx = weakref.WeakSet([scale])", "a weak reference in a dict or a set"),
        ("import contextvars\nx = contextvars.ContextVar('x'); x.set(scale)", "a hamt_bitmap_node"),
        ("class H:\n    x = property(scale)", "a property"),
        ("import functools\nclass H:\n    x = functools.cached_property(scale)", "a cached_property"),
        ("import functools\nclass H:\n    x = functools.partialmethod(scale)", "a partialmethod"),
        ("import functools\nx = functools.lru_cache(scale)", "a _lru_cache_wrapper"),
        (
            "import functools\nclass P(functools.partial):\n    __slots__ = ('f',)\nx = P(len); x.f = scale",
            "a P",
        ),
        ("class W(staticmethod):\n    pass\nclass H:\n    x = W(scale)", "a W"),
        ("x = lambda: 1\nx.f = scale", "a function"),
        ("x = (lambda f: lambda: f)(scale)", "the closure of held_by_test:<lambda>.<locals>.<lambda>"),
        ("x = scale.__get__(object())", "a method"),
    ],
)
def test_whoever_keeps_an_original_is_said_to(held: Any, source: str, words: str) -> None:
    add(held, source)
    assert words in search(held).stale


def test_a_callback_of_atexit_is_named(held: Any) -> None:
    atexit.register(held.scale, 1)
    scale = weakref.proxy(held.scale)
    try:
        assert "atexit" in search(held).stale
        assert atexit._ncallbacks() > 0
    finally:
        atexit.unregister(scale)


def test_objects_that_do_not_want_to_be_looked_at(held: Any) -> None:
    add(
        held,
        """
class Proxy:
    __slots__ = ("f", "g")
    @property
    def __class__(self):
        raise RuntimeError("outside of a request")
    @property
    def __dict__(self):
        raise RuntimeError("outside of a request")
    def __getattr__(self, name):
        raise RuntimeError("outside of a request")
x = Proxy()
x.f = scale

class Meta(type):
    def __setattr__(cls, name, value):
        raise AttributeError("frozen")
    def __getattribute__(cls, name):
        raise RuntimeError("outside of a request")
class Frozen(metaclass=Meta):
    f = scale
class Odd(str):
    def __hash__(self):
        raise RuntimeError("outside of a request")
def keyword(*, value=scale): ...
def after(value=scale): ...
""",
    )
    odd = held.Odd("odd")
    str_hash, held.Odd.__hash__ = held.Odd.__hash__, str.__hash__
    held.keyword.__kwdefaults__[odd] = held.scale
    held.Odd.__hash__ = str_hash
    assert sorted(search(held).stale) == ["a Proxy", "a dict that cannot be changed (RuntimeError)"]
    assert type.__getattribute__(held.Frozen, "f") is new_scale
    assert held.after.__defaults__ == (new_scale,)


def test_what_a_function_has_from_a_module_that_is_gone_is_rebound(held: Any) -> None:
    names = {"__name__": "gone", "scale": held.scale}
    exec("def use(): return scale", names)  # noqa: S102
    held.use = names.pop("use")
    del names
    assert search(held).rebound == ["gone:scale"]
    assert held.use() is new_scale


def test_one_holder_of_two_functions_is_changed_and_restored_in_one_step(held: Any) -> None:
    add(
        held,
        """
import functools
def use(a=scale, b=other, *, c=other): ...
p = functools.partial(scale, other, key=scale)
q = functools.partial(other, scale)
""",
    )
    defaults, p, q = held.use.__defaults__, held.p.args, held.q.args
    pairs = pop(held, "scale", "other")
    assert [item.stale for item in rebind(pairs)] == [[], []]
    assert held.use.__defaults__ == (new_scale, new_other)
    assert held.use.__kwdefaults__ == {"c": new_other}
    assert (held.p.func, held.p.args, held.p.keywords) == (new_scale, (new_other,), {"key": new_scale})
    assert (held.q.func, held.q.args) == (new_other, (new_scale,))
    turn(pairs)
    rebind(pairs)
    assert held.use.__defaults__ == defaults
    assert (held.p.args, held.q.args) == (p, q)
    assert held.p.func is held.p.keywords["key"] is defaults[0]
    assert held.q.func is defaults[1]


def test_what_others_have_changed_since_is_left_alone(held: Any) -> None:
    add(
        held,
        """
import functools
taken = scale
def use(a=scale, b=1): ...
p = functools.partial(scale, factor=5)
class H:
    fn = staticmethod(scale)
    f = scale
""",
    )
    pairs = pop(held, "scale")
    rebind(pairs)
    assert held.taken is new_scale
    held.taken = len
    held.use.__defaults__ = (len, 7)
    held.p.__setstate__((len, (), {}, None))
    held.H.fn = held.H.f = len
    turn(pairs)
    rebind(pairs)
    assert held.use.__defaults__ == (len, 7)
    assert held.p.func is held.H.fn is held.H.f is held.taken is len


def test_many_holders_are_looked_up_at_once_and_counted(held: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    add(held, "x = [eval(f'lambda f: lambda: f', {'__name__': f'm{n}'})(scale) for n in range(99)]")
    looks: list[int] = []
    look = gc.get_referrers

    def counted(*items: object) -> list[Any]:
        looks.append(len(items))
        return look(*items)

    monkeypatch.setattr(gc, "get_referrers", counted)
    found = search(held)
    assert len(looks) == 3
    assert len(found.stale) == 6
    assert found.stale[-1].endswith(" more")


# -- calls that are going on -------------------------------------------------------------------------


class Thing:
    pass


@pytest.mark.parametrize(
    "body",
    [
        "from held_by_test import scale as mine; return search()",
        "mine = scale; locals(); return search()",
    ],
    ids=["a local variable", "a variable that locals() has returned"],
)
def test_a_variable_of_a_running_call_is_named(held: Any, body: str) -> None:
    add(held, f"def main(search): {body}")
    found = held.main(lambda: search(held).stale)
    assert "a local variable mine of held_by_test:main, which is running" in found


def test_a_variable_that_a_running_call_shares_is_a_holder(held: Any) -> None:
    add(held, "def main(search): mine = scale; found = search(); (lambda: mine); return found")
    assert held.main(lambda: search(held).stale)[0] == "a variable of a call"


def test_what_a_running_call_lets_go_of_later_is_released(held: Any) -> None:
    add(
        held,
        """
def main(search, thing):
    from held_by_test import scale as mine
    found = search()
    gone = __import__("weakref").ref(thing.pop())
    return found, gone()
""",
    )
    thing = [Thing()]
    found, left = held.main(lambda: search(held).stale, thing)
    assert len(found) == 1
    assert left is None


def test_another_thread_is_looked_at_too(held: Any) -> None:
    add(held, "def main(started, go):\n    mine = scale\n    started.set()\n    go.wait(30)")
    started, go = threading.Event(), threading.Event()
    thread = threading.Thread(target=held.main, args=(started, go))
    thread.start()
    try:
        started.wait(30)
        found = search(held).stale
    finally:
        go.set()
        thread.join()
    assert found == ["a local variable mine of held_by_test:main, which is running"]


@pytest.mark.parametrize(
    ("main", "count"),
    [
        ("def main():\n    mine = scale\n    yield mine", 1),
        ("def main():\n    mine = scale\n    yield (lambda: mine)()\n    yield mine", 1),
        ("def main():\n    mine = scale\n    return (mine(n) for n in [1, 2])", 1),
        ("async def main():\n    mine = scale\n    await A()", 1),
        ("async def main():\n    mine = scale\n    yield mine", 1),
        ("def main():\n    yield scale", 0),
        ("def scale():\n    yield 1\nmain = scale", 0),
    ],
    ids=["generator", "closure", "expression", "coroutine", "async generator", "global", "of the original"],
)
def test_a_variable_of_a_suspended_call_is_a_holder(held: Any, main: str, count: int) -> None:
    add(held, f"class A:\n    def __await__(self): yield\n{main}\nx = main(); del main")
    if hasattr(held.x, "asend"):
        with pytest.raises(StopIteration):
            held.x.asend(None).send(None)
    else:
        held.x.send(None)
    found = search(held).stale
    assert len(found) == count, found
    del held.x


def test_a_call_that_has_ended_is_not_named(held: Any) -> None:
    add(
        held,
        """
def main():
    mine = scale
    locals()
    inner = lambda: mine
    raise ValueError
def cell():
    mine = scale
    locals()
    raise ValueError
kept = []
for f in (main, cell):
    try:
        f()
    except ValueError as error:
        kept.append(error)
del f
kept[1].__traceback__.tb_next.tb_frame.f_locals
""",
    )
    assert [what for what in search(held).stale if "closure" not in what] == []


def test_the_usual_search_does_not_look_at_calls(held: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    monkeypatch.setattr("overlay.aliases.search._local_variables", lambda ids: looked)
    add(held, "class H:\n    f = scale\ndef use(f=scale): ...")
    monkeypatch.setattr(
        "overlay.aliases.search.sys", types.SimpleNamespace(**{**vars(sys), "version_info": (3, 10)})
    )
    assert search(held).stale == []


# -- a frozen heap -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("whole_heap")
def test_a_frozen_heap_is_searched_as_well_and_stays_frozen(held: Any) -> None:
    """After `gc.freeze()`, which servers call, the collector no longer tells who holds what."""
    add(held, "class H:\n    f = scale\ndef use(a=scale): ...\nx = [[[[[scale]]]]]")
    gc.freeze()
    frozen = gc.get_freeze_count()
    try:
        found = search(held)
        assert sorted(found.rebound) == ["a default of held_by_test:use", "held_by_test:H.f"]
        assert found.stale == ["a list"]
        assert gc.get_freeze_count() >= frozen
        assert gc.isenabled()
    finally:
        gc.unfreeze()


# -- the other direction -----------------------------------------------------------------------------


def test_who_took_the_replacement_is_given_the_original_back(held: Any) -> None:
    patch: dict[str, Any] = {"__name__": "overlay.patches.of_test"}
    source = """
def make(original):
    def helper(value):
        return original(value), scale
    def scale(value, factor=2):
        return helper(value), scale
    scale.__overlay_original__ = original
    return scale
"""
    exec(source, patch)  # noqa: S102
    add(held, "def use(f=scale): ...\nclass H:\n    fn = staticmethod(scale)")
    pairs: list[tuple[object, object]] = [(vars(held).pop("scale"), patch["make"](held.use.__defaults__[0]))]
    assert rebind(pairs)[0].stale == []
    vars(held)["late"] = held.use.__defaults__[0]
    add(held, "class Late:\n    f = staticmethod(late)\nx = [late]")
    turn(pairs)
    (back,) = rebind(pairs)
    assert sorted(back.rebound) == [
        "a default of held_by_test:use", "a staticmethod", "a staticmethod", "held_by_test:late",
    ]  # fmt: skip
    assert back.stale == ["a list"]
    made: Any = pairs[0][0]
    assert held.late is held.Late.f is held.H.fn is made.__overlay_original__ is pairs[0][1]
    assert made(3)[0][0] == 6
    assert made(3)[1] is made
    held.x.clear()
    # Once more: what is left of the replacement is not taken for a holder.
    pairs[:] = [(pairs[0][1], new_scale)]
    assert rebind(pairs)[0].stale == []


def test_what_an_interrupted_search_has_rebound_is_taken_back_by_the_next(
    held: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(ids: object) -> None:
        raise KeyboardInterrupt

    add(
        held,
        "def use(f=scale): ...\nx = [scale]\ndef main():\n    mine = scale\n    yield\ny = main(); next(y)",
    )
    pairs = pop(held, "scale")
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("overlay.aliases.search._atexit_callbacks", lambda: interrupted(0))
        rebind(pairs)
    assert held.use.__defaults__ == (new_scale,)
    turn(pairs)
    rebind(pairs)
    assert held.use.__defaults__ == (pairs[0][1],)
