"""Answers that come along are taken for the very text that they are of, by the code that found them."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

from overlay.deciding.decide import decide_all
from overlay.patch import Absent, Calls, Fields, Known, Present
from overlay.reading import known
from overlay.reading.bindings import Module
from overlay.reading.questions import answer
from overlay.reading.source import InstalledTree

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fake_upstream import Upstream

    from overlay.enabling.engine import Engine
    from overlay.patch import Patch

#: What the patch of these tests asks of `fakeup.core`.
ASKED: list[tuple[str, ...]] = [
    ("digest", "scale"),
    ("imported", "scale"),
    ("decorators", "scale"),
    ("prints", "scale"),
    ("has", "scale"),
]


def table(texts: dict[str, str], asked: list[tuple[str, ...]] = ASKED, **changes: Any) -> bytes:
    """Return a table of one text for each of some modules."""
    pool: list[Any] = []
    modules = {}
    for module, text in texts.items():
        parsed = Module(ast.parse(text))
        found = [answer(question, parsed) for question in asked]
        row = range(len(pool), len(pool) + len(found))
        pool += [
            {known.python(): one} if question[0] == "prints" else one
            for question, one in zip(asked, found, strict=True)
        ]
        modules[module] = {
            "asked": [" ".join(question) for question in asked],
            "texts": {known.digest_of(text.encode()): [*row]},
        }
    body = json.dumps({"code": known.code(), "answers": pool, "modules": modules} | changes)
    return sealed(body)


def sealed(body: str) -> bytes:
    return f"{known.digest_of(body.encode())}\n{body}".encode()


@pytest.fixture
def ship(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], Path]:
    """Return what ships a table, in a package of its own, and returns its file."""
    monkeypatch.setattr(known, "_packages", [])
    monkeypatch.setattr(known, "_tables", {})
    (tmp_path / "shipped").mkdir()
    (tmp_path / "shipped/__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "shipped", raising=False)

    def write(data: bytes) -> Path:
        file = tmp_path / "shipped" / known.NAME
        file.write_bytes(data)
        known._tables.clear()
        known.register("shipped")
        return file

    return write


@pytest.fixture
def patch(upstream: Upstream, ship: Callable[[bytes], Path]) -> Patch:
    """A patch, of whose source the answers come along."""
    ship(table({"fakeup.core": core(upstream)}))
    return upstream.patch()


def core(upstream: Upstream) -> str:
    return (upstream.root / "fakeup/core.py").read_text()


def verdict(patch: Patch) -> str:
    return decide_all([patch], InstalledTree(), {})[patch.id].verdict


def test_what_is_known_is_not_parsed_and_is_decided_on_alike(
    upstream: Upstream, ship: Callable[[bytes], Path], parsed: list[str], engines: Callable[..., Engine]
) -> None:
    patch = upstream.patch()
    before, tree = decide_all([patch], InstalledTree(), {}), InstalledTree()
    ship(table({"fakeup.core": core(upstream)}))
    parsed.clear()
    assert decide_all([patch], tree, {}) == before
    assert before[patch.id].verdict == "apply"
    assert tree.prints == {"fakeup.core:scale": ("fakeup.core:scale", tree.fingerprints("fakeup.core:scale"))}
    assert engines(patch).enable(strict=True).patches[0].state == "armed"
    assert upstream.load().scale(1) == 200
    assert parsed == []


#: What is made of a table that was right, of the source with a text.
DAMAGE: dict[str, Callable[[bytes, str], bytes]] = {
    "empty": lambda data, text: b"",
    "cut off": lambda data, text: data[:-40],
    "cut off at the seal": lambda data, text: data[: known.LENGTH],
    "a byte": lambda data, text: data.replace(b"[0,", b"[1,").replace(b"[0, ", b"[1, "),
    "no text": lambda data, text: b"\xff\xfe\x00" * 99,
    "a list": lambda data, text: sealed("[]"),
    "no JSON": lambda data, text: sealed("{"),
    "very deep": lambda data, text: sealed("[" * 100_000),
    "other code": lambda data, text: table({"fakeup.core": text}, code="0" * known.LENGTH),
    "no code": lambda data, text: sealed('{"answers": [], "modules": {}}'),
    "no answers": lambda data, text: table({"fakeup.core": text}, answers=[]),
    "odd modules": lambda data, text: table({}, modules={"fakeup.core": {"texts": 3}}),
    "a row too short": lambda data, text: table(
        {},
        answers=[None],
        modules={
            "fakeup.core": {
                "asked": ["digest scale", "has scale"],
                "texts": {known.digest_of(text.encode()): [0]},
            }
        },
    ),
    "another module": lambda data, text: table({"fakeup.other": text}),
    "another text": lambda data, text: table({"fakeup.core": f"{text}\n"}),
}


@pytest.mark.parametrize("damage", [*DAMAGE, "nothing there", "a folder"])
def test_a_table_that_is_not_right_is_not_asked(
    upstream: Upstream, ship: Callable[[bytes], Path], parsed: list[str], damage: str
) -> None:
    patch, text = upstream.patch(), core(upstream)
    file = ship(table({"fakeup.core": text}))
    if damage in DAMAGE:
        file.write_bytes(DAMAGE[damage](file.read_bytes(), text))
    else:
        file.unlink()
        if damage == "a folder":
            file.mkdir()
    parsed.clear()
    assert verdict(patch) == "apply"
    assert parsed == [text]


def test_a_byte_of_a_source_is_another_source(upstream: Upstream, patch: Patch, parsed: list[str]) -> None:
    text = core(upstream)
    file = upstream.root / "fakeup/core.py"
    for changed, expected in ((text + "#", "apply"), (text.replace("factor=2", "factor=3"), "unsupported")):
        parsed.clear()
        file.write_text(changed)
        assert verdict(patch) == expected
        assert parsed == [changed]


def test_a_patch_that_asks_for_something_else_is_answered_by_the_source(
    upstream: Upstream, patch: Patch, parsed: list[str]
) -> None:
    """What a table holds is of sources, and not of patches: what a patch does not know stays unknown."""
    (target,) = patch.targets
    (variant,) = target.variants
    parsed.clear()
    other = variant.replace(shape=(Known(site="fakeup.core:scale", digests=("0" * 12,)),))
    assert verdict(patch.replace(targets=(target.replace(variants=(other,)),))) == "unsupported"
    assert len(parsed) <= 1  # which star imports there are is said of what is unknown, and was not asked
    parsed.clear()
    for more in (
        Calls(site="fakeup.core:scale", callee="g"),
        Fields(site="fakeup.core:scale", names=("a",)),
        Absent(site="fakeup.core:scale2"),
    ):
        wider = variant.replace(shape=(*variant.shape, more))
        changed = patch.replace(targets=(target.replace(variants=(wider,)),))
        expected = "apply" if isinstance(more, Absent) else "unsupported"
        assert verdict(changed) == expected
        assert parsed.pop() == core(upstream)


def test_what_a_name_is_imported_from_is_asked_of_what_lies_there_now(
    upstream: Upstream, ship: Callable[[bytes], Path], engines: Callable[..., Engine]
) -> None:
    """Two releases with the same file beside others: the answer of a file says nothing of its neighbours."""
    upstream.write(core="from fakeup.more import scale\n", more="def scale(value, factor=2):\n    return 1\n")
    own = core(upstream)
    ship(table({"fakeup.core": own, "fakeup.more": (upstream.root / "fakeup/more.py").read_text()}))
    tree = InstalledTree(str(upstream.root))
    assert tree.chain("fakeup.core:scale") == ["fakeup.core:scale", "fakeup.more:scale"]
    first = tree.digest("fakeup.more:scale")
    upstream.write(
        core=own, more="from .deep import scale\n", deep="def scale(value, factor=2):\n    return 2\n"
    )
    tree = InstalledTree(str(upstream.root))
    assert tree.chain("fakeup.core:scale")[1:] == ["fakeup.more:scale", "fakeup.deep:scale"]
    assert tree.digest("fakeup.deep:scale") not in (first, None)


def test_a_source_that_is_edited_after_it_was_read_is_what_was_read(
    upstream: Upstream, patch: Patch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digest and the answers are of one text. What runs is compared where it is replaced."""
    text, plain = core(upstream), known.answers

    def edited(module: str, given: str) -> Any:
        (upstream.root / "fakeup/core.py").write_text("def scale(value, factor=2):\n    return 0\n")
        return plain(module, given)

    monkeypatch.setattr(known, "answers", edited)
    tree = InstalledTree()
    assert decide_all([patch], tree, {})[patch.id].verdict == "apply"
    assert tree._texts["fakeup.core"] == text
    assert verdict(patch) == "unsupported"


def test_code_that_is_not_that_of_the_source_is_refused(
    upstream: Upstream, patch: Patch, engines: Callable[..., Engine]
) -> None:
    upstream.load().scale.__code__ = (lambda value, factor=2: value).__code__
    found = engines(patch).enable().patches[0].verdict
    assert found is not None
    assert found.verdict == "conflict"


def test_what_another_python_has_compiled_is_compiled_here(
    upstream: Upstream, ship: Callable[[bytes], Path], engines: Callable[..., Engine]
) -> None:
    patch = upstream.patch()
    data = json.loads(table({"fakeup.core": core(upstream)}).partition(b"\n")[2])
    data["answers"] = [
        {"cpython-399 9": ["no such"]} if isinstance(one, dict) else one for one in data["answers"]
    ]
    ship(sealed(json.dumps(data)))
    tree = InstalledTree()
    decide_all([patch], tree, {})
    site = "fakeup.core:scale"
    assert tree.prints == {site: (site, tree.fingerprints(site))}
    assert engines(patch).enable(strict=True).patches[0].state == "armed"
    assert upstream.load().scale(1) == 200


@pytest.mark.parametrize("option", ["-O", "-OO"])
def test_a_python_that_leaves_out_what_is_asserted_is_another_one(option: str) -> None:
    code = "from overlay.reading.known import python; print(python())"
    done = subprocess.run([sys.executable, option, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{known.python()} -O{len(option) - 1}"


def test_a_table_in_an_archive_is_read(
    upstream: Upstream, tmp_path: Path, ship: Callable[[bytes], Path], parsed: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    patch = upstream.patch()
    archive = tmp_path / "packed.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("packed/__init__.py", "")
        file.writestr(f"packed/{known.NAME}", table({"fakeup.core": core(upstream)}))
    monkeypatch.syspath_prepend(str(archive))
    known.register("packed")
    parsed.clear()
    assert verdict(patch) == "apply"
    assert parsed == []
    sys.modules.pop("packed")


def test_a_package_that_is_not_there_has_no_table(
    upstream: Upstream, ship: Callable[[bytes], Path], parsed: list[str]
) -> None:
    known.register("no_such_package_at_all")
    assert verdict(upstream.patch()) == "apply"
    assert parsed


def test_answers_name_no_neighbour_and_are_plain_data() -> None:
    """Each kind of question, asked of a name that is there, of one that is not, and of no module at all."""
    text = (
        "from dataclasses import dataclass\nfrom .more import g as h\n@dataclass\nclass A:\n    x: int = 0\n"
        "    @staticmethod\n    def f():\n        h()\n"
    )
    more = {"calls": ("h", "last"), "fields": ("x", "0")}
    module = Module(ast.parse(text))
    found = {
        (kind, name): answer((kind, name, *more.get(kind, ())), module)
        for kind in ("calls", "decorators", "digest", "doubt", "fields", "has", "imported", "prints", "star")
        for name in ("A", "A.f", "h", "none")
    }
    assert found["calls", "A.f"] == "is defined under a condition, or in a class that is decorated"
    assert found["decorators", "A.f"] == ["staticmethod"]
    assert found["fields", "A"] == ""
    assert found["imported", "h"] == [1, "more", "g"]
    assert (found["has", "A.f"], found["has", "none"], found["digest", "none"]) == (True, False, None)
    assert len(found["prints", "A.f"]) == 1  # type: ignore[arg-type]
    assert json.loads(json.dumps([*found.values()])) == [*found.values()]
    assert answer(("digest", ""), None) is None
    assert answer(("has", "A"), None) is False
    assert answer(("prints", "A"), None) == []


def test_a_condition_is_asked_in_words(upstream: Upstream) -> None:
    """What the table is asked by is all that the condition says: two conditions are not one question."""
    asked: list[tuple[str, ...]] = []

    class Asking(InstalledTree):
        def ask(self, kind: str, site: str, *more: str) -> Any:
            asked.append((kind, site.partition(":")[2], *more))
            return super().ask(kind, site, *more)

    from overlay.deciding.conditions import look

    site = "fakeup.core:scale"
    for condition in (
        Calls(site=site, callee="g"), Calls(site=site, callee="g", last=True), Calls(site=site, callee="h"),
        Fields(site=site, names=("a", "b")), Fields(site=site, names=("a",), default="b"),
        Fields(site=site, names=("a", "b"), default="None"), Present(site=site), Absent(site=site),
    ):  # fmt: skip
        look(condition, Asking(str(upstream.root)))
    kinds = [question for question in asked if question[0] in ("calls", "fields")]
    assert len({" ".join(question) for question in kinds}) == len(kinds) == 6
