"""A member of a share group (KIP-932): its topics are a queue to it, message by message.

Nothing is assigned to a member and no offsets are its own: the broker lends it messages, and what
one go has brought is acknowledged when the next begins. So of what a member of a consumer group
does only joining, taking and leaving is left. By confluent-kafka's client, on either plane.

A share group begins at the end of its topics unless its configuration says otherwise, and a member
is never told that it has joined. So `Cluster.begin_share_group` has it begin at the beginning: what
is sent while members still join is received late, but it is received.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from confluent_kafka import KafkaException, ShareConsumer, TopicPartition
from confluent_kafka.admin import AdminClient

from bench_spark.errors import ConfigurationError
from bench_spark.transports.kafka.columns import columns_of
from bench_spark.transports.kafka.group_client import POLL_SECONDS, Membership, Taken
from bench_spark.transports.kafka.quiet_log import QuietLog

_OF_A_MEMBER = frozenset({"group.id", "share.acknowledgement.mode"})

JOINING_SECONDS = 3.0
"""A heartbeat or two of the broker's: by then a member has joined, if all goes well."""


class ShareClient:
    """See `GroupClient`."""

    batch_messages = 1000

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        properties = membership.properties
        self._ready_at: float | None = None
        told = {"error_cb": membership.listener.on_error}
        connection = {key: value for key, value in properties.items() if key not in _OF_A_MEMBER}
        try:
            self._consumer: Any = ShareConsumer(properties | told, logger=QuietLog())
            # A share consumer cannot be asked whether anybody is there.
            self._admin: Any = AdminClient(connection, logger=QuietLog())
        except KafkaException as error:
            raise ConfigurationError(f"kafka.consumer: {error.args[0].str()}") from None

    def list_topics(self, *, timeout: float) -> object:
        found: object = self._admin.list_topics(timeout=timeout)
        return found

    def join(self, topics: list[str]) -> None:
        self._consumer.subscribe(topics)
        self._ready_at = time.monotonic() + JOINING_SECONDS

    def take(self) -> Taken | None:
        messages = list(self._consumer.poll(POLL_SECONDS) or ())
        now_ns = self._membership.now_ns()
        if self._ready_at is not None and (messages or time.monotonic() >= self._ready_at):
            self._ready_at = None
            self._membership.listener.on_assign([])
        if not messages:
            return None
        errors = [(str(one.topic()), one.error()) for one in messages if one.error()]
        good = [one for one in messages if not one.error()] if errors else messages
        columns = None
        if good:
            columns = columns_of(good, self._membership.route_of_topic, self._membership.want)
            counts = (one.delivery_count() or 1 for one in good)
            columns.redelivered = np.fromiter((count > 1 for count in counts), np.bool_, len(good))
        return Taken(np.full(len(good), now_ns, dtype=np.int64), columns, errors)

    def memberid(self) -> str | None:
        return None

    def assign(self, partitions: list[TopicPartition]) -> None:
        """Members of share groups have no topic partitions of their own."""

    incremental_assign = pause = resume = assign

    def assignment(self) -> list[TopicPartition]:
        return []

    def committed_offsets(
        self, partitions: list[TopicPartition], timeout_seconds: float
    ) -> list[int]:
        return [-1] * len(partitions)

    def commit_places(self, places: list[TopicPartition], *, wait: bool) -> None:
        """Taking more, or leaving, acknowledges what was taken before."""

    def close(self) -> None:
        self._consumer.close()
