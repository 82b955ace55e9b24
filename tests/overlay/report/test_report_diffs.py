"""Differences of sources: nothing is lost, and what is marked is what changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlay.report import diffs

if TYPE_CHECKING:
    import random

    import pytest

WORDS = ("x", "y", "total", "= ", "+", "(", ")", "    ", "return ", "<b>")


def source(draw: random.Random, lines: int) -> list[str]:
    return ["".join(draw.choice(WORDS) for _ in range(draw.randrange(6))) for _ in range(lines)]


def test_both_sources_can_be_read_from_it(draw: random.Random) -> None:
    for _ in range(200):
        before = source(draw, draw.randrange(12))
        after = [line for line in before if draw.random() < 0.8]
        for place in range(len(after)):
            if draw.random() < 0.4:
                after[place] = f"{after[place]} {draw.choice(WORDS)}"
        found = diffs.unified("\n".join(before), "\n".join(after), context=100)
        # A last line without text is none.
        old, new = ("\n".join(lines).splitlines() for lines in (before, after))
        if old == new:
            assert found == ()
            continue
        for kinds, lines in ((("same", "del"), old), (("same", "add"), new)):
            assert [line.text for line in found if line.kind in kinds] == lines


def test_the_words_that_changed_are_marked() -> None:
    _, gone, come = diffs.unified("    loss = loss * scale\n", "    loss = loss * cp_size\n")
    assert gone.parts == (("    loss = loss * ", False), ("scale", True))
    assert come.parts == (("    loss = loss * ", False), ("cp_size", True))
    # Where all is different nothing is marked: the lines say so.
    _, gone, come = diffs.unified("a = first(b)", "return None")
    assert [part for line in (gone, come) for part in line.parts] == [
        ("a = first(b)", False),
        ("return None", False),
    ]


def test_each_line_is_compared_with_few_others(draw: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two long sources, all different: counted, for a clock would tell the machine's speed."""
    compared = []
    alike = diffs._alike

    def counted(*lines: str) -> bool:
        compared.append(lines)
        return alike(*lines)

    monkeypatch.setattr(diffs, "_alike", counted)
    before, after = (
        "\n".join(f"v{draw.random()} = call({draw.random()}, x)" for _ in range(1500)) for _ in "ab"
    )
    assert len(diffs.unified(before, after)) == 3001
    assert 1500 <= len(compared) <= 1500 * diffs._AHEAD
