"""The section `mqtt` of a scenario."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from bench_spark.scenario.fields import (
    ClientProperties,
    Conflict,
    PropertyValue,
    Section,
    few_bytes,
    refuse,
    value_text,
)

_MQTT_TEXT_BYTES = 65535
_MQTT_WILDCARDS = "+#"


def _mqtt_text(value: str) -> str:
    """What MQTT can carry as text: topics, filters and client ids."""
    if not value or "\0" in value or len(value.encode("utf-8", "replace")) > _MQTT_TEXT_BYTES:
        raise ValueError(f"allowed: 1 to {_MQTT_TEXT_BYTES} bytes of text without NUL")
    return value


def _mqtt_topic(value: str) -> str:
    if any(mark in value for mark in _MQTT_WILDCARDS):
        raise ValueError(
            "has a wildcard, and nothing can be published to a pattern; allowed: a topic without + "
            "and # (mqtt.topic_filter is what consumers subscribe to)"
        )
    return _mqtt_text(value)


def _mqtt_filter(value: str) -> str:
    levels = _mqtt_text(value).split("/")
    for place, level in enumerate(levels):
        is_bad_plus = "+" in level and level != "+"
        is_bad_hash = "#" in level and (level != "#" or place < len(levels) - 1)
        if is_bad_plus or is_bad_hash:
            raise ValueError("allowed: + in place of a whole level, # as the last level")
    if levels[0] == "$share":
        raise ValueError("has $share already; allowed: a filter, with the group in shared_group")
    return value


def _mqtt_group(value: str) -> str:
    if any(mark in value for mark in "/+#"):
        raise ValueError("allowed: text without /, + and #")
    return _mqtt_text(value)


def _mqtt_version(value: object) -> object:
    """A YAML file that says 5 means the number."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class Mqtt(Section):
    """MQTT only; other protocols ignore it."""

    version: Annotated[
        Literal["3.1.1", "5"],
        BeforeValidator(_mqtt_version, json_schema_input_type=Literal["3.1.1", "5", 5]),
    ] = "3.1.1"
    """The protocol's version. With 5 a broker says why it refuses something."""
    qos: int = Field(0, ge=0, le=2)
    """Quality of service of messages and subscriptions: 0 at most once, 1 at least once (a PUBACK
    is the confirm), 2 exactly once (a PUBCOMP is the confirm)."""
    topic: Annotated[str, AfterValidator(_mqtt_topic)] | None = None
    """Topic published to; `%d` stands for the destination's number. Unset: a topic of the run's
    own, `bench/RUN/%d`."""
    topic_filter: Annotated[str, AfterValidator(_mqtt_filter)] | None = None
    """What consumers subscribe to, wildcards and all; `%d` stands for the destination's number.
    Unset: the topic."""
    shared_group: Annotated[str, AfterValidator(_mqtt_group)] | None = None
    """Subscribe as `$share/GROUP/FILTER`: the members of a group divide the messages among them.
    Unset: a group of the run's own where a destination has several consumers, else no group."""
    retain: bool = False
    """The broker keeps the last message of each topic for those who subscribe later. On topics of
    the run's own it is removed at the end."""
    in_flight: int = Field(20, ge=1, le=65535)
    """QoS 1 and 2: most messages unacknowledged per producer, and with version 5 per consumer
    (receive maximum). A broker of version 5 that allows fewer has its way; one of 3.1.1 hangs up:
    Mosquitto, unless told otherwise, above 20 at QoS 2."""
    clean_session: bool = True
    """`false`: the broker keeps a consumer's subscriptions and unacknowledged messages while its
    connection is lost. Sessions end with the run. Producers have none."""
    session_expiry_seconds: int = Field(300, ge=1, le=2**32 - 2)
    """Version 5 with `clean_session: false`: for how long the broker keeps a session."""
    keep_alive_seconds: int = Field(30, ge=0, le=65535)
    """A connection without traffic is tried (PINGREQ) so often that the broker hears something in
    this time; 0 turns that off."""
    user_properties: dict[
        Annotated[str, AfterValidator(_mqtt_text), Field(max_length=255)], PropertyValue
    ] = Field(default_factory=dict, max_length=100)
    """Version 5: user properties of every message, which are its headers; all of them together at
    most 64 KiB. They are no part of `message.bytes`, nor of any size in the result. Headers of a
    data set come on top, and win where they have the same name."""
    client_id_prefix: Annotated[str, AfterValidator(_mqtt_text), Field(max_length=200)] = "bench"
    """What client identifiers begin with; the run, the role and the member's number follow."""

    @field_validator("user_properties")
    @classmethod
    def _user_properties_are_text(cls, properties: ClientProperties) -> ClientProperties:
        if any("\0" in value_text(value) for value in properties.values()):
            raise ValueError("allowed: text without NUL")
        return few_bytes(properties)

    @model_validator(mode="after")
    def _user_properties_need_version_5(self) -> Mqtt:
        if self.user_properties and self.version != "5":
            problem = f"version {self.version} has none; version: 5 has"
            refuse([Conflict(("user_properties", "version"), problem)])
        return self
