"""The page in a real browser: nothing is asked of any host, nothing breaks, everything works."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from autotune.report.html import build_report
from autotune.report.two_studies import compare_studies, render
from autotune.report.view import load_view

PROGRAM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium on this machine")
WIDTHS = (1280, 800, 400)
# Everything that moves after the first paint, summed up as the browser does
SHIFTS = """() => new Promise(done => {
  let sum = 0;
  new PerformanceObserver(list => list.getEntries().forEach(e => { sum += e.value; }))
    .observe({type: 'layout-shift', buffered: true});
  setTimeout(() => done(sum), 300);
})"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as tool:
        started = tool.chromium.launch(executable_path=PROGRAM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def made(study: Any) -> Any:
    written = study(requests=120, name="night <img src=x onerror=alert(1)>", trials=20)
    written.search(14).verdict("better").scripts()
    build_report(written.path)
    return written


STICKING_OUT = """[...document.querySelectorAll(".box")].flatMap(box =>
  [...box.querySelectorAll("td, th, li, p")]
    .filter(one => one.getBoundingClientRect().right > box.getBoundingClientRect().right + 0.5)
    .map(one => one.innerText))"""


@pytest.fixture(params=WIDTHS)
def page(request: pytest.FixtureRequest, browser: Browser, made: Any) -> Iterator[Page]:
    context = browser.new_context(
        viewport={"width": request.param, "height": 900},
        permissions=["clipboard-read", "clipboard-write"],
    )
    opened = context.new_page()
    complaints: list[str] = []
    asked: list[str] = []
    opened.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("request", lambda r: asked.append(r.url))
    opened.goto((made.path / "report.html").as_uri())
    yield opened
    context.close()
    assert complaints == []
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []


def test_nothing_sticks_out_and_nothing_moves(page: Page) -> None:
    wide = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert wide[0] <= wide[1]
    assert page.evaluate(SHIFTS) < 0.05


@pytest.mark.parametrize("width", WIDTHS)
def test_open_ends_of_intervals_stay_inside_their_box(
    browser: Browser, study: Any, width: int
) -> None:
    """Few requests and no pairs: the table then holds words where there is no end."""
    made = study(requests=60).search(6)
    build_report(made.path)
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.goto((made.path / "report.html").as_uri())
    assert "not measurable with" in page.locator(".goal-table").inner_text()
    assert page.evaluate(STICKING_OUT) == []
    page.close()


def test_the_first_screen_answers(page: Page, made: Any) -> None:
    first = page.locator("#verdict")
    assert "shorter" in first.locator("h1").inner_text()
    assert "launch.sh" in first.inner_text()
    assert page.locator("img").count() == 0
    levels = page.eval_on_selector_all("h1, h2, h3", "all => all.map(h => +h.tagName[1])")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels))


def test_the_script_is_copied_as_it_stands(page: Page, made: Any) -> None:
    box = page.locator("#script .copyable").first
    box.locator(".copy").click()
    page.wait_for_function("document.querySelector('#script .copy').textContent.includes('Copied')")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.strip() == (made.path / "best" / "launch.sh").read_text().strip()


def trial_numbers(page: Page) -> list[int]:
    cells: list[str] = page.eval_on_selector_all(
        "#trials-table tbody tr:not([hidden])", "rows => rows.map(r => r.cells[0].dataset.key)"
    )
    return [int(cell) for cell in cells]


def test_the_table_of_trials_sorts_and_filters(page: Page) -> None:
    head = page.locator("#trials-table thead th").first
    head.locator("button").click()
    rising = trial_numbers(page)
    assert rising == sorted(rising)
    assert head.get_attribute("aria-sort") == "ascending"
    head.locator("button").press("Enter")
    assert trial_numbers(page) == sorted(rising, reverse=True)
    page.fill("#trial-filter", "memory")
    shown = trial_numbers(page)
    assert 0 < len(shown) < len(rising)
    assert page.locator("#trial-count").inner_text().startswith(f"{len(shown)} of")


def test_the_keyboard_reaches_the_verdict_and_every_button(page: Page) -> None:
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('href')") == "#verdict"
    unreachable = page.eval_on_selector_all(
        "button, a[href], summary, input", "all => all.filter(e => e.tabIndex < 0).length"
    )
    assert unreachable == 0
    nameless = page.eval_on_selector_all(
        "button, a[href]", "all => all.filter(e => !(e.textContent || e.ariaLabel).trim()).length"
    )
    assert nameless == 0


def test_both_themes_can_be_read(page: Page) -> None:
    def ground() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    before = ground()
    page.locator("[data-do=theme]").click()
    assert ground() != before


def test_a_mark_tells_its_trial(page: Page) -> None:
    mark = page.locator("#search svg.plot .mark").first
    mark.scroll_into_view_if_needed()
    mark.dispatch_event("mouseenter")
    tip = page.locator("#tip")
    assert tip.is_visible()
    assert "#" in tip.inner_text()


@pytest.mark.parametrize("width", WIDTHS)
def test_two_studies_fit_every_screen(
    browser: Browser, made: Any, tmp_path: Path, width: int
) -> None:
    view = load_view(made.path)
    file = tmp_path / "two.html"
    file.write_text(render(compare_studies(view, view)), encoding="utf-8")
    page: Any = browser.new_page(viewport={"width": width, "height": 900})
    complaints: list[str] = []
    page.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
    page.goto(file.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.locator("h1").count() == 1
    page.close()
    assert complaints == []
