"""What a source says at one moment, and what happened between two such moments.

Counters are totals since some beginning, so only their differences mean something; gauges hold by
themselves. What a source offers but could not read is named in `unreadable` and null in the table:
a zero always means that zero was read.
"""

from __future__ import annotations

import math
import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

CPU_COUNTERS = ("cpu_user_seconds", "cpu_system_seconds")
BYTE_COUNTERS = (
    "read_bytes",
    "written_bytes",
    "device_read_bytes",
    "device_written_bytes",
    "network_received_bytes",
    "network_sent_bytes",
)
COUNTERS = (*CPU_COUNTERS, *BYTE_COUNTERS)
GAUGES = ("processes", "threads", "open_files", "rss_bytes")

CPU_COLUMNS = {
    "cpu_user_seconds": ("cpu_user_share_of_machine", "cpu_user_share_of_core"),
    "cpu_system_seconds": ("cpu_system_share_of_machine", "cpu_system_share_of_core"),
}
COLUMNS = (
    *(column for columns in CPU_COLUMNS.values() for column in columns),
    *BYTE_COUNTERS,
    *GAUGES,
)
"""What every row of `resources` has a column for, null where the source has no such thing."""

MOST_VALUES = 1_000
LONGEST_NAME = 200

_NANOSECONDS = 1_000_000_000


class SourceUnreadable(Exception):
    """A source could not be read at all; the text says why, without secrets."""


@dataclass(frozen=True)
class Reading:
    at_ns: int
    """On the monotonic clock of the machine that was read."""
    host: str
    cores: int
    counters: Mapping[str, float] = field(default_factory=dict)
    gauges: Mapping[str, float] = field(default_factory=dict)
    values: Mapping[str, float] = field(default_factory=dict)
    """What a source calls by names of its own."""
    unreadable: tuple[str, ...] = ()
    """Counters, gauges and values that the source should have and lacks."""
    identity: str = ""
    """Changes when the counters begin anew, as with a broker that was started again."""

    def as_message(self) -> dict[str, Any]:
        return {"type": "reading", **asdict(self)}

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Reading:
        """From another machine, which may be of another version: what is odd is refused."""
        try:
            reading = cls(
                at_ns=int(message["at_ns"]),
                host=str(message["host"])[:LONGEST_NAME],
                cores=int(message["cores"]),
                counters=_numbers(message["counters"]),
                gauges=_numbers(message["gauges"]),
                values=_numbers(message["values"]),
                unreadable=tuple(str(name)[:LONGEST_NAME] for name in message["unreadable"]),
                identity=str(message["identity"])[:LONGEST_NAME],
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise SourceUnreadable("the sampler's answer is not a reading") from error
        if reading.cores < 1 or len(reading.unreadable) > MOST_VALUES:
            raise SourceUnreadable("the sampler's answer is not a reading")
        return reading


def reading_of(found: Mapping[str, float], identity: str, cores: int | None = None) -> Reading:
    """What a source on this machine has said just now; what it lacks is unreadable."""
    return Reading(
        at_ns=time.monotonic_ns(),
        host=socket.gethostname(),
        cores=cores or os.cpu_count() or 1,
        counters={name: found[name] for name in COUNTERS if name in found},
        gauges={name: found[name] for name in GAUGES if name in found},
        unreadable=tuple(name for name in (*COUNTERS, *GAUGES) if name not in found),
        identity=identity,
    )


def values_read(
    values: Mapping[str, float], unreadable: Sequence[str] = (), host: str | None = None
) -> Reading:
    """What a source has just said under names of its own; it is on this machine unless `host` says
    where."""
    cores = 1 if host is not None else os.cpu_count() or 1
    return Reading(
        at_ns=time.monotonic_ns(),
        host=host or socket.gethostname(),
        cores=cores,
        values=values,
        unreadable=tuple(unreadable),
    )


class ResourceSampler(ABC):
    """One source. Used from one thread; may take as long as its time limit."""

    @abstractmethod
    def read(self) -> Reading:
        """Raises SourceUnreadable where nothing can be read."""

    def close(self) -> None:  # noqa: B027 - most have nothing open
        pass


def _numbers(given: Mapping[str, Any]) -> dict[str, float]:
    if len(given) > MOST_VALUES:
        raise ValueError("too many")
    numbers = {str(name)[:LONGEST_NAME]: float(value) for name, value in given.items()}
    if not all(map(math.isfinite, numbers.values())):
        raise ValueError("not finite")
    return numbers


def usage_between(before: Reading, after: Reading) -> dict[str, Any]:
    """The columns of the time between two readings: bytes and CPU of that time, gauges at its end.

    A counter that began anew in between says nothing about it: null, and named.
    """
    seconds = (after.at_ns - before.at_ns) / _NANOSECONDS
    usage: dict[str, Any] = dict.fromkeys(COLUMNS)
    unreadable = dict.fromkeys(
        column for name in after.unreadable for column in CPU_COLUMNS.get(name, (name,))
    )
    for name, value in after.counters.items():
        grown = value - before.counters.get(name, math.inf)
        if grown < 0 or seconds <= 0 or before.identity != after.identity:
            unreadable |= dict.fromkeys(CPU_COLUMNS.get(name, (name,)))
        elif name in CPU_COLUMNS:
            of_machine, of_core = CPU_COLUMNS[name]
            usage[of_core] = grown / seconds
            usage[of_machine] = grown / seconds / after.cores
        else:
            usage[name] = round(grown)
    for name, value in after.gauges.items():
        usage[name] = round(value)
    return usage | {
        "interval_seconds": seconds,
        "values": dict(after.values),
        "unreadable": list(unreadable),
    }
