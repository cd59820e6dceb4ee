"""What every part of PerfTest's options is translated from, and into."""

from __future__ import annotations

from dataclasses import dataclass

from bench_spark.importing.draft import Draft
from bench_spark.importing.perftest_words import Given


@dataclass(frozen=True)
class Members:
    """Who sends and receives. A channel of PerfTest is a member here."""

    producers: int
    consumers: int
    is_fan_out: bool

    @classmethod
    def of(cls, given: Given) -> Members:
        producers = given.count("producers", 1) * given.count("producer-channel-count", 1)
        consumers = given.count("consumers", 1) * given.count("consumer-channel-count", 1)
        # Without a name each consumer declares a queue of its own, bound by the same key.
        has_queue = any(name in given for name in ("queue", "queue-pattern"))
        is_routed_by_headers = given.last("type") == "headers"
        is_fan_out = consumers > 1 and producers > 0 and not (has_queue or is_routed_by_headers)
        return cls(producers, consumers, is_fan_out)


class Translation:
    """One command line on its way into a draft."""

    def __init__(self, given: Given, draft: Draft, members: Members) -> None:
        self._given = given
        self._draft = draft
        self._members = members
        self._set = draft.scenario.set
