"""The page: whole in itself, well-formed, and made of text where text was given."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import report_inputs as made

from overlay.desk.report.page import DEFECTS, MARKS, OUTCOMES, link
from overlay.source.known_defects import DEFECT_STATES
from overlay.verdict import LOUD

STYLE = (Path(__file__).parents[4] / "overlay/desk/report/page.css").read_text()
VOID = {"meta", "br", "wbr", "img", "link", "input", "hr", "base"}
#: Elements that may run something, or fetch something.
ACTIVE = {"script", "img", "iframe", "object", "embed", "link", "base", "form", "image", "video", "audio"}


class Reader(HTMLParser):
    """Collects elements and text, and holds that every element is closed."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, (tag, self.getpos())

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def plain(page: Path) -> Reader:
    return Reader(page)


def test_nothing_is_fetched_and_every_reference_has_its_target(plain: Reader) -> None:
    attributes = [found for _, found in plain.elements]
    ids = [one["id"] for one in attributes if "id" in one]
    assert len(ids) == len(set(ids))
    assert {one["aria-labelledby"] for one in attributes if "aria-labelledby" in one} <= {*ids}
    for tag, one in plain.elements:
        assert tag not in ACTIVE
        assert "src" not in one
        target = one.get("href", f"#{ids[0]}")
        assert target[1:] in ids or (tag == "a" and target.startswith("https://github.com/")), target
    policy = next(meta["content"] for meta in plain.all("meta") if "http-equiv" in meta)
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"
    assert not re.search(r"url\(|@import", STYLE)


def test_a_hostile_text_stays_text(hostile: Path, plain: Reader) -> None:
    reader = Reader(hostile)
    # Structure does not hang on what the texts say, nor does what an element does.
    assert [(tag, found.keys()) for tag, found in reader.elements] == [
        (tag, found.keys()) for tag, found in plain.elements
    ]
    # In the title, the heading, and each place that takes any text.
    assert reader.text.count(made.HOSTILE) > 15


def test_what_was_decided_is_told(plain: Reader) -> None:
    for words in (
        "ranks 0,2: 3.11.7",
        "rank 1, process 7 on plain words (no rank): plain words",
        "There is no ledger of ranks 3-4.",
        "process-004.json: rank = 'plain words' is not a whole number",
        "plain words 1 of 3 plain wordses; plain words1 process",
        "the patch was not tested on this source: unlike",
    ):
        assert words in plain.text, words
    targets = [anchor["href"] for anchor in plain.all("a")]
    assert "https://github.com/verl-project/verl/issues/5679" in targets


def test_references_become_addresses() -> None:
    assert link("THUDM/slime#1823") == "https://github.com/THUDM/slime/issues/1823"
    assert link("THUDM/slime@bd217a63f") == "https://github.com/THUDM/slime/commit/bd217a63f"
    assert link("javascript:alert(1)") == link("a#1") == ""


def test_no_word_is_told_by_its_colour_alone(plain: Reader) -> None:
    assert {OUTCOMES[word] for word in LOUD} == {"bad"}
    assert [*DEFECTS, "not-installed"] == [*DEFECT_STATES]
    assert tuple(OUTCOMES[word] for word in ("waiting", "applied", "incomplete")) == ("plain", "good", "care")
    assert len(set(MARKS.values())) == 4
    badges = [one for one in plain.all("span") if "badge" in one.get("class", "")]
    signs = [one for one in plain.all("span") if one.get("aria-hidden") == "true"]
    assert len(signs) == len(badges) + 1  # and the headline's
