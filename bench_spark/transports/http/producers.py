"""Producers: a connection each, that is kept and used again for the next request.

A server may end a connection between two requests whenever it likes. That is no loss: a new one is
made, quietly. It is one where a request was under way, or where no new connection can be had.

Answers come in the order of requests, so what is open is a queue.
"""

from __future__ import annotations

import functools
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from bench_spark.config.broker import Credentials
from bench_spark.config.protocols import Http
from bench_spark.core.envelope import Envelopes, empty_envelopes, joined_envelopes
from bench_spark.errors import BenchError
from bench_spark.transports.batches import Batch, OutcomeKind, Outcomes, joined_outcomes
from bench_spark.transports.http.messages import (
    BadMessage,
    HttpParser,
    RequestFrames,
    ResponseHead,
    read_response,
    requests_of,
)
from bench_spark.transports.sockets.buffers import ReadBuffer
from bench_spark.transports.sockets.connection import SocketConnection
from bench_spark.transports.sockets.lanes import Sender
from bench_spark.transports.sockets.listening import Place
from bench_spark.transports.sockets.loop import BackgroundCalls
from bench_spark.transports.sockets.opening import OpenLane, dialled

LONGEST_ANSWER_BYTES = 64 * 1024
"""Of the body of an answer: nobody's ID is longer."""


@dataclass
class Answered:
    """What the lanes of one agent share."""

    http: Http
    outcomes: list[Outcomes] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    """How often each came."""

    def __bool__(self) -> bool:
        return bool(self.outcomes)

    def take(self) -> Outcomes:
        settled = joined_outcomes(self.outcomes)
        self.outcomes.clear()
        return settled

    @property
    def kept_bytes(self) -> int:
        return LONGEST_ANSWER_BYTES if self.http.answer == "body" else 0

    def answer_of(self, head: ResponseHead, body: bytes) -> bytes | None:
        """The part of an answer that is given on; None where none is wanted."""
        if self.http.answer == "body":
            return body
        if self.http.answer == "header":
            found: bytes = head.fields.get(self.http.answer_header or "", b"")
            return found
        return None


class Unanswered:
    """Requests of one lane."""

    def __init__(self, lane: int, shared: Answered) -> None:
        self._lane = lane
        self._shared = shared
        self._limit = shared.http.in_flight
        self._envelopes: Envelopes = empty_envelopes(0)
        self._kinds: list[int] = []
        """Of those that were answered and not handed over yet: the first of `_envelopes`."""
        self._times: list[int] = []
        self._answers: list[bytes] = []

    def __len__(self) -> int:
        return len(self._envelopes) - len(self._kinds)

    @property
    def room(self) -> int:
        return self._limit - len(self)

    def sent(self, envelopes: Envelopes) -> None:
        self._tell()
        self._envelopes = (
            joined_envelopes([self._envelopes, envelopes])
            if len(self._envelopes)
            else envelopes.copy()
        )

    def answered(self, head: ResponseHead, body: bytes, at_ns: int) -> bool:
        """Whether there was a request for this answer."""
        if not len(self):
            return False
        self._shared.statuses[head.status] += 1
        is_taken = 200 <= head.status < 300
        self._kinds.append(OutcomeKind.CONFIRMED if is_taken else OutcomeKind.REFUSED)
        self._times.append(at_ns)
        answer = self._shared.answer_of(head, body)
        if answer is not None:
            self._answers.append(answer)
        return True

    def read_ended(self) -> None:
        """All that one read brought has been decoded."""
        self._tell()

    def abandon(self, at_ns: int) -> None:
        """The connection is gone: nobody knows whether the rest was taken."""
        self._tell()
        if len(self._envelopes):
            self._kinds = [OutcomeKind.UNKNOWN] * len(self._envelopes)
            self._times = [at_ns] * len(self._envelopes)
            if self._shared.http.answer != "none":
                self._answers = [b""] * len(self._envelopes)
            self._tell()

    def _tell(self) -> None:
        count = len(self._kinds)
        if not count:
            return
        self._shared.outcomes.append(
            Outcomes.of_columns(
                at_ns=np.array(self._times, np.int64),
                lane=np.full(count, self._lane, np.uint32),
                kind=np.array(self._kinds, np.uint8),
                envelope=self._envelopes[:count],
                answers=self._answers or None,
            )
        )
        self._envelopes = self._envelopes[count:]
        self._kinds, self._times, self._answers = [], [], []


class HttpConnection(SocketConnection):
    """A connection on which requests are sent and answers read."""

    unanswered: Unanswered
    _parser: HttpParser[ResponseHead] | None = None
    """None until `begin`."""
    is_last_answer_read = False
    """Whether the server has said that it takes no more requests here."""

    def begin(self, unanswered: Unanswered, kept_bytes: int) -> None:
        self.unanswered = unanswered
        self._parser = HttpParser(read_response, self._on_answer, kept_bytes)

    def _on_answer(self, head: ResponseHead, size: int, body: bytes, at_ns: int) -> None:
        if not head.is_final:
            return
        if not self.unanswered.answered(head, body, at_ns):
            raise BadMessage("an answer to nothing that was asked")
        if not head.keeps_alive:
            self.is_last_answer_read = True

    def _parse_first(self, buffer: ReadBuffer, end: int, at_ns: int) -> int:
        if self._parser is None:
            return 0
        done = self._parser.parse(buffer, end, at_ns)
        self.unanswered.read_ended()
        if self.is_last_answer_read:
            self._loop.call_soon(functools.partial(self.abort, "closed by the server"))
        elif self._is_closing:
            self._hang_up_if_done()
        return done

    def _hang_up_if_done(self) -> None:
        # What was asked is waited for: who closes without a look never knows what became of it.
        if not len(self.unanswered):
            super()._hang_up_if_done()

    def _end(self, failure: Exception) -> None:
        if self.failure is None and self._parser is not None:
            self._parser.finish(self.read_ns)
            self.unanswered.read_ended()
        super()._end(failure)


class HttpSender(Sender[HttpConnection]):
    decoded: Answered

    def __init__(
        self, http: Http, credentials: Credentials, place_of: Callable[[int, str | None], Place]
    ) -> None:
        """`place_of` a destination, by its number and name."""
        self.decoded = Answered(http)
        self._place_of = place_of
        self._http = http
        self._credentials = credentials
        self._frames: dict[Place, RequestFrames] = {}
        self._frames_of_lane: dict[int, list[RequestFrames]] = {}
        """By route."""
        self._renewing: set[int] = set()
        """Lanes whose connection was ended by the server between requests; the next one is being
        made."""
        self._calls: BackgroundCalls | None = None

    @property
    def answers_by_status(self) -> Mapping[str, int]:
        statuses = self.decoded.statuses
        return {str(status): statuses[status] for status in sorted(statuses)}

    # -- lanes -------------------------------------------------------------------------------------

    def equip(self, lane: OpenLane[HttpConnection]) -> None:
        self._frames_of_lane[lane.number] = [
            self._frames_for(self._place_of(one.index, one.name)) for one in lane.lane.destinations
        ]
        lane.connection.begin(Unanswered(lane.number, self.decoded), self.decoded.kept_bytes)

    def _frames_for(self, place: Place) -> RequestFrames:
        if place not in self._frames:
            self._frames[place] = RequestFrames(self._http, place, self._credentials)
        return self._frames[place]

    def begin(self, lane: OpenLane[HttpConnection]) -> None:
        self._calls = self._calls or BackgroundCalls(self.lanes.loop)

    def abandon(self, lane: OpenLane[HttpConnection]) -> None:
        lane.connection.unanswered.abandon(self.lanes.now_ns())

    # -- connections that the server ends ----------------------------------------------------------

    def replaces(self, lane: OpenLane[HttpConnection], reason: Exception) -> bool:
        if self._calls is None or lane.is_lost or len(lane.connection.unanswered):
            return False
        self._renewing.add(lane.number)
        access = self.lanes.protocol.access

        def dial() -> socket.socket | BenchError:
            try:
                [connected] = dialled(access, 1, time.monotonic() + access.timeout_seconds)
            except BenchError as error:
                return error
            return connected

        self._calls.run(dial, functools.partial(self._renewed, lane, reason), _discard)
        return True

    def _renewed(
        self,
        lane: OpenLane[HttpConnection],
        reason: Exception,
        found: socket.socket | BenchError,
    ) -> None:
        lanes = self.lanes
        self._renewing.discard(lane.number)
        if isinstance(found, BenchError):
            lanes.lose(lane, reason)
            return
        connection = lanes.protocol.log_in(lane.number, found, lanes.loop, lanes.now_ns)
        lanes.install(lane, connection)
        lanes.loop.wake()  # it can be sent on again

    def before_close(self) -> None:
        if self._calls is not None:
            self._calls.close()

    # -- sending -----------------------------------------------------------------------------------

    def room(self, lane: OpenLane[HttpConnection]) -> int:
        connection = lane.connection
        if lane.is_lost or connection.is_last_answer_read or lane.number in self._renewing:
            return 0
        return connection.unanswered.room

    def write(self, lane: OpenLane[HttpConnection], batch: Batch) -> None:
        # Noted before it is written: a write that fails abandons what was noted.
        lane.connection.unanswered.sent(batch.envelope)
        lane.connection.send(requests_of(self._frames_of_lane[lane.number], batch))

    def in_flight(self) -> int:
        return sum(len(lane.connection.unanswered) for lane in self.lanes.open)


def _discard(found: socket.socket | BenchError) -> None:
    if isinstance(found, socket.socket):
        found.close()
