"""The collector's door: who gets in, who is shown out, and that strangers change nothing."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator

import pytest
from patience import eventually
from unit.listening import Collector, collecting

from bench_spark.agent import link as link_module
from bench_spark.agent.link import Link
from bench_spark.agent.protocol import (
    CHALLENGE_BYTES,
    FrameReader,
    Handshake,
    Message,
    answer,
    encode_frame,
    is_right_answer,
    new_challenge,
)
from bench_spark.driver import server as server_module


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as running:
        yield running


class Stranger:
    """A bare socket that has read the server's challenge."""

    def __init__(self, collector: Collector) -> None:
        self._token = collector.token
        self.socket = socket.create_connection(collector.address, timeout=10)
        self.challenge = b""
        while len(self.challenge) < CHALLENGE_BYTES:
            self.challenge += self.socket.recv(CHALLENGE_BYTES - len(self.challenge))

    def hello(self, **changes: object) -> Message:
        return {
            "type": "hello",
            "agent": 0,
            "attempt": 0,
            "answer": answer(self._token, self.challenge, "agent"),
            "challenge": new_challenge().hex(),
        } | changes

    def say(self, data: bytes) -> None:
        # The server may have hung up half-way through, which is what is tested.
        with contextlib.suppress(OSError):
            self.socket.sendall(data)

    def is_dropped(self) -> bool:
        try:
            while self.socket.recv(4096):
                pass
        except TimeoutError:
            return False
        except OSError:
            pass
        return True


def raw_frame(header: bytes, payload: bytes = b"") -> bytes:
    return struct.pack("<II", len(header), len(payload)) + header + payload


def assert_shown_out(stranger: Stranger, collector: Collector) -> None:
    assert stranger.is_dropped()
    assert collector.is_alive
    assert collector.listener.joined == collector.listener.messages == collector.listener.left == []


def test_who_knows_the_token_is_welcomed_with_the_drivers_proof(collector: Collector) -> None:
    guest = Stranger(collector)
    ours = new_challenge()
    guest.say(encode_frame(guest.hello(agent=1, attempt=3, challenge=ours.hex())))
    reader, frames = FrameReader(), []
    while not frames:
        frames = reader.feed(guest.socket.recv(4096))
    welcome = frames[0][0]
    assert is_right_answer(collector.token, ours, "driver", welcome["answer"])
    assert welcome["anchor_ns"] == collector.clock.anchor_ns
    assert eventually(lambda: collector.listener.joined == [(1, 3)])
    assert collector.token not in str(welcome)


@pytest.mark.parametrize(
    "changes",
    [
        {"answer": "0" * 64},
        {"answer": None},
        {"answer": "é"},
        {"type": "reached"},
        {"agent": 2},
        {"agent": -1},
        {"agent": "0"},
        {"agent": None},
    ],
)
@pytest.mark.fault(case=18)
def test_who_does_not_belong_here_never_reaches_the_handler(
    collector: Collector, changes: dict[str, object]
) -> None:
    stranger = Stranger(collector)
    stranger.say(encode_frame(stranger.hello(**changes)))
    stranger.say(encode_frame({"type": "reached", "step": "probed"}))
    assert_shown_out(stranger, collector)


def test_an_answer_to_another_challenge_is_worth_nothing(collector: Collector) -> None:
    heard, stranger = Stranger(collector), Stranger(collector)
    stranger.say(encode_frame(heard.hello()))
    assert_shown_out(stranger, collector)


@pytest.mark.parametrize(
    "noise",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        raw_frame(b"not json"),
        raw_frame(b"[" * 4000),
        raw_frame(b"{}"),
        struct.pack("<II", 4097, 0),
        struct.pack("<II", 10, 1),
        struct.pack("<II", 2**32 - 1, 2**32 - 1),
        b"\xff" * 100_000,
    ],
    ids=["http", "text", "nested", "typeless", "header", "payload", "huge", "flood"],
)
@pytest.mark.fault(case=18)
def test_noise_is_shown_out_and_harms_nobody(collector: Collector, noise: bytes) -> None:
    stranger = Stranger(collector)
    stranger.say(noise)
    assert_shown_out(stranger, collector)
    link = Link(collector.address, collector.token, 0, 0)
    assert eventually(lambda: collector.listener.joined == [(0, 0)])
    link.close()


@pytest.mark.fault(case=18)
def test_a_silent_stranger_is_shown_out_in_time(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "HANDSHAKE_SECONDS", 0.1)
    assert_shown_out(Stranger(collector), collector)


def test_a_stranger_who_dawdles_over_his_hello_is_shown_out_too(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "HANDSHAKE_SECONDS", 0.2)
    stranger = Stranger(collector)
    stranger.say(encode_frame(stranger.hello())[:20])
    assert_shown_out(stranger, collector)


@pytest.mark.fault(case=18)
def test_a_crowd_of_silent_connections_keeps_no_agent_out(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Time must not thin the crowd: the agents get in while all of it is there.
    monkeypatch.setattr(server_module, "HANDSHAKE_SECONDS", 3600.0)
    crowd = [Stranger(collector) for _ in range(40)]
    links = [Link(collector.address, collector.token, agent, 0) for agent in (0, 1)]
    assert eventually(lambda: sorted(collector.listener.joined) == [(0, 0), (1, 0)])
    assert crowd[0].is_dropped(), "the oldest made way"
    crowd[-1].say(encode_frame({"type": "nonsense"}))
    assert crowd[-1].is_dropped(), "the newest were still there"
    for link in links:
        assert not link.is_lost
        link.close()


@pytest.mark.fault(case=18)
def test_a_crowd_that_comes_later_ends_no_agents_link(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "HANDSHAKE_SECONDS", 3600.0)
    links = [Link(collector.address, collector.token, agent, 0) for agent in (0, 1)]
    crowd = [Stranger(collector) for _ in range(40)]
    for link in links:
        link.send({"type": "progress"})
    assert eventually(lambda: len(collector.listener.messages) == 2)
    assert collector.listener.left == []
    assert len(crowd) == 40
    for link in links:
        link.close()


@pytest.mark.fault(case=18)
def test_an_agent_that_had_to_make_way_tries_again(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection is hung up on between challenge and hello, as in a crowd that keeps coming."""
    monkeypatch.setattr(server_module, "HANDSHAKE_SECONDS", 3600.0)
    shaken = link_module.Handshake
    crowd: list[Stranger] = []

    def overtaken_once(*names: str) -> Handshake:
        if not crowd:
            crowd.extend(Stranger(collector) for _ in range(40))
        return shaken(*names)

    monkeypatch.setattr(link_module, "Handshake", overtaken_once)
    link = Link(collector.address, collector.token, 0, 0)
    assert eventually(lambda: collector.listener.joined == [(0, 0)])
    assert len(crowd) == 40
    link.close()


def test_an_agents_number_is_taken_once(collector: Collector) -> None:
    first = Link(collector.address, collector.token, 1, 0)
    second = Stranger(collector)
    second.say(encode_frame(second.hello(agent=1)))
    assert second.is_dropped()
    assert eventually(lambda: collector.listener.joined == [(1, 0)])
    assert collector.listener.left == []
    first.close()


def test_an_agent_that_left_may_come_again(collector: Collector) -> None:
    Link(collector.address, collector.token, 1, 0).close()
    assert eventually(lambda: collector.listener.left == [1])
    again = Link(collector.address, collector.token, 1, 1)
    again.send({"type": "progress", "sent": 5})
    assert eventually(lambda: collector.listener.messages)
    assert eventually(lambda: collector.listener.joined == [(1, 0), (1, 1)])
    again.close()


def test_an_agent_that_breaks_the_protocol_is_taken_for_gone(collector: Collector) -> None:
    guest = Stranger(collector)
    guest.say(encode_frame(guest.hello()))
    assert eventually(lambda: collector.listener.joined)
    guest.say(raw_frame(b"nonsense"))
    assert guest.is_dropped()
    assert eventually(lambda: collector.listener.left == [0])
    assert collector.is_alive


def test_a_message_the_handler_cannot_read_ends_that_connection_only(collector: Collector) -> None:
    def refuse(agent: int, message: Message) -> None:
        raise KeyError("step")

    collector.listener.react = refuse
    bad, good = (Link(collector.address, collector.token, agent, 0) for agent in (0, 1))
    bad.send({"type": "reached"})
    assert eventually(lambda: bad.is_lost)
    assert collector.is_alive
    assert not good.is_lost
    for link in (bad, good):
        link.close()


def test_the_handler_is_called_in_one_thread(collector: Collector) -> None:
    links = [Link(collector.address, collector.token, agent, 0) for agent in (0, 1)]
    for link in links:
        link.send({"type": "progress"})
    ran: list[str] = []
    collector.server.call(lambda: ran.append("called"))
    assert eventually(lambda: len(collector.listener.messages) == 2 and ran)
    assert collector.listener.threads == {"collector"}
    for link in links:
        link.close()


def test_a_message_for_an_agent_that_is_not_there_is_nobodys(collector: Collector) -> None:
    collector.server.call(lambda: collector.server.send(1, {"type": "stop"}))
    assert collector.is_alive


def test_a_server_that_never_started_can_be_closed() -> None:
    with collecting() as running:
        idle = server_module.CollectorServer(("127.0.0.1", 0), "t", 1, running.clock)
        idle.close()
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", idle.port), timeout=5)
