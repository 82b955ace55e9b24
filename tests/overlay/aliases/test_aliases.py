"""References to the original that were taken before the patch."""

from __future__ import annotations

import atexit
import gc
import pickle
import sys
import threading
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from fake_upstream import triple

from overlay.aliases.frames import atexit_callbacks
from overlay.aliases.search import rebind
from overlay.errors import PatchError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fake_upstream import Engines, Upstream

    from overlay.aliases.rebinding import Rebinding


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
    assert vars(user.Holder)["attribute"] is core.scale
    assert user.default(1) == (200, 200)
    assert user.bound(1) == 500
    assert list(user.mapped([1])) == [200]
    assert set(status.sites[0].rebound) == {
        "fakeup.user:scale", "fakeup.user:other", "fakeup.user:Holder.attribute", "a functools.partial",
        "fakeup.user:Holder.copied",
        "an argument of a functools.partial",
        "a default of fakeup.user:default", "the default of keyword in fakeup.user:default",
    }  # fmt: skip
    engine.disable()
    assert user.scale is user.other is core.scale is vars(user.Holder)["attribute"]
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
    fault = "fakeup.core:scale is still held by an item of a list"
    assert status.state == "incomplete"
    assert fault in status.reason
    said = capsys.readouterr().err
    assert f"overlay: incomplete fakeup.scale (revision 3) on fakeup 1.2.0: {fault}" in said
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


class Found(list["Rebinding"]):
    """What came of a search, and the originals with their replacements."""

    pairs: list[tuple[object, object]]


def search(held: Any, *names: str) -> Found:
    """Look for functions of the module, but not under their own name there."""
    new = {"scale": new_scale, "other": new_other}
    pairs: list[tuple[object, object]] = [(vars(held).pop(name), new[name]) for name in names]
    found = Found(rebind(pairs, []))
    found.pairs = pairs
    return found


def search_scale(held: Any) -> Rebinding:
    return search(held, "scale")[0]


def undo(found: Found) -> None:
    """Take it back, as `overlay.installing.sites` does."""
    swapped = [(one.after, one.before) for rebinding in found for one in rebinding.swapped]
    back = [(after, before) for before, after in found.pairs]
    rebind([*back, *swapped], [vars(found), found.pairs, *found.pairs, back, *back, swapped, *swapped])


@pytest.mark.parametrize("wrapper", ["staticmethod", "classmethod", "property"])
def test_what_a_class_keeps_a_function_in_is_replaced(held: Any, wrapper: str) -> None:
    add(held, f"class H:\n    class Inner:\n        fn = {wrapper}(scale)\n    fn = Inner.__dict__['fn']")
    before = vars(held.H)["fn"]
    found = search(held, "scale")
    assert found[0].stale == []
    assert sorted(found[0].rebound) == ["held_by_test:H.Inner.fn", "held_by_test:H.fn"]
    after = vars(held.H)["fn"]
    assert type(after) is type(before)
    assert (after.fget if wrapper == "property" else after.__func__) is new_scale
    undo(found)
    assert vars(held.H)["fn"] is vars(held.H.Inner)["fn"] is before


def test_a_property_of_two_functions_is_replaced_in_one_step(held: Any) -> None:
    add(held, "class H:\n    fn = property(scale, other)")
    before = vars(held.H)["fn"]
    found = search(held, "scale", "other")
    assert vars(held.H)["fn"].fget is new_scale
    assert vars(held.H)["fn"].fset is new_other
    undo(found)
    assert vars(held.H)["fn"] is before


def test_a_raw_attribute_that_is_a_site_is_passed_over(held: Any) -> None:
    add(held, "class H:\n    fn = staticmethod(scale)")
    pairs = [(vars(held).pop("scale"), new_scale), (vars(held.H)["fn"], staticmethod(new_scale))]
    held.H.fn = pairs[1][1]
    found = rebind(list(pairs), [])
    assert [item.stale for item in found] == [[], []]
    assert vars(held.H)["fn"] is pairs[1][1]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("class S:\n    __slots__ = ('f',)\nx = S(); x.f = scale", "attribute f of a S"),
        ("import collections\nx = collections.deque([scale])", "a deque"),
        ("x = frozenset([scale])", "an item of a frozenset"),
        ("x = {scale: 1}", "a key of a dict"),
        ("x = map(scale, [1])", "a map"),
        ("x = filter(scale, [1])", "a filter"),
        ("import weakref\nx = weakref.WeakKeyDictionary(); x[scale] = 1", "a weak reference in a dict"),
        ("import weakref\nx = weakref.WeakSet([scale])", "a weak reference in a dict or a set"),
        ("import contextvars\nx = contextvars.ContextVar('x'); x.set(scale)", "a hamt_bitmap_node"),
        ("x = staticmethod(scale)", "a staticmethod"),
        ("import functools\nclass H:\n    x = functools.cached_property(scale)", "a cached_property"),
        ("import functools\nclass H:\n    x = functools.partialmethod(scale)", "a partialmethod"),
        ("class W(staticmethod):\n    pass\nclass H:\n    x = W(scale)", "of a W"),
        ("x = lambda: 1\nx.f = scale", "attribute f of the function held_by_test:<lambda>"),
        ("import types\nx = types.SimpleNamespace(f=scale)", "attribute f of a SimpleNamespace"),
        ("class T(tuple):\n    pass\nx = T([scale])", "an item of a T"),
        ("x = (scale, 1)", "an item of a tuple"),
        ("x = (lambda f: lambda: f)(scale)", "the closure of held_by_test:<lambda>.<locals>.<lambda>"),
        ("x = scale.__get__(object())", "a bound method of object"),
        ("class Thing: pass\nx = Thing(); x.loss = scale", "attribute loss of a Thing"),
        ("x = {'k': scale}", "the entry 'k' of a dict"),
        ("x = {(1, 2): scale}", "the entry 'a tuple' of a dict"),
        ("class F(dict):\n    def items(self):\n        raise RuntimeError\nx = F(f=scale)", "'f' of a dict"),
    ],
)
def test_whoever_keeps_an_original_is_named(held: Any, source: str, words: str) -> None:
    add(held, source)
    assert words in "; ".join(search_scale(held).stale)


def test_a_callback_of_atexit_is_named(held: Any) -> None:
    atexit.register(held.scale, 1)
    try:
        assert search_scale(held).stale == ["atexit"]
        assert atexit._ncallbacks() > 0
    finally:
        for callback in atexit_callbacks():
            if getattr(callback, "__module__", "") == held.__name__:
                atexit.unregister(callback)  # type: ignore[arg-type]


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
class Frozen(metaclass=Meta):
    f = scale
class Deaf(type):
    def __setattr__(cls, name, value):
        pass
class Unmoved(metaclass=Deaf):
    f = scale
def after(value=scale): ...
""",
    )
    found = search_scale(held)
    assert sorted(found.stale) == [
        "attribute f of a Proxy",
        "held_by_test:Frozen.f, which cannot be set (AttributeError)",
        "held_by_test:Unmoved.f, which cannot be set (TypeError)",
    ]
    assert held.after.__defaults__ == (new_scale,)


def test_what_a_function_has_from_a_module_that_is_gone_is_rebound(held: Any) -> None:
    names = {"__name__": "gone", "scale": held.scale}
    exec("def use(): return scale", names)  # noqa: S102
    held.use = names.pop("use")
    del names
    assert search_scale(held).rebound == ["gone:scale"]
    assert held.use() is new_scale


def test_one_holder_of_two_functions_is_changed_and_put_back_in_one_step(held: Any) -> None:
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
    found = search(held, "scale", "other")
    assert [item.stale for item in found] == [[], []]
    assert held.use.__defaults__ == (new_scale, new_other)
    assert held.use.__kwdefaults__ == {"c": new_other}
    assert (held.p.func, held.p.args, held.p.keywords) == (new_scale, (new_other,), {"key": new_scale})
    assert (held.q.func, held.q.args) == (new_other, (new_scale,))
    undo(found)
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
    found = search(held, "scale")
    assert held.taken is new_scale
    held.taken = len
    held.use.__defaults__ = (len, 7)
    held.p.__setstate__((len, (), {}, None))
    held.H.fn = held.H.f = len
    undo(found)
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
    found = search_scale(held)
    assert len(looks) == 3
    assert max(looks) <= 101
    assert len(found.stale) == 6
    assert found.stale[-1].endswith(" more")


# -- calls that are going on -------------------------------------------------------------------------


class Thing:
    pass


@pytest.mark.parametrize(
    "body",
    [
        "from held_by_test import scale as mine; return search()",
        "mine = scale; found = search(); (lambda: mine); return found",
        "mine = scale; locals(); return search()",
    ],
    ids=["a local variable", "a variable in a cell", "a variable that locals() has returned"],
)
def test_a_variable_of_a_running_call_is_named(held: Any, body: str) -> None:
    add(held, f"def main(search): {body}")
    found = held.main(lambda: search_scale(held).stale)
    assert "a local variable mine of held_by_test:main, which is running" in found


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
    found, left = held.main(lambda: search_scale(held).stale, thing)
    assert len(found) == 1
    assert left is None


def test_another_thread_is_looked_at_too(held: Any) -> None:
    add(held, "def main(started, go):\n    mine = scale\n    started.set()\n    go.wait(30)")
    started, go = threading.Event(), threading.Event()
    thread = threading.Thread(target=held.main, args=(started, go))
    thread.start()
    try:
        started.wait(30)
        found = search_scale(held).stale
    finally:
        go.set()
        thread.join()
    assert found == ["a local variable mine of held_by_test:main, which is running"]


@pytest.mark.parametrize(
    "main",
    [
        "def main():\n    mine = scale\n    yield mine",
        "def main():\n    mine = scale\n    yield (lambda: mine)()\n    yield mine",
        "def main():\n    mine = scale\n    return (mine(n) for n in [1, 2])",
        "async def main():\n    mine = scale\n    await A()",
    ],
    ids=["generator", "generator with a closure", "generator of a function's variable", "coroutine"],
)
def test_a_variable_of_a_suspended_call_is_named(held: Any, main: str) -> None:
    add(held, f"class A:\n    def __await__(self): yield\n{main}\nx = main(); x.send(None)")
    assert "a local variable mine of held_by_test:" in "; ".join(search_scale(held).stale)
    held.x.close()


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
    stale = search_scale(held).stale
    assert [what for what in stale if "closure" not in what] == []


def test_the_usual_search_does_not_look_at_calls(held: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []

    def running() -> list[object]:
        looked.append(1)
        return []

    monkeypatch.setattr("overlay.aliases.search.running", running)
    add(held, "class H:\n    f = scale\ndef use(f=scale): ...")
    assert search_scale(held).stale == []
    assert bool(looked) is (sys.version_info >= (3, 13))


# -- a frozen heap -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("whole_heap")
def test_a_frozen_heap_is_searched_as_well_and_stays_frozen(held: Any) -> None:
    """After `gc.freeze()`, which servers call, the collector no longer tells who holds what."""
    add(held, "class H:\n    f = staticmethod(scale)\ndef use(a=scale): ...\nx = [[[[[scale]]]]]")
    gc.freeze()
    frozen = gc.get_freeze_count()
    try:
        found = search_scale(held)
        assert sorted(found.rebound) == ["a default of held_by_test:use", "held_by_test:H.f"]
        assert found.stale == ["an item of a list"]
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
    first = rebind(pairs, [])
    assert [item.stale for item in first] == [[]]
    vars(held)["late"] = held.use.__defaults__[0]
    add(held, "class Late:\n    f = staticmethod(late)\nx = [late]")
    back = rebind([(after, before) for before, after in pairs], [*pairs, first])
    assert sorted(back[0].rebound) == [
        "a default of held_by_test:use", "held_by_test:H.fn", "held_by_test:Late.f", "held_by_test:late",
    ]  # fmt: skip
    assert back[0].stale == ["an item of a list"]
    made: Any = pairs[0][1]
    assert held.late is held.Late.f is made.__overlay_original__ is pairs[0][0]
    assert made(3)[0][0] == 6
    assert made(3)[1] is made
    held.x.clear()
    # Once more: what is left of the replacement and of the first search is not taken for a holder.
    again = rebind([(pairs[0][0], new_scale)], [*pairs, pairs])
    assert again[0].stale == []


def test_what_is_kept_to_be_put_back_is_no_holder_for_the_next_search(held: Any) -> None:
    add(
        held,
        """
import functools
def use(a=scale, b=other): ...
p = functools.partial(scale, other)
class H:
    fn = property(scale, other)
""",
    )
    first = search(held, "scale")
    second = search(held, "other")
    assert second[0].stale == []
    assert held.use.__defaults__ == (new_scale, new_other)
    undo(second)
    undo(first)
    assert [f.__module__ for f in held.use.__defaults__] == ["held_by_test"] * 2
    assert held.p.func is held.use.__defaults__[0] is held.H.fn.fget


def test_what_an_interrupted_search_has_rebound_is_taken_back_by_the_next(held: Any) -> None:
    add(
        held,
        """
def use(f=scale): ...
class Meta(type):
    def __setattr__(cls, name, value):
        raise KeyboardInterrupt
class H(metaclass=Meta):
    f = scale
""",
    )
    pairs: list[tuple[object, object]] = [(vars(held).pop("scale"), new_scale)]
    with pytest.raises(KeyboardInterrupt):
        rebind(pairs, [])
    rebind([(new_scale, pairs[0][0])], [pairs, *pairs])
    assert held.use.__defaults__ == (pairs[0][0],)
