"""The page in a real browser: light and dark, on a phone, from the keyboard, offline."""

from __future__ import annotations

import time
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

#: `.ci/run` installs it where there are npm and a browser.
needs_axe = pytest.mark.skipif(not AXE.exists(), reason="no axe-core: npm ci --ignore-scripts")


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
    # What is drawn has a size, and its colours come from the page.
    heights = "return [...document.querySelectorAll('svg.chart')].map(i => i.getBoundingClientRect().height)"
    assert sum(height > 100 for height in browser.run(heights)) == 5


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
    # Nor does a reason in a table that shows each row as a block.
    script = """return [...document.querySelectorAll('.rows *, .saying *')].filter(item =>
        item.checkVisibility() && item.getBoundingClientRect().right > innerWidth).length"""
    assert browser.run(script) == 0


@pytest.mark.parametrize(("width", "look"), [(PHONE, "narrow"), (768, "wide"), (1440, "wide")])
def test_a_chart_fits_the_width_that_it_is_given(browser: Browser, page: Path, width: int, look: str) -> None:
    browser.show(page, width=width)
    script = """const shown = [...document.querySelectorAll('svg.chart')].filter(svg => svg.checkVisibility())
        return shown.map(svg => {
        const box = svg.getBoundingClientRect()
        const texts = [...svg.querySelectorAll('text')].map(text => text.getBoundingClientRect())
        return {look: svg.classList[1], right: box.right, height: Math.min(...texts.map(text => text.height)),
            cut: texts.filter(text => text.left < box.left - 1 || text.right > box.right + 1).length}})"""
    while len(found := browser.run(script)) < 5:
        time.sleep(0.1)  # a busy browser has not laid out all of it yet
    assert [one["look"] for one in found] == [look] * 5
    assert max(one["right"] for one in found) <= width
    assert not any(one["cut"] for one in found)
    assert min(one["height"] for one in found) >= 9
    if width == 1440:
        # The right half of a desktop is in use.
        assert max(one["right"] for one in found) > 0.85 * width


def test_a_table_says_that_it_scrolls_where_it_does(browser: Browser, page: Path) -> None:
    script = """const told = item => parseFloat(getComputedStyle(item, '::before').height) > 5
        const all = [...document.querySelectorAll('.scroll')]
        return all.map(item => [item.scrollWidth > item.clientWidth + 1, told(item)])"""
    told = []
    for width in (PHONE, 1440):
        browser.show(page, width=width)
        browser.run("document.querySelectorAll('details').forEach(item => item.open = true)")
        # The animation that tells has its value in the frame after.
        browser.run("return new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        told.append(browser.run(script))
    assert all(scrolls == said for found in told for scrolls, said in found)
    assert {scrolls for found in told for scrolls, _ in found} == {True, False}


def test_what_stands_below_on_a_phone_says_what_it_is(browser: Browser, page: Path) -> None:
    """A heading of a column is not beside its cells there."""
    script = """const cells = [...document.querySelectorAll('#defects td[data-label]')]
        const labels = cells.map(cell => getComputedStyle(cell, '::before').content)
        return [cells.length, [...new Set(labels)].sort()]"""
    browser.show(page, width=PHONE)
    count, labels = browser.run(script)
    assert count > 0
    assert [label.strip('"') for label in labels] == ["Harm: ", "Met under: ", "Way out: "]
    browser.show(page, width=1440)
    assert browser.run(script)[1] == ["none"]


def test_paper_is_light_and_nothing_is_cut(browser: Browser, page: Path) -> None:
    browser.show(page, scheme="dark", width=720)  # A4 between its margins
    browser.cdp(
        "Emulation.setEmulatedMedia", media="print",
        features=[{"name": "prefers-color-scheme", "value": "dark"}],
    )  # fmt: skip
    try:
        assert style(browser, "body", "backgroundColor") == "rgb(255, 255, 255)"
        assert style(browser, "nav", "display") == "none"
        script = """return [...document.querySelectorAll('main *')].filter(item => item.checkVisibility() &&
            !item.closest('svg, .hidden, .map') && item.getBoundingClientRect().right > innerWidth + 1
        ).map(item => item.outerHTML.slice(0, 120))"""
        assert browser.run(script) == []
    finally:
        browser.cdp("Emulation.setEmulatedMedia", media="")


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
@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", PHONE)])
def test_axe_finds_nothing(browser: Browser, page: Path, scheme: str, width: int) -> None:
    browser.show(page, scheme=scheme, width=width)
    browser.run("document.querySelectorAll('details').forEach(item => item.open = true)")
    browser.run(AXE.read_text(encoding="utf-8"))
    script = """return axe.run().then(found =>
        found.violations.map(item => [item.id, item.nodes.map(one => one.html)]))"""
    assert browser.run(script) == []
