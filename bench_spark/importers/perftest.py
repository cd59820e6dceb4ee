"""From PerfTest's options to a scenario that puts the same load on a broker.

PerfTest's defaults are not ours, so the scenario says what PerfTest would have done without being
told: as fast as possible, 12 bytes, manual acknowledgements, no limit to the prefetch, an exchange
named like its type, no warm-up.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from bench_spark.config.fields import value_text
from bench_spark.config.models import Scenario
from bench_spark.config.problems import key_at
from bench_spark.config.sections import Load
from bench_spark.core.envelope import ENVELOPE_BYTES
from bench_spark.errors import ConfigurationError
from bench_spark.importers.draft import (
    Draft,
    iso_seconds,
    number,
    pairs,
    plain_name,
    size_bytes,
    take_uri,
    truth,
)
from bench_spark.importers.perftest_flags import Given, read_words


@dataclass(frozen=True)
class Members:
    """Who sends and receives. A channel of PerfTest is a member here."""

    producers: int
    consumers: int
    is_fan_out: bool

    @classmethod
    def of(cls, given: Given) -> Members:
        producers = given.count("producers", 1) * given.count("producer-channel-count", 1)
        consumers = given.count("consumers", 1) * given.count("consumer-channel-count", 1)
        # Without a name each consumer declares a queue of its own, bound by the same key.
        has_queue = any(name in given for name in ("queue", "queue-pattern"))
        is_routed_by_headers = given.last("type") == "headers"
        is_fan_out = consumers > 1 and producers > 0 and not (has_queue or is_routed_by_headers)
        return cls(producers, consumers, is_fan_out)


class Translation:
    """One command line on its way into a draft."""

    def __init__(self, given: Given, draft: Draft, members: Members) -> None:
        self._given = given
        self._draft = draft
        self._members = members
        self._set = draft.scenario.set

    def _overrule(self, by: str, *options: str) -> None:
        """Leave these options out, where they were given, as another decides."""
        for option in options:
            if option in self._given:
                self._draft.leave_out(f"--{option}", f"{by} decides")

    def _copy(self, option: str, key: str) -> None:
        """The option's number, where it was given, as it is."""
        if option in self._given:
            self._set(key, self._given.count(option, 0), f"--{option}")


UNLIMITED_SECONDS = 60
"""How long a run lasts whose PerfTest would have gone on until Ctrl-C."""
MESSAGES_WITHOUT_CONSUMERS = 1_000_000
SMALLEST_MESSAGE_BYTES = 12
MOST_STEPS = key_at(Scenario, "load.steps").most
PAUSE_RATE = 0.001
"""What stands for a rate of 0, which a scenario's steps cannot have."""
VARIED = {"variable-rate": ("rate_per_second", "RATE"), "variable-size": ("bytes", "SIZE")}
"""By option: the key of a step that it decides, and the word for it in PerfTest's help."""
STREAM_PREFETCH = 200


class LoadTranslation(Translation):
    """As far as the load goes."""

    def translate(self) -> None:
        self._ends()
        self._message()
        self._load()
        self._phases()
        self._slow_consumers()
        self._connections()

    def _ends(self) -> None:
        if self._given.last("id"):
            self._set("name", self._draft.name, "--id")
        for role, members in (
            ("producer", self._members.producers),
            ("consumer", self._members.consumers),
        ):
            channels = f"{role}-channel-count"
            self._set(f"{role}s", members, self._given.origin(f"{role}s", channels))
            if self._given.count(channels, 1) > 1:
                text = "every channel has a connection of its own here"
                self._draft.remark(f"--{channels}", text)
        if self._members.is_fan_out:
            self._set("topology", "fan-out", "consumers without --queue")
            self._set("destinations", 1, "consumers without --queue")
            self._draft.remark(
                "--consumers",
                "without --queue every consumer has a queue of its own and gets all messages; give "
                "--queue for consumers that share them",
            )

    def _message(self) -> None:
        if "metrics-tags" in self._given:
            for key, value in pairs("--metrics-tags", self._given.all("metrics-tags")).items():
                self._draft.scenario.put(("tags", key), value_text(value), "--metrics-tags")
        if "body" in self._given:
            self._files()
            return
        sizes = self._repeated("variable-size")
        if not sizes:
            size = max(SMALLEST_MESSAGE_BYTES, self._given.count("size", SMALLEST_MESSAGE_BYTES))
            self._set("message.bytes", size, self._given.origin("size"))
            return
        self._overrule("--variable-size", "size")
        if any(step["bytes"] < ENVELOPE_BYTES for step in sizes):
            self._draft.remark(
                "--variable-size", f"sizes below {ENVELOPE_BYTES} bytes become {ENVELOPE_BYTES}"
            )
        steps = [step | {"bytes": max(ENVELOPE_BYTES, int(step["bytes"]))} for step in sizes]
        self._set("message.bytes", steps[0]["bytes"], "--variable-size")
        self._set("message.steps", steps, "--variable-size")

    def _files(self) -> None:
        """Bodies from files, which PerfTest sends unchanged."""
        paths = self._given.all("body")
        self._set("dataset.path", paths[0], "--body")
        self._set("dataset.format", "files", "--body: a message is a whole file")
        self._set("identity.carrier", "header", "bodies stay as they are")
        if len(paths) > 1:
            self._draft.leave_out(
                "--body",
                f"{len(paths)} files, of which the first is taken; for all of them put them into a "
                "directory of their own, and name that in dataset.path",
            )
        self._overrule("--body", "size", "variable-size")

    def _load(self) -> None:
        rate = self._rate()
        steps = self._variable_rates()
        origin = self._given.origin("rate", "publishing-interval")
        if steps:
            rate, origin = steps[0]["rate_per_second"], "--variable-rate"
        if rate is not None:
            self._set("load.mode", "rate", origin)
            self._set("load.rate_per_second", rate, origin)
            self._set("load.scope", "per_producer", origin)
            if steps:
                self._set("load.steps", steps, origin)
        else:
            self._set("load.mode", "maximum", "PerfTest's default, without --rate")
            self._make_room_for_transactions()
        messages, origin = self._messages()
        if messages is not None:
            self._set("load.messages", messages, origin)
            if "time" in self._given:
                self._draft.leave_out("--time", f"{origin} ends the run, whichever comes first")

    def _rate(self) -> float | None:
        """Messages per second and producer; None for no limit."""
        interval = self._given.number("publishing-interval")
        if interval is not None:
            if interval <= 0:
                raise ConfigurationError("--publishing-interval: allowed: a number above 0")
            self._overrule("--publishing-interval", "rate")
            return 1 / interval
        rate = self._given.number("rate")
        if rate == 0:
            raise ConfigurationError(
                "--rate: with 0 nobody would send; leave it out for no limit, or give --producers 0"
            )
        return None if rate is None or rate < 0 else rate

    def _variable_rates(self) -> list[dict[str, float]]:
        steps = self._repeated("variable-rate")
        if steps:
            self._overrule("--variable-rate", "rate", "publishing-interval")
        if any(not step["rate_per_second"] for step in steps):
            self._draft.remark("--variable-rate", f"a pause, rate 0, is written as {PAUSE_RATE}")
        return [step | {"rate_per_second": step["rate_per_second"] or PAUSE_RATE} for step in steps]

    def _repeated(self, option: str) -> list[dict[str, float]]:
        """The steps, repeated for as long as the run lasts: PerfTest begins anew after the last."""
        cycle = self._steps(option)
        left, steps = self._seconds(), list[dict[str, float]]()
        for turn in range(MOST_STEPS if cycle else 0):
            step = cycle[turn % len(cycle)]
            steps.append(step | {"seconds": min(left, step["seconds"])})
            left -= step["seconds"]
            if left <= 0:
                break
        return steps

    def _seconds(self) -> float:
        """How long the run lasts: --time, else until the longest list of steps is over, else 0."""
        lengths = (sum(step["seconds"] for step in self._steps(option)) for option in VARIED)
        return self._given.count("time", 0) or max(lengths)

    def _steps(self, option: str) -> list[dict[str, float]]:
        key, word = VARIED[option]
        steps = []
        for text in self._given.all(option):
            amount, colon, seconds = text.partition(":")
            if not colon:
                raise ConfigurationError(f"--{option}: allowed: {word}:SECONDS, as in 1000:30")
            step = {"seconds": number(f"--{option}", seconds), key: number(f"--{option}", amount)}
            if step[key] < 0 or step["seconds"] <= 0:
                raise ConfigurationError(f"--{option}: allowed: {word} from 0, seconds above 0")
            steps.append(step)
        return steps

    def _make_room_for_transactions(self) -> None:
        """Mode `maximum` holds back more than this; PerfTest does not hold back."""
        size = self._draft.scenario.get("message.bytes") or 0
        needed = self._given.count("ptxsize", 0) * self._members.producers * size
        if needed > Load().backlog_limit_bytes:
            self._set("load.backlog_limit_bytes", 2 * needed, "room for --ptxsize")

    def _messages(self) -> tuple[int | None, str]:
        sent, received = self._given.count("pmessages", 0), self._given.count("cmessages", 0)
        if sent and self._members.producers:
            if received:
                self._draft.leave_out("--cmessages", "--pmessages ends the run")
            return sent * self._members.producers, "--pmessages"
        if received and self._members.consumers:
            return received * (
                1 if self._members.is_fan_out else self._members.consumers
            ), "--cmessages"
        if self._draft.scenario.get("load.mode") == "maximum" and not self._members.consumers:
            self._draft.remark(
                "--consumers",
                f"0, and no limit to the rate: the run ends after {MESSAGES_WITHOUT_CONSUMERS} "
                "messages, so that they do not fill the broker",
            )
            return MESSAGES_WITHOUT_CONSUMERS, "nobody consumes"
        return None, ""

    def _phases(self) -> None:
        self._set("phases.warmup_seconds", 0, "PerfTest has no warm-up")
        seconds, origin = self._seconds(), self._given.origin("time", *VARIED)
        if not seconds:
            seconds, origin = UNLIMITED_SECONDS, "PerfTest: until Ctrl-C"
            if self._draft.scenario.get("load.messages") is None:
                self._draft.remark("--time", f"not given; the run lasts {UNLIMITED_SECONDS} s")
        self._set("phases.measure_seconds", seconds, origin)
        self._copy("interval", "interval_seconds")

    def _slow_consumers(self) -> None:
        rate = self._given.number("consumer-rate")
        if rate is not None and rate >= 0:
            self._set("consumer.rate_per_second", rate, "--consumer-rate")
        self._copy("consumer-latency", "consumer.processing_us")

    def _connections(self) -> None:
        if "disable-connection-recovery" in self._given:
            self._set("reconnect_seconds", 0, "--disable-connection-recovery")
        if heartbeat := self._given.count("heartbeat", 0):
            self._set("amqp.heartbeat_seconds", heartbeat, "--heartbeat")


UNLIMITED_CONFIRMS = key_at(Scenario, "amqp.confirms").most
_NUMBER = re.compile(r"%0?[0-9]*d")
_OFFSET = re.compile(r"first|last|next|[0-9]+")
RANDOM_KEYS, MOST_RANDOM_KEYS = 100, key_at(Scenario, "amqp.routing_keys").most
EXCHANGE_TYPES = key_at(Scenario, "amqp.exchange.type").choices

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
        if deletes is not None:
            if not truth("--auto-delete", deletes):
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
        if not _NUMBER.search(pattern):
            raise ConfigurationError("--queue-pattern: allowed: a name with %d in it")
        if "%d" not in pattern:
            self._draft.remark("--queue-pattern", "numbers have no leading zeros here: %d")
            pattern = _NUMBER.sub("%d", pattern)
        self._overrule("--queue-pattern", "queue")
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
                self._set("amqp.persistent", True, f"--{name}")
                self._set("keep_destinations", True, f"--{name}")
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
        self._copy("ptxsize", "amqp.producer_transaction")
        self._acknowledgements()

    def _acknowledgements(self) -> None:
        is_automatic = "autoack" in self._given
        ack = "auto" if is_automatic else "manual"
        self._set("amqp.ack", ack, self._given.origin("autoack"))
        if every := self._given.count("multi-ack-every", 0):
            self._set("amqp.ack_every", every, "--multi-ack-every")
        limits = [self._given.count(name, 0) for name in ("qos", "global-qos")]
        is_stream = "stream-queue" in self._given
        prefetch = min(filter(None, limits), default=STREAM_PREFETCH if is_stream else 0)
        self._set("amqp.prefetch", prefetch, self._given.origin("qos", "global-qos"))
        self._consumer_arguments()
        if is_automatic and "ctxsize" in self._given:
            self._draft.leave_out("--ctxsize", "commits acknowledgements; --autoack has none")
        else:
            self._copy("ctxsize", "amqp.consumer_transaction")

    def _consumer_arguments(self) -> None:
        arguments = pairs("--consumer-args", self._given.all("consumer-args"))
        for key, value in arguments.items():
            self._draft.scenario.put(("amqp", "consumer_arguments", key), value, "--consumer-args")
        option, offset = "--stream-consumer-offset", self._given.last("stream-consumer-offset")
        if offset is None:
            return
        if not _OFFSET.fullmatch(offset):
            self._draft.leave_out(option, "a point in time; here first, last, next or a number")
            return
        path = ("amqp", "consumer_arguments", "x-stream-offset")
        self._draft.scenario.put(path, int(offset) if offset.isdigit() else offset, option)

    def _message_properties(self) -> None:
        option = "--message-properties"
        for key, value in pairs(option, self._given.all("message-properties")).items():
            if key == "deliveryMode":
                self._set("amqp.persistent", value == _PERSISTENT_DELIVERY_MODE, option)
            elif key in _AMQP_PROPERTIES:
                self._draft.leave_out(f"{option} {key}", "messages have headers, no properties")
            else:
                self._draft.scenario.put(("amqp", "headers", key), value, option)


DEFAULT_NAME = "perftest"

# A comma may also be part of a password.
_BETWEEN_URIS = re.compile(r"\s*,\s*(?=amqps?:)")


def import_perftest(text: str, name: str | None = None) -> Draft:
    """The draft of a command line's scenario, called `name`, else by --id, else `perftest`."""
    given = read_words(text)
    draft = Draft(name or plain_name(given.last("id") or "", DEFAULT_NAME))
    for flag in given.flags:
        if not flag.is_mapped:
            draft.leave_out(flag.shown, flag.text)
    members = Members.of(given)
    LoadTranslation(given, draft, members).translate()
    AmqpTranslation(given, draft, members).translate()
    _take_address(given, draft)
    draft.check("the flags")
    return draft


def _take_address(given: Given, draft: Draft) -> None:
    option = "uris" if "uris" in given else "uri"
    text = given.last(option) or ""
    addresses = _BETWEEN_URIS.split(text.strip()) if option == "uris" else [text]
    names = given.all("server-name-indication")
    if not text:
        for name in ("use-default-ssl-context", "server-name-indication"):
            if name in given:
                draft.leave_out(f"--{name}", "belongs to a broker file; give --uri too")
        return
    if len(addresses) > 1:
        draft.leave_out(f"--{option}", f"{len(addresses)} addresses, of which the first is taken")
    draft.broker.set("kind", "amqp")
    take_uri(draft, f"--{option}", addresses[0], ("amqp", "amqps"))
    is_encrypted = addresses[0].startswith("amqps:")
    if "use-default-ssl-context" in given:
        draft.broker.set("tls.insecure", False, "--use-default-ssl-context")
    elif is_encrypted:
        draft.broker.set("tls.insecure", True, "PerfTest's default: any certificate")
    if names:
        draft.broker.set("tls.server_name", names[0], "--server-name-indication")
