"""Shapes are recognised on the syntax tree."""

from __future__ import annotations

import textwrap

import pytest
from fake_upstream import MemoryTree

from overlay.errors import SourceError

BASE = '''
def f(x, y=1):
    """Say."""
    # why
    return x + y
'''


def tree_of(source: str) -> MemoryTree:
    return MemoryTree({"m.py": textwrap.dedent(source)})


def of(source: str, name: str = "f") -> str | None:
    return tree_of(source).digest(f"m:{name}")


def presence(source: str, name: str = "f") -> bool | str:
    return tree_of(source).presence(f"m:{name}")


@pytest.mark.parametrize(
    "same",
    [
        "def f(x, y=1):\n    return x + y\n",
        "def f(x,\n      y=1):\n    'Else.'\n    return (x + y)  # other\n",
        "import os\ndef f(x, y=1): return x+y\ndef g(): pass\n",
    ],
)
def test_layout_comments_and_docstrings_do_not_count(same: str) -> None:
    assert of(same) == of(BASE)


@pytest.mark.parametrize("kind", ["def f():", "async def f():", "class f:"])
def test_no_docstring_counts(kind: str) -> None:
    for said in ("Say.", ""):
        assert of(f"{kind}\n    '{said}'\n    pass\n") == of(f"{kind}\n    pass\n")


@pytest.mark.parametrize(
    "other",
    [
        "def f(x, z=1):\n    return x + z\n",
        "def f(x, y=2):\n    return x + y\n",
        "def f(x, y=1):\n    return x - y\n",
        "def f(x, y=1):\n    return y + x\n",
        "async def f(x, y=1):\n    return x + y\n",
        "@g\ndef f(x, y=1):\n    return x + y\n",
        "def f(x, y='1'):\n    return x + y\n",
        "def f(x, y=1):\n    return x + y\nf = g(f)\n",
        "def f(x, y=1):\n    return x + y\nif DEBUG:\n    def f(x, y=1):\n        return 0\n",
        "def f(x, y=1):\n    return x + y\ndel f\n",
        "def f(x, y=1):\n    return x + y\nfor f in ():\n    pass\n",
        "def f(x, y=1):\n    return x + y\nwith a as f:\n    pass\n",
        "def f(x, y=1):\n    return x + y\ntry:\n    from g import f\nexcept ImportError:\n    pass\n",
        'def f(x, y=1):\n    """Say."""\n    "no docstring"\n    return x + y\n',
    ],
)
def test_everything_else_does(other: str) -> None:
    assert of(other) != of(BASE)


def test_methods_and_assignments_from_outside() -> None:
    source = "class A:\n    def f(self):\n        return 1\n    class B:\n        def f(self): return 2\n"
    assert of(source, "A.f") != of(source, "A.B.f")
    assert of(source + "A.f = g\n", "A.f") != of(source, "A.f")
    assert of(source, "A.g") is None
    assert of(source, "f") is None


def test_imported_names_are_shapes_of_their_own() -> None:
    one = of("from a import f, g\n")
    assert one == of("from a import h, f\n")
    assert one != of("from b import f\n")
    assert one != of("from .a import f\n")
    assert one != of("from a import g as f\n")
    assert of("import a.b\n", "a") == of("import a.b, c\n", "a")


def test_the_digest_is_pinned() -> None:
    """The digests in the tables must mean the same on every Python: this is one of them, by hand."""
    assert of(BASE) == "10d3741707b9"


METHOD = "class A(Base):\n    def f(self):\n        return 1\n"


@pytest.mark.parametrize(
    "after",
    [
        "A = deco(A)\n",
        'setattr(A, "f", g)\n',
        'delattr(A, "f")\n',
        "(A.f, A.g) = g, g\n",
        "[A.g, *A.f] = g\n",
        "A.f.__code__ = g.__code__\n",
        "for A.f in gs:\n    pass\n",
        "if (A := g()):\n    pass\n",
        "def once():\n    global A\n    A = None\n",
        "from elsewhere import *\n",
        "del A\n",
    ],
)
def test_what_is_done_to_a_method_from_outside_counts(after: str) -> None:
    assert of(METHOD + after, "A.f") != of(METHOD, "A.f")
    assert of(METHOD + after.replace("A", "B").replace("*", "b"), "A.f") == of(METHOD, "A.f")


@pytest.mark.parametrize(
    "after",
    [
        "print(f := 1)\n",
        "def g(x=(f := 1)): pass\n",
        "try:\n    pass\nexcept E as f:\n    pass\n",
        "match x:\n    case [f, *_]:\n        pass\n",
        "match x:\n    case [_, *f]:\n        pass\n",
        'match x:\n    case {"a": 1, **f}:\n        pass\n',
        "def g():\n    if x:\n        global f\n        f = 1\n",
        "class C:\n    def g(self):\n        global f\n        from h import f\n",
        "f.__code__ = g.__code__\n",
        'setattr(f, "__defaults__", ())\n',
        "from elsewhere import *\n",
        "if x:\n    from .elsewhere import *\n",
        "try:\n    pass\nfinally:\n    f = 1\n",
    ],
)
def test_whatever_may_bind_a_name_again_counts(after: str) -> None:
    assert of(BASE + after) != of(BASE)
    other = after.replace("f :=", "h :=").replace("as f", "as h").replace("[f", "[h").replace("*f", "*h")
    other = (
        other.replace("global f", "global h").replace("import f", "import h").replace("import *", "import h")
    )
    other = other.replace("f.__", "h.__").replace("(f,", "(h,").replace("f = 1", "h = 1")
    assert of(BASE + other) == of(BASE)


def test_what_is_local_to_something_else_does_not_count() -> None:
    for after in (
        "def g():\n    f = 1\n",
        "g = lambda: (f := 1)\n",
        "class C:\n    f = 1\n",
        "def g():\n    global h\n    f = 1\n",
    ):
        assert of(BASE + after) == of(BASE)
    assert of("from elsewhere import *\n" + BASE) == of(BASE)


def test_what_decides_between_several_bindings_counts() -> None:
    one = "if NEW:\n    def f(): return 1\nelse:\n    def f(): return 2\n"
    assert of(one) != of(one.replace("NEW", "not NEW"))
    assert of(one) != of(one.replace("else", "elif OLD"))
    two = "try:\n    from a import f\nexcept ImportError:\n    f = None\n"
    assert of(two) != of(two.replace("ImportError", "OSError"))
    assert of(two) != of(two.replace("except ImportError", "finally"))
    alone = "if NEW:\n    def f(): return 1\n"
    assert of(alone) == of(alone.replace("NEW", "OLD"))


def test_decorators_and_keywords_of_a_class_count_and_its_bases_do_not() -> None:
    assert of(METHOD.replace("Base", "Other"), "A.f") == of(METHOD, "A.f")
    assert of("@deco\n" + METHOD, "A.f") != of(METHOD, "A.f")
    assert of(METHOD.replace("Base", "metaclass=M"), "A.f") != of(METHOD, "A.f")
    around = "@deco\nclass B:\n" + textwrap.indent(METHOD, "    ")
    assert of(around, "B.A.f") not in (of(METHOD, "A.f"), of(around.replace("deco", "other"), "B.A.f"))


@pytest.mark.parametrize(
    ("source", "there", "in_a_class"),
    [
        ("def f(): pass\n", True, True),
        ("f: int = 1\n", True, True),
        ("if x:\n    import f\n", True, True),
        ("def f(): pass\nf.__code__ = c\n", True, True),
        # Where something is done to it, it is neither there for sure nor absent for sure.
        ("del f\n", None, None),
        ("def f(): pass\nif x:\n    del f\n", None, None),
        ("f: int\n", None, None),
        ("try:\n    pass\nexcept E as f:\n    pass\n", None, None),
        ("def g():\n    global f\n    f = 1\n", None, False),
        ("[f for f in g]\n", False, False),
    ],
)
def test_whether_a_name_exists(source: str, there: bool | None, in_a_class: bool | None) -> None:
    inside = "class A:\n" + textwrap.indent(source, "    ")
    for found, expected in ((presence(source), there), (presence(inside, "A.f"), in_a_class)):
        assert found is expected or (expected is None and str(found).startswith("may exist"))


def test_a_name_that_may_come_from_anywhere_is_not_absent_for_sure() -> None:
    assert presence("from .a import *\n") == "may come from `from .a import *`"
    assert isinstance(presence("from a import A\n", "A.f"), str)
    assert isinstance(presence("class A: pass\nsetattr(A, name, g)\n", "A.f"), str)
    assert presence("class A: pass\ndef f(): pass\n", "A.f") is False


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("f'{x:}'", "f'{x}'"),
        ("f'a' 'b' f'{x}'", "f'ab{x}'"),
        ("f'{x=}'", "f'x={x!r}'"),
        ("f'{x:>{y}}' ''", "f'{x:>{y}}'"),
    ],
)
def test_f_strings_are_what_they_print(one: str, other: str) -> None:
    """Which pieces the parser cuts them into depends on the Python."""
    assert of(f"def f(x, y): return {one}\n") == of(f"def f(x, y): return {other}\n")


def test_digests_that_depended_on_the_python_are_pinned() -> None:
    source = "def f(x, y):\n    return f'{x!r:>{y}} a' 'b' f'{x=}' f'{x:}' f'', '\U0001fae8 \u00e9', 0x%s\n"
    assert of(source % ("f" * 5000)) == "a9b383f6f224"


def test_a_source_that_is_too_deep_is_none_that_is_known() -> None:
    assert presence("if a: pass\n" + "elif b: f = 1\n" * 900)
    with pytest.raises(SourceError, match="nested too deep"):
        of(f"def f(x): return {'not ' * 900} x\n")


def test_where_an_imported_name_is_defined() -> None:
    tree = MemoryTree(
        {
            "p/__init__.py": "from .a import f\nfrom .loop import g\n",
            "p/a.py": "from p.b.c import h as f\n",
            "p/b/c.py": "from ..a import f as k\ndef h(): pass\n",
            "p/loop.py": "from . import g\n",
        }
    )
    assert tree.chain("p:f") == ["p:f", "p.a:f", "p.b.c:h"]
    assert tree.chain("p.b.c:h") == ["p.b.c:h"]
    assert tree.chain("p.b.c:k") == ["p.b.c:k", "p.a:f", "p.b.c:h"]
    assert tree.chain("p:g") == ["p:g", "p.loop:g"]
