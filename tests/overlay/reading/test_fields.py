"""The condition on a data class that is relied on for some of its fields."""

from __future__ import annotations

import itertools
import textwrap
from typing import TYPE_CHECKING, Any

import pytest
from fake_upstream import MemoryTree

from overlay.deciding.conditions import look
from overlay.patch import Fields

if TYPE_CHECKING:
    from overlay.verdict import SiteFinding

HEAD = "from dataclasses import dataclass\n"
PLAIN = HEAD + "@dataclass\nclass A:\n    one: int = None\n    two: list[int] = None\n"

HOLDS = {
    "plain": PLAIN,
    "documented": PLAIN.replace("class A:\n", 'class A:\n    """With one = 2."""\n'),
    "in another order": HEAD + "@dataclass\nclass A:\n    two: int = None\n    one: int = None\n",
    "other fields": PLAIN + "    three: int = 3\n",
    "fields that are made": PLAIN + "    three: list = field(default_factory=list)\n",
    "other annotations": PLAIN.replace("list[int]", "str | None"),
    "frozen": PLAIN.replace("@dataclass", "@dataclass(frozen=True, slots=True)"),
    "by the module": PLAIN.replace(HEAD, "import dataclasses\n").replace("@data", "@dataclasses.data"),
    "beside other imports": PLAIN.replace("import dataclass", "import dataclass, field"),
    "methods": PLAIN + "    def f(self):\n        return self.one\n",
    "a later step": PLAIN + "    def __post_init__(self):\n        self.three = self.one\n",
    "a property of another name": PLAIN + "    @property\n    def three(self):\n        return self.two\n",
    "a local name in a method": PLAIN + "    def f(self):\n        one = 1\n        return one\n",
    "another class of the name": PLAIN + "class B:\n    class A:\n        pass\n",
}
#: What is wrong with it, and what is said of it.
BROKEN = {
    "not there": ("class B:\n    one: int\n    two: int\n", "does not exist"),
    "a function": ("def A():\n    pass\n", "is not a class that is defined here"),
    "imported": ("from a import A\n", "is not a class that is defined here"),
    "not a data class": (PLAIN.replace("@dataclass\n", ""), "is not decorated with dataclass alone"),
    "decorated twice": (
        PLAIN.replace("@dataclass", "@d\n@dataclass"),
        "is not decorated with dataclass alone",
    ),
    "another decorator": (PLAIN.replace("@dataclass", "@d"), "something else than dataclass (@d)"),
    "another's dataclass": (PLAIN.replace("from dataclasses", "from a"), "something else than dataclass"),
    "an alias": (PLAIN.replace("import dataclass\n", "import dataclass as dataclass\n"), "something else"),
    "a renamed one": (PLAIN.replace("import dataclass\n", "import field as dataclass\n"), "something else"),
    "a relative one": (PLAIN.replace("from dataclasses", "from .dataclasses"), "something else"),
    "dataclass bound again": (PLAIN.replace(HEAD, HEAD + "dataclass = d\n"), "something else"),
    "dataclass under if": (PLAIN.replace(HEAD, f"if a:\n    {HEAD}"), "something else"),
    "an attribute of another": (PLAIN.replace("@dataclass", "@a.dataclass"), "something else"),
    "the module's is set": (
        PLAIN.replace(HEAD, "import dataclasses\ndataclasses.dataclass = d\n").replace("@", "@dataclasses."),
        "something else",
    ),
    "no constructor": (PLAIN.replace("@dataclass", "@dataclass(init=False)"), "may change its constructor"),
    "settings unknown": (PLAIN.replace("@dataclass", "@dataclass(**a)"), "may change its constructor"),
    "a setting computed": (PLAIN.replace("@dataclass", "@dataclass(slots=a)"), "may change its constructor"),
    "a base": (PLAIN.replace("class A:", "class A(B):"), "has bases or a metaclass"),
    "a metaclass": (PLAIN.replace("class A:", "class A(metaclass=M):"), "has bases or a metaclass"),
    "twice": (PLAIN + PLAIN, "is bound more than once"),
    "bound again": (PLAIN + "A = d(A)\n", "is bound more than once"),
    "a star import below": (PLAIN + "from a import *\n", "is bound more than once"),
    "set from outside": (PLAIN + "A.one = property(f)\n", "is bound more than once"),
    "set by name from outside": (PLAIN + "setattr(A, 'one', p)\n", "is bound more than once"),
    "a method from outside": (PLAIN + "A.__init__ = f\n", "is bound more than once"),
    "under if": (HEAD + "if a:\n" + textwrap.indent(PLAIN[len(HEAD) :], "    "), "under a condition"),
    "in a try": (
        HEAD + "try:\n" + textwrap.indent(PLAIN[len(HEAD) :], "    ") + "except E:\n    pass\n",
        "under a condition",
    ),
    "one is gone": (PLAIN.replace("    one: int = None\n", ""), "has no field one"),
    "one is renamed": (PLAIN.replace("one:", "uno:"), "has no field one"),
    "one is no field": (PLAIN.replace("one: int = None", "one = None"), "has no field one"),
    "one is a method": (PLAIN.replace("one: int = None", "def one(self): pass"), "has no field one"),
    "one is of the class": (PLAIN.replace("one: int", "one: ClassVar[int]"), "has no field one"),
    "one is of a module's": (PLAIN.replace("one: int", "one: typing.ClassVar[int]"), "has no field one"),
    "one is for a moment": (PLAIN.replace("one: int", "one: InitVar[int]"), "has no field one"),
    "one is of the class, renamed": (
        "from typing import ClassVar as C\n" + PLAIN.replace("one: int", "one: C[int]"),
        "has no field one",
    ),
    "one is of the class, assigned": (
        "C = typing.ClassVar\n" + PLAIN.replace("one: int", "one: C[int]"),
        "has no field one",
    ),
    "one is quoted": (PLAIN.replace("one: int", "one: 'C[int]'"), "has a quoted annotation of one"),
    "one is made": (
        PLAIN.replace("one: int = None", "one: int = field(default=None)"),
        "has a default of one that is no constant",
    ),
    "one is another's": (PLAIN.replace("one: int = None", "one: int = a"), "that is no constant"),
    "one is under if": (
        PLAIN.replace("    one: int = None\n", "    if a:\n        one: int = None\n"),
        "binds one more than once, or under a condition",
    ),
    "one again": (PLAIN + "    one: int = 1\n", "binds one more than once, or under a condition"),
    "one is deleted": (PLAIN + "    del one\n", "binds one more than once, or under a condition"),
    "one is a property too": (
        PLAIN + "    @property\n    def one(self):\n        return 1\n",
        "binds one more than once, or under a condition",
    ),
    "a constructor": (PLAIN + "    def __init__(self):\n        pass\n", "has a __init__ of its own"),
    "an assigned constructor": (PLAIN + "    __init__ = f\n", "has a __init__ of its own"),
    "an imported constructor": (PLAIN + "    from a import f as __init__\n", "has a __init__ of its own"),
    "another instance": (PLAIN + "    def __new__(cls):\n        return 1\n", "has a __new__ of its own"),
    "all attributes": (
        PLAIN + "    def __getattribute__(self, name):\n        return 1\n",
        "has a __getattribute__ of its own",
    ),
    "set later": (PLAIN + "    def __post_init__(self):\n        self.one = 1\n", "sets one anew"),
    "set in a method": (PLAIN + "    def f(self):\n        self.two += 1\n", "sets two anew"),
    "set in a loop": (PLAIN + "    def f(self):\n        for self.two in a: pass\n", "sets two anew"),
    "deleted later": (PLAIN + "    def __post_init__(self):\n        del self.one\n", "sets one anew"),
    "set by name": (
        PLAIN + "    def __post_init__(self):\n        setattr(self, a, 1)\n",
        "may set a field anew (setattr)",
    ),
    "set in the dictionary": (
        PLAIN + "    def __post_init__(self):\n        self.__dict__.update(one=1)\n",
        "may set a field anew (__dict__)",
    ),
    "set by object": (
        PLAIN + "    def __post_init__(self):\n        object.__setattr__(self, 'one', 1)\n",
        "may set a field anew (__setattr__)",
    ),
}
OTHER_DEFAULTS = {
    "another": ("one: int = 0", "has another default of one (0)"),
    "none at all": ("one: int", "has another default of one (none)"),
    "a text": ("one: str = 'None'", "has another default of one ('None')"),
}


def asked(source: str, *, default: str = "") -> SiteFinding:
    condition = Fields(site="m:A", names=("one", "two"), default=default)
    return look(condition, MemoryTree({"m.py": source}))


@pytest.mark.parametrize("name", HOLDS)
def test_fields_are_recognised(name: str) -> None:
    for default in ("", "None"):
        found = asked(HOLDS[name], default=default)
        assert found.holds, found.found
        assert (found.expects, found.found) == ("fields", "")
        assert len(found.digest) == 12
    assert found.asks == "what it was made with under one, two, each None by default"


@pytest.mark.parametrize("name", BROKEN)
def test_whatever_is_odd_does_not_hold(name: str) -> None:
    source, why = BROKEN[name]
    for default in ("", "None"):
        found = asked(source, default=default)
        assert not found.holds
        assert why in found.found


@pytest.mark.parametrize("name", OTHER_DEFAULTS)
def test_a_default_is_asked_for_only_where_it_matters(name: str) -> None:
    line, why = OTHER_DEFAULTS[name]
    source = PLAIN.replace("one: int = None", line)
    assert asked(source).holds
    found = asked(source, default="None")
    assert not found.holds
    assert why in found.found


def test_a_class_inside_a_class_may_be_asked() -> None:
    source = HEAD + "class B:\n" + textwrap.indent(PLAIN[len(HEAD) :], "    ")
    condition = Fields(site="m:B.A", names=("one",))
    assert look(condition, MemoryTree({"m.py": source})).holds
    decorated = source.replace("class B:", "@d\nclass B:")
    assert not look(condition, MemoryTree({"m.py": decorated})).holds


def test_a_module_that_cannot_be_read_does_not_hold() -> None:
    assert asked("class A(:\n").found.startswith("cannot be checked")


#: Lines of a class of which some keep an instance from having what it was given: all lists of up to three.
LINES = (
    "one: int = None",
    "two: int = None",
    "one = None",
    "one: ClassVar[int] = None",
    "one: int = field(default=None, init=False)",
    "def __post_init__(self):\n    self.one = 3",
    "def __post_init__(self):\n    self.three = self.one",
    "def __init__(self, one=None, two=None):\n    self.two = two",
    "@property\ndef one(self):\n    return 4",
    "def __getattribute__(self, name):\n    return 5",
    "del one",
    "three: int = 6",
)


def test_what_holds_is_what_happens() -> None:
    """Each class is made, and instances of it: where the condition holds they have what they were given."""
    held = 0
    for body in itertools.chain.from_iterable(itertools.product(LINES, repeat=n) for n in (2, 3)):
        head = "from dataclasses import dataclass\n@dataclass\nclass A:\n"
        source = head + textwrap.indent("\n".join(body), "    ")
        if not asked(source, default="None").holds:
            continue
        held += 1
        names: dict[str, Any] = {}
        exec(compile(source, "m", "exec"), names)  # noqa: S102 -- written above
        made, empty = names["A"](one=1, two=2), names["A"]()
        assert (made.one, made.two, empty.one, empty.two) == (1, 2, None, None), source
    assert held > 10
