"""From scenario and broker to librdkafka's properties. Pure, apart from `check_properties`.

librdkafka's own defaults (acks=all, linger.ms=5, batch.size=1000000 ...) stay as they are, because
they are what users of the library get. Only what a load generator needs differs, and everything in
the scenario overrides it:

- `queue.buffering.max.messages/kbytes` are bounded to what an executor can spare, and large enough
  to bridge a pause of the broker at full rate;
- `reconnect.backoff.max.ms` is 1000, not 10000: a broker that is back is noticed within a second;
- `fetch.queue.backoff.ms` is 5, not 1000: a consumer that has emptied its local queue would sit
  idle;
- `auto.offset.reset` is earliest: a run's own topic is read from its first message on, and for a
  topic that was there before the start is committed explicitly (see `cluster.py`), unless the run
  only consumes;
- sizes that bodies of `message.bytes` would not fit through are raised.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer

from bench_spark.config.broker import Broker, Credentials
from bench_spark.config.fields import ClientProperties, value_text
from bench_spark.config.models import Scenario
from bench_spark.config.problems import nearest
from bench_spark.errors import ConfigurationError
from bench_spark.transports.base import SizeLimit, TransportContext

Properties = dict[str, Any]

ENVELOPE_OF_RECORD_BYTES = 1024
"""More than a record batch of one message adds to its body and key."""
_FRAME_OF_HEADER_BYTES = 10
"""The lengths of a header's name and value, at the most."""
LARGEST_RECORD_BY_DEFAULT_BYTES = 1_000_000
LARGEST_RESPONSE_BY_DEFAULT_BYTES = 100_000_000

_MARK = "%d"
_ONLY_ERRORS = "delivery.report.only.error"

_OWNED: Mapping[str, str] = {
    "bootstrap.servers": "the broker file's bootstrap_servers say where the broker is",
    "metadata.broker.list": "the broker file's bootstrap_servers say where the broker is",
    "group.id": "every run has a consumer group of its own",
    "group.instance.id": "all consumers of the run would share it",
    "enable.auto.offset.store": "what was received is committed, not what was fetched",
    "transactional.id": "every producer has one of its own; see kafka.transaction_messages",
}
"""Properties that are the transport's business, and why."""


def group_of(run_id: str, subscription: int | None = None) -> str:
    """The run's consumer group; where every subscription gets a copy, a group for each."""
    return f"bench-{run_id}" + ("" if subscription is None else f"-{subscription}")


def topic_partitions(scenario: Scenario) -> int:
    """As given; else as many as it takes for every consumer of a round-robin to have one."""
    topic = scenario.kafka.topic
    if scenario.topology != "round-robin" or "partitions" in topic.model_fields_set:
        return topic.partitions
    return -(-scenario.consumers // scenario.destinations)


def transactional_id(context: TransportContext, producer: int) -> str:
    """Unique to the producer and the attempt: whoever used it twice would fence the other."""
    return f"bench-{context.run_id}-{producer}-{context.attempt}"


def topic_name(scenario: Scenario, run_id: str, index: int) -> str:
    return _name_with_mark(scenario, run_id).replace(_MARK, str(index))


def topic_pattern(scenario: Scenario, run_id: str) -> re.Pattern[str]:
    """What the names of all the run's topics look like."""
    return re.compile(re.escape(_name_with_mark(scenario, run_id)).replace(_MARK, r"\d+"))


def _name_with_mark(scenario: Scenario, run_id: str) -> str:
    return scenario.kafka.topic.name or f"bench-{run_id}-{_MARK}"


def topic_properties(scenario: Scenario) -> dict[str, str]:
    """The topic's own properties; bodies that brokers refuse by default are allowed."""
    needed: ClientProperties = {}
    if _record_bytes(scenario) > LARGEST_RECORD_BY_DEFAULT_BYTES:
        needed["max.message.bytes"] = _record_bytes(scenario)
    return {
        key: value_text(value) for key, value in (needed | scenario.kafka.topic.properties).items()
    }


def _bytes_around_body(scenario: Scenario) -> int:
    headers = sum(
        len(name.encode()) + len(value_text(value).encode()) + _FRAME_OF_HEADER_BYTES
        for name, value in scenario.kafka.headers.items()
    )
    return ENVELOPE_OF_RECORD_BYTES + headers


def _record_bytes(scenario: Scenario) -> int:
    """Room for the largest message with all that goes with it."""
    return scenario.largest_body_bytes + _bytes_around_body(scenario)


def size_limit(scenario: Scenario) -> SizeLimit:
    """The largest body that the scenario's own properties let through, and which of them says so;
    where nothing is said, room is made for whatever is sent."""
    given = (
        ("kafka.topic.properties", scenario.kafka.topic.properties, "max.message.bytes"),
        ("kafka.producer", scenario.kafka.producer, "message.max.bytes"),
    )
    limits = [
        SizeLimit(int(properties[name]) - _bytes_around_body(scenario), f"{section}.{name}")
        for section, properties, name in given
        if str(properties.get(name, "")).isdecimal()
    ]
    return min(limits, default=SizeLimit())


def admin_properties(broker: Broker, credentials: Credentials) -> Properties:
    """What every client of this broker has in common."""
    timeout_ms = max(1000, round(broker.connect_timeout_seconds * 1000))
    settings: ClientProperties = {
        "bootstrap.servers": broker.bootstrap_servers or "",
        "client.id": "bench-spark",
        "socket.connection.setup.timeout.ms": timeout_ms,
        "socket.nagle.disable": True,
        "reconnect.backoff.max.ms": 1000,
        "log.connection.close": False,
    }
    return _as_text(settings | _security(broker, credentials) | broker.properties)


def producer_properties(context: TransportContext) -> Properties:
    scenario = context.scenario
    defaults: ClientProperties = {
        "queue.buffering.max.messages": 500_000,
        "queue.buffering.max.kbytes": 262_144,
    }
    if _record_bytes(scenario) > LARGEST_RECORD_BY_DEFAULT_BYTES:
        defaults["message.max.bytes"] = _record_bytes(scenario)
    properties = _as_text(defaults | scenario.kafka.producer)
    if scenario.kafka.transaction_messages or not wants_reports(scenario):
        properties[_ONLY_ERRORS] = True
    return admin_properties(context.broker, context.credentials) | properties


def consumer_properties(context: TransportContext, group: str | None = None) -> Properties:
    """Of a consumer in that group; unset: the run's."""
    scenario = context.scenario
    defaults: ClientProperties = {
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "fetch.queue.backoff.ms": 5,
    }
    if 2 * _record_bytes(scenario) > LARGEST_RESPONSE_BY_DEFAULT_BYTES:
        defaults["receive.message.max.bytes"] = 2 * _record_bytes(scenario)
    if scenario.kafka.transaction_messages:
        defaults["isolation.level"] = "read_committed"
    if scenario.topology == "round-robin":
        # librdkafka's default divides topic by topic, always among the same first consumers.
        defaults["partition.assignment.strategy"] = "roundrobin"
    properties = _as_text(defaults | scenario.kafka.consumer)
    properties["group.id"] = group or group_of(context.run_id)
    return admin_properties(context.broker, context.credentials) | properties


def share_properties(context: TransportContext, group: str) -> Properties:
    """Of a member of that share group."""
    properties = _as_text(context.scenario.kafka.consumer) | {
        "group.id": group,
        "share.acknowledgement.mode": "implicit",
    }
    return admin_properties(context.broker, context.credentials) | properties


def wants_reports(scenario: Scenario) -> bool:
    """Whether a delivery report means that the broker has the message.

    With acks=0 librdkafka reports a message when it is written to the socket: that confirms
    nothing.
    """
    producer = scenario.kafka.producer
    acks = producer.get("acks", producer.get("request.required.acks", "all"))
    return value_text(acks) != "0" and value_text(producer.get(_ONLY_ERRORS, False)) != "true"


def starts_at_end(scenario: Scenario) -> bool:
    """Whether a run that only consumes is to leave out what its topics hold already."""
    asked = scenario.kafka.consumer.get("auto.offset.reset", "earliest")
    return value_text(asked) in ("latest", "largest", "end")


def _security(broker: Broker, credentials: Credentials) -> ClientProperties:
    has_login = credentials.username is not None
    if broker.tls is None and not has_login:
        return {}
    security: ClientProperties = {
        "security.protocol": ("SASL_" if has_login else "")
        + ("SSL" if broker.tls is not None else "PLAINTEXT")
    }
    if credentials.username is not None:
        security["sasl.mechanism"] = broker.sasl_mechanism
        security["sasl.username"] = credentials.username
        password = credentials.password
        security["sasl.password"] = password.get_secret_value() if password else ""
    if broker.tls is not None:
        for key, path in (
            ("ssl.ca.location", broker.tls.ca_file),
            ("ssl.certificate.location", broker.tls.certificate_file),
            ("ssl.key.location", broker.tls.key_file),
        ):
            if path is not None:
                security[key] = path
        if broker.tls.insecure:
            security["enable.ssl.certificate.verification"] = False
    return security


def _as_text(properties: ClientProperties) -> Properties:
    # The one property that confluent-kafka reads itself must stay a bool; librdkafka reads text.
    return {
        key: value_text(value) == "true" if key == _ONLY_ERRORS else value_text(value)
        for key, value in properties.items()
    }


# -- refusing what librdkafka would refuse, or silently ignore ------------------------------------


def check_properties(scenario: Scenario, broker: Broker) -> None:
    """Refuse properties that librdkafka does not know or would ignore, before anything connects.

    Clients are made to find out, without an address, so that nothing is contacted.
    """
    if broker.tls is not None and broker.tls.server_name is not None:
        raise ConfigurationError(
            f"broker {broker.name}: tls.server_name: Kafka's client library always checks for the "
            "name it connects to; give that name in bootstrap_servers"
        )
    own_login = "sasl.password" in broker.properties
    if broker.username and not (broker.password_env or broker.password_file or own_login):
        raise ConfigurationError(
            f"broker {broker.name}: username: needs password_env or password_file"
        )
    kafka = scenario.kafka
    if scenario.subscriptions_per_consumer > 1:
        raise ConfigurationError(
            "subscriptions_per_consumer: kind kafka has one per consumer: its client is a member "
            "of one group"
        )
    if scenario.consumer.is_slow:
        raise ConfigurationError(
            "consumer: kind kafka cannot slow consumers down: its client fetches ahead of them, "
            "and what it has fetched counts as received"
        )
    if scenario.only_consumes and kafka.topic.name is None:
        raise ConfigurationError(
            "kafka.topic.name: missing; a run without producers consumes from topics that are "
            "there already, and needs their name"
        )
    if scenario.only_consumes and kafka.group == "share":
        raise ConfigurationError(
            "kafka.group: share needs producers: a share group cannot be held back until the run "
            "begins"
        )
    _check(f"broker {broker.name}: properties", Producer, broker.properties, is_shared=True)
    _check("kafka.producer", Producer, kafka.producer)
    _check("kafka.consumer", Consumer, kafka.consumer)
    if kafka.transaction_messages:
        _check_transactions(scenario)


def _check_transactions(scenario: Scenario) -> None:
    """Refuse settings that exclude transactions, and loads that would wait for one for ever."""
    load, kafka = scenario.load, scenario.kafka
    place = f"kafka.transaction_messages: {kafka.transaction_messages}"
    transactional: ClientProperties = {"transactional.id": "check"}
    problem = _problem_with(Producer, kafka.producer | transactional, _Ignored())
    if problem is not None:
        raise ConfigurationError(f"{place} does not go with kafka.producer: {problem}")
    if load.most_awaited is not None and load.most_awaited < kafka.transaction_messages:
        limit = (
            "load.in_flight" if load.mode == "window" else f"what load.mode {load.mode} lets out"
        )
        raise ConfigurationError(
            f"{place} is above {limit}, which is {load.most_awaited}: nothing arrives before "
            "its transaction is full, and none would ever be"
        )
    open_at_once = kafka.transaction_messages * scenario.producers
    backlog = load.backlog_limit_bytes // scenario.largest_body_bytes
    if load.mode == "maximum" and scenario.has_both_ends and backlog < open_at_once:
        raise ConfigurationError(
            f"{place} with producers: {scenario.producers} makes {open_at_once} messages of open "
            f"transactions, more than the {backlog} that load.backlog_limit_bytes allows: none "
            "would ever be full"
        )


def _check(
    place: str,
    client_class: type[Producer] | type[Consumer],
    properties: ClientProperties,
    *,
    is_shared: bool = False,
) -> None:
    kind = client_class.__name__.lower()
    for key in properties:
        if key in _OWNED:
            raise ConfigurationError(f"{place}.{key}: {_OWNED[key]}")
    for key, value in properties.items():
        ignored = _Ignored()
        problem = _problem_with(client_class, {key: value}, ignored)
        if problem is not None:
            raise ConfigurationError(f"{place}.{key}: {explained(key, problem)}")
        if ignored.is_heard and not is_shared:
            raise ConfigurationError(f"{place}.{key}: does nothing in a {kind}")
    together = _problem_with(client_class, properties, _Ignored())
    if together is not None:
        raise ConfigurationError(f"{place}: {without_secrets(together, properties)}")


def _problem_with(
    client_class: type[Producer] | type[Consumer], properties: ClientProperties, log: _Ignored
) -> str | None:
    group = {"group.id": "check"} if client_class is Consumer else {}
    try:
        client = client_class(_as_text(properties) | group, logger=log)
    except KafkaException as error:
        return str(error.args[0].str())
    except (TypeError, ValueError) as error:
        return str(error)
    client.poll(0)  # log lines are handed over here
    client.close()
    return None


def explained(key: str, problem: str) -> str:
    """librdkafka's complaint about a property, for people and without secrets."""
    if "No such configuration property" in problem:
        meant = nearest(key, PROPERTY_NAMES)
        return "no such property" + (f"; did you mean {meant}?" if meant else "")
    return "not accepted by the client library" if _is_secret(key) else problem


def without_secrets(words: str, properties: Mapping[str, Any]) -> str:
    for key, value in properties.items():
        if _is_secret(key) and value:
            words = words.replace(value_text(value), "***")
    return words


def _is_secret(key: str) -> bool:
    return any(word in key for word in ("password", "secret", "pem", "passphrase"))


class _Ignored:
    """Listens for librdkafka's warning that a property does nothing in this kind of client."""

    is_heard = False

    def log(self, _level: int, _format: str, facility: str, _client: str, line: str) -> None:
        if facility == "CONFWARN" and "will be ignored" in line:
            self.is_heard = True


_NAMES = """
acks allow.auto.create.topics api.version.fallback.ms api.version.request
api.version.request.timeout.ms auto.commit.interval.ms auto.offset.reset batch.num.messages
batch.size bootstrap.servers broker.address.family broker.address.ttl broker.version.fallback
check.crcs client.dns.lookup client.id client.rack client.software.name client.software.version
compression.codec compression.level compression.type connections.max.idle.ms
coordinator.query.interval.ms debug delivery.report.only.error delivery.timeout.ms
enable.auto.commit enable.auto.offset.store enable.gapless.guarantee enable.idempotence
enable.metrics.push enable.partition.eof enable.random.seed enable.sasl.oauthbearer.unsecure.jwt
enable.sparse.connections enable.ssl.certificate.verification fetch.error.backoff.ms fetch.max.bytes
fetch.message.max.bytes fetch.min.bytes fetch.queue.backoff.ms fetch.wait.max.ms group.id
group.instance.id group.protocol group.protocol.type group.remote.assignor heartbeat.interval.ms
https.ca.location https.ca.pem isolation.level linger.ms log.connection.close log.thread.name
max.in.flight max.in.flight.requests.per.connection max.partition.fetch.bytes max.poll.interval.ms
message.copy.max.bytes message.max.bytes message.send.max.retries message.timeout.ms
metadata.broker.list metadata.max.age.ms metadata.recovery.rebootstrap.trigger.ms
metadata.recovery.strategy metadata.request.timeout.ms partition.assignment.strategy partitioner
plugin.library.paths queue.buffering.backpressure.threshold queue.buffering.max.kbytes
queue.buffering.max.messages queue.buffering.max.ms queued.max.messages.kbytes queued.min.messages
queuing.strategy receive.message.max.bytes reconnect.backoff.jitter.ms reconnect.backoff.max.ms
reconnect.backoff.ms request.required.acks retries retry.backoff.max.ms retry.backoff.ms
sasl.kerberos.keytab sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin
sasl.kerberos.principal sasl.kerberos.service.name sasl.mechanism sasl.mechanisms
sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud
sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss
sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds
sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file
sasl.oauthbearer.assertion.jwt.template.file sasl.oauthbearer.assertion.private.key.file
sasl.oauthbearer.assertion.private.key.passphrase sasl.oauthbearer.assertion.private.key.pem
sasl.oauthbearer.client.credentials.client.id sasl.oauthbearer.client.credentials.client.secret
sasl.oauthbearer.client.id sasl.oauthbearer.client.secret sasl.oauthbearer.config
sasl.oauthbearer.extensions sasl.oauthbearer.grant.type
sasl.oauthbearer.metadata.authentication.type sasl.oauthbearer.method sasl.oauthbearer.scope
sasl.oauthbearer.sub.claim.name sasl.oauthbearer.token.endpoint.url sasl.password sasl.username
security.protocol session.timeout.ms socket.connection.setup.timeout.ms socket.keepalive.enable
socket.nagle.disable socket.receive.buffer.bytes socket.send.buffer.bytes socket.timeout.ms
ssl.ca.location ssl.ca.pem ssl.certificate.location ssl.certificate.pem ssl.cipher.suites
ssl.crl.location ssl.curves.list ssl.endpoint.identification.algorithm ssl.engine.id
ssl.engine.location ssl.key.location ssl.key.password ssl.key.pem ssl.keystore.location
ssl.keystore.password ssl.providers ssl.sigalgs.list statistics.interval.ms
sticky.partitioning.linger.ms topic.blacklist topic.metadata.propagation.max.ms
topic.metadata.refresh.fast.interval.ms topic.metadata.refresh.interval.ms
topic.metadata.refresh.sparse transaction.timeout.ms transactional.id
"""
PROPERTY_NAMES = frozenset(_NAMES.split())
"""Of librdkafka 2.16, to say what a misspelt name was probably meant to be; librdkafka itself
decides what it accepts."""
