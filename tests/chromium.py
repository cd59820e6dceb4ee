"""A headless Chromium driven over its debugging pipe: one start serves all pages of a test session.

The pipe carries JSON documents that end with a NUL byte (descriptor 3 towards the browser, 4 back),
so no websocket library is needed.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
ANSWER_SECONDS = 60.0

_FLAGS = (
    *("--headless=new", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu"),
    *("--disable-dev-shm-usage", "--hide-scrollbars", "--disable-background-networking"),
)


def installed_chromium() -> str | None:
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


@dataclass
class Page:
    """A tab, and everything that it complained about."""

    browser: Chromium
    session: str
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self.browser.call(method, parameters, self.session)

    def show(self, url: str, width: int, scheme: str = "light", height: int = 900) -> None:
        self.complaints.clear()
        self.requests.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media="", features=features)
        self.call("Page.navigate", url=url)
        self.wait_until("document.readyState === 'complete'")

    def emulate_print(self) -> None:
        self.call("Emulation.setEmulatedMedia", media="print", features=[])

    def evaluate(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait_until(self, expression: str) -> None:
        until = time.monotonic() + ANSWER_SECONDS
        while not self.evaluate(expression):
            if time.monotonic() > until:
                raise AssertionError(f"never true: {expression}; {self.complaints}")
            time.sleep(0.05)

    def screenshot(self, file: Path, whole_page: bool = True) -> None:
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=whole_page)
        file.write_bytes(base64.b64decode(answer["data"]))


class Chromium:
    def __init__(self, process: subprocess.Popen[bytes], towards: int, back: int) -> None:
        self._process = process
        self._towards = towards
        self._back = back
        self._buffer = b""
        self._number = 0
        self._pages: dict[str, Page] = {}

    def open_page(self) -> Page:
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        attached = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})
        page = Page(self, attached["sessionId"])
        self._pages[page.session] = page
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        return page

    def call(
        self, method: str, parameters: Mapping[str, Any], session: str | None = None
    ) -> dict[str, Any]:
        self._number += 1
        asked = {"id": self._number, "method": method, "params": dict(parameters)}
        if session is not None:
            asked["sessionId"] = session
        os.write(self._towards, json.dumps(asked).encode() + b"\0")
        for message in self._messages():
            if message.get("id") == self._number:
                if "error" in message:
                    raise AssertionError(f"{method}: {message['error']}")
                result: dict[str, Any] = message["result"]
                return result
            self._note(message)
        raise AssertionError(f"{method}: the browser has gone away")

    def _messages(self) -> Iterator[dict[str, Any]]:
        while True:
            while b"\0" not in self._buffer:
                part = os.read(self._back, 1 << 16)
                if not part:
                    return
                self._buffer += part
            text, _, self._buffer = self._buffer.partition(b"\0")
            yield json.loads(text)

    def _note(self, event: Mapping[str, Any]) -> None:
        page = self._pages.get(event.get("sessionId", ""))
        if page is None:
            return
        told = event["params"]
        match event["method"]:
            case "Runtime.consoleAPICalled":
                page.complaints.append(f"console.{told['type']}: {told['args']}")
            case "Runtime.exceptionThrown":
                page.complaints.append(f"exception: {told['exceptionDetails']}")
            case "Log.entryAdded":
                page.complaints.append(f"log: {told['entry']}")
            case "Network.requestWillBeSent":
                page.requests.append(told["request"]["url"])


@contextmanager
def started_chromium(program: str, profile: Path, more: Sequence[str] = ()) -> Iterator[Chromium]:
    to_read, towards = os.pipe()
    back, to_write = os.pipe()
    # A root user has no sandbox; the pages are our own.
    flags = [*_FLAGS, *(["--no-sandbox"] if os.geteuid() == 0 else []), *more]

    def at_3_and_4() -> None:
        # Copies first: 3 and 4 may be among the four.
        copies = os.dup(to_read), os.dup(to_write)
        os.dup2(copies[0], 3)
        os.dup2(copies[1], 4)

    process = subprocess.Popen(
        [program, *flags, f"--user-data-dir={profile}", "about:blank"],
        preexec_fn=at_3_and_4,
        pass_fds=(3, 4),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_read)
    os.close(to_write)
    try:
        yield Chromium(process, towards, back)
    finally:
        os.close(towards)
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(back)
