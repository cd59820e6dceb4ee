"""librdkafka's own C interface, by ctypes: the library that confluent-kafka has brought along.

confluent-kafka makes Python objects of every message, which costs more than all that librdkafka
does with it. So messages go through clients of our own, made by public functions of the same
library in the same process, where one call is about thousands of messages. Nothing of
confluent-kafka's is looked into.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from ctypes import c_char_p, c_int, c_int32, c_int64, c_size_t, c_ssize_t, c_void_p
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
import llvmlite.binding as llvm
import numpy as np
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition

from bench_spark.config.fields import value_text
from bench_spark.errors import ConfigurationError, EnvironmentNotReady
from bench_spark.process import watched
from bench_spark.transports.kafka.settings import Properties, explained, without_secrets

PRODUCER, CONSUMER = 0, 1
"""rd_kafka_type_t"""
ANY_PARTITION = -1
COPY_PAYLOAD = 0x2
PURGE_QUEUE, PURGE_IN_FLIGHT = 0x1, 0x2

EVENT_DELIVERY_REPORTS = 0x1
EVENT_LOG = 0x4
EVENT_ERROR = 0x8

CONFIGURATION_OK = 0

MESSAGE_DTYPE = np.dtype(
    [
        ("error", np.int32),
        ("topic", np.int64),
        ("partition", np.int32),
        ("payload", np.int64),
        ("payload_bytes", np.int64),
        ("key", np.int64),
        ("key_bytes", np.int64),
        ("offset", np.int64),
        ("opaque", np.int64),
    ],
    align=True,
)
"""rd_kafka_message_t as `rdkafka.h` has it, unchanged since librdkafka 0.9. Pointers are numbers.

`opaque` is ours on the way out, and again in a delivery report: the lane in its lower half, and
above it where the envelope is kept (`IN_BODY`, `NOT_KEPT`, or a place from `FIRST_PLACE` on).
`offset` is unused on the way out, and holds the message's place in its batch.
"""

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
    "message_headers": (c_int, (c_void_p, c_void_p)),
    "header_get_all": (c_int, (c_void_p, c_size_t, c_void_p, c_void_p, c_void_p)),
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


class NotUsable(Exception):
    """The library is not there, or not the one we know. The text says what is wrong."""


class Library:
    """librdkafka's functions as attributes, without their prefix."""

    def __init__(self, path: str) -> None:
        found = ctypes.CDLL(path)
        for name, (result, arguments) in _FUNCTIONS.items():
            try:
                function = getattr(found, f"rd_kafka_{name}")
            except AttributeError:
                raise NotUsable(f"librdkafka has no rd_kafka_{name}") from None
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)
        llvm.load_library_permanently(path)  # for the kernels that call it by name

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


_OTHER_PROTOCOL = "Invalid response size"
"""What librdkafka makes of the first bytes of an answer in another protocol. It goes on to advise
larger messages."""
_DECORATION = re.compile(r"^\S+/(?:bootstrap|\d+): |\s*\(after \d+ms in state \w+[^)]*\)")


def reason_of(error: KafkaError) -> str:
    """librdkafka's words without the address in front and the internal state behind."""
    if _OTHER_PROTOCOL in error.str():
        return "answers, but not in Kafka's protocol"
    return _DECORATION.sub("", error.str())


# -- log lines -----------------------------------------------------------------------------------

_LINES_PER_PERIOD = 10
_PERIOD_SECONDS = 10.0

LOGGER = logging.getLogger("bench_spark.transports.kafka")
# Without a handler of its own Python would print warnings on standard error when a program that
# embeds us has not configured logging.
LOGGER.addHandler(logging.NullHandler())


class QuietLog:
    """Passes librdkafka's log lines to a Python logger, a few at a time, never to the terminal: a
    client whose broker is gone writes some twenty lines a second, all alike.

    Stands in for a `logging.Logger` towards confluent-kafka, which only calls `log`.
    """

    def __init__(self) -> None:
        self._period_ends = 0.0
        self._lines = 0

    def log(self, level: int, text: str, *arguments: object) -> None:
        now = time.monotonic()
        if now >= self._period_ends:
            if self._lines > _LINES_PER_PERIOD:
                LOGGER.info("%d more lines of librdkafka left out", self._lines - _LINES_PER_PERIOD)
            self._period_ends = now + _PERIOD_SECONDS
            self._lines = 0
        self._lines += 1
        if self._lines <= _LINES_PER_PERIOD:
            LOGGER.log(level, text, *arguments)


# -- lists of topic partitions -------------------------------------------------------------------


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


class Listed(NamedTuple):
    """One topic partition of a list."""

    topic: str
    partition: int
    offset: int
    error: int


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


# -- clients -------------------------------------------------------------------------------------

_WORDS_BYTES = 512
_FORMAT = "%s [%s] %s"
_LEVEL_OF_SYSLOG = (
    *[logging.CRITICAL] * 3,
    logging.ERROR,
    logging.WARNING,
    *[logging.INFO] * 2,
    logging.DEBUG,
)


class NativeClient:
    """One rd_kafka_t. What it has to say waits in its queue until somebody polls."""

    def __init__(
        self, kind: int, properties: Properties, configure: Callable[[Any, int], None]
    ) -> None:
        """`configure` gets the library and the configuration, to ask for events or callbacks."""
        self.library = library()
        self._name = "consumer" if kind == CONSUMER else "producer"
        self._log = QuietLog()
        configuration = self._configured(properties)
        configure(self.library, configuration)
        words = ctypes.create_string_buffer(_WORDS_BYTES)
        handle = self.library.new(kind, configuration, words, _WORDS_BYTES)
        if not handle:
            self.library.conf_destroy(configuration)
            problem = without_secrets(text_of(words.value), properties)
            raise ConfigurationError(f"kafka.{self._name}: {problem}")
        self.handle: int = handle
        self.library.set_log_queue(handle, None)
        if kind == CONSUMER:
            self.library.poll_set_consumer(handle)
            self.queue: int = self.library.queue_get_consumer(handle)
        else:
            self.queue = self.library.queue_get_main(handle)

    def _configured(self, properties: Properties) -> int:
        configuration: int = self.library.conf_new()
        words = ctypes.create_string_buffer(_WORDS_BYTES)
        # Log lines wait in the queue too, so that no thread of librdkafka's calls into Python.
        for key, value in (properties | {"log.queue": True}).items():
            asked = value_text(value).encode()
            done = self.library.conf_set(configuration, key.encode(), asked, words, _WORDS_BYTES)
            if done != CONFIGURATION_OK:
                self.library.conf_destroy(configuration)
                problem = explained(key, text_of(words.value))
                raise ConfigurationError(f"kafka.{self._name}.{key}: {problem}")
        return configuration

    def log(self, level: int, facility: bytes | None, line: bytes | None) -> None:
        self._log.log(
            _LEVEL_OF_SYSLOG[min(max(level, 0), 7)],
            _FORMAT,
            text_of(facility),
            self._name,
            text_of(line),
        )

    def list_topics(self, *, timeout: float) -> None:
        """Learn the cluster's topics, as confluent-kafka's method of that name does; raises
        KafkaException where no broker answers in time."""
        found = ctypes.c_void_p()
        code = self.library.metadata(
            self.handle, True, None, ctypes.byref(found), round(timeout * 1000)
        )
        if code:
            raise KafkaException(kafka_error(code))
        self.library.metadata_destroy(found)

    def destroy(self) -> None:
        """May block while librdkafka's threads end; nothing may be called afterwards."""
        self.library.queue_destroy(self.queue)
        self.library.destroy(self.handle)

    def destroy_within(self, seconds: float) -> bool:
        """Whether it is gone by then; if not, it goes on going."""
        leaving = threading.Thread(target=watched(self.destroy), daemon=True)
        leaving.start()
        leaving.join(seconds)
        return not leaving.is_alive()


# -- whether it is the library we take it for ------------------------------------------------------
#
# The layout of structs in librdkafka's public interface is promised, but cannot be asked for. So
# before it is used, a message is sent nowhere: a client without brokers takes it, is made to give
# it up, and its delivery report must hold every field where we look for it. There is no other way
# to move messages: where something differs, runs on Kafka are refused.

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
    client = NativeClient(PRODUCER, {"client.id": _TOPIC}, _wants_reports)
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


def _wants_reports(lib: Any, configuration: int) -> None:
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
