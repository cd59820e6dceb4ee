"""How much of its topics a consumer group has not read. Pure: offsets in, counts out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from confluent_kafka import TopicPartition

from bench_spark.transports.kafka.columns import Position


@dataclass(frozen=True)
class Logs:
    """Topic partitions, and where their logs begin and end."""

    places: list[TopicPartition]
    first: Mapping[Position, int]
    end: Mapping[Position, int]

    def behind(self, committed: Mapping[Position, int]) -> dict[Position, int]:
        """Offsets between what a group has committed and the end of each log."""
        return {
            place: end - max(self.first[place], committed.get(place, 0))
            for place, end in self.end.items()
        }


@dataclass(frozen=True)
class Left:
    """Messages that a group has not read, by topic partition."""

    messages: Mapping[Position, int]
    committed: frozenset[Position]
    """Where the group has committed anything."""

    def in_topic(self, topic: str, is_ours: bool) -> int | None:
        """Where nothing was committed, nothing was received: of a topic of our own that leaves all
        there is, of anybody else's it leaves a number we cannot know."""
        places = [place for place in self.messages if place[0] == topic]
        if not places or not (is_ours or self.committed.issuperset(places)):
            return None
        return sum(self.messages[place] for place in places)


def summed(counts: Iterable[int | None]) -> int | None:
    """Unknown if one of them is."""
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total
