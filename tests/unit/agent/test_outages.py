"""Who was down for how long, and what is written off when a connection is back."""

from __future__ import annotations

from bench_spark.agent.connections import Outages
from bench_spark.agent.flow import QUIET_NS, Quiet
from bench_spark.agent.load import WriteOff
from bench_spark.agent.timeline import CONSUMER, PRODUCER

SECOND = 1_000_000_000


def next_second(at_ns: int) -> int:
    return (at_ns // SECOND + 1) * SECOND


def test_down_time_is_booked_piece_by_piece_and_adds_up() -> None:
    outages = Outages()
    outages.lost(PRODUCER, 0, 7, at_ns=1 * SECOND, reason="reset")
    assert outages.is_down(PRODUCER, 0)
    assert not outages.is_down(CONSUMER, 0)
    assert outages.book(PRODUCER, 0, 2 * SECOND, next_second) == [(SECOND, SECOND)]
    assert outages.book(PRODUCER, 0, 2 * SECOND, next_second) == []
    assert outages.book(PRODUCER, 0, 4 * SECOND + 5, next_second) == [
        (2 * SECOND, SECOND),
        (3 * SECOND, SECOND),
        (4 * SECOND, 5),
    ]
    outages.book(PRODUCER, 0, 5 * SECOND, next_second)
    outages.reopened(PRODUCER, 0)
    assert outages.count_down() == 0
    outages.lost(PRODUCER, 0, 7, at_ns=10 * SECOND, reason="320 CONNECTION_FORCED")
    outages.lost(CONSUMER, 1, 3, at_ns=10 * SECOND, reason="reset")
    assert (outages.count_down(), outages.count_down(CONSUMER)) == (2, 1)
    assert outages.down() == [(PRODUCER, 0), (CONSUMER, 1)]
    outages.book(PRODUCER, 0, 11 * SECOND, next_second)
    outages.reopened(PRODUCER, 0)
    assert outages.report() == [
        {
            "role": CONSUMER,
            "member": 3,
            "losses": 1,
            "reopened": 0,
            "down_seconds": 0.0,
            "reason": "reset",
        },
        {
            "role": PRODUCER,
            "member": 7,
            "losses": 2,
            "reopened": 2,
            "down_seconds": 5.0,
            "reason": "320 CONNECTION_FORCED",
        },
    ]


def test_quiet_counts_from_the_last_change() -> None:
    quiet = Quiet()
    assert quiet.lasts_ns(5, 100) == 0
    assert quiet.lasts_ns(5, 150) == 50
    assert quiet.lasts_ns(6, 200) == 0
    assert quiet.lasts_ns(6, 260) == 60
    quiet.start_again()
    assert quiet.lasts_ns(6, 300) == 0


def test_nothing_is_written_off_while_no_connection_was_lost() -> None:
    write_off = WriteOff()
    for now in range(0, 10 * QUIET_NS, QUIET_NS // 2):
        write_off.look(out=100, received=5, now_ns=now)
    assert write_off.messages == 0


def test_what_is_missing_is_written_off_once_nothing_arrives_any_more() -> None:
    write_off = WriteOff()
    write_off.reopened()
    write_off.look(out=100, received=50, now_ns=0)
    write_off.look(out=60, received=90, now_ns=QUIET_NS - 1)
    write_off.look(out=60, received=90, now_ns=2 * QUIET_NS - 2)
    assert (write_off.messages, write_off.is_due) == (0, True)
    write_off.look(out=60, received=90, now_ns=2 * QUIET_NS)
    assert (write_off.messages, write_off.is_due) == (60, False)


def test_nothing_missing_needs_no_waiting() -> None:
    write_off = WriteOff()
    write_off.reopened()
    write_off.look(out=0, received=50, now_ns=0)
    assert (write_off.messages, write_off.is_due) == (0, False)


def test_what_arrives_all_the_same_is_taken_back() -> None:
    write_off = WriteOff()
    write_off.reopened()
    write_off.look(out=60, received=0, now_ns=0)
    write_off.look(out=60, received=0, now_ns=QUIET_NS)
    assert write_off.messages == 60
    write_off.look(out=25, received=35, now_ns=QUIET_NS + 1)
    assert write_off.messages == 25
