"""Reports in a real browser: drawn, quiet, as wide as the window, and legible in the dark.

One Chromium, started once, looks at every kind of page. `SCREENSHOTS=DIRECTORY` keeps pictures.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import html_pages
import pytest
from chromium import Page

VIEWS = [(1280, "light"), (1280, "dark"), (400, "light"), (400, "dark")]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("pages")
    found = {}
    for name, text in html_pages.pages(directory).items():
        found[name] = directory / f"{name}.html"
        found[name].write_text(text)
    return found


def show(page: Page, file: Path, width: int, scheme: str) -> None:
    page.show(file.as_uri(), width, scheme)
    page.wait_until("document.documentElement.dataset.drawn")
    if directory := os.environ.get("SCREENSHOTS"):
        Path(directory).mkdir(parents=True, exist_ok=True)
        page.screenshot(Path(directory) / f"{file.stem}-{width}-{scheme}.png")


DRAWN = """
Array.from(document.querySelectorAll(".chart")).map((chart) => ({
  marks: chart.querySelectorAll("svg .role-mark path, svg .role-mark line").length,
  width: chart.querySelector("svg")?.getBoundingClientRect().width ?? 0,
  room: chart.getBoundingClientRect().width,
}))
"""


@pytest.mark.parametrize(("width", "scheme"), VIEWS)
@pytest.mark.parametrize("name", ["run", "suite", "comparison"])
def test_charts_are_drawn_and_nothing_is_complained_about(
    page: Page, files: dict[str, Path], name: str, width: int, scheme: str
) -> None:
    show(page, files[name], width, scheme)
    assert page.complaints == []
    assert page.requests == [files[name].as_uri()]
    charts = page.evaluate(DRAWN)
    assert charts
    for chart in charts:
        assert chart["marks"] > 0
        assert width * 0.3 < chart["width"] <= chart["room"] + 1
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_rest_of_the_pages_are_quiet_too(page: Page, files: dict[str, Path]) -> None:
    for name in files.keys() - {"run", "suite", "comparison"}:
        show(page, files[name], 800, "light")
        assert (name, page.complaints) == (name, [])


@pytest.mark.parametrize("name", ["run_hostile", "suite_hostile", "comparison_hostile"])
@pytest.mark.fault(case=17)
def test_hostile_names_do_nothing(page: Page, files: dict[str, Path], name: str) -> None:
    show(page, files[name], 1280, "light")
    assert page.evaluate("window.hurt") is None
    assert page.evaluate("document.querySelectorAll('img').length") == 0


CONTRAST = """
(() => {
  const channels = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map(Number);
  const light = (colour) => {
    const [r, g, b] = channels(colour).map((value) => {
      const share = value / 255;
      return share <= 0.03928 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const paper = light(getComputedStyle(document.body).backgroundColor);
  const contrast = (colour) => {
    const [low, high] = [paper, light(colour)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const of = (selector, property) => Array.from(document.querySelectorAll(selector)).map(
    (element) => contrast(getComputedStyle(element)[property]));
  return {
    texts: Math.min(...of("p, td, th, summary, a, .status, .chart svg text", "color")),
    labels: Math.min(...of(".chart svg text", "fill")),
    lines: Math.min(...of(".chart svg .mark-line path", "stroke")),
  };
})()
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_can_be_told_from_the_paper(
    page: Page, files: dict[str, Path], scheme: str
) -> None:
    """WCAG AA: 4.5 for text, 3 for lines."""
    show(page, files["run"], 1280, scheme)
    found = page.evaluate(CONTRAST)
    assert found["texts"] >= 4.5, found
    assert found["labels"] >= 4.5, found
    assert found["lines"] >= 3, found


def test_dark_is_dark_and_print_is_light(page: Page, files: dict[str, Path]) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    show(page, files["run"], 1280, "dark")
    assert page.evaluate(colour) == "rgb(20, 23, 26)"
    page.call(
        "Emulation.setEmulatedMedia",
        media="print",
        features=[{"name": "prefers-color-scheme", "value": "dark"}],
    )
    assert page.evaluate(colour) == "rgb(255, 255, 255)"


def test_the_pointer_is_told_the_values(page: Page, files: dict[str, Path]) -> None:
    show(page, files["run"], 1280, "light")
    place = json.loads(
        page.evaluate(
            """(() => { const chart = document.querySelector(".chart");
            chart.scrollIntoView({block: "center"});
            const box = chart.getBoundingClientRect();
            return JSON.stringify([box.x + box.width / 2, box.y + box.height / 2]); })()"""
        )
    )
    for shift in (0, 3):
        page.call("Input.dispatchMouseEvent", type="mouseMoved", x=place[0] + shift, y=place[1])
    page.wait_until("document.querySelector('#vg-tooltip-element.visible') !== null")
    told = page.evaluate("document.querySelector('#vg-tooltip-element').innerText")
    assert "sent" in told
    assert "msg/s" in told


def test_charts_follow_the_window(page: Page, files: dict[str, Path]) -> None:
    show(page, files["run"], 1280, "light")
    page.call(
        "Emulation.setDeviceMetricsOverride",
        width=500,
        height=900,
        deviceScaleFactor=1,
        mobile=False,
    )
    page.wait_until("document.documentElement.dataset.drawn !== '1180'")
    page.wait_until("document.querySelector('.chart svg').getBoundingClientRect().width < 500")
