"""The page in a real browser: light and dark, on a phone, from the keyboard, offline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from browser import CHROMIUM, DRIVER, ENTER, SPACE, TAB, Browser

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None, reason="no browser: chromium and chromedriver are not installed"
)

AXE = Path(__file__).parents[3] / "node_modules/axe-core/axe.min.js"
PHONE = 390

needs_axe = pytest.mark.skipif(not AXE.exists(), reason="no axe-core: npm install --no-save axe-core")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as started:
        yield started


def style(browser: Browser, selector: str, name: str) -> str:
    script = "return getComputedStyle(document.querySelector(arguments[0]))[arguments[1]]"
    return str(browser.run(script, selector, name))


def focused(browser: Browser) -> str:
    return str(browser.run("return document.activeElement.outerHTML.slice(0, 200)"))


def errors(browser: Browser) -> list[dict[str, Any]]:
    return [entry for entry in browser.log("browser") if entry["level"] == "SEVERE"]


def test_it_is_whole_offline(browser: Browser, page: Path) -> None:
    browser.show(page, offline=True)
    assert browser.requests() == [page.as_uri()]
    assert errors(browser) == []
    assert browser.run("return document.querySelectorAll('svg.chart').length") == 5
    # What is drawn has a size, and its colours come from the page.
    assert browser.run("return document.querySelector('svg.chart').getBoundingClientRect().height") > 100


def test_light_and_dark(browser: Browser, page: Path) -> None:
    looks = []
    for scheme in ("light", "dark"):
        browser.show(page, scheme=scheme)
        looks.append([style(browser, "body", "backgroundColor"), style(browser, "svg.chart text", "fill")])
    assert looks == [["rgb(255, 255, 255)", "rgb(31, 35, 40)"], ["rgb(13, 17, 23)", "rgb(230, 237, 243)"]]


@pytest.mark.parametrize("opened", [False, True])
def test_a_phone_scrolls_down_and_not_sideways(browser: Browser, page: Path, *, opened: bool) -> None:
    browser.show(page, width=PHONE)
    browser.run("document.querySelectorAll('details').forEach(item => item.open = arguments[0])", opened)
    assert browser.run("return document.documentElement.scrollWidth") <= PHONE
    # Nothing that cannot be scrolled to stands outside.
    script = """return [...document.querySelectorAll('main *')].filter(item =>
        !item.closest('.scroll, pre, svg, .hidden') && item.getBoundingClientRect().right > innerWidth + 1
    ).map(item => item.outerHTML.slice(0, 120))"""
    assert browser.run(script) == []


def test_it_can_be_read_from_the_keyboard(browser: Browser, page: Path) -> None:
    browser.show(page)
    browser.press(TAB)
    assert 'class="skip"' in focused(browser)
    assert browser.run("return document.activeElement.getBoundingClientRect().left") >= 0
    browser.press(ENTER)
    assert browser.run("return location.hash") == "#decided"
    closed = "return [...document.querySelectorAll('summary')].findIndex(item => !item.parentElement.open)"
    at = browser.run(closed)
    state = "return document.querySelectorAll('summary')[arguments[0]].parentElement.open"
    browser.run("document.querySelectorAll('summary')[arguments[0]].focus()", at)
    browser.press(ENTER)
    assert browser.run(state, at) is True
    browser.press(SPACE)
    assert browser.run(state, at) is False


def test_the_focus_can_be_seen_wherever_it_comes(browser: Browser, page: Path) -> None:
    browser.show(page)
    # Everything that takes the focus: hundreds of times `Tab` would ask the same.
    script = """const bad = []
        for (const item of document.querySelectorAll('a, summary, [tabindex]')) {
            for (let around = item.parentElement; around; around = around.parentElement)
                if (around.tagName == 'DETAILS') around.open = true
            item.focus({focusVisible: true})
            if (document.activeElement != item || getComputedStyle(item).outlineStyle == 'none')
                bad.push(item.outerHTML.slice(0, 120))
        }
        return bad"""
    assert browser.run(script) == []


def test_what_is_hostile_runs_nothing(browser: Browser, hostile: Path) -> None:
    browser.show(hostile, offline=False)
    assert browser.run("return [typeof window.hacked, document.scripts.length, document.images.length]") == [
        "undefined",
        0,
        0,
    ]
    assert browser.requests() == [hostile.as_uri()]
    assert errors(browser) == []


@needs_axe
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, PHONE])
def test_axe_finds_nothing(browser: Browser, page: Path, scheme: str, width: int) -> None:
    browser.show(page, scheme=scheme, width=width)
    browser.run("document.querySelectorAll('details').forEach(item => item.open = true)")
    browser.run(AXE.read_text(encoding="utf-8"))
    script = """return axe.run().then(found =>
        found.violations.map(item => [item.id, item.nodes.map(one => one.html)]))"""
    assert browser.run(script) == []
