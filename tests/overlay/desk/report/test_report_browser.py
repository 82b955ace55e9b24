"""The page in a real browser: light and dark, on a phone, on paper, from the keyboard, offline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from browser import CHROMIUM, DRIVER, ENTER, SPACE, TAB, Browser, started

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None, reason="no browser: chromium and chromedriver are not installed"
)

AXE = Path(__file__).parents[4] / "node_modules/axe-core/axe.min.js"
PHONE = 390
OPEN = "document.querySelectorAll('details').forEach(item => item.open = arguments[0])"
#: What stands beyond the right edge of the window.
OUTSIDE = """return [...document.querySelectorAll('main *')].filter(item => item.checkVisibility() &&
    item.getBoundingClientRect().right > innerWidth + 1).map(item => item.outerHTML.slice(0, 120))"""

#: `.ci/run` installs it where there are npm and a browser.
needs_axe = pytest.mark.skipif(not AXE.exists(), reason="no axe-core: npm ci --ignore-scripts")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started() as one:
        yield one


def style(browser: Browser, selector: str, name: str) -> str:
    script = "return getComputedStyle(document.querySelector(arguments[0]))[arguments[1]]"
    return str(browser.run(script, selector, name))


@pytest.mark.parametrize("text", ["page", "hostile"])
def test_it_is_whole_and_runs_nothing(browser: Browser, text: str, request: pytest.FixtureRequest) -> None:
    page: Path = request.getfixturevalue(text)
    browser.show(page, offline=text == "page")
    script = "return [typeof window.hacked, document.scripts.length, document.images.length]"
    assert browser.run(script) == ["undefined", 0, 0]
    assert browser.requests() == [page.as_uri()]
    assert [entry for entry in browser.log("browser") if entry["level"] == "SEVERE"] == []


@pytest.mark.parametrize("opened", [False, True])
def test_a_phone_scrolls_down_and_not_sideways(browser: Browser, page: Path, *, opened: bool) -> None:
    browser.show(page, width=PHONE)
    browser.run(OPEN, opened)
    assert browser.run("return document.documentElement.scrollWidth") <= PHONE
    assert browser.run(OUTSIDE) == []


def test_what_stands_below_on_a_phone_says_what_it_is(browser: Browser, page: Path) -> None:
    """A heading of a column is not beside its cells there."""
    script = """const cells = [...document.querySelectorAll('#defects td[data-label]')]
        return [...new Set(cells.map(cell => getComputedStyle(cell, '::before').content))].sort()"""
    browser.show(page, width=PHONE)
    assert browser.run(script) == ['"Harm: "', '"Met under: "', '"Way out: "']
    browser.show(page, width=1440)
    assert browser.run(script) == ["none"]


def test_paper_is_light_and_nothing_is_cut(browser: Browser, page: Path) -> None:
    browser.show(page, scheme="dark", width=720)  # A4 between its margins
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.cdp("Emulation.setEmulatedMedia", media="print", features=dark)
    try:
        assert style(browser, "body", "backgroundColor") == "rgb(255, 255, 255)"
        assert style(browser, "nav", "display") == "none"
        assert browser.run(OUTSIDE) == []
    finally:
        browser.cdp("Emulation.setEmulatedMedia", media="")


def test_it_can_be_read_from_the_keyboard(browser: Browser, page: Path) -> None:
    browser.show(page)
    browser.press(TAB)
    assert browser.run("return document.activeElement.className") == "skip"
    assert browser.run("return document.activeElement.getBoundingClientRect().left") >= 0
    browser.press(ENTER)
    assert browser.run("return location.hash") == "#decided"
    browser.run("document.querySelector('details:not([open]) > summary').focus()")
    state = "return document.activeElement.parentElement.open"
    browser.press(ENTER)
    assert browser.run(state) is True
    browser.press(SPACE)
    assert browser.run(state) is False


@needs_axe
@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", PHONE)])
def test_axe_finds_nothing(browser: Browser, page: Path, scheme: str, width: int) -> None:
    browser.show(page, scheme=scheme, width=width)
    browser.run(OPEN, True)
    browser.run(AXE.read_text(encoding="utf-8"))
    script = """return axe.run().then(found =>
        found.violations.map(item => [item.id, item.nodes.map(one => one.html)]))"""
    assert browser.run(script) == []
