"""A member's client by confluent-kafka: the reference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from bench_spark.errors import ConfigurationError
from bench_spark.transports.kafka.columns import columns_of
from bench_spark.transports.kafka.group_client import (
    POLL_SECONDS,
    CommittedPlace,
    Membership,
    OnCommit,
    Taken,
)
from bench_spark.transports.kafka.quiet_log import QuietLog


class ConfluentConsumer:
    """See `GroupClient`."""

    batch_messages = 1000

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        listener = membership.listener

        def on_commit(error: KafkaError | None, places: list[TopicPartition]) -> None:
            _tell(listener.on_commit, error, places)

        try:
            self._consumer = Consumer(
                membership.properties | {"error_cb": listener.on_error, "on_commit": on_commit},
                logger=QuietLog(),
            )
        except KafkaException as error:
            raise ConfigurationError(f"kafka.consumer: {error.args[0].str()}") from None
        self.list_topics = self._consumer.list_topics
        self.memberid = self._consumer.memberid
        self.assign = self._consumer.assign
        self.incremental_assign = self._consumer.incremental_assign
        self.assignment = self._consumer.assignment
        self.pause = self._consumer.pause
        self.resume = self._consumer.resume
        self.close = self._consumer.close

    def join(self, topics: list[str]) -> None:
        listener = self._membership.listener
        self._consumer.subscribe(
            topics,
            on_assign=lambda _, partitions: listener.on_assign(partitions),
            on_revoke=lambda _, partitions: listener.on_revoke(partitions),
            on_lost=lambda _, partitions: listener.on_lost(partitions),
        )

    def take(self) -> Taken | None:
        membership = self._membership
        now_ns = membership.now_ns
        first = self._consumer.poll(POLL_SECONDS)
        first_ns = now_ns()
        if first is None:
            return None
        more = self._consumer.consume(self.batch_messages - 1, 0)
        more_ns = now_ns()
        messages = [first, *more]
        received_ns = np.full(len(messages), more_ns, dtype=np.int64)
        received_ns[0] = first_ns
        problems: list[tuple[str, KafkaError]] = []
        errors = list(map(Message.error, messages))
        if any(errors):
            problems = [(str(m.topic()), e) for m, e in zip(messages, errors, strict=True) if e]
            received_ns = received_ns[[error is None for error in errors]]
            messages = [m for m, e in zip(messages, errors, strict=True) if e is None]
        columns = (
            columns_of(messages, membership.route_of_topic, membership.want) if messages else None
        )
        return Taken(received_ns, columns, problems)

    def committed_offsets(
        self, partitions: list[TopicPartition], timeout_seconds: float
    ) -> list[int]:
        found = self._consumer.committed(partitions, timeout=timeout_seconds)
        return [place.offset for place in found]

    def commit_places(self, places: list[TopicPartition], *, wait: bool) -> None:
        if wait:
            done = self._consumer.commit(offsets=places, asynchronous=False)
            _tell(self._membership.listener.on_commit, None, done)
        else:
            self._consumer.commit(offsets=places)


def _tell(
    on_commit: OnCommit, error: KafkaError | None, places: Sequence[TopicPartition] | None
) -> None:
    on_commit(
        [
            CommittedPlace((place.topic, place.partition), place.offset, error or place.error)
            for place in places or ()
        ]
    )
