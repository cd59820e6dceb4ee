"""What a member of the group needs of a client, whatever the plane."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from confluent_kafka import KafkaError, TopicPartition

from bench_spark.core.clock import NowNs
from bench_spark.transports.base import I64, Part
from bench_spark.transports.kafka.columns import Columns, Position
from bench_spark.transports.kafka.settings import Properties

POLL_SECONDS = 0.1


@dataclass
class Taken:
    """What one go has brought: messages, if any, and errors of topics."""

    received_ns: I64
    columns: Columns | None
    problems: Sequence[tuple[str, KafkaError]] = ()


@dataclass(frozen=True)
class CommittedPlace:
    """What the broker said to the commit of one topic partition."""

    position: Position
    offset: int
    error: KafkaError | None


OnCommit = Callable[[Sequence[CommittedPlace]], None]
OnPartitions = Callable[[list[TopicPartition]], None]


@dataclass(frozen=True)
class Listener:
    """Whom a client tells what it hears. All but errors are told inside `take` and `close`."""

    on_error: Callable[[KafkaError], None]
    on_commit: OnCommit
    on_assign: OnPartitions
    on_revoke: OnPartitions
    on_lost: OnPartitions


@dataclass(frozen=True)
class Membership:
    """What a client is made of, whatever the plane."""

    properties: Properties
    route_of_topic: Mapping[str, int]
    want: frozenset[Part]
    now_ns: NowNs
    listener: Listener


class GroupClient(Protocol):
    """Only ever called by one thread, once it has joined. Failures are KafkaExceptions."""

    batch_messages: int
    """How many `take` brings at most."""

    def list_topics(self, *, timeout: float) -> object: ...

    def join(self, topics: list[str]) -> None:
        """Subscribe; the group's decisions are told to the listener."""

    def take(self) -> Taken | None:
        """What has come, waiting for the first message for up to `POLL_SECONDS`. A half-full batch
        never waits for more."""

    def memberid(self) -> str | None: ...

    def assign(self, partitions: list[TopicPartition]) -> None: ...

    def incremental_assign(self, partitions: list[TopicPartition]) -> None: ...

    def assignment(self) -> list[TopicPartition]: ...

    def pause(self, partitions: list[TopicPartition]) -> None: ...

    def resume(self, partitions: list[TopicPartition]) -> None: ...

    def committed_offsets(
        self, partitions: list[TopicPartition], timeout_seconds: float
    ) -> list[int]:
        """Negative where the group has committed nothing."""

    def commit_places(self, places: list[TopicPartition], *, wait: bool) -> None:
        """The listener is told how it went: before this returns, or later."""

    def close(self) -> None:
        """Leave the group; what it revokes is told to the listener."""


ClientMaker = Callable[[Membership], GroupClient]
"""The class of one plane's clients."""
