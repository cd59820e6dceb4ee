"""Makes docs/images anew: the report and the dashboard of a real run on an embedded RabbitMQ.

    .venv/bin/python tools/screenshots.py

Needs RabbitMQ, Chromium, and a machine that is quiet for a minute.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
sys.path.insert(0, str(ROOT / "tests"))

from chromium import Page, installed_chromium, started_chromium  # noqa: E402 (lies in tests)

from bench_spark import brokers  # noqa: E402
from bench_spark.brokers.base import BrokerStatus, free_ports  # noqa: E402

MOST_BYTES = 200_000
WIDTH, DASHBOARD_HEIGHT, REPORT_HEIGHT = 1280, 1480, 1500
LOAD = ("load.rate_per_second=2000", "phases.warmup_seconds=5", "phases.measure_seconds=20")
PICTURE_AT_POINTS = 18


def main() -> None:
    program = installed_chromium()
    if program is None:
        sys.exit("no Chromium is installed (apt-get install chromium)")
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name, brokers.embedded("rabbitmq") as running:
        directory = Path(name)
        with started_chromium(program, directory / "profile") as browser:
            take_pictures(browser.open_page(), running["rabbitmq"], directory)


def take_pictures(page: Page, broker: BrokerStatus, directory: Path) -> None:
    file = directory / "rabbitmq.yaml"
    told = broker.broker.model_dump(exclude_none=True, exclude_defaults=True)
    source = {"name": "rabbitmq", "pid": broker.pid}
    file.write_text(yaml.safe_dump({**told, "name": "rabbitmq", "resources": [source]}))
    report = directory / "report.html"
    [port] = free_ports(1)
    run = subprocess.Popen(
        [
            *(sys.executable, "-m", "bench_spark.cli", "run", "steady", "--broker", str(file)),
            *("--store", str(directory / "store"), "--dashboard", str(port)),
            *("--format", "terminal", "--format", f"html={report}"),
            *(word for setting in LOAD for word in ("--set", setting)),
        ]
    )
    wait_for(port)
    page.show(f"http://127.0.0.1:{port}/", WIDTH, height=DASHBOARD_HEIGHT)
    page.wait_until("document.querySelector('.chart svg') !== null")
    page.wait_until(f"document.querySelector('.chart')?.dataset.points >= {PICTURE_AT_POINTS}")
    keep(page, IMAGES / "dashboard.png")
    if run.wait(timeout=120) not in (0, 4):
        sys.exit("the run failed")
    page.show(report.as_uri(), WIDTH, height=REPORT_HEIGHT)
    page.wait_until("document.documentElement.dataset.drawn")
    keep(page, IMAGES / "report.png")


def keep(page: Page, file: Path) -> None:
    page.screenshot(file, whole_page=False)
    size = file.stat().st_size
    sys.stdout.write(f"{file.relative_to(ROOT)}: {size:,} bytes\n")
    if size > MOST_BYTES:
        sys.exit(f"more than {MOST_BYTES:,} bytes")


def wait_for(port: int) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
            return
        except OSError:
            time.sleep(0.2)
    sys.exit(f"nothing listens at port {port}")


if __name__ == "__main__":
    main()
