"""PerfTest's options of how much is sent and received, by how many, and for how long."""

from __future__ import annotations

from collections.abc import Iterator

from bench_spark.errors import ConfigurationError
from bench_spark.importing.perftest_translation import Translation
from bench_spark.importing.values import number
from bench_spark.scenario.load_sections import Load

UNLIMITED_SECONDS = 60
"""How long a run lasts whose PerfTest would have gone on until Ctrl-C."""
SMALLEST_MESSAGE_BYTES = 12
MOST_STEPS = 10_000


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
        self._set(
            "producers",
            self._members.producers,
            self._given.origin("producers", "producer-channel-count"),
        )
        self._set(
            "consumers",
            self._members.consumers,
            self._given.origin("consumers", "consumer-channel-count"),
        )
        for name in ("producer-channel-count", "consumer-channel-count"):
            if self._given.count(name, 1) > 1:
                self._draft.remark(f"--{name}", "every channel has a connection of its own here")
        if self._members.is_fan_out:
            self._set("topology", "fan-out", "consumers without --queue")
            self._set("destinations", 1, "consumers without --queue")
            self._draft.remark(
                "--consumers",
                "without --queue every consumer has a queue of its own and gets all messages; give "
                "--queue for consumers that share them",
            )

    def _message(self) -> None:
        size = max(SMALLEST_MESSAGE_BYTES, self._given.count("size", SMALLEST_MESSAGE_BYTES))
        self._set("message.bytes", size, self._given.origin("size"))

    def _load(self) -> None:
        rate = self._rate()
        steps = list(self._variable_rates())
        if steps:
            self._set("load.mode", "rate", "--variable-rate")
            self._set("load.rate_per_second", steps[0]["rate_per_second"], "--variable-rate")
            self._set("load.scope", "per_producer", "--variable-rate")
            self._set("load.steps", steps, "--variable-rate")
        elif rate is not None:
            origin = self._given.origin("rate", "publishing-interval")
            self._set("load.mode", "rate", origin)
            self._set("load.rate_per_second", rate, origin)
            self._set("load.scope", "per_producer", origin)
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
            if "rate" in self._given:
                self._draft.leave_out("--rate", "--publishing-interval decides")
            return 1 / interval
        rate = self._given.number("rate")
        if rate == 0:
            raise ConfigurationError(
                "--rate: with 0 nobody would send; leave it out for no limit, or give --producers 0"
            )
        return None if rate is None or rate < 0 else rate

    def _variable_rates(self) -> Iterator[dict[str, float]]:
        """The steps, repeated for as long as the run lasts: PerfTest begins anew after the last."""
        cycle = [self._step(text) for text in self._given.all("variable-rate")]
        if not cycle:
            return
        for name in ("rate", "publishing-interval"):
            if name in self._given:
                self._draft.leave_out(f"--{name}", "--variable-rate decides")
        left = float(self._given.count("time", 0)) or sum(step["seconds"] for step in cycle)
        for turn in range(MOST_STEPS):
            step = cycle[turn % len(cycle)]
            seconds = min(left, step["seconds"])
            left -= seconds
            if seconds <= 0:
                return
            yield step | {"seconds": seconds}

    def _step(self, text: str) -> dict[str, float]:
        rate, colon, seconds = text.partition(":")
        if not colon:
            raise ConfigurationError("--variable-rate: allowed: RATE:SECONDS, as in 1000:30")
        step = {
            "seconds": number("--variable-rate", seconds),
            "rate_per_second": number("--variable-rate", rate),
        }
        if step["rate_per_second"] <= 0 or step["seconds"] <= 0:
            raise ConfigurationError("--variable-rate: allowed: rates and seconds above 0")
        return step

    def _make_room_for_transactions(self) -> None:
        """Mode `maximum` holds back more than this; PerfTest does not hold back."""
        size = self._draft.scenario.get("message.bytes")
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
        return None, ""

    def _phases(self) -> None:
        self._set("phases.warmup_seconds", 0, "PerfTest has no warm-up")
        steps = self._draft.scenario.get("load.steps")
        seconds: float = self._given.count("time", 0)
        origin = "--time"
        if not seconds and steps:
            seconds, origin = sum(step["seconds"] for step in steps), "--variable-rate"
        if not seconds:
            seconds, origin = UNLIMITED_SECONDS, "PerfTest: until Ctrl-C"
            if self._draft.scenario.get("load.messages") is None:
                self._draft.remark("--time", f"not given; the run lasts {UNLIMITED_SECONDS} s")
        self._set("phases.measure_seconds", seconds, origin)
        if "interval" in self._given:
            self._set("interval_seconds", self._given.count("interval", 1), "--interval")

    def _slow_consumers(self) -> None:
        rate = self._given.number("consumer-rate")
        if rate is not None and rate >= 0:
            self._set("consumer.rate_per_second", rate, "--consumer-rate")
        if "consumer-latency" in self._given:
            self._set(
                "consumer.processing_us",
                self._given.count("consumer-latency", 0),
                "--consumer-latency",
            )

    def _connections(self) -> None:
        if "disable-connection-recovery" in self._given:
            self._set("reconnect_seconds", 0, "--disable-connection-recovery")
        if heartbeat := self._given.count("heartbeat", 0):
            self._set("amqp.heartbeat_seconds", heartbeat, "--heartbeat")
