"""What a delivery report says about its message. Pure."""

from __future__ import annotations

from confluent_kafka import KafkaError

from bench_spark.transports.base import OutcomeKind

_NEVER_WRITTEN = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_REQUIRED_ACKS,
        KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
        KafkaError.POLICY_VIOLATION,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._INVALID_ARG,
    }
)
"""Errors after which the message is certainly not in the log. After any other (a time-out, a broken
connection, NOT_ENOUGH_REPLICAS_AFTER_APPEND) it may be."""


def outcome_kind(error: KafkaError | None, *, was_interrupted: bool) -> OutcomeKind:
    """What a delivery report says about the message."""
    if error is None:
        return OutcomeKind.CONFIRMED
    if error.code() == KafkaError._PURGE_QUEUE:
        # Taken out of the queue by ourselves. After an interruption it may wait there for a second
        # try while the first one has reached the log.
        return OutcomeKind.UNKNOWN if was_interrupted else OutcomeKind.REFUSED
    return OutcomeKind.REFUSED if error.code() in _NEVER_WRITTEN else OutcomeKind.UNKNOWN
