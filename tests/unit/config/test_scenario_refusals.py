"""What is said about a scenario file that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench_spark.config.loader import load_scenario
from bench_spark.config.models import Scenario
from bench_spark.config.yaml_text import MAX_BYTES
from bench_spark.errors import ConfigurationError

TOP_KEYS = ", ".join(Scenario.model_fields)


def errors_in(tmp_path: Path, text: str | bytes) -> list[str]:
    """What is said about a scenario file of this text, without the file's name."""
    file = tmp_path / "x.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigurationError) as caught:
        load_scenario(str(file))
    lines = str(caught.value).splitlines()
    assert all(line.startswith(str(file)) for line in lines)
    return [line.removeprefix(str(file)).removeprefix(": ") for line in lines]


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("", ["is empty; allowed: KEY: VALUE lines"]),
        ("# nothing\n", ["is empty; allowed: KEY: VALUE lines"]),
        ("- a\n", ["holds a list; allowed: KEY: VALUE lines"]),
        ("steady", ["holds 'steady'; allowed: KEY: VALUE lines"]),
        (b"\xff\xfe", ["is not UTF-8 text"]),
        (b"#" * (MAX_BYTES + 1), [f"is larger than the limit of {MAX_BYTES} bytes"]),
        ("agents: 1\nagents: 2", [":2: agents: given twice, first in line 1"]),
        (
            "load: {rate_per_secnd: 5}",
            ["load.rate_per_secnd: unknown key; did you mean rate_per_second?"],
        ),
        (
            "amqp: {plane: fast}",
            [
                "amqp.plane: there is one data plane now, so there is nothing to choose: AMQP is "
                "spoken on bench-spark's own sockets. Leave the key out"
            ],
        ),
        ("breakdown: destination", ["breakdown: is called metrics_by now"]),
        ("load: {fill_first: true}", ["load.fill_first: is called prefill now"]),
        (
            "load: {patience_seconds: 5}",
            ["load.patience_seconds: is called request_timeout_seconds now"],
        ),
        ("bandwidth: 5", [f"bandwidth: unknown key; allowed: {TOP_KEYS}"]),
        (
            "message: {bytes: '500'}",
            [
                "message.bytes: '500' is not a whole number; "
                "allowed: a whole number from 8 to 134217728, without quotes"
            ],
        ),
        (
            "audit: {undelivered_share: 1.5}",
            ["audit.undelivered_share: 1.5 is above the maximum of 1"],
        ),
        (
            "audit: {undelivered_share: -0.1}",
            ["audit.undelivered_share: -0.1 is below the minimum of 0"],
        ),
        ("message: {bytes: 7}", ["message.bytes: 7 is below the minimum of 8"]),
        (
            "message: {bytes: 999999999}",
            ["message.bytes: 999999999 is above the maximum of 134217728"],
        ),
        (
            "message: {bytes: 1000.0}",
            [
                "message.bytes: 1000.0 is not a whole number; "
                "allowed: a whole number from 8 to 134217728"
            ],
        ),
        (
            "producers: true",
            ["producers: true is not a whole number; allowed: a whole number from 0 to 1000000"],
        ),
        (
            "load: {rate_per_second: true}",
            [
                "load.rate_per_second: true is not a number; "
                "allowed: a number above 0 up to 100000000"
            ],
        ),
        (
            "phases: {drain_seconds: .inf}",
            ["phases.drain_seconds: inf is not finite; allowed: a number from 0 to 2592000"],
        ),
        (
            "agents: many",
            ["agents: 'many' is not allowed; allowed: a whole number from 1 to 100000, or auto"],
        ),
        (
            "agents: 0",
            ["agents: 0 is not allowed; allowed: a whole number from 1 to 100000, or auto"],
        ),
        (
            "load: {mode: maximun}",
            [
                "load.mode: 'maximun' is unknown; allowed: rate, maximum, window, request; "
                "did you mean maximum?"
            ],
        ),
        (
            "amqp: {mandatory: yes}",
            ["amqp.mandatory: 'yes' is not true or false; allowed: true or false"],
        ),
        ("tags: {release: 5}", ["tags.release: 5 is not text; allowed: text in quotes"]),
        ("tags: x", ["tags: 'x' is not a map; allowed: NAME: VALUE lines"]),
        (
            "phases:\n",
            [
                "phases: null is not a section; "
                "keys inside: warmup_seconds, measure_seconds, drain_seconds"
            ],
        ),
        (
            "name: ../x",
            [
                "name: '../x' is not allowed; allowed: letters, digits, '.', '_' and '-', "
                "at most 120, the first a letter or digit"
            ],
        ),
        (
            "kafka: {producer: {linger: {ms: 5}}}",
            [
                "kafka.producer.linger: a mapping is not allowed; allowed: text, a number, "
                "true or false; write dotted names in one piece"
            ],
        ),
        (
            "kafka: {consumer: {x: .nan}}",
            ["kafka.consumer.x: nan is not allowed; allowed: text, a number, true or false"],
        ),
        (
            "kafka: {topic: {name: 'a b'}}",
            [
                "kafka.topic.name: 'a b' is not allowed; "
                "allowed: letters, digits, '.', '_', '-' and '%d', at most 200"
            ],
        ),
        (
            "kafka: {producer: {security.protocol: ssl, ssl.key.password: hunter2}}",
            [
                "kafka.producer.security.protocol: says where the broker is or how to log in; "
                "broker files say that",
                "kafka.producer.ssl.key.password: says where the broker is or how to log in; "
                "broker files say that",
            ],
        ),
        (
            "amqp: {queue: {name: q, server_named: true}}",
            ["amqp.queue.server_named: excludes name; give one of the two"],
        ),
        (
            "amqp: {ack: manual, ack_every: 100, prefetch: 50}",
            ["amqp.prefetch: 50 is below ack_every, which is 100: nothing would be acknowledged"],
        ),
        (
            "amqp: {producer_transaction: 10, confirms: 5}",
            [
                "amqp.producer_transaction: excludes confirms: brokers refuse both on one channel",
            ],
        ),
        (
            "amqp: {exchange: {name: e, binding_arguments: {a: 1}}}",
            [
                "amqp.exchange.binding_arguments: only a named exchange of type headers looks at "
                "them"
            ],
        ),
        (
            "amqp: {routing_keys: 10, binding_key: '#'}",
            [
                "amqp.routing_keys: 10 keys need a named exchange: the default one has one key per "
                "queue, its name",
                "amqp.binding_key: only a named exchange of type topic has patterns; others are "
                "bound by the routing key",
            ],
        ),
        (
            "consumers: 0\nconsumer: {processing_us: 5}",
            ["consumer: slows consumers down, but there are none"],
        ),
        (
            "consumer: {rate_per_second: 0.5}",
            ["consumer.rate_per_second: 0.5 is below the minimum of 1"],
        ),
        (
            "load: {mode: maximum, steps: [{seconds: 5, rate_per_second: 1}]}",
            ["load.steps: need mode rate or request; maximum has no schedule"],
        ),
        (
            "load: {messages: 100, steps: [{seconds: 5, rate_per_second: 1}]}",
            ["load.steps: exclude messages: their length is given in seconds"],
        ),
        (
            "load: {steps: [{seconds: 5, rate_per_second: 1}, {seconds: 7, rate_per_second: 9}]}",
            ["load.steps: last 12 s, which is more than phases.measure_seconds: 10"],
        ),
        (
            "load: {steps: [{seconds: 5, rate: 1}, {seconds: 0, rate_per_second: 9}]}",
            [
                "load.steps.0.rate_per_second: missing; allowed: a number above 0 up to 100000000",
                "load.steps.0.rate: unknown key; did you mean rate_per_second?",
                "load.steps.1.seconds: 0 is too low; allowed: a number above 0 up to 2592000",
            ],
        ),
        (
            "message: {bytes: 20, steps: [{seconds: 5, bytes: 100}]}",
            ["message.bytes: 20 is below 32, which a size that changes needs"],
        ),
        (
            "message: {steps: [{seconds: 5, bytes: 100}, {seconds: 7, bytes: 31}]}",
            ["message.steps.1.bytes: 31 is below the minimum of 32"],
        ),
        (
            "message: {steps: [{seconds: 5, bytes: 100}, {seconds: 7, bytes: 32}]}",
            ["message.steps: last 12 s, which is more than phases.measure_seconds: 10"],
        ),
        (
            "{producers: 0, message: {steps: [{seconds: 5, bytes: 100}]}}",
            ["message.steps: say what is sent, but there are no producers"],
        ),
        (
            "load: {steps: 5}",
            [
                "load.steps: 5 is not a list; allowed: lines that begin with '- '",
            ],
        ),
        (
            "amqp: {consumer_transaction: 10}",
            ["amqp.consumer_transaction: commits acknowledgements: it needs ack: manual"],
        ),
        (
            "amqp: {ack: manual, ack_every: 4, consumer_transaction: 10, prefetch: 9}",
            [
                "amqp.consumer_transaction: 10 is no multiple of ack_every, which is 4",
                "amqp.prefetch: 9 is below consumer_transaction, which is 10: nothing would be "
                "committed",
            ],
        ),
        (
            "{load: {mode: window, in_flight: 9}, amqp: {producer_transaction: 10}}",
            [
                "load.in_flight: 9 is below amqp.producer_transaction, which is 10: nothing would "
                "ever be committed"
            ],
        ),
        (
            "{producers: 3, load: {mode: maximum, backlog_limit_bytes: 29999}, "
            "amqp: {producer_transaction: 10}}",
            [
                "load.backlog_limit_bytes: 29999 is less than the 30 messages of 1000 bytes in the "
                "transactions of all producers"
            ],
        ),
        ("reconnect_seconds: -1", ["reconnect_seconds: -1 is below the minimum of 0"]),
        (
            "{producers: 2, consumers: 2, destinations: 2, amqp: {queue: {name: q}}}",
            [
                "amqp.queue.name: one name for 2 destinations; put %d where the destination's "
                "number goes"
            ],
        ),
        (
            "{placement: split, agents: 1, load: {mode: window}, destinations: 3}",
            [
                "destinations: 3 is too many: each needs a producer and a consumer, and there are "
                "1 and 1",
                "placement: split needs agents of at least 2, not 1",
                "load.mode: window needs placement paired: its credit stays inside one task",
            ],
        ),
        (
            "{placement: split, agents: 2, load: {mode: maximum}}",
            [
                "load.mode: maximum with placement split needs a bound: load.messages, "
                "x-max-length or x-max-length-bytes in amqp.queue.arguments, or "
                "retention.bytes in kafka.topic.properties"
            ],
        ),
        (
            "{producers: 0, consumers: 0}",
            ["consumers: 0, and so are producers: nobody would send or receive"],
        ),
        (
            "{consumers: 0, destinations: 2, load: {mode: maximum}}",
            [
                "destinations: 2 is too many: each needs a producer, and there are 1 and 0",
                "load.mode: maximum without consumers needs a bound: load.messages, "
                "x-max-length or x-max-length-bytes in amqp.queue.arguments, or "
                "retention.bytes in kafka.topic.properties",
            ],
        ),
        (
            "{producers: 0, placement: split, agents: 2, load: {mode: window}}",
            [
                "placement: split parts both ends, but producers is 0; use paired",
                "load.mode: window needs placement paired: its credit stays inside one task",
                "load.mode: window needs both ends, but producers is 0: a message gives its place "
                "back by arriving",
            ],
        ),
        (
            "sampling: {samples: 100}",
            [
                "sampling.samples: needs load.mode window or maximum: in mode rate the throughput "
                "is what was asked for",
            ],
        ),
        (
            "{sampling: {samples: 100}, load: {mode: window, messages: 5}}",
            ["sampling.samples: excludes load.messages: both would end the measured phase"],
        ),
        (
            "{sampling: {samples: 9, skip_windows: 1}, load: {mode: maximum}, placement: split, "
            "agents: 2, amqp: {queue: {arguments: {x-max-length: 9}}}}",
            [
                "sampling.samples: needs placement paired: whoever samples also ends the load",
                "sampling.skip_windows: counts windows, which load.mode maximum has none of; "
                "phases.warmup_seconds is what is skipped there",
            ],
        ),
        (
            "{sampling: {samples: 9}, consumers: 0, load: {mode: maximum}, "
            "kafka: {topic: {properties: {retention.bytes: 9}}}}",
            ["sampling.samples: needs both ends of a destination, but consumers is 0"],
        ),
        (
            "load: {prefill: true}",
            ["load.prefill: needs load.mode window: mode rate has no window to fill"],
        ),
        (
            "message: {bytes: 4}\nload: {mod: rate}\nphases: {warmup_seconds: -1}\n",
            [
                "message.bytes: 4 is below the minimum of 8",
                "load.mod: unknown key; did you mean mode?",
                "phases.warmup_seconds: -1 is below the minimum of 0",
            ],
        ),
    ],
)
def test_a_bad_file_is_refused_with_every_key_named(
    tmp_path: Path, text: str | bytes, messages: list[str]
) -> None:
    assert errors_in(tmp_path, text) == messages


def test_a_huge_key_or_value_is_not_repeated_in_full(tmp_path: Path) -> None:
    assert len(errors_in(tmp_path, f"load: {{mode: {'x' * 100_000}}}")[0]) < 300
    assert len(errors_in(tmp_path, f"{'x' * 500}: 1")[0]) < 600
