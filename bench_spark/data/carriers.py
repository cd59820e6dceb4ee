"""Carriers: how an ID is put into a message and found again, and the table of them by name.

A carrier works on whole batches. It adds the ID and nothing else: a record without its ID is the
record that was read, byte by byte.

Where the ID goes (`Placing`) and where it is looked for (`Finding`) are two things: a system that
wraps or changes bodies moves what was put in front.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any, NamedTuple, Protocol

import regex

from bench_spark.config.broker import Broker
from bench_spark.config.fields import Pattern, TooSlow
from bench_spark.config.models import Scenario
from bench_spark.config.problems import did_you_mean
from bench_spark.config.sections import ANY_ID, Identity, compiled
from bench_spark.core.envelope import ID_BYTES
from bench_spark.data.scanning import Records
from bench_spark.errors import ConfigurationError, RunError
from bench_spark.transports.batches import ENVELOPE_ONLY, Part, Received
from bench_spark.transports.registry import kind_of

NO_ID = b""
"""What a carrier finds in a message that has none."""


class Carried(NamedTuple):
    """Messages as they are sent."""

    bodies: Sequence[bytes]
    keys: Sequence[bytes] | None = None
    headers: Sequence[Mapping[str, bytes]] | None = None


class NoPlace(Exception):
    """A record that the ID cannot be put into: its place in the batch, and why."""

    def __init__(self, place: int, problem: str) -> None:
        super().__init__(problem)
        self.place = place


class Carrier(Protocol):
    @property
    def puts_into(self) -> frozenset[Part]:
        """Which parts of a message it changes: a transport without them cannot be used."""

    @property
    def wants(self) -> frozenset[Part]:
        """Which parts of a received message it looks at."""

    @property
    def added_bytes(self) -> int:
        """By how much it makes a body longer."""

    def put(self, ids: Sequence[bytes], records: Records) -> Carried:
        """The records with these IDs; raises NoPlace."""

    def find(self, received: Received) -> list[bytes]:
        """The ID of each message, NO_ID where there is none."""

    def contents(self, received: Received) -> Sequence[bytes]:
        """The bodies without their IDs."""

    def ambiguity(self, record: bytes) -> str | None:
        """Why an ID put into this record could not be found again; None if it can."""


_SAMPLE_ID = b"0123456789abcdef" * 2
_BODY = frozenset({Part.BODY})

MOST_GIVEN_UP = 10
"""Messages on which `identity.find` may take too long, and which count as malformed; then the run
fails: an agent that waits for a pattern keeps no schedule."""


class AtEdge:
    """Both a placing and a finding: the ID stands before the body, or behind it."""

    def __init__(self, is_before: bool) -> None:
        self._is_before = is_before
        self._own = slice(ID_BYTES) if is_before else slice(-ID_BYTES, None)
        self._rest = slice(ID_BYTES, None) if is_before else slice(-ID_BYTES)

    def put(self, ids: Sequence[bytes], bodies: Sequence[bytes]) -> list[bytes]:
        first, second = (ids, bodies) if self._is_before else (bodies, ids)
        return [one + other for one, other in zip(first, second, strict=True)]

    def ambiguity(self, record: bytes) -> str | None:
        return None

    def find(self, bodies: Sequence[bytes]) -> list[bytes]:
        return [body[self._own] for body in bodies]

    def contents(self, bodies: Sequence[bytes]) -> list[bytes]:
        return [body[self._rest] for body in bodies]


class AtMatch:
    """At the start of the pattern's group, or behind the match of a pattern without one."""

    def __init__(self, pattern: Pattern[bytes]) -> None:
        self._pattern = pattern
        self._has_group = pattern.groups > 0

    def put(self, ids: Sequence[bytes], bodies: Sequence[bytes]) -> list[bytes]:
        carried = []
        for place, (one, body) in enumerate(zip(ids, bodies, strict=True)):
            try:
                match = self._pattern.search(body)
            except TooSlow as error:
                raise NoPlace(place, f"identity.insert: {error}") from error
            at = -1 if match is None else self._at(match)
            if at < 0:
                raise NoPlace(place, "identity.insert does not match")
            carried.append(body[:at] + one + body[at:])
        return carried

    def _at(self, match: regex.Match[bytes]) -> int:
        """-1 for a group that has no part in the match."""
        return match.start(1) if self._has_group else match.end()

    def ambiguity(self, record: bytes) -> str | None:
        try:
            places = [self._at(match) for match in self._pattern.all_in(record)]
        except TooSlow as error:
            return f"identity.insert: {error}"
        if not places or places[0] < 0:
            return "identity.insert does not match"
        if len(places) > 1:
            return f"identity.insert matches {len(places)} times"
        return None


class ByPattern:
    def __init__(self, pattern: Pattern[bytes]) -> None:
        self._pattern = pattern
        self._given_up = 0

    def _search(self, body: bytes) -> regex.Match[bytes] | None:
        """None also where the search was given up; after some of those, the run is."""
        try:
            return self._pattern.search(body)
        except TooSlow as error:
            self._given_up += 1
            if self._given_up >= MOST_GIVEN_UP:
                text = f"identity.find: {error} on each of {self._given_up} messages"
                raise RunError(text) from error
            return None

    def find(self, bodies: Sequence[bytes]) -> list[bytes]:
        search = self._search
        return [match[1] or NO_ID if (match := search(body)) else NO_ID for body in bodies]

    def contents(self, bodies: Sequence[bytes]) -> list[bytes]:
        search = self._search
        return [
            body[: match.start(1)] + body[match.end(1) :] if (match := search(body)) else body
            for body in bodies
        ]


Placing = AtEdge | AtMatch
Finding = AtEdge | ByPattern


class InBody:
    """The carriers `prefix`, `append` and `regex`."""

    puts_into = _BODY
    wants = _BODY
    added_bytes = ID_BYTES

    def __init__(
        self,
        placing: Placing,
        finding: Finding,
        find_pattern: Pattern[bytes] | None,
        has_given_pattern: bool = False,
    ) -> None:
        """`find_pattern`: what `finding` goes by, if that is a pattern. `has_given_pattern`: the
        scenario gives it, for what the system makes of a record and not for the record."""
        self._placing = placing
        self._finding = finding
        self._find_pattern = find_pattern
        self.has_given_pattern = has_given_pattern

    def put(self, ids: Sequence[bytes], records: Records) -> Carried:
        bodies = self._placing.put(ids, records.bodies)
        return Carried(bodies, records.keys, records.headers)

    def find(self, received: Received) -> list[bytes]:
        return self._finding.find(received.bodies or ())

    def contents(self, received: Received) -> Sequence[bytes]:
        return self._finding.contents(received.bodies or ())

    def ambiguity(self, record: bytes) -> str | None:
        problem = self._placing.ambiguity(record)
        if problem is not None or self.has_given_pattern:
            return problem
        return self.find_problem(record)

    def find_problem(self, record: bytes) -> str | None:
        """Why the ID could not be found in this record if it came out as it was sent."""
        if self._find_pattern is None:
            return None
        [body] = self._placing.put([_SAMPLE_ID], [record])
        try:
            found = [match[1] for match in self._find_pattern.all_in(body)]
        except TooSlow as error:
            return f"identity.find: {error}"
        if not found:
            return "identity.find does not match the record with its ID"
        if found[0] != _SAMPLE_ID:
            return "identity.find finds something else than the ID"
        if len(found) > 1:
            return f"identity.find matches {len(found)} times"
        return None


class _WholeBody:
    """What carriers have in common that leave bodies alone."""

    added_bytes = 0

    def contents(self, received: Received) -> Sequence[bytes]:
        return received.bodies or ()

    def ambiguity(self, record: bytes) -> str | None:
        return None


class InHeader(_WholeBody):
    puts_into = frozenset({Part.HEADERS})
    wants = frozenset({Part.HEADERS})

    def __init__(self, name: str) -> None:
        self._name = name

    def put(self, ids: Sequence[bytes], records: Records) -> Carried:
        name = self._name
        headers: list[Mapping[str, bytes]]
        if records.headers is None:
            headers = [{name: one} for one in ids]
        else:
            headers = [{**own, name: one} for own, one in zip(records.headers, ids, strict=True)]
        return Carried(records.bodies, records.keys, headers)

    def find(self, received: Received) -> list[bytes]:
        headers: Sequence[Any] = received.headers or [None] * len(received)
        return [_value(_header(own, self._name)) for own in headers]


class AsKey(_WholeBody):
    puts_into = frozenset({Part.KEY})
    wants = frozenset({Part.KEY})

    def put(self, ids: Sequence[bytes], records: Records) -> Carried:
        return Carried(records.bodies, ids, records.headers)

    def find(self, received: Received) -> list[bytes]:
        return [key or NO_ID for key in received.keys or [None] * len(received)]


class ByAcknowledgement(_WholeBody):
    """The system names an ID in its answer to each message, and puts it into what comes out."""

    puts_into = ENVELOPE_ONLY
    wants = frozenset({Part.BODY})

    def __init__(self, pattern: Pattern[bytes]) -> None:
        self._finding = ByPattern(pattern)

    def put(self, ids: Sequence[bytes], records: Records) -> Carried:
        return Carried(records.bodies, records.keys, records.headers)

    def find(self, received: Received) -> list[bytes]:
        return self._finding.find(received.bodies or ())

    def contents(self, received: Received) -> Sequence[bytes]:
        return self._finding.contents(received.bodies or ())


def _header(headers: Any, name: str) -> Any:
    """By its name in any case: systems on the way may write it in their own."""
    if not headers:
        return None
    if isinstance(headers, Mapping):
        if name in headers:
            return headers[name]
        headers = headers.items()
    wanted = name.casefold()
    return next((value for own, value in headers if str(own).casefold() == wanted), None)


def _value(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    return bytes(value) if isinstance(value, bytes | bytearray | memoryview) else NO_ID


ENTRY_POINTS = "bench_spark.carriers"
ACKNOWLEDGEMENT = "acknowledgement"

CarrierFactory = Callable[[Identity], Carrier]


def make_carrier(scenario: Scenario) -> Carrier | None:
    """What the scenario asks for; None for the envelope."""
    if scenario.has_envelopes:
        return None
    return carrier_named(scenario.carrier, scenario.identity)


def carrier_named(name: str, identity: Identity) -> Carrier:
    return _factory(name)(identity)


def refuse_carrier(scenario: Scenario, broker: Broker) -> None:
    """Raise ConfigurationError if messages to this broker lack what the carrier puts the ID into,
    or what the data set has beside bodies."""
    carrier = make_carrier(scenario)
    if carrier is None:
        return
    if scenario.carrier == ACKNOWLEDGEMENT:
        _refuse_without_answers(scenario, broker)
    offered = kind_of(broker).capabilities(scenario).parts
    for part in sorted(carrier.puts_into - offered, key=lambda part: part.value):
        _refuse_part(f"identity.carrier: {scenario.carrier}", part, broker, scenario)
    columns = scenario.dataset.columns
    if columns.key is not None and Part.KEY not in offered:
        _refuse_part(f"dataset.columns.key: {columns.key}", Part.KEY, broker, scenario)
    if columns.headers is not None and Part.HEADERS not in offered:
        _refuse_part(f"dataset.columns.headers: {columns.headers}", Part.HEADERS, broker, scenario)


def refuse_carrier_to_find(scenario: Scenario, broker: Broker) -> None:
    """The same where IDs are only looked for: at an egress."""
    carrier = make_carrier(scenario)
    if carrier is None:
        return
    missing = carrier.wants - kind_of(broker).capabilities(scenario).parts
    for part in sorted(missing, key=lambda part: part.value):
        _refuse_part(f"identity.carrier: {scenario.carrier}", part, broker, scenario)


def _refuse_without_answers(scenario: Scenario, broker: Broker) -> None:
    if kind_of(broker).capabilities(scenario).answers:
        return
    if broker.kind == "http":
        raise ConfigurationError(
            "identity.carrier: acknowledgement: http.answer is none, so that no answer names an "
            "ID; use body or header"
        )
    raise ConfigurationError(
        f"identity.carrier: acknowledgement: kind {broker.kind} gives no IDs; allowed: kind "
        "http, whose answers can name one"
    )


def _refuse_part(key: str, part: Part, broker: Broker, scenario: Scenario) -> None:
    what = {Part.HEADERS: "headers", Part.KEY: "a key", Part.BODY: "a body"}[part]
    kind = f"{broker.kind} {scenario.mqtt.version}" if broker.kind == "mqtt" else broker.kind
    advice = "; use mqtt.version: 5" if kind == "mqtt 3.1.1" and part is Part.HEADERS else ""
    raise ConfigurationError(
        f"{key}: messages of kind {kind} have no {what.removeprefix('a ')}{advice}"
    )


def _factory(name: str) -> CarrierFactory:
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    for entry_point in entry_points(group=ENTRY_POINTS, name=name):
        factory: CarrierFactory = entry_point.load()
        return factory
    names = sorted(
        {*_BUILT_IN, "envelope", *(one.name for one in entry_points(group=ENTRY_POINTS))}
    )
    raise ConfigurationError(
        f"identity.carrier: {name} is not installed; allowed: {', '.join(names)}"
        + did_you_mean(name, names)
    )


def _in_body(placing: Placing, identity: Identity) -> InBody:
    """IDs at the edge of a body are found there, unless a pattern is given."""
    if identity.find is None and isinstance(placing, AtEdge):
        return InBody(placing, placing, None)
    pattern = _find_pattern(identity)
    return InBody(placing, ByPattern(pattern), pattern, has_given_pattern=identity.find is not None)


def _find_pattern(identity: Identity) -> Pattern[bytes]:
    return Pattern(ANY_ID) if identity.find is None else compiled(identity.find)


def _at_match(identity: Identity) -> InBody:
    assert identity.insert is not None
    return _in_body(AtMatch(compiled(identity.insert)), identity)


_BUILT_IN: dict[str, CarrierFactory] = {
    "prefix": lambda identity: _in_body(AtEdge(True), identity),
    "append": lambda identity: _in_body(AtEdge(False), identity),
    "regex": _at_match,
    "header": lambda identity: InHeader(identity.name),
    "key": lambda identity: AsKey(),
    ACKNOWLEDGEMENT: lambda identity: ByAcknowledgement(_find_pattern(identity)),
}
