"""From a workload and a driver file of the OpenMessaging Benchmark to a scenario and a broker.

As in `perftest_flags`: the scenario's keys that each key decides, and what differs; or why there is
no counterpart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bench_spark.config.broker import Broker
from bench_spark.config.fields import ClientProperties, is_secret_key
from bench_spark.config.problems import did_you_mean, key_at, nearest, shown_text, shown_value
from bench_spark.config.yaml_text import plain_scalar
from bench_spark.errors import ConfigurationError
from bench_spark.importers.draft import Draft, plain_name, table_rows, take_password, take_uri
from bench_spark.importers.perftest import UNLIMITED_CONFIRMS


@dataclass(frozen=True)
class OmbKey:
    name: str
    keys: tuple[str, ...]
    """Of the scenario, `broker:` before those of the broker file. Empty: no counterpart."""
    text: str = ""


def _keys(table: str) -> tuple[OmbKey, ...]:
    return tuple(OmbKey(*row) for row in table_rows(table))


WORKLOAD = _keys("""
name | name | also the file's name
topics | destinations producers consumers |
partitionsPerTopic | kafka.topic.partitions | Kafka; RabbitMQ has none
keyDistributor | kafka.keys | Kafka. NO_KEY is `none`; the others are `sequence`: a key per message,
    so that messages go to all partitions
messageSize | message.bytes | from 32 bytes on, losses are accounted for
useRandomizedPayloads | message.padding |
randomBytesRatio | message.padding | 0 is `zero`, anything above is `random`
subscriptionsPerTopic | consumers topology | several of one topic, a consumer each, are `topology:
    fan-out`; otherwise one is taken
producersPerTopic | producers | times the topics
consumerPerSubscription | consumers | times the topics
producerRate | load.mode load.rate_per_second | of all producers together. 0, which looks for the
    highest rate, becomes load.mode maximum; [search-rate](studies/rate.md) searches for it
testDurationMinutes | phases.measure_seconds |
warmupDurationMinutes | phases.warmup_seconds | without it 60 s, as there
payloadFile | dataset.path dataset.format identity.carrier | every message is the whole file,
    unchanged: its number is in a header; with useRandomizedPayloads it is not read
randomizedPayloadPoolSize | | bodies are random bytes or zeros (message.padding)
consumerBacklogSizeGB, backlogDrainRatio | | a backlog is made by two runs: one with `consumers: 0`
    and `keep_destinations: true`, then one that consumes
""")

ANY_DRIVER = _keys("""
name | broker:name |
driverClass | broker:kind | Kafka's and RabbitMQ's; others are refused
""")

KAFKA_DRIVER = _keys("""
replicationFactor | kafka.topic.replication_factor |
topicConfig | kafka.topic.properties |
commonConfig | broker:bootstrap_servers broker:username broker:password_env | also
    broker:sasl_mechanism, broker:tls; what else librdkafka knows is broker:properties
producerConfig | kafka.producer | properties that librdkafka has
consumerConfig | kafka.consumer | properties that librdkafka has
reset | | topics of others are never deleted
""")

RABBITMQ_DRIVER = _keys("""
amqpUris | broker:uri broker:username broker:password_env | the first one; a broker file has one
    address
messagePersistence | amqp.persistent |
queueType | amqp.queue.arguments | x-queue-type
producerCreationDelay, producerCreationBatchSize, consumerCreationDelay, consumerCreationBatchSize |
    | not needed; `connections_per_second` limits how fast connections are opened
""")


DEFAULT_NAME = "omb"
WARMUP_MINUTES = 1
"""OMB's own default."""

_DRIVERS = {
    "io.openmessaging.benchmark.driver.kafka.KafkaBenchmarkDriver": "kafka",
    "io.openmessaging.benchmark.driver.rabbitmq.RabbitMqBenchmarkDriver": "amqp",
}
_DRIVER_KEYS = {"kafka": KAFKA_DRIVER, "amqp": RABBITMQ_DRIVER}
_SASL_MECHANISMS = key_at(Broker, "sasl_mechanism").choices
_JAAS_USER = re.compile(r"""username\s*=\s*["']?(?P<name>[^"';\s]+)""")
_SERIALIZERS = re.compile(r"(key|value)\.(de)?serializer")

JAVA_ONLY = {
    "buffer.memory": "librdkafka has queue.buffering.max.kbytes",
    "max.request.size": "librdkafka has message.max.bytes; bodies are given room anyhow",
    "max.poll.records": "messages are taken in batches of the program's own",
    "send.buffer.bytes": "librdkafka has socket.send.buffer.bytes",
    "receive.buffer.bytes": "librdkafka has socket.receive.buffer.bytes",
    "max.block.ms": "the schedule goes on whether or not the broker keeps up",
    "group.id": "every run has a consumer group of its own",
    "group.instance.id": "every run has a consumer group of its own",
    "transactional.id": "kafka.transaction_messages turns transactions on",
}
"""Why properties of the Java client are left out."""


def import_omb(
    workload: Mapping[str, Any],
    driver: Mapping[str, Any],
    known_properties: Iterable[str],
    name: str | None = None,
) -> Draft:
    """`known_properties` are librdkafka's; the Java client has others."""
    kind = _kind_of(driver)
    _refuse_unknown("workload", workload, WORKLOAD)
    _refuse_unknown("driver", driver, (*ANY_DRIVER, *_DRIVER_KEYS[kind]))
    draft = Draft(name or plain_name(str(workload.get("name") or ""), DEFAULT_NAME))
    translation = _Translation(workload, driver, draft, kind, frozenset(known_properties))
    translation.translate()
    draft.check("the files")
    return draft


def _kind_of(driver: Mapping[str, Any]) -> str:
    name = driver.get("driverClass")
    kind = _DRIVERS.get(name) if isinstance(name, str) else None
    if kind is None:
        supported = ", ".join(each.rpartition(".")[2] for each in _DRIVERS)
        given = shown_value(name) if name is not None else "missing"
        raise ConfigurationError(f"driver: driverClass: {given}; supported: {supported}")
    return kind


def _refuse_unknown(file: str, given: Mapping[str, Any], known: Iterable[OmbKey]) -> None:
    names = [key.name for key in known]
    allowed = f"; allowed: {', '.join(names)}"
    problems = [
        f"{file}: {shown_text(name)}: unknown key{did_you_mean(name, names, allowed)}"
        for name in given
        if name not in names
    ]
    if problems:
        raise ConfigurationError("\n".join(problems))


class _Translation:
    """Two files on their way into a draft."""

    def __init__(
        self,
        workload: Mapping[str, Any],
        driver: Mapping[str, Any],
        draft: Draft,
        kind: str,
        known_properties: frozenset[str],
    ) -> None:
        self._workload = workload
        self._driver = driver
        self._draft = draft
        self._kind = kind
        self._known_properties = known_properties
        self._set = draft.scenario.set

    def translate(self) -> None:
        for key in (*WORKLOAD, *_DRIVER_KEYS[self._kind]):
            source = self._workload if key in WORKLOAD else self._driver
            if not key.keys and source.get(key.name) not in (None, 0, False, ""):
                self._draft.leave_out(key.name, key.text)
        if self._workload.get("name"):
            self._set("name", self._draft.name, "name")
        self._ends()
        self._message()
        self._load()
        self._broker()

    # -- the workload ------------------------------------------------------------------------------

    def _ends(self) -> None:
        topics = self._whole("topics", 1)
        producers = topics * self._whole("producersPerTopic", 1)
        consumers = topics * self._whole("consumerPerSubscription", 1)
        subscriptions = self._whole("subscriptionsPerTopic", 1)
        if subscriptions == 0:
            consumers = 0
        elif subscriptions > 1 and topics == consumers == 1 and producers:
            consumers = subscriptions
            self._set("topology", "fan-out", "subscriptionsPerTopic")
        elif subscriptions > 1:
            self._draft.leave_out(
                "subscriptionsPerTopic",
                f"{subscriptions}, of which one is taken: copies of messages need one topic, and "
                "one consumer per subscription",
            )
        self._set("producers", producers, "topics x producersPerTopic")
        self._set("consumers", consumers, "consumerPerSubscription")
        self._set("destinations", topics, "topics")

    def _message(self) -> None:
        payload = self._workload.get("payloadFile")
        if payload and self._workload.get("useRandomizedPayloads") is True:
            self._draft.leave_out("payloadFile", "useRandomizedPayloads decides")
        elif payload:
            self._payload_file(payload)
            return
        self._set("message.bytes", self._whole("messageSize", 1024), "messageSize")
        ratio = self._workload.get("randomBytesRatio")
        if self._workload.get("useRandomizedPayloads") is True and ratio is not None:
            has_noise = self._positive("randomBytesRatio", ratio)
            self._set("message.padding", "random" if has_noise else "zero", "randomBytesRatio")
        elif self._workload.get("useRandomizedPayloads") is True:
            self._set("message.padding", "random", "useRandomizedPayloads")

    def _payload_file(self, path: object) -> None:
        if not isinstance(path, str):
            raise ConfigurationError("workload: payloadFile: allowed: the path of a file")
        self._set("dataset.path", path, "payloadFile")
        self._set("dataset.format", "files", "payloadFile: a message is the whole file")
        self._set("identity.carrier", "header", "bodies stay as they are")
        self._draft.remark("payloadFile", "give its path from here, or copy the file")

    def _load(self) -> None:
        rate = self._whole("producerRate", 0)
        if rate:
            self._set("load.mode", "rate", "producerRate")
            self._set("load.rate_per_second", rate, "producerRate")
            self._set("load.scope", "total", "producerRate is that of all producers")
        else:
            self._set("load.mode", "maximum", "producerRate: 0")
            self._draft.remark(
                "producerRate",
                "0 looks for the highest rate there; here as fast as possible, and bench-spark "
                "search-rate looks for it",
            )
        warmup = self._whole("warmupDurationMinutes", WARMUP_MINUTES)
        self._set("phases.warmup_seconds", 60 * warmup, "warmupDurationMinutes")
        minutes = self._whole("testDurationMinutes", 1)
        self._set("phases.measure_seconds", 60 * minutes, "testDurationMinutes")

    # -- the driver --------------------------------------------------------------------------------

    def _broker(self) -> None:
        if self._driver.get("name"):
            name = plain_name(str(self._driver["name"]), self._draft.name)
            self._draft.broker.set("name", name, "name")
        self._draft.broker.set("kind", self._kind, "driverClass")
        if self._kind == "kafka":
            self._kafka()
        else:
            self._rabbitmq()

    def _rabbitmq(self) -> None:
        for name in ("partitionsPerTopic", "keyDistributor"):
            if self._workload.get(name) not in (None, 1, "NO_KEY"):
                self._draft.leave_out(name, "is Kafka's; RabbitMQ has neither")
        uris = self._driver.get("amqpUris")
        if not isinstance(uris, list) or not uris:
            raise ConfigurationError("driver: amqpUris: missing; allowed: a list of addresses")
        if len(uris) > 1:
            self._draft.leave_out("amqpUris", f"{len(uris)}, of which the first is taken")
        take_uri(self._draft, "amqpUris", str(uris[0]), ("amqp", "amqps"))
        self._set("amqp.queue.durable", True, "as OMB's driver declares them")
        kind = str(self._driver.get("queueType") or "CLASSIC").lower()
        if kind not in ("classic", "quorum", "stream"):
            raise ConfigurationError("driver: queueType: allowed: CLASSIC, QUORUM, STREAM")
        if kind != "classic":
            path = ("amqp", "queue", "arguments", "x-queue-type")
            self._draft.scenario.put(path, kind, "queueType")
        is_persistent = self._driver.get("messagePersistence") is True
        self._set("amqp.persistent", is_persistent, "messagePersistence")
        self._set("amqp.confirms", UNLIMITED_CONFIRMS, "OMB's driver: without a limit")
        self._set("amqp.ack", "auto", "as OMB's driver consumes")
        self._draft.remark(
            "topics",
            "OMB's driver has a fanout exchange for each; here messages go straight to the queue",
        )

    def _kafka(self) -> None:
        self._set("kafka.topic.partitions", self._whole("partitionsPerTopic", 1), "partitions")
        replicas = self._driver.get("replicationFactor")
        if isinstance(replicas, int):
            self._set("kafka.topic.replication_factor", replicas, "replicationFactor")
        for key, value in _properties("topicConfig", self._driver).items():
            self._draft.scenario.put(("kafka", "topic", "properties", key), value, "topicConfig")
        has_keys = self._workload.get("keyDistributor") not in (None, "NO_KEY")
        self._set("kafka.keys", "sequence" if has_keys else "none", "keyDistributor")
        self._login(_properties("commonConfig", self._driver))
        for config, section in (("producerConfig", "producer"), ("consumerConfig", "consumer")):
            for key, value in _properties(config, self._driver).items():
                if self._is_known(config, key):
                    self._draft.scenario.put(("kafka", section, key), value, config)

    def _login(self, common: ClientProperties) -> None:
        """Where the cluster is and who logs in; no secret of it is looked at any further."""
        broker = self._draft.broker
        servers = common.pop("bootstrap.servers", None)
        if servers is None:
            raise ConfigurationError("driver: commonConfig: bootstrap.servers: missing")
        broker.set("bootstrap_servers", str(servers), "commonConfig")
        protocol = str(common.pop("security.protocol", "PLAINTEXT")).upper()
        mechanism = str(common.pop("sasl.mechanism", "PLAIN"))
        jaas = str(common.pop("sasl.jaas.config", ""))
        if protocol.endswith("SSL"):
            broker.set("tls", {}, "security.protocol")
        if protocol.startswith("SASL"):
            self._sasl(mechanism, jaas)
        for key, value in common.items():
            if is_secret_key(key):
                self._draft.leave_out(f"commonConfig {key}", "a secret; see docs/brokers.md")
            elif key.startswith("ssl."):
                self._draft.leave_out(
                    f"commonConfig {key}", "keys are in PEM files here: tls in the broker file"
                )
            elif self._is_known("commonConfig", key):
                broker.put(("properties", key), value, "commonConfig")

    def _sasl(self, mechanism: str, jaas: str) -> None:
        broker = self._draft.broker
        if mechanism not in _SASL_MECHANISMS:
            self._draft.leave_out(
                "commonConfig sasl.mechanism", f"allowed: {', '.join(_SASL_MECHANISMS)}"
            )
            return
        broker.set("sasl_mechanism", mechanism, "sasl.mechanism")
        if user := _JAAS_USER.search(jaas):
            broker.set("username", user["name"], "sasl.jaas.config")
            take_password(self._draft, "sasl.jaas.config")

    def _is_known(self, config: str, key: str) -> bool:
        """Whether librdkafka has this property, and a scenario may set it."""
        if _SERIALIZERS.fullmatch(key):
            return False  # bodies are bytes in both: nothing is lost
        reason = JAVA_ONLY.get(key)
        if reason is None and key.startswith(("sasl.", "ssl.", "security.", "bootstrap.")):
            reason = "where the broker is and how to log in belongs into commonConfig"
        if reason is None and key not in self._known_properties:
            guess = nearest(key, self._known_properties)
            reason = "librdkafka has no such property" + (f"; it has {guess}" if guess else "")
        if reason is not None:
            self._draft.leave_out(f"{config} {shown_text(key)}", reason)
        return reason is None

    # -- reading -----------------------------------------------------------------------------------

    def _whole(self, name: str, otherwise: int) -> int:
        value = self._workload.get(name)
        if value is None:
            return otherwise
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ConfigurationError(
                f"workload: {name}: {shown_value(value)} is not allowed; allowed: a whole number "
                "from 0"
            )
        return value

    def _positive(self, name: str, value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigurationError(
                f"workload: {name}: {shown_value(value)} is not allowed; allowed: a number"
            )
        return value > 0


def _properties(name: str, driver: Mapping[str, Any]) -> ClientProperties:
    """The text of a Java properties file, as far as such files go."""
    text = driver.get(name) or ""
    if not isinstance(text, str):
        raise ConfigurationError(f"driver: {name}: allowed: lines of KEY=VALUE, behind a '|'")
    found: ClientProperties = {}
    for line in text.replace("\\\n", " ").splitlines():
        line = line.strip()
        if not line or line[0] in "#!":
            continue
        key, equals, value = line.partition("=")
        if not equals:
            key, equals, value = line.partition(":")
        if not equals or not key.strip():
            raise ConfigurationError(f"driver: {name}: allowed: lines of KEY=VALUE")
        meant = plain_scalar(value.strip())
        found[key.strip()] = value.strip() if meant is None else meant
    return found
