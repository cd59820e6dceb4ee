"""What a recorder must know of the run."""

from __future__ import annotations

from dataclasses import dataclass

from bench_spark.agent.due_times import DueTimes
from bench_spark.agent.sizes import BodySizes
from bench_spark.core.envelope import ENVELOPE_BYTES, ForeignStamps
from bench_spark.core.hdr import HistogramShape
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
    foreign_stamps: ForeignStamps | None = None
    """With `takes_any`: except for when they were sent, where the scenario says how that is
    told."""
    is_carried: bool = False
    """Messages say by IDs which they are. Heads are made from these: without one the run tag is 0,
    and times are 0 of messages that another agent sent."""
    first_measured: I64 | None = None
    """Per producer of the run: from which number on such messages belong to the measured phase.
    Without it they belong to the phase in which they arrive."""

    own_producers: tuple[int, ...] = ()
    """Per local producer lane: its number in the run. How many messages these have sent is known
    here."""
    due_times: DueTimes | None = None
    """When each message of the run is due, where that follows from its number."""

    @property
    def has_accounts(self) -> bool:
        return self.is_carried or self.sizes.smallest_bytes >= ENVELOPE_BYTES

    @property
    def goes_by_sending(self) -> bool:
        """Whether a message belongs to the phase in which it was sent, and not to that in which it
        was due. Bodies that are too small for an envelope say only when they were sent, so both
        ends go by that."""
        return not self.has_accounts
