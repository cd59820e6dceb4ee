"""The dashboard's server: what it answers, to whom, and when it ends."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import html_pages
import pytest
import result_documents as documents
from growing_run import GrowingRun, scenario

from bench_spark.errors import EnvironmentNotReady
from bench_spark.report import serving
from bench_spark.store.delta import Store
from bench_spark.watch import dashboard as module
from bench_spark.watch.dashboard import Dashboard, FollowingThread, Viewers
from bench_spark.watch.followed_run import FollowedRun


@pytest.fixture
def dashboard() -> Iterator[Dashboard]:
    made = Dashboard("127.0.0.1", 0)
    yield made
    made.close(wait_for_viewers=False)


def get(
    dashboard: Dashboard, path: str, host: str | None = None
) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", dashboard.port, timeout=10)
    connection.request("GET", path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def news(dashboard: Dashboard, **query: Any) -> dict[str, Any]:
    asked = "&".join(f"{name}={value}" for name, value in query.items())
    answer, body = get(dashboard, f"/news?{asked}")
    assert answer.status == 200
    told: dict[str, Any] = json.loads(body)
    return told


def test_before_there_is_a_run_the_page_waits(dashboard: Dashboard) -> None:
    answer, page = get(dashboard, "/")
    assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert b"<!DOCTYPE html>" in page
    told = news(dashboard)
    assert told["message"].startswith("Waiting for the run to start: Spark starts")
    assert (told["charts"], told["is_over"]) == ({}, False)


def test_a_run_whose_driver_has_vanished_is_over_and_the_page_says_why(
    dashboard: Dashboard, store: Store
) -> None:
    run = GrowingRun(store)
    followed = FollowedRun(Store(store.uri), "r1")
    run.lose_driver()
    run.add_second(0)
    followed.refresh()
    followed.refresh()
    dashboard.show(followed.state, show_again="bench-spark show r1")
    told = news(dashboard)
    assert told["is_over"]
    assert told["title"] == "steady on mine: abandoned"
    page = " ".join(told["fragments"].values())
    assert "The run is over: abandoned" in page
    assert "its driver has vanished" in page


def test_news_follow_the_run_to_its_result(dashboard: Dashboard, store: Store) -> None:
    run = GrowingRun(store)
    followed = FollowedRun(Store(store.uri), "r1")
    run.begin()
    for second in range(3):
        run.add_second(second)
    followed.refresh()
    dashboard.show(followed.state, show_again="bench-spark show r1")
    first = news(dashboard)
    assert first["title"] == "steady on mine: running"
    assert "measure, 3 s of 8 s" in first["fragments"]["progress"]
    assert "990" in first["fragments"]["tiles"]
    assert len(first["charts"]["chart-1"]["rows"]) == 3
    run.add_second(3)
    followed.refresh()
    dashboard.show(followed.state)
    later = news(dashboard, layout=first["layout"], after=first["version"])
    assert [row["second"] for row in later["charts"]["chart-1"]["rows"]] == [2.0]
    run.end(documents.VALID)
    followed.refresh()
    dashboard.show(followed.state, show_again="bench-spark show r1")
    last = news(dashboard, after="nonsense")
    assert last["is_over"]
    assert "The run is over: valid" in last["fragments"]["result"]
    assert "bench-spark show r1" in last["fragments"]["result"]
    assert "audit" in last["fragments"]["result"]
    assert last["fragments"]["progress"] == last["fragments"]["tiles"] == ""


def test_names_with_markup_are_text(dashboard: Dashboard, store: Store) -> None:
    run = GrowingRun(store, loaded=scenario(name="steady"), source=html_pages.HOSTILE)
    run.begin()
    run.add_second(0)
    followed = FollowedRun(Store(store.uri), "r1")
    followed.refresh()
    followed.state.run = {**(followed.state.run or {}), "scenario": html_pages.HOSTILE}
    dashboard.show(followed.state, message=html_pages.HOSTILE)
    told = news(dashboard)
    assert "<script" not in "".join(told["fragments"].values())
    assert "&lt;script" in told["fragments"]["head"]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8080", 200),
        ("localhost", 200),
        ("[::1]:8080", 200),
        ("evil.example.org", 421),
        ("127.0.0.1.evil.example.org:8080", 421),
    ],
)
def test_a_foreign_name_that_points_here_is_turned_away(
    dashboard: Dashboard, host: str, status: int
) -> None:
    assert get(dashboard, "/news", host)[0].status == status


def test_there_is_nothing_else(dashboard: Dashboard) -> None:
    assert get(dashboard, "/../etc/passwd")[0].status == 404


def test_a_port_that_is_taken_is_refused_by_its_option(dashboard: Dashboard) -> None:
    with pytest.raises(EnvironmentNotReady, match=f"--dashboard.*{dashboard.port}"):
        Dashboard("127.0.0.1", dashboard.port)


def test_so_many_are_answered_at_once_and_others_turned_away(dashboard: Dashboard) -> None:
    held = [
        socket.create_connection(("127.0.0.1", dashboard.port)) for _ in range(serving.MOST_AT_ONCE)
    ]
    for connection in held:
        connection.sendall(b"GET /news HTTP/1.0\r\n")  # and never the end of it
    with pytest.raises((http.client.HTTPException, OSError)):
        get(dashboard, "/news")
    for connection in held:
        connection.close()
    until = time.monotonic() + 10
    while True:
        try:
            assert get(dashboard, "/news")[0].status == 200
            break
        except (http.client.HTTPException, OSError):
            assert time.monotonic() < until


def test_the_end_waits_for_pages_that_have_not_heard_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr("bench_spark.watch.dashboard.time.monotonic", lambda: now)
    viewers = Viewers()
    assert not viewers.are_waiting()
    viewers.note("a", fetched_the_end=False)
    viewers.note("b", fetched_the_end=True)
    assert viewers.are_waiting()
    viewers.note("a", fetched_the_end=True)
    assert not viewers.are_waiting()
    viewers.note("c", fetched_the_end=False)
    now += module.VIEWER_SECONDS + 1
    assert not viewers.are_waiting(), "it has been closed"


def test_viewers_are_not_remembered_without_end() -> None:
    viewers = Viewers()
    for number in range(10 * module.MOST_VIEWERS):
        viewers.note(str(number), fetched_the_end=False)
    assert len(viewers._seen) == module.MOST_VIEWERS


def test_a_run_of_this_process_is_followed_to_its_last_row(
    dashboard: Dashboard, store: Store
) -> None:
    following = FollowingThread(dashboard, FollowedRun(Store(store.uri), "r1"), "again")
    run = GrowingRun(store)
    run.begin()
    run.add_second(0)
    run.end(documents.VALID)
    following.close()
    assert news(dashboard)["is_over"]


def test_tables_that_cannot_be_followed_are_told_and_cost_nothing_else(
    dashboard: Dashboard, store: Store, tmp_path: Path
) -> None:
    following = FollowingThread(dashboard, FollowedRun(Store(store.uri), "r1"), "again")
    shutil.rmtree(tmp_path / "store")
    following.close()
    assert news(dashboard)["message"].startswith("The tables cannot be followed: ")
