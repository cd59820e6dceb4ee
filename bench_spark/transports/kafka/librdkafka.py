"""librdkafka's own C interface, by ctypes: the library that confluent-kafka has brought along.

confluent-kafka makes Python objects of every message, which costs more than all that librdkafka
does with it. The fast plane calls the same library, in the same process, where one call is about
thousands of messages. It makes clients of its own, by public functions only, and looks into nothing
of confluent-kafka's.

Other threads of Python run during a call, except during `message_destroy`: it is made for each
message and is over in less time than letting go of the interpreter takes.
"""

from __future__ import annotations

import ctypes
import functools
from ctypes import c_char_p, c_int, c_int32, c_int64, c_size_t, c_ssize_t, c_void_p
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError

PRODUCER, CONSUMER = 0, 1
"""rd_kafka_type_t"""
ANY_PARTITION = -1
COPY_PAYLOAD = 0x2
PURGE_QUEUE, PURGE_IN_FLIGHT = 0x1, 0x2

EVENT_DELIVERY_REPORTS = 0x1
EVENT_LOG = 0x4
EVENT_ERROR = 0x8

CONFIGURATION_OK = 0

ERROR_CALLBACK = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_char_p, c_void_p)
LOG_CALLBACK = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_char_p, c_char_p)
PARTITIONS_CALLBACK = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_void_p, c_void_p)
"""Of a rebalance, or of a commit that has ended: client, error, list of topic partitions."""

_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "version": (c_int, ()),
    "version_str": (c_char_p, ()),
    "err2str": (c_char_p, (c_int,)),
    "mem_free": (None, (c_void_p, c_void_p)),
    "error_code": (c_int, (c_void_p,)),
    "error_string": (c_char_p, (c_void_p,)),
    "error_destroy": (None, (c_void_p,)),
    # clients
    "conf_new": (c_void_p, ()),
    "conf_destroy": (None, (c_void_p,)),
    "conf_set": (c_int, (c_void_p, c_char_p, c_char_p, c_char_p, c_size_t)),
    "conf_set_events": (None, (c_void_p, c_int)),
    "conf_set_error_cb": (None, (c_void_p, ERROR_CALLBACK)),
    "conf_set_log_cb": (None, (c_void_p, LOG_CALLBACK)),
    "conf_set_rebalance_cb": (None, (c_void_p, PARTITIONS_CALLBACK)),
    "conf_set_offset_commit_cb": (None, (c_void_p, PARTITIONS_CALLBACK)),
    "new": (c_void_p, (c_int, c_void_p, c_char_p, c_size_t)),
    "set_log_queue": (c_int, (c_void_p, c_void_p)),
    "destroy": (None, (c_void_p,)),
    "metadata": (c_int, (c_void_p, c_int, c_void_p, c_void_p, c_int)),
    "metadata_destroy": (None, (c_void_p,)),
    # queues and events
    "queue_get_main": (c_void_p, (c_void_p,)),
    "queue_get_consumer": (c_void_p, (c_void_p,)),
    "queue_destroy": (None, (c_void_p,)),
    "queue_io_event_enable": (None, (c_void_p, c_int, c_char_p, c_size_t)),
    "queue_poll": (c_void_p, (c_void_p, c_int)),
    "event_type": (c_int, (c_void_p,)),
    "event_message_count": (c_size_t, (c_void_p,)),
    "event_message_array": (c_size_t, (c_void_p, c_void_p, c_size_t)),
    "event_error": (c_int, (c_void_p,)),
    "event_error_string": (c_char_p, (c_void_p,)),
    "event_log": (c_int, (c_void_p, c_void_p, c_void_p, c_void_p)),
    "event_destroy": (None, (c_void_p,)),
    # producing
    "topic_new": (c_void_p, (c_void_p, c_char_p, c_void_p)),
    "topic_name": (c_char_p, (c_void_p,)),
    "topic_destroy": (None, (c_void_p,)),
    "produce_batch": (c_int, (c_void_p, c_int32, c_int, c_void_p, c_int)),
    "produceva": (c_void_p, (c_void_p, c_void_p, c_size_t)),
    "outq_len": (c_int, (c_void_p,)),
    "flush": (c_int, (c_void_p, c_int)),
    "purge": (c_int, (c_void_p, c_int)),
    # consuming
    "poll_set_consumer": (c_int, (c_void_p,)),
    "consume_batch_queue": (c_ssize_t, (c_void_p, c_int, c_void_p, c_size_t)),
    "message_destroy": (None, (c_void_p,)),
    "message_errstr": (c_char_p, (c_void_p,)),
    "subscribe": (c_int, (c_void_p, c_void_p)),
    "memberid": (c_void_p, (c_void_p,)),
    "rebalance_protocol": (c_char_p, (c_void_p,)),
    "assign": (c_int, (c_void_p, c_void_p)),
    "incremental_assign": (c_void_p, (c_void_p, c_void_p)),
    "incremental_unassign": (c_void_p, (c_void_p, c_void_p)),
    "assignment": (c_int, (c_void_p, c_void_p)),
    "assignment_lost": (c_int, (c_void_p,)),
    "pause_partitions": (c_int, (c_void_p, c_void_p)),
    "resume_partitions": (c_int, (c_void_p, c_void_p)),
    "committed": (c_int, (c_void_p, c_void_p, c_int)),
    "commit": (c_int, (c_void_p, c_void_p, c_int)),
    "commit_queue": (c_int, (c_void_p, c_void_p, c_void_p, PARTITIONS_CALLBACK, c_void_p)),
    "consumer_close": (c_int, (c_void_p,)),
    "topic_partition_list_new": (c_void_p, (c_int,)),
    "topic_partition_list_add": (c_void_p, (c_void_p, c_char_p, c_int32)),
    "topic_partition_list_set_offset": (c_int, (c_void_p, c_char_p, c_int32, c_int64)),
    "topic_partition_list_destroy": (None, (c_void_p,)),
}
"""Result and arguments by name, without the prefix `rd_kafka_` that all of them have."""

_MAPS = Path("/proc/self/maps")
_WITHOUT_LETTING_GO = ("message_destroy",)


class NotUsable(Exception):
    """The library is not there, or not the one we know. The text says what is wrong."""


class Library:
    """librdkafka's functions as attributes, without their prefix."""

    def __init__(self, path: str) -> None:
        usual, keeping_the_lock = ctypes.CDLL(path), ctypes.PyDLL(path)
        for name, (result, arguments) in _FUNCTIONS.items():
            of = keeping_the_lock if name in _WITHOUT_LETTING_GO else usual
            try:
                function = getattr(of, f"rd_kafka_{name}")
            except AttributeError:
                raise NotUsable(f"librdkafka has no rd_kafka_{name}") from None
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:
        """Only for names that `_FUNCTIONS` does not have."""
        raise AttributeError(name)

    def version_text(self) -> str:
        return str(self.version_str().decode())


@functools.cache
def library() -> Library:
    """The library that confluent-kafka has loaded; raises NotUsable."""
    return Library(_loaded_path())


def _loaded_path() -> str:
    try:
        lines = _MAPS.read_text().splitlines()
    except OSError:
        raise NotUsable("this system does not tell which libraries are loaded") from None
    for line in lines:
        _, slash, path = line.partition("/")
        if "librdkafka" in path.rpartition("/")[2]:
            return slash + path
    raise NotUsable(
        f"confluent-kafka {confluent_kafka.version()} has no librdkafka in a file of its own"
    )


def kafka_error(code: int, words: str | None = None) -> KafkaError:
    """The error as confluent-kafka would have given it, so that all of ours read one kind."""
    return KafkaError(code, words) if words else KafkaError(code)


def text_of(words: bytes | None) -> str:
    return words.decode(errors="replace") if words else ""
