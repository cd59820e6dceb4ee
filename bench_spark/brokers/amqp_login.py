"""Asking an AMQP 0-9-1 broker whether it takes a login."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pika
from pika.exceptions import AMQPError

from bench_spark.brokers.base import ANSWER_TIMEOUT_SECONDS, HOST, PASSWORD, USER, exchange

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
METHOD_FRAME_ON_CHANNEL_0 = b"\x01\x00\x00"


# Loggers are shared by all threads: brokers that start side by side take turns to quieten pika's.
_one_at_a_time = threading.Lock()


def accepts_login(port: int) -> bool:
    if not exchange(port, PROTOCOL_HEADER, METHOD_FRAME_ON_CHANNEL_0):
        return False
    parameters = pika.ConnectionParameters(
        host=HOST,
        port=port,
        credentials=pika.PlainCredentials(USER, PASSWORD),
        socket_timeout=ANSWER_TIMEOUT_SECONDS,
        stack_timeout=2 * ANSWER_TIMEOUT_SECONDS,
    )
    try:
        with _one_at_a_time, _quiet("pika"):
            pika.BlockingConnection(parameters).close()
    except (AMQPError, OSError):
        return False
    return True


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """pika logs each failed attempt as an error; here a failure only means: not yet."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)
