"""A fake upstream on which words of steps are tried, and what must hold after each step.

A step is a letter: import, enable, disable, reload, an import by alias, or the removal from `sys.modules`.
Each word is tried in a forked child of its own, on modules that nothing has imported yet. What a module bound
is noted by identity while it is being executed, before overlay can have changed it: after `disable()` it must
be just that. (By identity alone: a list of the objects would be one more holder of the originals.)
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Shared with another folder of tests, which pytest need not have put on the path.
from fake_upstream import Upstream, tables, triple
from forked import in_a_child

from overlay.patch import Patch, replaced
from overlay.runtime.engine import Engine
from overlay.runtime.search import OWNER
from overlay.runtime.sites import current, function_of

MODULE = "fakeup.core"
CORE = '''
    """Core."""

    def scale(value, factor=2):
        return value * factor

    class Base:
        def inherited(self):
            return 1

    class Engine(Base):
        def run(self, value):
            return value + 1

        @staticmethod
        def fixed(value):
            return value + 1

        @classmethod
        def named(cls, value):
            return value + 1

    class Child(Engine):
        pass

    alias = scale
    '''
#: What is executed by an import by alias. The consumer keeps what the core had at that time.
CONSUMER = """
from fakeup.core import Child, Engine, scale as mine
import functools
import fakeup.core as core

class Holder:
    kept = staticmethod(mine)

def default(value, call=mine):
    return call(value)

partial = functools.partial(mine, 1)
"""


def make_run(original: Any, module: Any) -> Any:
    def run(self: Any, value: Any) -> Any:
        return original(self, value) + 100

    return run


def make_fixed(original: Any, module: Any) -> Any:
    def fixed(value: Any) -> Any:
        return original(value) + 100

    return fixed


def make_named(original: Any, module: Any) -> Any:
    def named(cls: Any, value: Any) -> Any:
        return original(cls, value) + 100

    return named


def make_added(original: None, module: Any) -> Any:
    def added() -> int:
        return 100

    return added


FUNCTIONS = {
    f"{MODULE}:scale": triple,
    f"{MODULE}:Engine.run": make_run,
    f"{MODULE}:Engine.fixed": make_fixed,
    f"{MODULE}:Engine.named": make_named,
}


def write_upstream(root: Path) -> Patch:
    """Write the fake upstream, and return a patch of all kinds of its functions, and one that it has not."""
    upstream = Upstream(root)
    upstream.write()
    upstream.write(core=CORE)
    return upstream.patch(dict(FUNCTIONS), replaced(f"{MODULE}:added", make_added, new=True))


class Subject:
    """What is patched in the fake upstream, and how one sees whether it is."""

    module = MODULE
    #: The sites of the module, and one that the patch adds.
    sites: tuple[str, ...] = (*FUNCTIONS, f"{MODULE}:added")
    added = "added"
    #: Names of the module that hold what stands at a site as well.
    aliases: tuple[str, ...] = ("alias",)
    consumer = CONSUMER

    def __init__(self, patches: dict[str, Patch]) -> None:
        self.patches = patches
        self.table = tables()

    def holders(self, core: Any) -> list[Any]:
        """Return whatever of a module has a dictionary that could be touched."""
        return [core, core.Base, core.Engine, core.Child]

    def held(self, consumer: Any) -> list[tuple[str, object]]:
        """Return the references of a consumer to functions of the module."""
        return [
            ("a name", consumer.mine),
            ("a static method", consumer.Holder.kept),
            ("a default", consumer.default.__defaults__[0]),
            ("a partial", consumer.partial.func),
        ]

    def unpatched(self, core: Any) -> Iterator[str]:
        """Yield each way into a module by which an original is reached."""
        child = core.Child()
        calls: dict[str, Callable[[], int]] = {
            "scale": lambda: core.scale(1),
            "alias": lambda: core.alias(1),
            "run": lambda: child.run(99),
            "fixed": lambda: child.fixed(99),
            "named": lambda: child.named(99),
            "added": lambda: core.added() + 100 if hasattr(core, "added") else 0,
        }
        for name, call in calls.items():
            if call() != 200:
                yield f"{name} gives {call()}"

    def unpatched_consumer(self, consumer: Any) -> Iterator[str]:
        """Yield each way by which a consumer reaches an original."""
        calls: list[tuple[str, Any]] = self.held(consumer)
        for what, value in calls:
            if value(1) != 200:
                yield f"{consumer.__name__}: {what} gives {value(1)}"
        if consumer.Child().run(99) != 200:
            yield f"{consumer.__name__}: a class gives {consumer.Child().run(99)}"


SET_BY_IMPORTLIB = ("__cached__", "__file__", "__loader__", "__package__", "__spec__")


class World:
    """One process: an engine, the lives of the module so far, and those who took something from it."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.engine = Engine(lambda: subject.patches, table=subject.table)
        self.cores: list[types.ModuleType] = []
        #: Of each dictionary that matters, by its id: what the last execution put there, by identity.
        self.bound: dict[int, dict[str, int]] = {}
        #: The identities of all originals so far.
        self.originals: set[int] = set()
        self.consumers: list[types.ModuleType] = []
        self._watch()

    def _watch(self) -> None:
        """Note what an execution of the module has bound, before anybody else is told of it."""
        execute = importlib.machinery.SourceFileLoader.exec_module
        world = self

        def exec_module(self: Any, module: types.ModuleType) -> None:
            execute(self, module)
            if module.__name__ == world.subject.module:
                world.note(module)

        importlib.machinery.SourceFileLoader.exec_module = exec_module  # type: ignore[method-assign]

    def note(self, core: types.ModuleType) -> None:
        """Note the identity of all that a module has bound."""
        for holder in self.subject.holders(core):
            # A reload does not clear the module: what overlay added is still there, and not the module's.
            own = {key: value for key, value in vars(holder).items() if key != self.subject.added}
            self.bound[id(holder)] = {key: id(value) for key, value in own.items()}
        self.originals |= {id(current(core, site)[1]) for site in self.subject.sites}

    # -- steps: each returns whether it means anything in this place ----------------------------------

    def step_i(self) -> bool:
        """Import the module."""
        core = importlib.import_module(self.subject.module)
        if not any(core is known for known in self.cores):
            self.cores.append(core)
        return True

    def step_e(self) -> bool:
        """Enable overlay, also if it is enabled."""
        self.engine.enable()
        return True

    def step_d(self) -> bool:
        """Disable overlay, also if it is not enabled."""
        self.engine.disable()
        return True

    def step_r(self) -> bool:
        """Reload the module, if it has been imported."""
        core = sys.modules.get(self.subject.module)
        if core is None:
            return False
        try:
            importlib.reload(core)
        except BaseException:
            # These importlib sets before it gets to any loader, and leaves so.
            own = {name: id(vars(core)[name]) for name in SET_BY_IMPORTLIB if name in vars(core)}
            self.bound[id(core)].update(own)
            raise
        return True

    def step_a(self) -> bool:
        """Import names from the module into one that keeps them."""
        consumer = types.ModuleType(f"consumer{len(self.consumers)}")
        sys.modules[consumer.__name__] = consumer
        exec(self.subject.consumer, vars(consumer))  # noqa: S102
        self.consumers.append(consumer)
        return self.step_i()

    def step_x(self) -> bool:
        """Take the module out of `sys.modules`, if it has been imported."""
        return sys.modules.pop(self.subject.module, None) is not None

    # -- what must hold --------------------------------------------------------------------------------

    def faults(self) -> list[str]:
        """Return what is wrong, as sentences."""
        return list(self._patched() if self.engine.status().enabled else self._restored())

    def reported(self) -> bool:
        """Return whether the ledger says of a patch that it is not in force, or not completely."""
        return any(patch.state != "applied" for patch in self.engine.status().patches)

    def is_ours(self, core: Any, site: str) -> bool:
        """Return whether a replacement stands at a site."""
        return getattr(function_of(current(core, site)[1]), OWNER, None) is not None

    def _patched(self) -> Iterator[str]:
        core = sys.modules.get(self.subject.module)
        if core is not None:
            for site in self.subject.sites:
                if not self.is_ours(core, site):
                    yield f"{site} does not say whose it is"
            yield from self.subject.unpatched(core)
            for holder in self.subject.holders(core):
                yield from self._others(holder)
        for consumer in self.consumers:
            yield from self.subject.unpatched_consumer(consumer)

    def _others(self, holder: Any) -> Iterator[str]:
        """Yield what was changed beside the sites, and what is set where it was inherited."""
        before, now = self.bound[id(holder)], {key: id(value) for key, value in vars(holder).items()}
        sites = {site.rpartition(":")[2].rpartition(".")[2] for site in self.subject.sites}
        for key in sorted(before.keys() | now.keys()):
            if key not in (*sites, *self.subject.aliases) and before.get(key) != now.get(key):
                yield f"{holder.__name__}.{key} was changed"
            if key in sites and key not in before and key != self.subject.added:
                yield f"{holder.__name__}.{key} was set"

    def _restored(self) -> Iterator[str]:
        for core in self.cores:
            for holder in self.subject.holders(core):
                before = self.bound[id(holder)]
                now = {key: id(value) for key, value in vars(holder).items()}
                for key in sorted(before.keys() | now.keys()):
                    if before.get(key) != now.get(key):
                        yield f"{holder.__name__}.{key} is not what it was"
        for consumer in self.consumers:
            for what, value in self.subject.held(consumer):
                if id(value) not in self.originals:
                    yield f"{consumer.__name__}: {what} is not the original"


# -- words -------------------------------------------------------------------------------------------


def try_word(word: str, subject: Subject) -> dict[str, Any]:
    """Take the steps of a word in this process, and return what came of it."""
    world = World(subject)
    result: dict[str, Any] = {"wrong": [], "reported": [], "idle": False}
    for place, letter in enumerate(word):
        if not getattr(world, f"step_{letter.lower()}")():
            result["idle"] = True
            return result
        faults = world.faults()
        if faults:
            key = "reported" if world.reported() else "wrong"
            result[key] += [f"after {word[: place + 1]}: {fault}" for fault in faults]
    # Whatever came before: in the end everything is as it was.
    world.engine.disable()
    result["wrong"] += [f"after {word} and disable: {fault}" for fault in world.faults()]
    return result


def what_came(word: str, subject: Subject) -> tuple[str, list[str]]:
    """Try a word in a forked child, and return what it came to, with sentences.

    `right`; `reported`: an original was reached, and the ledger said so; `idle`: a step had nothing to be
    done to; or `wrong`.
    """
    result = in_a_child(lambda: try_word(word, subject))
    for kind in ("wrong", "reported"):
        if result.get(kind):
            return kind, result[kind]
    return ("idle" if result.get("idle") else "right"), []
