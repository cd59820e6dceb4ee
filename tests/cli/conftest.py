"""What tests of commands share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from chromium import Page, installed_chromium, started_chromium


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A tab of a headless Chromium, which is started once for the tests of a file."""
    program = installed_chromium()
    if program is None:
        pytest.skip("no Chromium is installed (apt-get install chromium)")
    with started_chromium(program, tmp_path_factory.mktemp("profile")) as browser:
        yield browser.open_page()


@pytest.fixture
def without_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """For commands whose engine is simulated."""

    @contextmanager
    def no_session(master: str | None, display: Any, slots: int = 0) -> Iterator[Any]:
        yield None

    monkeypatch.setattr("bench_spark.runs.spark_session", no_session)
