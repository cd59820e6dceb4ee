"""The section `kafka` of a scenario."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from bench_spark.scenario.fields import (
    ClientProperties,
    Conflict,
    PropertyValue,
    Section,
    few_bytes,
    refuse,
)

_HEADER_NAME_CHARACTERS = 255
_KAFKA_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,200}")


def _kafka_topic(value: str) -> str:
    if not _KAFKA_TOPIC.fullmatch(value.replace("%d", "0")):
        raise ValueError("allowed: letters, digits, '.', '_', '-' and '%d', at most 200")
    return value


def _header_name(value: str) -> str:
    if not 1 <= len(value) <= _HEADER_NAME_CHARACTERS or not value.isprintable():
        raise ValueError(f"allowed: printable text of 1 to {_HEADER_NAME_CHARACTERS} characters")
    return value


class KafkaTopic(Section):
    """The topics that are created for the run."""

    name: Annotated[str, AfterValidator(_kafka_topic)] | None = None
    """Topic name; `%d` stands for the destination's number. Unset: a name of the run's own. A topic
    of that name that is there already is used as it is, and never deleted."""
    partitions: int = Field(1, ge=1, le=100_000)
    """Topic partitions of each topic."""
    replication_factor: int = Field(1, ge=1, le=100)
    """Brokers that hold a copy of each topic partition."""
    properties: ClientProperties = Field(default_factory=dict)
    """Topic properties such as `flush.messages: 1`, passed as they are."""


class Kafka(Section):
    """Kafka only; other protocols ignore it."""

    removed_keys: ClassVar[Mapping[str, str]] = {
        "plane": "there is one data plane now, so there is nothing to choose: librdkafka's own "
        "interface moves all messages but those of transactions and share groups. Leave the key out"
    }

    topic: KafkaTopic = Field(default_factory=KafkaTopic)
    producer: ClientProperties = Field(default_factory=dict)
    """Any librdkafka producer property (`acks`, `linger.ms`, `batch.size` ...)."""
    consumer: ClientProperties = Field(default_factory=dict)
    """Any librdkafka consumer property."""
    keys: Literal["none", "producer", "sequence", "uniform", "zipf"] = "none"
    """Message key: none, the producer's number, the sequence number, or one of `key_count` numbers:
    `uniform` takes all equally often, `zipf` key k so often that it is (k + 1) to the power of
    `key_exponent` times rarer than key 0. The topic partition follows from the key."""
    key_count: int = Field(1000, ge=1, le=10_000_000)
    """With `keys` uniform or zipf: how many there are."""
    key_exponent: Annotated[float, Field(gt=0, le=10, allow_inf_nan=False)] = 1.0
    """With `keys: zipf`: how uneven they are."""
    headers: dict[Annotated[str, AfterValidator(_header_name)], PropertyValue] = Field(
        default_factory=dict, max_length=100
    )
    """Headers of every message, the values as UTF-8 text, all of them together at most 64 KiB. They
    are no part of `message.bytes`, nor of any size in the result. Headers of a data set come on
    top, and win where they have the same name. A message with headers costs its producer a call of
    its own."""
    group: Literal["consumer", "share"] = "consumer"
    """How consumers divide a topic: by topic partitions, as members of a consumer group, or message
    by message, as members of a share group (Kafka 4.2 and later). Messages of a share group are
    acknowledged as they are taken; what it leaves behind is not known. Of `consumer` a share group
    takes only properties that its client knows."""
    transaction_messages: int = Field(0, ge=0, le=10_000_000)
    """Messages per transaction of a producer; 0 turns transactions off. A message is confirmed when
    its transaction is committed, and consumers read committed messages only."""

    @model_validator(mode="after")
    def _share_groups_read_everything(self) -> Kafka:
        if self.group == "share" and self.transaction_messages:
            problem = "does not go with group: share, which reads what is not committed as well"
            refuse([Conflict(("transaction_messages", "group"), problem)])
        return self

    @field_validator("headers")
    @classmethod
    def _headers_are_small(cls, headers: ClientProperties) -> ClientProperties:
        return few_bytes(headers)

    @field_validator("producer", "consumer")
    @classmethod
    def _no_credentials(cls, properties: ClientProperties) -> ClientProperties:
        refuse(
            [
                Conflict((key,), "says where the broker is or how to log in; broker files say that")
                for key in properties
                if key.startswith(("sasl.", "ssl."))
                or key in ("bootstrap.servers", "security.protocol", "metadata.broker.list")
            ]
        )
        return properties
