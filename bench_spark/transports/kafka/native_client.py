"""A client of librdkafka's own interface: made, asked, listened to, and put away."""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaException

from bench_spark.errors import ConfigurationError
from bench_spark.scenario.fields import value_text
from bench_spark.threads import watched
from bench_spark.transports.kafka.librdkafka import (
    CONFIGURATION_OK,
    CONSUMER,
    kafka_error,
    library,
    text_of,
)
from bench_spark.transports.kafka.quiet_log import QuietLog
from bench_spark.transports.kafka.settings import (
    Properties,
    explained,
    without_secrets,
)

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
        self, kind: int, properties: Properties, listen: Callable[[Any, int], None]
    ) -> None:
        """`listen` is given the library and the configuration, to say what it wants to hear of."""
        self.library = library()
        self._name = "consumer" if kind == CONSUMER else "producer"
        self._log = QuietLog()
        configuration = self._configured(properties)
        listen(self.library, configuration)
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
