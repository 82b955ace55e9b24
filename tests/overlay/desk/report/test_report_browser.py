"""The page in a real browser: light and dark, on a phone, on paper."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import CHROMIUM, DRIVER, Browser, started

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


@pytest.mark.parametrize("opened", [False, True])
def test_a_phone_scrolls_down_and_not_sideways(browser: Browser, page: Path, *, opened: bool) -> None:
    browser.show(page, width=PHONE)
    browser.run(OPEN, opened)
    assert browser.run("return document.documentElement.scrollWidth") <= PHONE
    assert browser.run(OUTSIDE) == []


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


@needs_axe
@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", PHONE)])
def test_axe_finds_nothing(browser: Browser, page: Path, scheme: str, width: int) -> None:
    browser.show(page, scheme=scheme, width=width)
    browser.run(OPEN, True)
    browser.run(AXE.read_text(encoding="utf-8"))
    script = """return axe.run().then(found =>
        found.violations.map(item => [item.id, item.nodes.map(one => one.html)]))"""
    assert browser.run(script) == []
