"""The report in a real browser: headless Chromium by Playwright (`pip install '.[browser]'`, Debian's chromium).

`AXE` names the `axe.min.js` of npm's axe-core for the test of accessibility. What is missing is skipped, and says so.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from export_builders import finished_sweep, large_sweep, write_journal
from results_builders import completed
from test_explain_steps import sixteen_measured
from test_page import EVIL, OTHERS, _evil, sweep_with_failures

from raysweep.cli.report import live_server
from raysweep.page.facts import gather
from raysweep.page.html import html_report
from raysweep.results.journal import EntryKind, Journal, JournalContents
from raysweep.search.explain_steps import explain_steps
from raysweep.serde import to_dict

pytestmark = pytest.mark.slow
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
AXE = os.environ.get("AXE", "")
READY_S = 3.0
SWEEPS = {
    "failures": sweep_with_failures,
    "single": finished_sweep,
    "step": sixteen_measured,
    "five thousand": lambda: large_sweep(5000),
    "markup": _evil,
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no chromium on PATH")
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


class Opened:
    """A report in a page, with what went wrong on the way."""

    def __init__(self, browser: Any, contents: JournalContents, folder: Path, **options: Any) -> None:
        path = folder / "report.html"
        path.write_text(html_report(gather(contents, name=EVIL, sweep_file="name: tiny", explain=explain_steps)))
        self.page = browser.new_context(offline=True, bypass_csp=False, **options).new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        self.page.on("request", lambda request: self.requests.append(request.url))
        began_s = time.perf_counter()
        self.page.goto(path.as_uri())
        self.page.locator("#count:not(:empty)").wait_for()
        self.ready_s = time.perf_counter() - began_s

    def shown(self) -> list[str]:
        """Ids of the rows that are shown, in their order."""
        script = "Array.from(document.querySelectorAll('#all tbody tr:not([hidden])'), row => row.cells[0].textContent)"
        found: list[str] = self.page.evaluate(script)
        return found

    def column(self, number: int) -> list[str]:
        """Texts of a column, in their order."""
        script = "n => Array.from(document.querySelectorAll('#all tbody tr'), row => row.cells[n].textContent)"
        found: list[str] = self.page.evaluate(script, number)
        return found


@pytest.mark.parametrize("name", SWEEPS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_opens_without_a_complaint_or_a_request(
    browser: Any, tmp_path: Path, name: str, scheme: str, width: int
) -> None:
    size = {"width": width, "height": 850}
    opened = Opened(browser, SWEEPS[name](), tmp_path, color_scheme=scheme, viewport=size)
    assert opened.complaints == [] and len(opened.requests) == 1
    assert opened.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert opened.page.inner_text("h1") == EVIL


def test_five_thousand_rows_are_ready_sort_and_filter(browser: Any, tmp_path: Path) -> None:
    opened = Opened(browser, large_sweep(5000), tmp_path)
    print(f"ready after {opened.ready_s:.2f} s (at most {READY_S} s on an idle machine)")
    opened.page.get_by_role("button", name="samples/s (search)").click()
    rates = [float(text) for text in opened.column(6) if text]
    assert rates == sorted(rates) and opened.column(6)[-1] == ""
    opened.page.get_by_role("button", name="samples/s (search)").click()
    assert [float(text) for text in opened.column(6) if text] == rates[::-1]
    opened.page.fill("#filter-text", "s3-k2-b4")
    opened.page.select_option("#filter-status", "COMPLETED")
    assert opened.shown() and all(each.startswith("s3-k2-b4") for each in opened.shown())
    assert opened.page.inner_text("#count") == f"{len(opened.shown())} of 5000 candidates"
    assert opened.complaints == []


def test_the_first_rows_are_shown_until_all_are_asked_for(browser: Any, tmp_path: Path) -> None:
    opened = Opened(browser, large_sweep(1000), tmp_path)
    visible = "Array.from(document.querySelectorAll('#all tbody tr')).filter(row => row.offsetHeight > 0).length"
    assert opened.page.evaluate(visible) == 300
    opened.page.emulate_media(media="print")
    assert opened.page.evaluate(visible) == 1000
    opened.page.emulate_media(media="screen")
    opened.page.get_by_role("button", name="Show all 1000").click()
    assert opened.page.evaluate(visible) == 1000


def test_the_keyboard_sorts(browser: Any, tmp_path: Path) -> None:
    opened = Opened(browser, finished_sweep(others=OTHERS), tmp_path)
    opened.page.get_by_role("button", name="stage", exact=True).focus()
    opened.page.keyboard.press("Enter")
    assert opened.column(1) == sorted(opened.column(1))
    assert opened.page.get_attribute("#all th:nth-child(2)", "aria-sort") == "ascending"


def test_the_live_page_renews_itself_and_keeps_order_and_filter(browser: Any, tmp_path: Path) -> None:
    contents = finished_sweep(others=OTHERS[:2])
    first, late = contents.measurements[0], completed(OTHERS[0].candidate_id, 70.5)
    write_journal(tmp_path, JournalContents(sweeps=contents.sweeps, measurements=(first,)))
    complaints: list[str] = []
    with live_server(str(tmp_path), address="0") as server:
        page = browser.new_context().new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(server.url)
        page.get_by_role("button", name="samples/s (search)").click()
        page.fill("#filter-text", "s0")
        with Journal.open(tmp_path / "journal.jsonl") as journal:
            journal.append(EntryKind.MEASUREMENT, to_dict(late))
        page.locator("#all", has_text="70.50").wait_for(timeout=5000)  # by locators: the page forbids `eval`
        assert page.input_value("#filter-text") == "s0" and "1 of 3" in page.inner_text("#count")
        assert page.get_attribute("#all th:nth-child(7)", "aria-sort") == "ascending"
        rates = page.evaluate("Array.from(document.querySelectorAll('#all tbody tr'), row => row.cells[6].textContent)")
        assert rates == ["70.50", "100.00", ""]
        assert complaints == []
    page.locator("#live", has_text="has ended").wait_for(timeout=5000)


@pytest.mark.skipif(not AXE, reason="AXE does not name an axe.min.js")
@pytest.mark.parametrize("name", ["failures", "single", "step", "markup"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_violation(browser: Any, tmp_path: Path, name: str, scheme: str) -> None:
    opened = Opened(browser, SWEEPS[name](), tmp_path, color_scheme=scheme)
    opened.page.evaluate(Path(AXE).read_text())
    found = opened.page.evaluate("axe.run()")
    assert [(each["id"], each["nodes"][0]["html"]) for each in found["violations"]] == []
