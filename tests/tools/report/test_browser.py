"""The page in a real browser: its pictures are there, nothing is wrong in its console, and nothing is fetched.

Skipped where no Chromium is installed: `apt-get install chromium` or `.venv-tests/bin/playwright install chromium` gets one.
`REPORT_SCREENSHOTS=directory` keeps pictures of every page, to be looked at.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_kafka_sink.tools.report.command import main
from tests.tools.report.samples import STORIES, write

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WIDTHS = {"narrow": 390, "wide": 1280}
LIMIT_MS = 60_000
pytestmark = pytest.mark.slow
SCREENSHOTS = os.environ.get("REPORT_SCREENSHOTS")
# Labels that reach out of their picture, and labels that lie on each other.
CUT_OFF = """
() => [...document.querySelectorAll("svg.picture")].flatMap(svg => {
  const frame = svg.getBoundingClientRect();
  return [...svg.querySelectorAll("text")].filter(text => {
    const box = text.getBoundingClientRect();
    return box.left < frame.left - 2 || box.right > frame.right + 2 || box.top < frame.top - 2 || box.bottom > frame.bottom + 2;
  }).map(text => svg.querySelector("title").textContent + ": " + text.textContent);
})
"""
LABELS_ON_LABELS = """
() => [...document.querySelectorAll("svg.picture")].flatMap(svg => {
  const boxes = [...svg.querySelectorAll("text")].map(text => [text.textContent, text.getBoundingClientRect()]);
  return boxes.flatMap(([one, a], i) => boxes.slice(i + 1).filter(([_, b]) =>
    Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4
  ).map(([two, _]) => svg.querySelector("title").textContent + ": " + one + " / " + two));
})
"""
SMALLEST_LABEL = (
    "() => Math.min(...[...document.querySelectorAll('svg.picture text')].map(each => each.getBoundingClientRect().height))"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as playwright:
        own = Path(playwright.chromium.executable_path)
        executable = str(own) if own.exists() else next(filter(None, map(shutil.which, NAMES)), None)
        if executable is None:
            pytest.skip("no Chromium is installed: apt-get install chromium, or .venv-tests/bin/playwright install chromium")
        sandboxed = os.geteuid() != 0  # Chromium's sandbox refuses to run as root
        started = playwright.chromium.launch(executable_path=executable, chromium_sandbox=sandboxed, timeout=LIMIT_MS)
        yield started
        started.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The four pages, made by the command."""
    directory = tmp_path_factory.mktemp("pages")
    for name, lines in STORIES.items():
        file = write(directory / f"{name}.jsonl", lines())
        assert main([str(file), "-o", str(directory / f"{name}.html")]) == 0
    return directory


class Opened:
    """A page, and what it has said and asked for."""

    def __init__(self, page: Page, file: Path) -> None:
        self.page = page
        self.console: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: self.console.append(message.text))
        page.on("pageerror", lambda error: self.console.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        page.goto(file.as_uri(), timeout=LIMIT_MS)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", STORIES)
def test_the_page_is_whole_in_a_browser(name: str, scheme: str, width: str, browser: Browser, pages: Path) -> None:
    context = browser.new_context(color_scheme=scheme, viewport={"width": WIDTHS[width], "height": 900})
    try:
        opened = Opened(context.new_page(), pages / f"{name}.html")
        page = opened.page
        assert opened.console == []
        assert [url for url in opened.requests if not url.startswith("data:")] == [(pages / f"{name}.html").as_uri()]
        pictures = page.locator("svg.picture")
        assert pictures.count() >= 3
        for number in range(pictures.count()):
            box = pictures.nth(number).bounding_box()
            assert box is not None
            assert box["width"] > 250
            assert box["height"] > 40
        assert page.evaluate("document.documentElement.scrollWidth") <= WIDTHS[width]
        assert 3 <= page.locator(".findings li").count() <= 4
        assert page.evaluate(CUT_OFF) == []
        assert page.evaluate(LABELS_ON_LABELS) == []
        assert page.evaluate(SMALLEST_LABEL) >= 8
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        brightness = sum(int(each) for each in background.removeprefix("rgb(").removesuffix(")").split(","))
        assert (brightness > 600) == (scheme == "light")
        if SCREENSHOTS:
            page.screenshot(path=Path(SCREENSHOTS) / f"{name}-{scheme}-{width}.png", full_page=True)
            if (name, width) == ("behind", "wide"):  # the pictures of docs/report.md
                page.screenshot(path=Path(SCREENSHOTS) / f"report-{scheme}.png")
    finally:
        context.close()


def test_the_page_keeps_a_browser_from_fetching_anything(browser: Browser, pages: Path, tmp_path: Path) -> None:
    """Even if something that asks for the network came into the page."""
    text = (pages / "one.html").read_text(encoding="utf-8")
    asking = '<img src="http://127.0.0.1:9/x.png"><script src="http://127.0.0.1:9/x.js"></script>'
    asking += '<script>document.title = "run"</script>'
    (tmp_path / "asking.html").write_text(text.replace("</main>", f"{asking}</main>"), encoding="utf-8")
    context = browser.new_context()
    try:
        opened = Opened(context.new_page(), tmp_path / "asking.html")
        assert opened.page.title() == "What the sink did"
        assert any("Content Security Policy" in each for each in opened.console)
    finally:
        context.close()
