"""Sections of a scenario that every protocol heeds: messages, load, phases, consumers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from bench_spark.core.envelope import ENVELOPE_BYTES, TIMESTAMP_BYTES
from bench_spark.scenario.fields import Conflict, Rate, Seconds, Section, refuse

LARGEST_BODY_BYTES = 128 * 1024 * 1024


class SizeStep(Section):
    """A part of the measured phase."""

    seconds: Annotated[float, Field(gt=0, le=30 * 86400, allow_inf_nan=False)]
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
    """In a run without producers: how whoever publishes says when it did so, so that `latency` can
    be measured. `true`: nanoseconds since the epoch, 64 bits, little-endian, in the first 8 bytes
    of every body, as in bodies of our own. `perftest`: bodies of RabbitMQ PerfTest, which must be
    started with `--use-millis` (a 32-bit number, then 64 bits of milliseconds since the epoch, both
    big-endian); their latencies are exact to a millisecond. The messages of runs with producers
    always have a send time."""

    @property
    def largest_bytes(self) -> int:
        return max([self.bytes, *(step.bytes for step in self.steps)])

    @model_validator(mode="after")
    def _steps_have_an_envelope(self) -> Message:
        if self.steps and self.bytes < ENVELOPE_BYTES:
            problem = f"{self.bytes} is below {ENVELOPE_BYTES}, which a size that changes needs"
            refuse([Conflict(("bytes", "steps"), problem)])
        return self


class LoadStep(Section):
    """A part of the measured phase."""

    seconds: Annotated[float, Field(gt=0, le=30 * 86400, allow_inf_nan=False)]
    """How long it lasts."""
    rate_per_second: Rate
    """Messages per second asked for meanwhile, counted as `load.scope` says."""


class Load(Section):
    """How much is sent, and what decides when."""

    mode: Literal["rate", "maximum", "window", "request"] = "rate"
    """`rate`: open loop on a fixed schedule. `maximum`: as fast as back-pressure and
    `backlog_limit_bytes` allow. `window`: closed loop of `in_flight` messages per producer.
    `request`: the schedule of mode `rate`, kept by producers that each wait until their own message
    has arrived before they send another; what is due goes to whoever is free, and is late when
    nobody is."""
    rate_per_second: Rate = 10_000.0
    """Messages per second asked for in modes `rate` and `request`, counted as `scope` says."""
    patience_seconds: Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)] = 5.0
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
    fill_first: bool = False
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

    @model_validator(mode="after")
    def _steps_are_a_schedule(self) -> Load:
        if self.steps and not self.has_schedule:
            problem = f"need mode rate or request; {self.mode} has no schedule"
            refuse([Conflict(("steps", "mode"), problem)])
        if self.steps and self.messages is not None:
            problem = "exclude messages: their length is given in seconds"
            refuse([Conflict(("steps", "messages"), problem)])
        return self


class Sampling(Section):
    """Throughput sampled at the consumer: the inverse of the time between messages.

    Per pair, which is a destination with its producers and consumers.
    """

    samples: int = Field(0, ge=0, le=10_000)
    """Samples per pair; 0 turns sampling off. The measured phase ends when every pair has its
    samples, and after `phases.measure_seconds` at the latest. Needs mode `window` or `maximum`."""
    threshold_seconds: Annotated[float, Field(gt=0, le=60, allow_inf_nan=False)] = 0.01
    """A sample is as many messages as it takes to exceed this time."""
    skip_windows: Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)] | None = None
    """Mode `window`: how many windows of messages a pair receives before its first sample begins;
    unset: 2. What arrives in the warm-up is never sampled, whatever the mode."""


class Phases(Section):
    """How long it lasts."""

    warmup_seconds: Seconds = 5.0
    """Sent and recorded, but left out of the results. In mode `maximum` with both ends it goes on,
    up to three times as long, until as much is received as is sent."""
    measure_seconds: Annotated[float, Field(gt=0, le=30 * 86400, allow_inf_nan=False)] = 10.0
    """What the results are about."""
    drain_seconds: Seconds = 5.0
    """How long to wait, at most, for messages still on their way after the last was sent."""


class Consumer(Section):
    """Consumers that are slow on purpose."""

    rate_per_second: Annotated[float, Field(ge=1, le=100_000_000, allow_inf_nan=False)] | None = (
        None
    )
    """Most messages that one consumer takes per second, evenly; unset: no limit."""
    processing_us: int = Field(0, ge=0, le=1_000_000)
    """How long a consumer is busy with each message. It takes the next one, and acknowledges this
    one, when that time is over."""

    @property
    def is_slow(self) -> bool:
        return self.rate_per_second is not None or self.processing_us > 0


class HistogramRange(Section):
    """What the latency histograms can hold."""

    highest_seconds: Annotated[float, Field(ge=0.001, le=2000, allow_inf_nan=False)] = 10.0
    """Upper end of the latency histograms; slower messages are counted as overflow."""

    @property
    def highest_us(self) -> int:
        return round(self.highest_seconds * 1_000_000)


class Audit(Section):
    """What a valid run may fall short of."""

    undelivered_share: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.001
    """Share of the expected deliveries that may be lost without a confirm, or whose fate may stay
    unknown, before the run is degraded; the same share of the messages sent may be refused, and in
    a run without consumers stay unconfirmed. A confirmed message that is lost degrades every
    run."""
