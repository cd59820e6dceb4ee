"""PerfTest's options of queues, exchanges and keys, of confirms and acknowledgements."""

from __future__ import annotations

from collections.abc import Callable

from bench_spark.errors import ConfigurationError
from bench_spark.importing.perftest_translation import Translation
from bench_spark.importing.values import iso_seconds, pairs, size_bytes, truth

UNLIMITED_CONFIRMS = 10_000_000
"""The most that `amqp.confirms` may be."""
RANDOM_KEYS, MOST_RANDOM_KEYS = 100, 10_000
EXCHANGE_TYPES = ("direct", "topic", "fanout", "headers")

_AMQP_PROPERTIES = {
    *("contentType", "contentEncoding", "deliveryMode", "priority", "correlationId", "replyTo"),
    *("expiration", "messageId", "timestamp", "type", "userId", "appId", "clusterId"),
}
_PERSISTENT_DELIVERY_MODE = 2


class AmqpTranslation(Translation):
    """As far as AMQP goes."""

    def translate(self) -> None:
        self._queues()
        self._exchange()
        self._delivery()

    def _queues(self) -> None:
        has_names = self._pattern() if "queue-pattern" in self._given else self._names()
        self._queue_arguments()
        deletes = self._given.last("auto-delete")
        if deletes is not None and not truth("--auto-delete", deletes):
            self._set("keep_destinations", True, "--auto-delete")
        elif deletes is None and has_names and not self._members.consumers:
            # An auto-delete queue goes with its last consumer: without one, it stays.
            self._set("keep_destinations", True, "nobody consumes, so the queue stays")

    def _names(self) -> bool:
        names = self._given.all("queue")
        if names:
            self._set("amqp.queue.name", names[0], self._given.origin("queue"))
        if len(names) > 1:
            self._draft.leave_out(
                "--queue",
                f"{len(names)} names, of which the first is taken: the others would get copies of "
                "each message",
            )
        for name in ("queue-pattern-from", "queue-pattern-to"):
            if name in self._given:
                self._draft.leave_out(f"--{name}", "needs --queue-pattern")
        return bool(names)

    def _pattern(self) -> bool:
        pattern = self._given.last("queue-pattern") or ""
        if "%d" not in pattern:
            raise ConfigurationError("--queue-pattern: allowed: a name with %d in it")
        if "queue" in self._given:
            self._draft.leave_out("--queue", "--queue-pattern decides")
        first, last = (
            self._given.count("queue-pattern-from", 1),
            self._given.count("queue-pattern-to", 1),
        )
        if last < first:
            raise ConfigurationError("--queue-pattern-to: is below --queue-pattern-from")
        queues = last - first + 1
        ends = min(filter(None, (self._members.producers, self._members.consumers)), default=queues)
        if queues > ends:
            self._draft.remark(
                "--queue-pattern-to",
                f"{queues} queues, but producers and consumers for {ends}: the others would be "
                "idle, and are left out",
            )
        self._set("destinations", min(queues, ends), "--queue-pattern-to")
        self._set("amqp.queue.name", pattern, "--queue-pattern")
        self._set("amqp.queue.first_number", first, "--queue-pattern-from")
        return True

    def _queue_arguments(self) -> None:
        self._arguments(pairs("--queue-args", self._given.all("queue-args")), "--queue-args")
        for name, kind in (("quorum-queue", "quorum"), ("stream-queue", "stream")):
            if name in self._given:
                self._arguments({"x-queue-type": kind}, f"--{name}")
                self._set("amqp.queue.durable", True, f"--{name}")
        reading: dict[str, tuple[str, Callable[[str, str], str | int]]] = {
            "leader-locator": ("x-queue-leader-locator", lambda _, text: text),
            "max-length-bytes": ("x-max-length-bytes", size_bytes),
            "max-age": ("x-max-age", lambda option, text: f"{iso_seconds(option, text)}s"),
            "stream-max-segment-size-bytes": ("x-stream-max-segment-size-bytes", size_bytes),
        }
        for name, (argument, read) in reading.items():
            text = self._given.last(name)
            value = read(f"--{name}", text) if text is not None else 0
            if value:
                self._arguments({argument: value}, f"--{name}")

    def _arguments(self, arguments: dict[str, str | int | bool], origin: str) -> None:
        for key, value in arguments.items():
            self._draft.scenario.put(("amqp", "queue", "arguments", key), value, origin)

    def _exchange(self) -> None:
        kind = self._given.last("type") or "direct"
        if kind not in EXCHANGE_TYPES:
            raise ConfigurationError(
                f"--type: exchanges are {', '.join(EXCHANGE_TYPES)}; others have no counterpart"
            )
        name, origin = kind, "PerfTest's default"
        if "exchange" in self._given:
            name, origin = self._given.last("exchange") or "", "--exchange"
        if name == "amq.default":
            name = ""
        self._set("amqp.exchange.name", name, origin)
        self._set("amqp.exchange.type", kind, self._given.origin("type"))
        self._routing_keys(name)

    def _routing_keys(self, exchange: str) -> None:
        if "routing-key" in self._given:
            if "queue-pattern" in self._given:
                self._draft.leave_out("--routing-key", "queues of a pattern have their names")
            else:
                self._set("amqp.routing_key", self._given.last("routing-key"), "--routing-key")
        if "random-routing-key" not in self._given:
            if "routing-key-cache-size" in self._given:
                self._draft.leave_out("--routing-key-cache-size", "needs --random-routing-key")
            return
        if not exchange:
            self._draft.leave_out(
                "--random-routing-key", "the default exchange has one key per queue, its name"
            )
            return
        keys = self._given.count("routing-key-cache-size", 0) or RANDOM_KEYS
        origin = self._given.origin("random-routing-key", "routing-key-cache-size")
        self._set("amqp.routing_keys", min(keys, MOST_RANDOM_KEYS), origin)

    def _delivery(self) -> None:
        flags = self._given.all("flag")
        for flag in flags:
            if flag == "persistent":
                self._set("amqp.persistent", True, "--flag persistent")
                self._set("amqp.queue.durable", True, "--flag persistent")
            elif flag in ("mandatory", "immediate"):
                self._set(f"amqp.{flag}", True, f"--flag {flag}")
            else:
                raise ConfigurationError("--flag: allowed: persistent, mandatory")
        self._message_properties()
        confirms = self._given.count("confirm", -1, least=-1)
        if confirms >= 0:
            self._set("amqp.confirms", confirms or UNLIMITED_CONFIRMS, "--confirm")
        if "ptxsize" in self._given:
            self._set("amqp.producer_transaction", self._given.count("ptxsize", 0), "--ptxsize")
        self._acknowledgements()

    def _acknowledgements(self) -> None:
        is_automatic = "autoack" in self._given
        ack = "auto" if is_automatic else "manual"
        self._set("amqp.ack", ack, self._given.origin("autoack"))
        if every := self._given.count("multi-ack-every", 0):
            self._set("amqp.ack_every", every, "--multi-ack-every")
        limits = [self._given.count(name, 0) for name in ("qos", "global-qos")]
        prefetch = min(filter(None, limits), default=0)
        self._set("amqp.prefetch", prefetch, self._given.origin("qos", "global-qos"))
        if "ctxsize" in self._given:
            if is_automatic:
                self._draft.leave_out("--ctxsize", "commits acknowledgements; --autoack has none")
            else:
                self._set("amqp.consumer_transaction", self._given.count("ctxsize", 0), "--ctxsize")

    def _message_properties(self) -> None:
        option = "--message-properties"
        for key, value in pairs(option, self._given.all("message-properties")).items():
            if key == "deliveryMode":
                self._set("amqp.persistent", value == _PERSISTENT_DELIVERY_MODE, option)
            elif key in _AMQP_PROPERTIES:
                self._draft.leave_out(f"{option} {key}", "messages have headers, no properties")
            else:
                self._draft.scenario.put(("amqp", "headers", key), value, option)
