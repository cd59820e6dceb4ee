"""A real run, looked at while it goes on: by a browser on its dashboard, and by `watch` beside it.

One run serves nearly all tests here. `SCREENSHOTS=DIRECTORY` keeps pictures.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import html_pages
import pytest
from chromium import Page
from growing_run import GrowingRun

from bench_spark.brokers.base import free_ports
from bench_spark.cli import main
from bench_spark.errors import EXIT_INTERRUPTED
from bench_spark.store.delta import Store
from bench_spark.watch.dashboard import Dashboard
from bench_spark.watch.followed_run import FollowedRun

LOAD = (
    *("--set", "load.rate_per_second=500", "--set", "phases.warmup_seconds=1"),
    *("--set", "phases.measure_seconds=300", "--trigger-seconds", "1"),
)
NARROW, WIDE = 400, 1280

WATCH = """
import sys, time
from bench_spark.cli import main
from bench_spark.errors import EXIT_INTERRUPTED
while (code := main(["watch", "looked-at", "--store", sys.argv[1]])) in (2, 3):
    time.sleep(0.2)  # the run, or its store, is not there yet
assert "pyspark" not in sys.modules
sys.exit(code)
"""

CHARTS = """
Object.fromEntries(Array.from(document.querySelectorAll("#figures figure")).map((figure) => [
  figure.querySelector("figcaption").textContent,
  Number(figure.querySelector(".chart").dataset.points),
]))
"""


@dataclass
class Looked:
    """What was seen, in the order of seeing it."""

    charts: list[dict[str, int]] = field(default_factory=list)
    overflow: list[int] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    text_at_the_end: str = ""
    metrics: str = ""
    watched: subprocess.CompletedProcess[str] | None = None
    exit_code: int = -1


def keep_picture(page: Page, name: str) -> None:
    if directory := os.environ.get("SCREENSHOTS"):
        Path(directory).mkdir(parents=True, exist_ok=True)
        page.screenshot(Path(directory) / f"dashboard-{name}.png")


def wait_for(url: str) -> None:
    until = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(url, timeout=60).close()
            return
        except OSError:
            assert time.monotonic() < until, f"nothing answers at {url}"
            time.sleep(0.1)


def look(page: Page, url: str, prometheus: str, store: str) -> Looked:
    """From the start of the run until all is seen, which ends it: narrow and dark first, then wide
    and light."""
    seen = Looked()
    watching = subprocess.Popen(
        [sys.executable, "-c", WATCH, store],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(url)
    page.show(url, NARROW, "dark")
    page.wait_until("document.querySelectorAll('.chart svg').length >= 2")
    seen.charts.append(page.evaluate(CHARTS))
    seen.overflow.append(page.evaluate("document.documentElement.scrollWidth") - NARROW)
    keep_picture(page, "narrow")
    seen.complaints += page.complaints
    page.show(url, WIDE, "light")
    page.wait_until("document.querySelectorAll('.chart svg').length >= 2")
    seen.metrics = urllib.request.urlopen(prometheus, timeout=60).read().decode()
    first = seen.charts[0]["Throughput, msg/s"]
    page.wait_until(f"document.querySelector('.chart').dataset.points > {first}")
    seen.charts.append(page.evaluate(CHARTS))
    seen.overflow.append(page.evaluate("document.documentElement.scrollWidth") - WIDE)
    keep_picture(page, "wide")
    os.kill(os.getpid(), signal.SIGINT)
    page.wait_until("document.documentElement.dataset.over")
    keep_picture(page, "over")
    seen.text_at_the_end = page.evaluate("document.body.innerText")
    seen.complaints += page.complaints
    seen.requests += page.requests
    out, err = watching.communicate(timeout=60)
    seen.watched = subprocess.CompletedProcess(watching.args, watching.returncode, out, err)
    return seen


@pytest.fixture(scope="module")
def looked(page: Page, spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Looked:
    directory = tmp_path_factory.mktemp("looked")
    store = str(directory / "store")
    dashboard, prometheus = free_ports(2)
    addresses = f"http://127.0.0.1:{dashboard}/", f"http://127.0.0.1:{prometheus}/metrics"
    with ThreadPoolExecutor(1) as viewer:
        seeing = viewer.submit(look, page, *addresses, store)
        code = main(
            [
                *("run", "steady", "--broker", "loopback", "--store", store, *LOAD),
                *("--run-id", "looked-at", "--quiet", "--dashboard", str(dashboard)),
                *("--prometheus", str(prometheus)),
            ]
        )
        seen = seeing.result(timeout=60)
        seen.exit_code = code
        return seen


def test_charts_grow_while_the_run_goes_on_and_nothing_is_complained_about(looked: Looked) -> None:
    assert looked.exit_code == EXIT_INTERRUPTED
    early, later = looked.charts
    assert {"Throughput, msg/s", "Latency", "CPU, %"} <= set(later)
    assert all(later[name] >= points for name, points in early.items())
    assert later["Throughput, msg/s"] > early["Throughput, msg/s"] > 0
    assert looked.complaints == []
    assert max(looked.overflow) <= 0


def test_the_page_asks_nobody_but_the_run(looked: Looked) -> None:
    assert looked.requests
    assert {url.split("/")[2].split(":")[0] for url in looked.requests} == {"127.0.0.1"}


def test_the_page_says_that_the_run_is_over_and_what_it_came_to(looked: Looked) -> None:
    assert "The run is over" in looked.text_at_the_end
    assert "The run's audit of itself" in looked.text_at_the_end
    assert "delivered\n100 %" in looked.text_at_the_end
    assert "bench-spark show looked-at" in looked.text_at_the_end


def test_watch_follows_from_another_process_without_spark(looked: Looked) -> None:
    assert looked.watched is not None
    assert looked.watched.returncode == 0, looked.watched.stderr
    assert "looked-at  measure" in looked.watched.stderr
    assert "delivery P99" in looked.watched.stderr
    assert "steady on loopback" in looked.watched.stdout.splitlines()[0]


def test_prometheus_is_told_of_the_same_run(looked: Looked) -> None:
    # Labels come in an order of the library's own.
    assert re.search(r'^bench_spark_received_per_second\{.*run="looked-at"', looked.metrics, re.M)


def test_hostile_names_do_nothing_and_charts_follow_the_window(page: Page, store: Store) -> None:
    run = GrowingRun(store, source=html_pages.HOSTILE)
    run.begin()
    for second in range(3):
        run.add_second(second)
    followed = FollowedRun(store, "r1")
    followed.refresh()
    followed.state.run = {**(followed.state.run or {}), "scenario": html_pages.HOSTILE}
    dashboard = Dashboard("127.0.0.1", 0)
    dashboard.show(followed.state, message=html_pages.HOSTILE, show_again=html_pages.HOSTILE)
    try:
        page.show(dashboard.address, WIDE)
        page.wait_until("document.documentElement.dataset.version")
        assert page.evaluate("window.hurt") is None
        assert page.evaluate("document.querySelectorAll('img').length") == 0
        size = {"width": NARROW, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        page.call("Emulation.setDeviceMetricsOverride", **size)
        width = "document.querySelector('.chart svg').getBoundingClientRect().width"
        page.wait_until(f"{width} > 100 && {width} < {NARROW}")
        assert page.complaints == []
    finally:
        dashboard.close(wait_for_viewers=False)
