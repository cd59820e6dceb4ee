"""Whether this librdkafka is what the fast plane takes it for.

The plane reads and writes structs of librdkafka's public interface, whose layout is promised but
cannot be asked for. So before it is used, a message is sent nowhere: a client without brokers takes
it, is told to give it up, and its delivery report must hold every field where we look for it.
"""

from __future__ import annotations

import functools
import time
from typing import Any

import numpy as np
from confluent_kafka import OFFSET_INVALID, KafkaError, TopicPartition

from bench_spark.transports.kafka.librdkafka import (
    ANY_PARTITION,
    COPY_PAYLOAD,
    EVENT_DELIVERY_REPORTS,
    PRODUCER,
    PURGE_QUEUE,
    Library,
    NotUsable,
    library,
    text_of,
)
from bench_spark.transports.kafka.messages import MESSAGE_DTYPE, Messages, Pointers
from bench_spark.transports.kafka.native_client import NativeClient
from bench_spark.transports.kafka.partition_lists import Listed, partition_list, read_partition_list

_MAJOR_VERSION = 2
"""The only one there was when this was written; 2.16 is the one that the tests run with."""
_PATIENCE_SECONDS = 2.0
_TOPIC = "bench-spark-rehearsal"
_BODY, _KEY, _OPAQUE = bytes(range(100, 150)), b"key", 0x123456789


@functools.cache
def obstacle() -> str | None:
    """Why the fast plane cannot be used with this librdkafka; None where it can."""
    try:
        found = library()
        if found.version() >> 24 != _MAJOR_VERSION:
            return f"librdkafka {found.version_text()} is not of version {_MAJOR_VERSION}"
        return _list_difference(found) or _message_difference()
    except NotUsable as error:
        return str(error)
    except Exception as error:  # whatever another library makes of it is the answer
        return f"librdkafka does not work as expected: {error!r}"


def _list_difference(library: Library) -> str | None:
    places = [TopicPartition(_TOPIC, 3, 1 << 40), TopicPartition("another", 5, 7)]
    with partition_list(library, places) as address:
        if read_partition_list(address) != [
            Listed(each.topic, each.partition, each.offset, error=0) for each in places
        ]:
            return f"librdkafka {library.version_text()} has other lists of topic partitions"
    return None


def _message_difference() -> str | None:
    client = NativeClient(PRODUCER, {"client.id": _TOPIC}, _listen)
    lib = client.library
    topic = lib.topic_new(client.handle, _TOPIC.encode(), None)
    report = None
    try:
        _send_nowhere(lib, client.handle, topic)
        report = _delivery_report(lib, client.queue)
        pointers = Pointers(1)
        is_one = report and lib.event_message_array(report, pointers.address, 1) == 1
        if not is_one or not _is_as_sent(lib, pointers.messages(1)):
            return f"librdkafka {lib.version_text()} has other messages than expected"
        return None
    finally:
        if report:
            lib.event_destroy(report)
        lib.topic_destroy(topic)
        client.destroy_within(_PATIENCE_SECONDS)


def _listen(lib: Any, configuration: int) -> None:
    lib.conf_set_events(configuration, EVENT_DELIVERY_REPORTS)


def _send_nowhere(lib: Library, client: int, topic: int) -> None:
    body, key = (np.frombuffer(text, dtype=np.uint8) for text in (_BODY, _KEY))
    row = np.zeros(1, dtype=MESSAGE_DTYPE)
    row["payload"], row["payload_bytes"] = body.ctypes.data, len(body)
    row["key"], row["key_bytes"] = key.ctypes.data, len(key)
    row["opaque"] = _OPAQUE
    taken = lib.produce_batch(topic, ANY_PARTITION, COPY_PAYLOAD, row.ctypes.data, 1)
    if taken != 1 or row["error"][0]:
        raise NotUsable(f"librdkafka {lib.version_text()} takes no messages in an array")
    lib.purge(client, PURGE_QUEUE)


def _delivery_report(lib: Library, queue: int) -> int | None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline:
        event: int | None = lib.queue_poll(queue, 100)
        if event and lib.event_type(event) == EVENT_DELIVERY_REPORTS:
            return event
        if event:
            lib.event_destroy(event)  # a line of the log
    return None


def _is_as_sent(lib: Library, messages: Messages) -> bool:
    """Numbers first: what is no pointer must not be followed."""
    numbers = (messages.error, messages.partition, messages.payload_bytes, messages.offset)
    expected = (KafkaError._PURGE_QUEUE, ANY_PARTITION, len(_BODY), OFFSET_INVALID)
    if tuple(int(column[0]) for column in numbers) != expected or messages.opaque[0] != _OPAQUE:
        return False
    return (
        messages.heads().tobytes() == _BODY[:32]
        and messages.bodies() == [_BODY]
        and messages.keys() == [_KEY]
        and text_of(lib.topic_name(int(messages.topic[0]))) == _TOPIC
    )
