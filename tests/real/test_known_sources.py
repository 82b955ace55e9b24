"""What comes along of known sources is what parsing them finds, on every release of the list."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from overlay.catalogue.registry import PACK, load_patches
from overlay.deciding.decide import decide, prints_of, settle
from overlay.reading import known
from overlay.reading.source import InstalledTree
from records import known as record
from sources import releases

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from overlay.verdict import Verdict

pytestmark = pytest.mark.real

NAMES = [release.name for release in releases.read()]
#: Images that stand by day for the projects that they have.
BY_DAY = ("verl image 0.8.0", "slime image v0.3.1")


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> known.Table:
    monkeypatch.setattr(known, "_packages", [PACK])
    monkeypatch.setattr(known, "_tables", {})
    found = known._table(PACK)
    assert found is not None, "./scripts/matrix known"
    return found


def decided(tree: InstalledTree) -> tuple[dict[str, Verdict], dict[str, Verdict], object]:
    """Return what is decided on each patch alone, on all of them, and the prints of what they replace."""
    patches = [*load_patches().values()]
    alone = {patch.id: decide(patch, tree) for patch in patches}
    return alone, settle(patches, alone, tree), prints_of(patches, alone, tree)


@pytest.mark.nightly("two images stand for it", name=tuple(name for name in NAMES if name not in BY_DAY))
@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_parsed_and_all_is_decided_on_alike(
    table: known.Table, listed: Callable[[str], Path], name: str
) -> None:
    folder = listed(name)
    fast = InstalledTree(str(folder))
    found = decided(fast)
    assert not any(fast._text(module) for module in fast._parsed)  # those that are not there, or are empty
    assert fast._compiled == {}
    slow = record.Asking(folder)
    assert found == decided(slow)
    assert slow._parsed
    # And each answer, also to what was not asked here.
    for module, about in table._modules.items():
        text = record.text_of(slow, module)
        answers = table.of(module, text) if text else None
        if answers is None:
            assert not text, module
            continue
        for words in about["asked"]:
            kind, qualname, *more = question = tuple(words.split(" "))
            if kind in ("fields", "calls"):
                question = (kind, qualname, *" ".join(more).split(" ", 1))
            assert answers(question) == slow.ask(question[0], f"{module}:{qualname}", *question[2:]), words


def test_a_byte_more_is_parsed(table: known.Table, listed: Callable[[str], Path]) -> None:
    """Each source that is known, with a comment at its end."""
    tree = InstalledTree(str(listed(BY_DAY[0])))
    texts = {module: record.text_of(tree, module) for module in table._modules}
    there = {module: text for module, text in texts.items() if text}
    assert len(there) > 40
    for module, text in there.items():
        assert table.of(module, text) is not None, module
        assert table.of(module, f"{text}#") is None
        assert table.of(f"{module}.more", text) is None
        assert table.of(module, text[:-1]) is None
