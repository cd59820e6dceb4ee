"""The AMQP lines: beside RabbitMQ PerfTest, and beside what one writes with pika."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from bench_spark import brokers
from bench_spark.config.broker import Broker
from benchmarks import ours, perftest, plain_pika
from benchmarks.broker_facts import facts_of
from benchmarks.figures import (
    CLIENT_CPU,
    LAG_P99,
    P50,
    P99,
    RATE,
    SPARK_CORES,
    TURNS,
    WHOLE_CPU,
    Bar,
    Figures,
    Measure,
)
from benchmarks.lines import Comparison, Effort, Line, Opened, Turn
from benchmarks.ours import LIVE, NO_LIVE, Settings
from benchmarks.perftest import PERFTEST
from benchmarks.plain_pika import PLAIN_PIKA

UNCONFIRMED, ACK_EVERY, PREFETCH = 100, 100, 200
MOST_CPU_BY_PACE = {1_000: 0.8, 5_000: 1.4, 10_000: 1.1}
"""Messages per second, and the client's CPU as a multiple of PerfTest's."""
JUDGED_LAG_PACE = 10_000
MOST_LAG_US = 1000
BACKLOG_MESSAGES = 65_536
"""On their way at most, of ours only. The tool's default, 64 MB, is about this number at 1000 B and
ten times it at 100 B, where runs on a busy machine were slower with it; why is not known."""
MEASURES = (RATE, CLIENT_CPU, WHOLE_CPU, SPARK_CORES, P50, P99, LAG_P99)
PACED_MEASURES = (*MEASURES, TURNS)


@dataclass(frozen=True)
class Load:
    """One pair with the same load in the words of each tool."""

    ours: Settings
    perftest: Sequence[str]
    plain_pika: Callable[[Broker, Effort, int], Figures] | None
    """Given the broker, the effort and the size of a body; None where it takes no part."""
    body_sizes_bytes: Sequence[int]
    contenders_of_ours: Sequence[str]
    bars: Sequence[Bar]
    bars_by_bytes: Mapping[int, Sequence[Bar]] = field(default_factory=dict)
    """More of them, by the size of a body."""
    measures: Sequence[Measure] = MEASURES


def _of_both(*bars: Bar) -> tuple[Bar, ...]:
    """The bars of the tool as it comes, and the same ones without its live metrics."""
    return (*bars, *(replace(bar, of=NO_LIVE) for bar in bars))


MAXIMUM = Load(
    ours={"load.mode": "maximum"},
    perftest=("-a",),
    plain_pika=plain_pika.run,
    body_sizes_bytes=(1000, 100),
    contenders_of_ours=(LIVE, NO_LIVE),
    bars=(
        *_of_both(Bar(CLIENT_CPU, LIVE, PERFTEST, at_most=0.25)),
        Bar(RATE, LIVE, NO_LIVE, at_least=0.9),
    ),
    bars_by_bytes={
        1000: _of_both(Bar(RATE, LIVE, PERFTEST, at_least=1.42)),
        100: _of_both(Bar(RATE, LIVE, PERFTEST, at_least=1.8)),
    },
)
CONFIRMS = Load(
    ours={
        "load.mode": "maximum",
        "amqp.confirms": UNCONFIRMED,
        "amqp.ack": "manual",
        "amqp.ack_every": ACK_EVERY,
        "amqp.prefetch": PREFETCH,
    },
    perftest=("-c", str(UNCONFIRMED), "-A", str(ACK_EVERY), "-q", str(PREFETCH)),
    plain_pika=partial(plain_pika.run, confirms=True, ack_every=ACK_EVERY),
    body_sizes_bytes=(1000, 100),
    contenders_of_ours=(LIVE, NO_LIVE),
    bars=(
        Bar(RATE, LIVE, PERFTEST, at_least=1.1),
        Bar(RATE, NO_LIVE, PERFTEST, at_least=1.3),
        *_of_both(Bar(CLIENT_CPU, LIVE, PERFTEST, at_most=0.45)),
    ),
)


def _paced(rate: int) -> Load:
    is_judged_by_lag = rate == JUDGED_LAG_PACE
    lag = (Bar(LAG_P99, LIVE, at_most=MOST_LAG_US),) if is_judged_by_lag else ()
    return Load(
        ours={"load.rate_per_second": rate},
        perftest=("-a", "-r", str(rate)),
        plain_pika=None,
        body_sizes_bytes=(1000,),
        contenders_of_ours=(LIVE, NO_LIVE) if is_judged_by_lag else (LIVE,),
        bars=(
            Bar(CLIENT_CPU, LIVE, PERFTEST, at_most=MOST_CPU_BY_PACE[rate]),
            Bar(P99, LIVE, PERFTEST, at_most=0.7),
            *lag,
            Bar(SPARK_CORES, LIVE, at_most=0.35),
        ),
        measures=PACED_MEASURES,
    )


def _our_turn(
    settings: Settings, broker: Broker, effort: Effort, directory: Path, live: bool
) -> Figures:
    return ours.figures_of(ours.run(settings, broker, effort, directory, live))


def _comparison(
    load: Load, body_bytes: int, broker: Broker, effort: Effort, directory: Path
) -> Comparison:
    settings = {
        **load.ours,
        "message.bytes": body_bytes,
        "load.backlog_limit_bytes": BACKLOG_MESSAGES * body_bytes,
    }
    options = (*load.perftest, "-s", str(body_bytes))
    contenders: dict[str, Turn] = {
        of: partial(_our_turn, settings, broker, effort, directory, live=of == LIVE)
        for of in load.contenders_of_ours
    }
    contenders[PERFTEST] = partial(perftest.run, options, broker, effort)
    if load.plain_pika is not None:
        contenders[PLAIN_PIKA] = partial(load.plain_pika, broker, effort, body_bytes)
    bars = (*load.bars_by_bytes.get(body_bytes, ()), *load.bars)
    return Comparison(f"{body_bytes} B", contenders, load.measures, PERFTEST, bars)


def _opening(load: Load) -> Callable[[Effort, Path], AbstractContextManager[Opened]]:
    @contextmanager
    def open_line(effort: Effort, directory: Path) -> Iterator[Opened]:
        with brokers.embedded("rabbitmq") as running:
            broker = running["rabbitmq"].broker
            facts = facts_of(broker)
            tools = (f"{facts.product} {facts.version}", perftest.version(), facts.client_library)
            comparisons = [
                _comparison(load, body_bytes, broker, effort, directory)
                for body_bytes in load.body_sizes_bytes
            ]
            yield Opened(comparisons, (effort.length_text, *tools))

    return open_line


_HOW = (
    "Client CPU is that of producer and consumer together: bench-spark's agent, PerfTest's JVM "
    "once it has warmed up, both processes of a program with plain pika. PerfTest's percentiles "
    "are the medians of those of its seconds, bench-spark's are of the whole measured phase, which "
    "is stricter."
)

LINES = (
    Line(
        "amqp-maximum",
        "AMQP, as fast as possible",
        "One pair, transient messages, automatic acknowledgement. bench-spark has at most "
        f"{BACKLOG_MESSAGES:,} messages on their way (its default is 64 MB), the others "
        f"what the broker's flow control allows. {_HOW}",
        _opening(MAXIMUM),
    ),
    Line(
        "amqp-confirms",
        "AMQP, as fast as possible, with confirms",
        f"One pair, transient messages, at most {UNCONFIRMED} unconfirmed (plain pika waits for "
        f"each: its blocking channel cannot do otherwise), acknowledged by {ACK_EVERY}. "
        f"bench-spark has at most {BACKLOG_MESSAGES:,} messages on their way. {_HOW}",
        _opening(CONFIRMS),
    ),
    *(
        Line(
            # The oldest of them has kept its name.
            "amqp-paced" if rate == JUDGED_LAG_PACE else f"amqp-paced-{rate}",
            f"AMQP, {rate:,} messages per second",
            f"One pair, transient messages, automatic acknowledgement. {_HOW}",
            _opening(_paced(rate)),
        )
        for rate in MOST_CPU_BY_PACE
    ),
)
