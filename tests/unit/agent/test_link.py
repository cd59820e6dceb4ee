"""An agent's link: nothing said is lost on the way, in either direction."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import eventually
from unit.listening import Collector, collecting

from bench_spark.agent import link as link_module
from bench_spark.agent.link import Link, LinkLost, report
from bench_spark.agent.protocol import (
    EventRow,
    Message,
    answer,
    decode_rows,
    encode_frame,
    new_token,
)
from bench_spark.core.clock import NANOSECONDS, Clock, ClockOffset


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as running:
        yield running


@pytest.fixture
def link(collector: Collector) -> Iterator[Link]:
    made = Link(collector.address, collector.token, 0, 0)
    yield made
    made.close()


def say(collector: Collector, *messages: Message) -> None:
    def send() -> None:
        for message in messages:
            collector.server.send(0, message)

    collector.server.call(send)


def row(number: int) -> EventRow:
    return EventRow(number, "producer", "measure", 1, 0, 1.0, {"sent": number})


def keep_rows(collector: Collector, *numbers: int) -> None:
    say(collector, {"type": "rows_kept", "row_numbers": list(numbers)})


# -- joining -------------------------------------------------------------------------------------


def test_on_one_kernel_the_drivers_clock_is_taken_over_exactly(
    collector: Collector, link: Link
) -> None:
    assert link.clock == collector.clock
    assert link.clock_offset == ClockOffset(0, 0)


def test_a_wrong_token_is_refused_without_telling_it(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "JOIN_SECONDS", 0.3)
    with pytest.raises(LinkLost) as refusal:
        Link(collector.address, "wrong-token", 0, 0)
    assert "wrong-token" not in str(refusal.value)


def fake_driver(replies: bytes) -> tuple[str, int]:
    """A server that challenges, reads the hello and answers with these bytes."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listener, listener.accept()[0] as connection:
            connection.sendall(bytes(32))
            connection.recv(65536)
            connection.sendall(replies)
            connection.recv(65536)

    threading.Thread(target=serve, daemon=True).start()
    return "127.0.0.1", listener.getsockname()[1]


@pytest.mark.parametrize(
    "replies",
    [
        encode_frame({"type": "welcome", "anchor_ns": 0}),
        encode_frame({"type": "welcome", "answer": "0" * 64, "anchor_ns": 0}),
        encode_frame({"type": "welcome", "answer": answer("t", bytes(32), "agent")}),
        b"\xff" * 64,
    ],
    ids=["no answer", "wrong answer", "an agent's answer", "noise"],
)
def test_a_driver_that_cannot_prove_itself_is_not_believed(replies: bytes) -> None:
    with pytest.raises(LinkLost):
        Link(fake_driver(replies), new_token(), 0, 0)


def test_what_the_driver_says_right_after_the_welcome_is_not_lost(collector: Collector) -> None:
    collector.listener.greet = lambda agent: collector.server.send(
        agent, {"type": "stop", "reason": "too late"}
    )
    for attempt in range(20):
        late = Link(collector.address, collector.token, 0, attempt)
        assert late.wait_for("declare", 5)["type"] == "stop"
        late.close()
        assert eventually(lambda: len(collector.listener.left) == attempt + 1)  # noqa: B023


# -- clocks that differ --------------------------------------------------------------------------


def test_on_another_kernel_the_clock_is_measured_within_its_bound(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "boot_id", lambda: "another machine")
    wrong = Clock(collector.clock.anchor_ns + 5 * NANOSECONDS)
    monkeypatch.setattr(link_module.Clock, "local", classmethod(lambda cls: wrong))
    link = Link(collector.address, collector.token, 0, 0)
    error_ns = abs(link.clock.anchor_ns - collector.clock.anchor_ns)
    assert 0 < link.clock_offset.bound_ns < NANOSECONDS
    assert error_ns <= link.clock_offset.bound_ns
    link.close()


def test_the_offset_is_measured_again_while_the_run_goes_on(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "boot_id", lambda: None)
    monkeypatch.setattr(link_module, "CLOCK_CHECK_SECONDS", 0.05)
    link = Link(collector.address, collector.token, 0, 0)
    before, anchor_ns = link.clock_offset, link.clock.anchor_ns
    assert eventually(lambda: link.clock_offset != before)
    measured = link.clock_offset
    true_offset_ns = collector.clock.anchor_ns - link.clock.anchor_ns
    assert abs(measured.offset_ns - true_offset_ns) <= measured.bound_ns
    assert link.clock.anchor_ns == anchor_ns, "a clock is never stepped in a run"
    link.close()


# -- there and back ------------------------------------------------------------------------------


def test_messages_and_payloads_arrive_in_order(collector: Collector, link: Link) -> None:
    for number in range(100):
        link.send({"type": "progress", "number": number}, bytes([number]))
    assert eventually(lambda: len(collector.listener.messages) == 100)
    found = [(m["number"], payload) for _, m, payload in collector.listener.messages]
    assert found == [(number, bytes([number])) for number in range(100)]


def test_a_report_names_the_step_and_carries_its_fields(collector: Collector, link: Link) -> None:
    report(link, "closed", b"pages", sent=3)
    assert eventually(lambda: collector.listener.messages)
    assert collector.listener.messages == [
        (0, {"type": "reached", "step": "closed", "sent": 3}, b"pages")
    ]


def test_reports_do_not_wake_the_links_thread(collector: Collector, link: Link) -> None:
    """It would compete with the loop that is measured."""
    status = Path(f"/proc/self/task/{link._thread.native_id}/status")

    def sleeps() -> int:
        lines = status.read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt"))

    assert eventually(lambda: "(sleeping)" in status.read_text())
    before = sleeps()
    for number in range(100):
        link.send({"type": "progress", "sent": number})
    assert eventually(lambda: len(collector.listener.messages) == 100)
    # Of its own accord it looks up every few seconds.
    assert sleeps() - before <= 10


def test_big_frames_pass_both_ways_at_once(collector: Collector, link: Link) -> None:
    payload = bytes(range(256)) * 40_000
    text = "x" * 8_000_000
    say(collector, {"type": "open", "destinations": text})
    link.send({"type": "reached", "step": "closed"}, payload)
    assert link.wait_for("open", 20)["destinations"] == text
    assert eventually(lambda: collector.listener.messages, 20)
    assert collector.listener.messages[0][2] == payload


def test_closing_sends_all_that_was_said_whatever_the_driver_says_meanwhile(
    collector: Collector,
) -> None:
    def chatter(agent: int, message: Message) -> None:
        for _ in range(20):
            collector.server.send(agent, {"type": "backlog", "messages": 0})
        time.sleep(0.001)

    collector.listener.react = chatter
    for attempt in range(5):
        link = Link(collector.address, collector.token, 0, attempt)
        for number in range(60):
            link.send({"type": "progress", "number": number}, bytes(20_000))
        link.close()
        assert eventually(lambda: len(collector.listener.left) == attempt + 1)  # noqa: B023
    numbers = [message["number"] for _, message, _ in collector.listener.messages]
    assert numbers == list(range(60)) * 5


# -- commands ------------------------------------------------------------------------------------


def test_commands_ring_the_descriptor_and_are_given_once(collector: Collector, link: Link) -> None:
    assert link.commands() == []
    say(collector, {"type": "stop"}, {"type": "drained"})
    assert eventually(lambda: len(link._commands) == 2)
    assert [message["type"] for message in link.commands()] == ["stop", "drained"]
    assert link.commands() == []


def test_waiting_for_one_command_passes_over_others(collector: Collector, link: Link) -> None:
    say(collector, {"type": "backlog", "messages": 1}, {"type": "open", "destinations": []})
    assert link.wait_for("open", 5) == {"type": "open", "destinations": []}


def test_waiting_ends_with_a_stop(collector: Collector, link: Link) -> None:
    say(collector, {"type": "stop", "reason": "x"})
    assert link.wait_for("open", 5)["type"] == "stop"


def test_a_stop_on_the_heels_of_the_awaited_command_is_kept(
    collector: Collector, link: Link
) -> None:
    say(collector, {"type": "start", "start_at_ns": 1}, {"type": "stop", "reason": "x"})
    assert eventually(lambda: len(link._commands) == 2)
    assert link.wait_for("start", 5)["type"] == "start"
    assert [message["type"] for message in link.commands()] == ["stop"]


def test_waiting_in_vain_ends_with_an_error(link: Link) -> None:
    with pytest.raises(LinkLost, match=r"did not say 'open' within 0\.05 s"):
        link.wait_for("open", 0.05)


def test_waiting_ends_when_the_driver_is_gone(collector: Collector, link: Link) -> None:
    collector.server.close()
    with pytest.raises(LinkLost, match="connection to the driver ended"):
        link.wait_for("open", 10)
    assert link.is_lost


# -- rows ----------------------------------------------------------------------------------------


def test_rows_are_held_until_the_driver_has_kept_them(collector: Collector, link: Link) -> None:
    link.send_rows([row(0), row(1)])
    link.send_rows([])
    link.send_rows([row(2)])
    assert eventually(lambda: len(collector.listener.messages) == 2)
    sent = [
        r for _, m, payload in collector.listener.messages for r in decode_rows(m["rows"], payload)
    ]
    assert sent == [row(0), row(1), row(2)]
    assert link.unacknowledged_rows() == [row(0), row(1), row(2)]
    keep_rows(collector, 0, 2, 99)
    assert eventually(lambda: len(link.unacknowledged_rows()) == 1)
    assert link.unacknowledged_rows() == [row(1)]
    assert link.commands() == []


def test_rows_the_driver_never_kept_come_back_when_it_dies(
    collector: Collector, link: Link
) -> None:
    link.send_rows([row(0)])
    assert eventually(lambda: collector.listener.messages)
    keep_rows(collector, 0)
    assert eventually(lambda: not link.unacknowledged_rows())
    link.send_rows([row(2), row(1)])
    collector.server.close()
    assert eventually(lambda: link.is_lost)
    link.send_rows([row(3)])
    assert link.unacknowledged_rows() == [row(1), row(2), row(3)]


def test_rows_kept_while_the_link_closes_do_not_come_back(collector: Collector) -> None:
    def keep(agent: int, message: Message) -> None:
        numbers = [r["row_number"] for r in message["rows"]]
        collector.server.send(agent, {"type": "rows_kept", "row_numbers": numbers})

    collector.listener.react = keep
    link = Link(collector.address, collector.token, 0, 0)
    link.send_rows([row(number) for number in range(50)])
    link.close()
    assert link.unacknowledged_rows() == []
