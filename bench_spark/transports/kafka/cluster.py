"""Questions and orders to the cluster outside the load: topics, offsets, groups, cleaning up.

**Where a run starts to read.** A topic made by this run is read from its beginning. A topic that
was there before is used, never deleted, and read from where it ended when it was declared: that
place is committed for the run's group at once, so that every consumer in every process starts
there, however often the group rebalances while its members join. A run that only consumes reads it
from its beginning, unless `auto.offset.reset` in the scenario says otherwise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from bench_spark.config.broker import Broker, Credentials
from bench_spark.config.problems import plural
from bench_spark.errors import BenchError, BrokerRefused, BrokerUnreachable, LoginRefused
from bench_spark.transports.kafka.librdkafka import QuietLog, reason_of
from bench_spark.transports.kafka.message_reader import Position
from bench_spark.transports.kafka.settings import admin_properties
from bench_spark.transports.leftovers import (
    WATCHED_SECONDS,
    Leftover,
    Wanted,
    run_of_numbered,
    run_of_whole,
    with_their_runs,
)

_SHORT_QUESTION_SECONDS = 0.5
_SHORT_ORDER_SECONDS = 2.0
_PAUSE_SECONDS = 0.05
_SILENCE = "no answer in Kafka's protocol; is it the right port, and with or without TLS and login?"

_UNREACHABLE = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._RESOLVE,
        KafkaError._SSL,
    }
)
_LOGIN = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)
_NOT_YET = frozenset(
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
    }
)
_GROUP_NOT_OURS_TO_DELETE = frozenset({KafkaError.GROUP_ID_NOT_FOUND, KafkaError.NON_EMPTY_GROUP})

_UNHURRIED: Mapping[str, Any] = {"reconnect.backoff.ms": 1000}
"""librdkafka would try ten times in a second what a broker or a certificate has refused."""

T = TypeVar("T")


def _ignore(_error: KafkaError) -> None:
    """For a client whose caller sees for itself that nothing comes."""


class Cluster:
    """One administrative client, for the length of a `with`."""

    def __init__(self, broker: Broker, credentials: Credentials) -> None:
        self._broker = broker
        self._username = credentials.username
        self._timeout_seconds = broker.connect_timeout_seconds
        self._errors: list[KafkaError] = []
        self._properties = dict(_UNHURRIED) | admin_properties(broker, credentials)
        try:
            self._client: Any = AdminClient(
                self._properties | {"error_cb": self._errors.append}, logger=QuietLog()
            )
        except KafkaException as error:
            raise BrokerUnreachable(f"{self.address}: {error.args[0].str()}") from None

    @property
    def address(self) -> str:
        return f"{self._broker.host}:{self._broker.port}"

    def __enter__(self) -> Cluster:
        """Connected: every later question may count on somebody being there to answer it."""
        self.brokers = len(self._metadata().brokers)
        return self

    def __exit__(self, *_: object) -> None:
        self._client = None

    # -- asking ----------------------------------------------------------------------------------

    def _metadata(self) -> Any:
        """Ask until somebody answers, or until it is clear that nobody will."""
        deadline = time.monotonic() + self._timeout_seconds
        while True:
            left = deadline - time.monotonic()
            try:
                return self._client.list_topics(
                    timeout=max(0.1, min(left, _SHORT_QUESTION_SECONDS))
                )
            except KafkaException as error:
                self._client.poll(0)  # librdkafka gives its reasons here
                told = {each.code() for each in self._errors}
                is_certain = not told.isdisjoint(_LOGIN | {KafkaError._ALL_BROKERS_DOWN})
                if is_certain or left <= 0:
                    raise self._explained(error.args[0]) from None

    def _ask(self, question: Callable[[], T], doing: str) -> T:
        """Ask, and ask again while the cluster is still appointing who could answer."""
        deadline = time.monotonic() + self._timeout_seconds
        while True:
            try:
                return question()
            except TimeoutError:
                raise BrokerUnreachable(f"{self.address}: {doing}no answer") from None
            except KafkaException as raised:
                error = raised.args[0]
            if error.code() not in _NOT_YET or time.monotonic() > deadline:
                raise self._explained(error, doing)
            time.sleep(_PAUSE_SECONDS)

    def _result(self, future: Future[T]) -> T:
        return future.result(timeout=self._timeout_seconds + 1)

    def _is_done(self, future: Future[Any], unless: int) -> bool:
        """Whether an order was carried out; False if the answer was that one error."""
        try:
            self._result(future)
        except KafkaException as error:
            if error.args[0].code() != unless:
                raise
            return False
        return True

    def _explained(self, error: KafkaError, doing: str = "") -> BenchError:
        self._client.poll(0)
        told = [each for each in self._errors if each.code() != KafkaError._ALL_BROKERS_DOWN]
        for each in (error, *told):
            if each.code() in _LOGIN:
                who = f"user {self._username}" if self._username else "a client without a user"
                return LoginRefused(f"{self.address}: {who}: {doing}{reason_of(each)}")
        if error.code() not in _UNREACHABLE:
            return BrokerRefused(f"{self.address}: {doing}{reason_of(error)}")
        servers = self._broker.addresses
        where = ", ".join(f"{host}:{port}" for host, port in servers)
        nobody = "no broker answers: " if len(servers) > 1 else ""
        why = reason_of(told[-1]) if told else _SILENCE
        return BrokerUnreachable(f"{where}: {doing}{nobody}{why}")

    # -- topics ----------------------------------------------------------------------------------

    def create_topics(self, topics: Sequence[NewTopic]) -> set[str]:
        """Create them; the names of those that did not exist before."""
        if not topics:
            return set()
        futures = self._client.create_topics(list(topics), request_timeout=self._timeout_seconds)
        exists = KafkaError.TOPIC_ALREADY_EXISTS
        return {
            name
            for name, future in futures.items()
            if self._ask(partial(self._is_done, future, exists), f"topic {name}: ")
        }

    def wait_for_leaders(self, partitions_by_topic: Mapping[str, int]) -> None:
        """Return once at least so many topic partitions, and all of them, can be written to."""
        deadline = time.monotonic() + self._timeout_seconds
        waiting = dict(partitions_by_topic)
        while waiting:
            known = self._topics()
            for name, expected in partitions_by_topic.items():
                leaders = (
                    [p.leader for p in known[name].partitions.values()] if name in known else []
                )
                if len(leaders) >= expected and -1 not in leaders:
                    waiting.pop(name, None)
            if waiting:
                if time.monotonic() > deadline:
                    raise BrokerRefused(
                        f"{self.address}: topic {min(waiting)}: not every topic partition has a "
                        f"leader after {self._timeout_seconds:g} s"
                    )
                time.sleep(_PAUSE_SECONDS)

    def partitions_of(self, topics: Iterable[str]) -> dict[str, list[TopicPartition]]:
        """Their topic partitions; topics that do not exist are missing."""
        known = self._topics()
        return {
            name: [TopicPartition(name, number) for number in sorted(known[name].partitions)]
            for name in topics
            if name in known
        }

    def topic_names(self) -> set[str]:
        return set(self._topics())

    def _topics(self) -> dict[str, Any]:
        topics = self._metadata().topics
        return {name: topic for name, topic in topics.items() if topic.error is None}

    def delete_topics(self, names: Sequence[str]) -> None:
        """A topic already gone is no error."""
        futures = self._client.delete_topics(list(names), request_timeout=self._timeout_seconds)
        gone = KafkaError.UNKNOWN_TOPIC_OR_PART
        for name, future in futures.items():
            self._ask(partial(self._is_done, future, gone), f"deleting topic {name}: ")

    # -- offsets and groups ----------------------------------------------------------------------

    def first_offsets(self, partitions: Sequence[TopicPartition]) -> list[int]:
        return self._offsets(partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    def end_offsets(self, partitions: Sequence[TopicPartition]) -> list[int]:
        return self._offsets(partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]

    def _offsets(self, partitions: Sequence[TopicPartition], spec: OffsetSpec) -> list[int]:
        def question() -> list[int]:
            futures = self._client.list_offsets(
                dict.fromkeys(partitions, spec), request_timeout=self._timeout_seconds
            )
            return [self._result(futures[partition]).offset for partition in partitions]

        return self._ask(question, "asking for offsets: ")

    def start_group_at_end(self, group: str, partitions: Sequence[TopicPartition]) -> None:
        """Commit for `group` that everything written so far needs no reading."""
        ends = self.end_offsets(partitions)
        places = [
            TopicPartition(partition.topic, partition.partition, end)
            for partition, end in zip(partitions, ends, strict=True)
        ]

        def question() -> None:
            futures = self._client.alter_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group, places)],
                request_timeout=self._timeout_seconds,
            )
            for place in self._result(futures[group]).topic_partitions:
                if place.error is not None:
                    raise KafkaException(place.error)

        self._ask(question, f"group {group}: ")

    def committed(self, group: str, partitions: Sequence[TopicPartition]) -> dict[Position, int]:
        """How far the group has read, where it has read at all.

        Asked by a consumer that never joins: the administrative call for it crashes the process
        (librdkafka 2.16) when the group's coordinator is still loading.
        """
        reader = Consumer(
            self._properties | {"group.id": group, "error_cb": self._errors.append},
            logger=QuietLog(),
        )
        try:
            places = self._ask(
                lambda: reader.committed(list(partitions), timeout=self._timeout_seconds),
                f"group {group}: ",
            )
        finally:
            reader.close()
        return {
            (place.topic, place.partition): place.offset for place in places if place.offset >= 0
        }

    def count_readable(
        self, starts: Mapping[Position, int], isolation: str
    ) -> dict[Position, int] | None:
        """Messages behind these places that a consumer would get; None if they could not be read.

        With transactions a difference of offsets is no count: the marks that end them have offsets
        too, and what was aborted stays in the log.
        """
        reader = Consumer(
            self._properties
            | {"group.id": "bench-count", "enable.auto.commit": False, "error_cb": _ignore}
            | {"enable.partition.eof": True, "isolation.level": isolation},
            logger=QuietLog(),
        )
        found = dict.fromkeys(starts, 0)
        waiting = set(starts)
        deadline = time.monotonic() + self._timeout_seconds
        try:
            reader.assign([TopicPartition(*place, at) for place, at in starts.items()])
            while waiting and time.monotonic() < deadline:
                for message in reader.consume(1000, _SHORT_QUESTION_SECONDS):
                    place = (str(message.topic()), int(message.partition() or 0))
                    error = message.error()
                    if error is None:
                        found[place] += 1
                    elif error.code() == KafkaError._PARTITION_EOF:
                        waiting.discard(place)
        finally:
            reader.close()
        return None if waiting else found

    def groups(self) -> dict[str, bool]:
        """Consumer groups by name, and whether they are without members."""

        def question() -> dict[str, bool]:
            future = self._client.list_consumer_groups(request_timeout=self._timeout_seconds)
            found = self._result(future)
            if found.errors:
                raise found.errors[0]
            idle = (ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD)
            return {one.group_id: one.state in idle for one in found.valid}

        return self._ask(question, "asking for groups: ")

    def begin_share_group(self, group: str) -> None:
        """Have a share group begin at the beginning of its topics, before anybody joins it."""
        self._configure_group(group, AlterConfigOpType.SET)

    def forget_share_group(self, group: str) -> None:
        """Delete the group and what was configured for it."""
        self._delete_group(group, _SHORT_ORDER_SECONDS)
        self._configure_group(group, AlterConfigOpType.DELETE)

    def _configure_group(self, group: str, operation: AlterConfigOpType) -> None:
        entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=operation)
        resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])

        def question() -> None:
            asked = self._client.incremental_alter_configs(
                [resource], request_timeout=self._timeout_seconds
            )
            self._result(asked[resource])

        self._ask(question, f"configuring share group {group}: ")

    def delete_group(self, group: str) -> None:
        """A group already gone is no error, nor one that still has members: they outlive us."""
        self._delete_group(group, self._timeout_seconds)

    def _delete_group(self, group: str, timeout_seconds: float) -> None:
        def question() -> None:
            asked = self._client.delete_consumer_groups([group], request_timeout=timeout_seconds)
            try:
                self._result(asked[group])
            except KafkaException as error:
                if error.args[0].code() not in _GROUP_NOT_OURS_TO_DELETE:
                    raise

        self._ask(question, f"deleting group {group}: ")


# -- how much of its topics a group has not read ---------------------------------------------------


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


# -- what killed runs have left behind -----------------------------------------------------------


class KafkaSweeper:
    """Topics and consumer groups that killed runs have left behind."""

    def __init__(self, broker: Broker, credentials: Credentials) -> None:
        self._broker = broker
        self._credentials = credentials

    def find(self, wanted: Wanted) -> list[Leftover]:
        with Cluster(self._broker, self._credentials) as cluster:
            topics = {
                name: run_id
                for name in sorted(cluster.topic_names())
                if (run_id := run_of_numbered(name)) is not None and wanted.takes(run_id)
            }
            found = [*_topics(cluster, topics), *_groups(cluster, set(topics.values()))]
        return with_their_runs(one for one in found if wanted.takes(one.run_id))

    def delete(self, leftovers: Sequence[Leftover]) -> None:
        with Cluster(self._broker, self._credentials) as cluster:
            topics = [one.name for one in leftovers if one.kind == "topic"]
            if topics:
                cluster.delete_topics(topics)
            for one in leftovers:
                if one.kind == "group":
                    cluster.delete_group(one.name)


def _topics(cluster: Cluster, runs: Mapping[str, str]) -> Iterable[Leftover]:
    if not runs:
        return
    before = _by_topic(cluster, runs, cluster.end_offsets)
    time.sleep(WATCHED_SECONDS)
    first = _by_topic(cluster, runs, cluster.first_offsets)
    for name, end in _by_topic(cluster, runs, cluster.end_offsets).items():
        messages = sum(end) - sum(first.get(name, end))
        yield Leftover(
            "topic",
            name,
            runs[name],
            plural(messages, "message"),
            "somebody who publishes to it" if end != before.get(name, end) else "",
        )


def _by_topic(
    cluster: Cluster, topics: Iterable[str], ask: Callable[[Sequence[TopicPartition]], list[int]]
) -> dict[str, list[int]]:
    """An offset of each topic partition."""
    partitions = cluster.partitions_of(topics)
    places = [place for each in partitions.values() for place in each]
    offsets = iter(ask(places) if places else [])
    return {name: [next(offsets) for _ in each] for name, each in partitions.items()}


def _groups(cluster: Cluster, runs: set[str]) -> Iterable[Leftover]:
    for name, is_idle in sorted(cluster.groups().items()):
        run_id = run_of_whole(name, runs)
        if run_id is not None:
            yield Leftover("group", name, run_id, used_by="" if is_idle else "its members")
