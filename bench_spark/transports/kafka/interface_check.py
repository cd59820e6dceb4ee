"""Whether this librdkafka has the C interface that we take it to have.

Kernels read and write structs of librdkafka's public interface, whose layout is promised but cannot
be asked for. So before it is used, a message is sent nowhere: a client without brokers takes it, is
told to give it up, and its delivery report must hold every field where we look for it. There is no
other way to move messages: where something differs, runs on Kafka are refused.
"""

from __future__ import annotations

import ctypes
import functools
import time
from typing import Any

import confluent_kafka
import numpy as np
from confluent_kafka import OFFSET_INVALID, KafkaError, TopicPartition

from bench_spark.errors import EnvironmentNotReady
from bench_spark.transports.kafka.kernels import MESSAGE_DTYPE
from bench_spark.transports.kafka.librdkafka import (
    ANY_PARTITION,
    COPY_PAYLOAD,
    EVENT_DELIVERY_REPORTS,
    PRODUCER,
    PURGE_QUEUE,
    Library,
    Listed,
    NativeClient,
    NotUsable,
    library,
    partition_list,
    read_partition_list,
    text_of,
)

_MAJOR_VERSION = 2
"""The only one there was when this was written; 2.16 is the one that the tests run with."""
_PATIENCE_SECONDS = 2.0
_TOPIC = "bench-spark-rehearsal"
_BODY, _KEY, _OPAQUE = bytes(range(100, 150)), b"key", 0x123456789


def client_library() -> str:
    """For the result: what moves the messages."""
    return (
        f"confluent-kafka {confluent_kafka.version()} / "
        f"librdkafka {confluent_kafka.libversion()[0]}"
    )


def require_interface() -> None:
    """Raise EnvironmentNotReady where this librdkafka cannot be used."""
    difference = interface_difference()
    if difference is not None:
        raise EnvironmentNotReady(
            f"{client_library()}: {difference}, and messages of Kafka go through its C interface; "
            "install the confluent-kafka that bench-spark names in its requirements"
        )


@functools.cache
def interface_difference() -> str | None:
    """What is not as expected of this librdkafka; None where all is."""
    try:
        found = library()
        if found.version() >> 24 != _MAJOR_VERSION:
            return f"librdkafka {found.version_text()} is not of version {_MAJOR_VERSION}"
        return _list_difference(found) or _message_difference()
    except NotUsable as error:
        return str(error)
    except Exception as error:  # whatever another library makes of it is the answer
        return f"librdkafka does not work as expected ({error!r})"


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
        address = ctypes.c_void_p()
        is_one = report and lib.event_message_array(report, ctypes.byref(address), 1) == 1
        if not is_one or not _is_as_sent(lib, address.value or 0):
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


def _is_as_sent(lib: Library, address: int) -> bool:
    """Numbers first: what is no pointer must not be followed."""
    message = np.frombuffer(ctypes.string_at(address, MESSAGE_DTYPE.itemsize), MESSAGE_DTYPE)[0]
    numbers = ("error", "partition", "payload_bytes", "key_bytes", "offset", "opaque")
    expected = (
        KafkaError._PURGE_QUEUE,
        ANY_PARTITION,
        len(_BODY),
        len(_KEY),
        OFFSET_INVALID,
        _OPAQUE,
    )
    if tuple(int(message[name]) for name in numbers) != expected:
        return False
    return (
        ctypes.string_at(int(message["payload"]), len(_BODY)) == _BODY
        and ctypes.string_at(int(message["key"]), len(_KEY)) == _KEY
        and text_of(lib.topic_name(int(message["topic"]))) == _TOPIC
    )
