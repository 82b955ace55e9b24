"""The page: whole in itself, well-formed, and made of text where text was given."""

from __future__ import annotations

import random
import re
from html.parser import HTMLParser
from itertools import combinations, pairwise
from pathlib import Path

import pytest
import report_inputs as made

from overlay.report.page import link, mark, tone
from overlay.verdict import LOUD, VERDICTS

STYLE = (Path(__file__).parents[3] / "overlay/report/page.css").read_text()
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
        #: Each element, and whether it is part of a picture.
        self.places: list[tuple[str, bool]] = []
        self.feed(page.read_text(encoding="utf-8"))
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.places.append((tag, "svg" in self.open))
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, (tag, self.getpos())

    @property
    def structure(self) -> list[str]:
        """The elements of the page itself: those of a picture, and where a name may break, hang on texts."""
        return [tag for tag, inside in self.places if not inside and tag != "wbr"]

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def plain(page: Path) -> Reader:
    return Reader(page)


def test_nothing_is_fetched(plain: Reader) -> None:
    assert not {tag for tag, _ in plain.elements} & ACTIVE
    for tag, attributes in plain.elements:
        assert "src" not in attributes
        for name in ("href", "xlink:href"):
            target = attributes.get(name, "#")
            assert target.startswith("#") or (tag == "a" and target.startswith("https://github.com/")), target
    policy = next(meta["content"] for meta in plain.all("meta") if "http-equiv" in meta)
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"
    assert "url(" not in STYLE
    assert "@import" not in STYLE


def test_every_reference_has_its_target_and_no_id_stands_twice(plain: Reader) -> None:
    ids = [attributes["id"] for _, attributes in plain.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    wanted = {attributes["href"][1:] for attributes in plain.all("a") if attributes["href"].startswith("#")}
    wanted |= {
        attributes["aria-labelledby"] for _, attributes in plain.elements if "aria-labelledby" in attributes
    }
    assert wanted <= set(ids)


def test_a_hostile_text_stays_text(hostile: Path, plain: Reader) -> None:
    reader = Reader(hostile)
    assert not {tag for tag, _ in reader.elements} & ACTIVE
    assert not [name for _, attributes in reader.elements for name in attributes if name.startswith("on")]
    # Structure does not hang on what the texts say.
    assert reader.structure == plain.structure
    # In the title, the heading, and each place that takes any text.
    assert reader.text.count(made.HOSTILE) > 30


def test_what_a_screen_reader_needs(plain: Reader) -> None:
    tags = [tag for tag, _ in plain.elements]
    assert [tags.count(tag) for tag in ("html", "header", "nav", "main", "footer", "h1")] == [1] * 6
    assert plain.all("html") == [{"lang": "en"}]
    levels = [int(tag[1]) for tag in tags if re.fullmatch("h[1-6]", tag)]
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert all(head.get("scope") for head in plain.all("th"))
    pictures = [svg for svg in plain.all("svg") if "chart" in svg.get("class", "")]
    # Each for a desktop and for a phone.
    assert len(pictures) == 2 * len(made.figures(random.Random(0)))
    assert all(svg["role"] == "img" and svg["aria-labelledby"] for svg in pictures)
    # What scrolls can be scrolled from the keyboard, and says what it is.
    regions = [attributes for _, attributes in plain.elements if "tabindex" in attributes]
    assert all(region["role"] == "group" and region["aria-label"] for region in regions)


def test_what_was_decided_is_told(plain: Reader) -> None:
    for words in (
        "unsupported",
        "incomplete",
        "rank 1",
        "ranks 0,2",
        "does not exist",
        "dynamic_cp_split_batch",
    ):
        assert words in plain.text, words
    targets = [anchor["href"] for anchor in plain.all("a")]
    assert "https://github.com/verl-project/verl/issues/5679" in targets


def test_references_become_addresses() -> None:
    assert link("THUDM/slime#1823") == "https://github.com/THUDM/slime/issues/1823"
    assert link("THUDM/slime@bd217a63f") == "https://github.com/THUDM/slime/commit/bd217a63f"
    assert link("javascript:alert(1)") == link("a#1") == ""


def test_no_word_is_told_by_its_colour_alone() -> None:
    assert {tone(word) for word in LOUD} == {"bad"}
    assert (tone("armed"), tone("applied")) == ("plain", "good")
    assert len({mark(word) for word in ("apply", "conflict", "incomplete", "superseded")}) == 4
    assert all(mark(word) for word in VERDICTS)


def palettes() -> list[dict[str, str]]:
    """Return the variables of light pages and of dark ones."""
    found = [
        dict(re.findall(r"--([\w-]+): (#\w{6})", block))
        for block in STYLE.split("@media screen and (prefers")[:2]
    ]
    assert found[0].keys() == found[1].keys()
    return found


def luminance(colour: str) -> float:
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("palette", palettes(), ids=["light", "dark"])
def test_contrasts_are_those_of_wcag_aa(palette: dict[str, str]) -> None:
    texts = [(text, ground) for text in ("ink", "muted", "link", "bad") for ground in ("paper", "card")]
    texts += [("good", "good-bg"), ("bad", "bad-bg"), ("care", "care-bg"), ("ink", "checked-bg")]
    for text, ground in texts:
        assert contrast(palette[text], palette[ground]) >= 4.5, (text, ground)
    for graphic in ("before", "after", "bad", "ink"):
        assert contrast(palette[graphic], palette["paper"]) >= 3, graphic
    # Sizes of subgroups are told apart in grey too; each is labelled besides.
    shares = [luminance(palette[f"share-{number}"]) for number in range(4)]
    assert shares == sorted(shares, reverse=True)
    assert all(one - other > 0.05 for one, other in combinations(shares, 2))
