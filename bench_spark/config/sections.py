"""The sections of a scenario that every protocol uses: load, data, identity, trace, and both ends.

The sections `ingress` and `egress`: where messages go in, and where they come out again. The system
under test may be more than one broker: it takes messages at one place, does something with them,
and gives them out at another. Each end has a broker of its own, members of its own, and sections of
its own that go over those of the scenario.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from bench_spark.config.fields import (
    Conflict,
    FormerKey,
    Name,
    Pattern,
    PhaseSeconds,
    Rate,
    Seconds,
    Section,
    WireName,
)
from bench_spark.config.problems import EXPLAINED_ELSEWHERE, Described
from bench_spark.config.protocols import Amqp, Http, Kafka, Mqtt, Tcp
from bench_spark.config.topologies import EndSizes
from bench_spark.core.envelope import ENVELOPE_BYTES, ID_PATTERN, TIMESTAMP_BYTES

LARGEST_BODY_BYTES = 128 * 1024 * 1024


class SizeStep(Section):
    """A part of the measured phase."""

    seconds: PhaseSeconds
    """How long it lasts."""
    bytes: int = Field(ge=ENVELOPE_BYTES, le=LARGEST_BODY_BYTES)
    """Size of the bodies that are sent meanwhile."""


class Message(Section):
    """What is sent."""

    bytes: int = Field(1000, ge=TIMESTAMP_BYTES, le=LARGEST_BODY_BYTES)
    """Size of the body. From 32 bytes on, losses and duplicates are accounted for."""
    steps: list[SizeStep] = Field(default_factory=list, max_length=10_000)
    """A size that changes in the measured phase: a list such as
    `[{seconds: 10, bytes: 100}, {seconds: 5, bytes: 100000}]`. A message has the size of the moment
    at which it is sent. The last step goes on until the end; the warm-up has `bytes`."""
    padding: Literal["random", "zero"] = "random"
    """What fills the body behind the measurement data: zero bytes, or random bytes that differ from
    message to message, so that compression finds nothing between bodies."""
    timestamped: bool | Literal["perftest"] = False
    """In a run without producers: how the publisher says when it did so, so that `latency` can
    be measured. `true`: nanoseconds since the epoch, 64 bits, little-endian, in the first 8 bytes
    of every body, as in bodies of our own. `perftest`: bodies of RabbitMQ PerfTest, which must be
    started with `--use-millis` (a 32-bit number, then 64 bits of milliseconds since the epoch, both
    big-endian); their latencies are exact to a millisecond. The messages of runs with producers
    always have a send time."""

    @property
    def largest_bytes(self) -> int:
        return max([self.bytes, *(step.bytes for step in self.steps)])

    def conflicts(self) -> Iterator[Conflict]:
        if self.steps and self.bytes < ENVELOPE_BYTES:
            problem = f"{self.bytes} is below {ENVELOPE_BYTES}, which a size that changes needs"
            yield Conflict(("bytes", "steps"), problem)


class LoadStep(Section):
    """A part of the measured phase."""

    seconds: PhaseSeconds
    """How long it lasts."""
    rate_per_second: Rate
    """Messages per second asked for meanwhile, counted as `load.scope` says."""


class Load(Section):
    """How much is sent, and what decides when."""

    former_keys: ClassVar[Mapping[str, FormerKey]] = {
        "patience_seconds": FormerKey(now="request_timeout_seconds"),
        "fill_first": FormerKey(now="prefill"),
    }

    mode: Literal["rate", "maximum", "window", "request"] = "rate"
    """`rate`: open loop on a fixed schedule. `maximum`: as fast as back-pressure and
    `backlog_limit_bytes` allow. `window`: closed loop of `in_flight` messages per producer.
    `request`: the schedule of mode `rate`, kept by producers that each wait until their own message
    has arrived before they send another; what is due goes to a producer that is free, and is late
    when none is."""
    rate_per_second: Rate = 10_000.0
    """Messages per second asked for in modes `rate` and `request`, counted as `scope` says."""
    request_timeout_seconds: Annotated[float, Field(gt=0, le=3600)] = 5.0
    """Mode `request`: a producer whose message has not arrived after so long goes on without it."""
    steps: list[LoadStep] = Field(default_factory=list, max_length=10_000)
    """A rate that changes in the measured phase, in modes `rate` and `request`: a list such as
    `[{seconds: 10, rate_per_second: 1000}, {seconds: 5, rate_per_second: 8000}]`. The last step
    goes on until the end; the warm-up has `rate_per_second`."""
    scope: Literal["total", "per_producer", "per_agent"] = "total"
    """What `rate_per_second` counts. With `per_agent`, producers, consumers, destinations and
    messages are per agent too, so that adding executors adds load."""
    in_flight: int = Field(100, ge=1, le=10_000_000)
    """Messages in flight per producer in mode `window`."""
    prefill: bool = False
    """Mode `window`: producers send their whole window before any consumer attaches. With
    `amqp.immediate` consumers attach first all the same: the broker would return every message."""
    messages: int | None = Field(None, ge=1, le=10**15)
    """End the measured phase after this many messages instead of after `measure_seconds`. They are
    counted when sent; without producers when received, and then the run also ends once nothing has
    arrived for `drain_seconds`."""
    backlog_limit_bytes: int = Field(64 * 1024 * 1024, ge=1, le=2**50)
    """Mode `maximum` pauses while more than this is sent but not yet received."""

    @property
    def has_schedule(self) -> bool:
        """Whether every message is due at a certain time."""
        return self.mode in ("rate", "request")

    @property
    def most_awaited(self) -> int | None:
        """Messages that a producer may have on their way before it waits; None: any number."""
        return {"window": self.in_flight, "request": 1}.get(self.mode)

    def conflicts(self) -> Iterator[Conflict]:
        if self.steps and not self.has_schedule:
            problem = f"need mode rate or request; {self.mode} has no schedule"
            yield Conflict(("steps", "mode"), problem)
        if self.steps and self.messages is not None:
            problem = "exclude messages: their length is given in seconds"
            yield Conflict(("steps", "messages"), problem)


class Sampling(Section):
    """Throughput sampled at the consumer: the inverse of the time between messages.

    Per pair, which is a destination with its producers and consumers.
    """

    samples: int = Field(0, ge=0, le=10_000)
    """Samples per pair; 0 turns sampling off. The measured phase ends when every pair has its
    samples, and after `phases.measure_seconds` at the latest. Needs mode `window` or `maximum`."""
    threshold_seconds: Annotated[float, Field(gt=0, le=60)] = 0.01
    """A sample is as many messages as it takes to exceed this time."""
    skip_windows: Annotated[float, Field(ge=0, le=1000)] | None = None
    """Mode `window`: how many windows of messages a pair receives before its first sample begins;
    unset: 2. What arrives in the warm-up is never sampled, whatever the mode."""


class Phases(Section):
    """How long it lasts."""

    warmup_seconds: Seconds = 5.0
    """Sent and recorded, but left out of the results. In mode `maximum` with both ends it goes on,
    up to three times as long, until as much is received as is sent."""
    measure_seconds: PhaseSeconds = 10.0
    """What the results are about."""
    drain_seconds: Seconds = 5.0
    """How long to wait, at most, for messages still on their way after the last was sent."""


class Consumer(Section):
    """Consumers that are slow on purpose."""

    rate_per_second: Annotated[float, Field(ge=1, le=100_000_000)] | None = None
    """Most messages that one consumer takes per second, evenly; unset: no limit."""
    processing_us: int = Field(0, ge=0, le=1_000_000)
    """How long a consumer is busy with each message. It takes the next one, and acknowledges this
    one, when that time is over."""

    @property
    def is_slow(self) -> bool:
        return self.rate_per_second is not None or self.processing_us > 0


class HistogramRange(Section):
    """What the latency histograms can hold."""

    highest_seconds: Annotated[float, Field(ge=0.001, le=2000)] = 10.0
    """Upper end of the latency histograms; slower messages are counted as overflow."""

    @property
    def highest_us(self) -> int:
        return round(self.highest_seconds * 1_000_000)


class Audit(Section):
    """What a valid run may fall short of."""

    undelivered_share: Annotated[float, Field(ge=0, le=1)] = 0.001
    """Share of the expected deliveries that may be lost without a confirm, or whose fate may stay
    unknown, before the run is degraded; the same share of the messages sent may be refused,
    returned or given up, and in a run without consumers stay unconfirmed. A confirmed message that
    is lost degrades every run."""


RecordFormat = Literal["lines", "jsonl", "csv", "files", "length_prefixed"]
RecordOrder = Literal["sequential", "shuffled", "sampled"]

_Path = Annotated[str, Field(min_length=1, max_length=4096)]
_Column = Annotated[str, Field(min_length=1, max_length=255)]


class Columns(Section):
    """Columns of `dataset.table`."""

    body: _Column = "body"
    """What is sent: text or binary."""
    key: _Column | None = None
    """The message's key, text or binary, where the protocol has keys (Kafka)."""
    headers: _Column | None = None
    """The message's headers, a map of text to text or binary, where the protocol has them."""
    interval: _Column | None = None
    """Seconds between the row before and this one (a number, or a day-time interval): the rows are
    then sent at the pace at which they were recorded."""
    sort: _Column | None = None
    """By what the rows are sorted; unset: in the order in which Spark reads them, which is that of
    the files only where there is one file."""


class Replay(Section):
    """Recorded traffic (`dataset.columns.interval`)."""

    speed: Annotated[float, Field(ge=0.001, le=1_000_000)] = 1.0
    """How much faster than recorded: at 2, every interval is half as long."""


class Found(Section):
    """What the data set held when it was read before the run. Filled in, for the result: what a
    file says here is overwritten."""

    records: int = Field(0, ge=0)
    """How many."""
    mean_bytes: float = Field(0.0, ge=0)
    """Mean size of a record."""
    largest_bytes: int = Field(0, ge=0)
    """Size of the largest."""
    largest_body_bytes: int = Field(0, ge=0)
    """Size of the largest as it is sent, with an ID where the body carries it."""
    smallest_bytes: int = Field(0, ge=0)
    """Size of the smallest."""
    is_found_as_sent: bool | None = None
    """Whether `identity.find` finds the ID in the first record as it is sent; where it does not,
    only what a system makes of records is recognised. Unset without `find`."""


class Dataset(Section):
    """Bodies from files or a table; see data.md."""

    path: _Path | None = None
    """A file of records, or a directory: all files in it and below, in the order of their names,
    without those whose names begin with `.` or `_`. From where the command is given, else from
    where the scenario's file is. Every agent reads it, so on a cluster it must be on all machines.
    Names that end in `.gz` are read decompressed."""
    table: _Path | None = None
    """Instead: a table that Spark reads, by name or by the path of Parquet files or of a Delta
    table. The driver reads it once and puts its rows into the store, from where the agents read
    them."""
    format: RecordFormat | None = None
    """What a record of `path` is. `lines`: a line, without its end; blank lines are none. `jsonl`:
    a line that is JSON. `csv`: a row, as it is in the file; ends of lines in quotes are part of
    it. `files`: a whole file. `length_prefixed`: what follows its length (4 bytes, big-endian).
    Unset: by the name of the file or of the directory's first one, `.jsonl` and `.ndjson`, `.csv`,
    else `lines`."""
    header_row: bool = True
    """Format `csv`: the first row of each file names the columns and is not sent."""
    order: RecordOrder = "sequential"
    """In which order records are sent. `sequential`: as they are. `shuffled`: each once in random
    order, then each once in another. `sampled`: any at any time. Producers share the records: with
    4 of them, each sends every fourth of that order."""
    seed: int = Field(0, ge=0, lt=2**63)
    """What random orders depend on: the same number gives the same order."""
    repeat: bool = True
    """Begin again after the last record. `false`: the measured phase ends when each was sent once;
    needs `phases.warmup_seconds: 0`."""
    columns: Columns = Field(default_factory=Columns)
    replay: Replay = Field(default_factory=Replay)
    found: Found = Field(default_factory=Found)

    @property
    def is_set(self) -> bool:
        return self.path is not None or self.table is not None

    @property
    def is_recorded(self) -> bool:
        """Whether the data says when messages are due."""
        return self.table is not None and self.columns.interval is not None

    def conflicts(self) -> Iterator[Conflict]:
        yield from self._source_conflicts()
        yield from self._table_conflicts()
        yield from self._order_conflicts()

    def _source_conflicts(self) -> Iterator[Conflict]:
        if self.path is not None and self.table is not None:
            yield Conflict(("table", "path"), "excludes path: records come from one of them")
        if not self.is_set:
            for name in ("format", "order", "seed", "repeat", "columns", "replay"):
                if getattr(self, name) != getattr(_UNSET, name):
                    problem = "needs dataset.path or dataset.table: there is no data set"
                    yield Conflict((name, "path"), problem)

    def _table_conflicts(self) -> Iterator[Conflict]:
        if self.table is not None and self.format is not None:
            yield Conflict(
                ("format", "table"), "is for dataset.path: the rows of a table have none"
            )
        if self.path is not None and self.columns != Columns():
            yield Conflict(("columns", "path"), "are those of dataset.table; files have none")
        if self.replay != Replay() and not self.is_recorded:
            yield Conflict(("replay", "columns"), "needs dataset.columns.interval: what to replay")

    def _order_conflicts(self) -> Iterator[Conflict]:
        if self.is_recorded and self.order != "sequential":
            problem = (
                f"{self.order} does not go with columns.interval: recorded traffic has an order"
            )
            yield Conflict(("order", "columns"), problem)
        if self.order == "sampled" and not self.repeat:
            problem = "false does not go with order sampled, which never has sent each record"
            yield Conflict(("repeat", "order"), problem)


_UNSET = Dataset.model_construct()


ENVELOPE = "envelope"
HEADER_NAME = "bench-spark-id"
IN_BODY = ("prefix", "append", "regex")
"""Carriers that put the ID into the body, where a pattern can find it again."""
ANY_ID = rb"(?<![0-9A-Fa-f])(" + ID_PATTERN + rb")(?![0-9A-Fa-f])"


def compiled(pattern: str) -> Pattern[bytes]:
    """Of bytes: bodies need not be text."""
    return Pattern(pattern.encode())


def _pattern(most_groups: int, least_groups: int, rule: str) -> AfterValidator:
    def check(value: str) -> str:
        try:
            groups = compiled(value).groups
        except UnicodeEncodeError as error:
            raise ValueError(f"is no regular expression: {error}; allowed: {rule}") from None
        except ValueError as error:
            raise ValueError(f"{error}; allowed: {rule}") from None
        if not least_groups <= groups <= most_groups:
            raise ValueError(f"has {groups} groups; allowed: {rule}")
        return value

    return AfterValidator(check)


_INSERT_RULE = "Python's syntax, with at most one group: where the ID goes"
_FIND_RULE = "Python's syntax, with one group: the ID"
_LONGEST_PATTERN = 4096

InsertPattern = Annotated[str, Field(max_length=_LONGEST_PATTERN), _pattern(1, 0, _INSERT_RULE)]
FindPattern = Annotated[str, Field(max_length=_LONGEST_PATTERN), _pattern(1, 1, _FIND_RULE)]


class Identity(Section):
    """How a message that came out is known to be one that went in; see data.md."""

    carrier: Name | None = None
    """What carries the number of a message. `envelope`: the first 32 bytes of the body, which are
    made for it. The others leave the record as it is and add an ID of 32 hexadecimal characters:
    `prefix` before it, `append` behind it, `regex` at a place inside it, `header` in a header
    (AMQP, Kafka, MQTT 5, HTTP), `key` as the key (Kafka); `acknowledgement` adds nothing: an HTTP
    server names the ID in its answer. Others are installed as entry points. Unset: `envelope`
    without a data set, `prefix` with one."""
    insert: InsertPattern | None = None
    """Carrier `regex`: where in the body the ID goes, a regular expression that matches once in
    every record: at the start of its group, or behind what it matches if it has none. With
    `"id": "()` it becomes the beginning of a JSON text. Nothing is replaced."""
    find: FindPattern | None = None
    """What finds the ID in the body that comes out, where the system changes bodies: a regular
    expression with one group. Unset: carriers `prefix` and `append` look where they put it,
    `regex` and `acknowledgement` for 32 hexadecimal characters that no other digit adjoins."""
    name: WireName = HEADER_NAME
    """Carrier `header`: the header's name."""
    content_hash: bool = False
    """Hash every body without its ID when it is sent and when it is received, to count those that
    were `corrupted`. For systems that pass bodies on unchanged."""

    def conflicts(self) -> Iterator[Conflict]:
        if self.carrier == "regex" and self.insert is None:
            yield Conflict(("insert", "carrier"), "is missing: carrier regex inserts the ID there")
        if self.carrier != "regex" and self.insert is not None:
            yield Conflict(("insert", "carrier"), "is for carrier regex")
        if self.find is not None and self.carrier in (ENVELOPE, "header", "key"):
            problem = f"is for IDs in bodies; carrier {self.carrier} has it elsewhere"
            yield Conflict(("find", "carrier"), problem)
        if self.name != HEADER_NAME and self.carrier != "header":
            yield Conflict(("name", "carrier"), "is for carrier header")
        if self.content_hash and self.carrier == ENVELOPE:
            problem = "needs a carrier other than envelope, whose bodies change with every message"
            yield Conflict(("content_hash", "carrier"), problem)


OFF, ALL = "off", "all"
TRACE_RULE = f"{OFF}, {ALL}, or sample 1/N with N from 2 to 1000000"

_SAMPLE = re.compile(r"sample\s+1/(?P<every>[1-9][0-9]{0,6})")
_MOST_EVERY = 1_000_000


def _trace(value: object) -> object:
    # Other tools that write YAML take a bare `off` for false.
    if value is False:
        return OFF
    found = _SAMPLE.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is not None and 2 <= int(found["every"]) <= _MOST_EVERY:
        return f"sample 1/{found['every']}"
    if value in (OFF, ALL):
        return value
    raise ValueError(f"allowed: {TRACE_RULE}")


Trace = Annotated[str, BeforeValidator(_trace), Described("text", TRACE_RULE)]


def traced_every(trace: str) -> int:
    """Of how many sequence numbers one is traced; 0 if none is."""
    if trace in (OFF, ALL):
        return int(trace == ALL)
    return int(trace.rpartition("/")[2])


PROTOCOLS = ("amqp", "kafka", "mqtt", "http", "tcp")
"""Sections that an end may have of its own."""

MOST_ENDS = 100

Members = Annotated[int, Field(ge=1, le=1_000_000)]


class _End(Section):
    broker: Annotated[str, Field(min_length=1, max_length=4096)]
    """A broker file, relative to the scenario's, or the name of a shipped one."""
    destinations: Members | None = None
    """Queues or topics at this end. Member i of the end uses number i modulo this; unset: the
    scenario's `destinations`, or as many as the end has members."""
    amqp: Annotated[Amqp | None, EXPLAINED_ELSEWHERE] = None
    """Keys of `amqp` that are different at this end."""
    kafka: Annotated[Kafka | None, EXPLAINED_ELSEWHERE] = None
    """Keys of `kafka` that are different at this end."""
    mqtt: Annotated[Mqtt | None, EXPLAINED_ELSEWHERE] = None
    """Keys of `mqtt` that are different at this end."""
    http: Annotated[Http | None, EXPLAINED_ELSEWHERE] = None
    """Keys of `http` that are different at this end."""
    tcp: Annotated[Tcp | None, EXPLAINED_ELSEWHERE] = None
    """Keys of `tcp` that are different at this end."""

    def own_sections(self) -> dict[str, Any]:
        """The keys that were given for this end, by section."""
        given = self.model_dump(exclude_unset=True, include=set(PROTOCOLS))
        return {name: keys for name, keys in given.items() if keys is not None}


class Ingress(_End):
    """A broker that producers publish to."""

    producers: Members | None = None
    """How many of the producers publish here; to be said of all ingresses or of none. Unset: they
    are dealt out evenly."""

    @property
    def members(self) -> int | None:
        return self.producers


class Egress(_End):
    """A broker that consumers receive from."""

    consumers: Members | None = None
    """How many of the consumers receive here; to be said of all egresses or of none. Unset: they
    are dealt out evenly."""

    @property
    def members(self) -> int | None:
        return self.consumers


End = Ingress | Egress


def sizes_of(ends: Sequence[End], members: int, destinations: int) -> tuple[EndSizes, ...]:
    """Members and destinations of each end. No end at all means one, of a broker to be named."""
    if not ends:
        return (EndSizes(members, min(destinations, members)),)
    given = [end.members for end in ends]
    whole, rest = divmod(members, len(ends))
    shares = [
        count if count is not None else whole + (place < rest) for place, count in enumerate(given)
    ]
    return tuple(
        EndSizes(share, end.destinations or min(destinations, max(1, share)))
        for end, share in zip(ends, shares, strict=True)
    )


def size_conflicts(
    role: str, members_key: str, ends: Sequence[End], members: int, destinations: int
) -> Iterator[Conflict]:
    """What does not add up at the ends of one role."""
    given = [end.members for end in ends if end.members is not None]
    if given and len(given) < len(ends):
        problem = f"{members_key} must be said of every entry or of none"
        yield Conflict((role,), problem)
        return
    if given and sum(given) != members:
        problem = f"have {sum(given)} {members_key} in all, but {members_key} is {members}"
        yield Conflict((role, members_key), problem)
        return
    if members < len(ends):
        problem = f"{members} is too few for {len(ends)} entries of {role}: each needs one"
        yield Conflict((members_key, role), problem)
        return
    for place, sizes in enumerate(sizes_of(ends, members, destinations)):
        if sizes.destinations > sizes.members:
            yield Conflict(
                (role,),
                f"entry {place} has {sizes.destinations} destinations, and each needs one of its "
                f"{members_key}, of which there are {sizes.members}",
            )
