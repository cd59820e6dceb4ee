"""rd_kafka_topic_partition_list_t: librdkafka's lists of topic partitions, to and fro."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from confluent_kafka import TopicPartition

from bench_spark.transports.kafka.librdkafka import Library


class _Element(ctypes.Structure):
    _fields_ = (
        ("topic", ctypes.c_char_p),
        ("partition", ctypes.c_int32),
        ("offset", ctypes.c_int64),
        ("metadata", ctypes.c_void_p),
        ("metadata_size", ctypes.c_size_t),
        ("opaque", ctypes.c_void_p),
        ("error", ctypes.c_int),
        ("private", ctypes.c_void_p),
    )


class _List(ctypes.Structure):
    _fields_ = (
        ("count", ctypes.c_int),
        ("size", ctypes.c_int),
        ("elements", ctypes.POINTER(_Element)),
    )


@dataclass(frozen=True)
class Listed:
    """One topic partition of a list."""

    topic: str
    partition: int
    offset: int
    error: int

    @property
    def without_error(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition, self.offset)


@contextmanager
def partition_list(library: Library, partitions: Iterable[TopicPartition]) -> Iterator[int]:
    """The address of a list of these, for as long as the `with` lasts."""
    address: int = library.topic_partition_list_new(0)
    try:
        for each in partitions:
            topic = each.topic.encode()
            library.topic_partition_list_add(address, topic, each.partition)
            library.topic_partition_list_set_offset(address, topic, each.partition, each.offset)
        yield address
    finally:
        library.topic_partition_list_destroy(address)


def read_partition_list(address: int | None) -> list[Listed]:
    if not address:
        return []
    found = _List.from_address(address)
    return [
        Listed(one.topic.decode(), one.partition, one.offset, one.error)
        for one in found.elements[: found.count]
    ]
