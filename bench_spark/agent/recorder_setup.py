"""What a recorder must know of the run."""

from __future__ import annotations

from dataclasses import dataclass

from bench_spark.agent.sizes import BodySizes
from bench_spark.measure.envelope import ENVELOPE_BYTES
from bench_spark.measure.hdr import HistogramShape
from bench_spark.transports.base import I64


@dataclass(frozen=True)
class RecorderSetup:
    """What the recorder must know of the run to judge a message."""

    shape: HistogramShape
    run_tag: int
    producers: int
    """Producers in the whole run: a higher number in an envelope is no message of ours."""
    stream_of_producer: I64
    """Per producer of the run: its rank among the producers of its group."""
    streams_per_subscription: int
    subscriptions: tuple[str, ...]
    """Names of the subscriptions this agent serves: of the destination, or the first of several."""
    destinations_by_producer: tuple[str, ...]
    """Per local producer lane: the name of its destination."""
    sizes: BodySizes
    has_schedule: bool
    by_destination: bool = False
    takes_any: bool = False
    """The run only consumes: messages of any origin count, and their bodies are not looked into."""
    reads_timestamps: bool = False
    """With `takes_any`: except for when they were sent, which is where our own have it."""
    is_carried: bool = False
    """Messages say by IDs which they are. Heads are made from these: without one the run tag is 0,
    and times are 0 of messages that another agent sent."""
    first_measured: I64 | None = None
    """Per producer of the run: from which number on such messages belong to the measured phase.
    Without it they belong to the phase in which they arrive."""

    @property
    def has_accounts(self) -> bool:
        return self.is_carried or self.sizes.smallest_bytes >= ENVELOPE_BYTES
