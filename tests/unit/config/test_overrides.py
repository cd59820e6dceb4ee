from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bench_spark.config.loader import load_broker, load_scenario
from bench_spark.config.models import Scenario
from bench_spark.config.problems import all_keys
from bench_spark.errors import ConfigurationError


def errors_of(*overrides: str) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        load_scenario("steady", overrides)
    return str(caught.value).splitlines()


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("load.rate_per_second=5000", "load.rate_per_second", 5000.0),
        ("load.rate_per_second=1e3", "load.rate_per_second", 1000.0),
        ("message.bytes=500", "message.bytes", 500),
        ("agents=auto", "agents", "auto"),
        ("agents=4", "agents", 4),
        ("load.messages=null", "load.messages", None),
        ("amqp.persistent=true", "amqp.persistent", True),
        ("amqp.queue.name=no", "amqp.queue.name", "no"),
        ("amqp.queue.name=5", "amqp.queue.name", "5"),
        ("amqp.queue.name='null'", "amqp.queue.name", "null"),
        ("amqp.queue.name=null", "amqp.queue.name", None),
        ("amqp.routing_key=#", "amqp.routing_key", "#"),
        ("description=a: b = c # d", "description", "a: b = c # d"),
        (" message.bytes =500", "message.bytes", 500),
        ("kafka.producer.linger.ms=5", "kafka.producer", {"linger.ms": 5}),
        (
            "kafka.producer={linger.ms: 5, acks: all}",
            "kafka.producer",
            {"linger.ms": 5, "acks": "all"},
        ),
        ("amqp.queue.arguments.x-max-length=100", "amqp.queue.arguments", {"x-max-length": 100}),
        ("tags.release.number=1.10", "tags", {"release.number": "1.10"}),
        ("load={mode: window, in_flight: 7}", "load.in_flight", 7),
    ],
)
def test_an_override_sets_its_key(override: str, key: str, value: object) -> None:
    found: object = load_scenario("steady", [override])
    for name in key.split("."):
        found = getattr(found, name)
    assert found == value
    assert type(found) is type(value)


def test_the_last_override_wins_and_the_others_stay() -> None:
    scenario = load_scenario(
        "steady", ["message.bytes=100", "load.in_flight=3", "message.bytes=200"]
    )
    assert (scenario.message.bytes, scenario.load.in_flight) == (200, 3)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("message.bytes=4", "--set message.bytes=4: message.bytes: 4 is below the minimum of 8"),
        (
            "load.rate_per_secnd=5",
            "--set load.rate_per_secnd=5: load.rate_per_secnd: unknown key; "
            "did you mean rate_per_second?",
        ),
        (
            "amqp.plane=pika",
            "--set amqp.plane=pika: amqp.plane: there is one data plane now, so there is nothing "
            "to choose: AMQP is spoken on bench-spark's own sockets. Leave the key out",
        ),
        (
            "rate_per_second=5",
            "--set rate_per_second=5: rate_per_second: unknown key; "
            "did you mean load.rate_per_second or consumer.rate_per_second?",
        ),
        (
            "rate=5",
            "--set rate=5: rate: unknown key; "
            "did you mean load.rate_per_second or consumer.rate_per_second?",
        ),
        (
            "load_rate=5",
            "--set load_rate=5: load_rate: unknown key; did you mean load.rate_per_second?",
        ),
        (
            "foo.in_flight=5",
            "--set foo.in_flight=5: foo.in_flight: unknown key; "
            "did you mean load.in_flight or mqtt.in_flight or http.in_flight?",
        ),
        (
            "load.rate_per_second=10k",
            "--set load.rate_per_second=10k: load.rate_per_second: '10k' is not a number; "
            "allowed: a number above 0 up to 100000000",
        ),
        (
            "load.rate_per_second=.nan",
            "--set load.rate_per_second=.nan: load.rate_per_second: nan is not finite; "
            "allowed: a number above 0 up to 100000000",
        ),
        (
            "load.rate_per_second=0",
            "--set load.rate_per_second=0: load.rate_per_second: 0 is too low; "
            "allowed: a number above 0 up to 100000000",
        ),
        (
            "phases=5",
            "--set phases=5: phases: is a section; set a key inside it: phases.warmup_seconds, "
            "phases.measure_seconds, phases.drain_seconds",
        ),
        ("load.mode", "--set load.mode: is not of the form KEY=VALUE"),
        ("=5", "--set =5: is not of the form KEY=VALUE"),
        ("", "--set : is not of the form KEY=VALUE"),
        (
            "message.bytes.more=5",
            "--set message.bytes.more=5: message.bytes.more: nothing is inside message.bytes",
        ),
        (
            "kafka.producer={a: {b: 1}}",
            "--set kafka.producer={a: {b: 1}}: kafka.producer.a: a mapping is not allowed; "
            "allowed: text, a number, true or false; write dotted names in one piece",
        ),
        (
            "kafka.producer.sasl.password=hunter2",
            "--set kafka.producer.sasl.password=***: kafka.producer.sasl.password: says where the "
            "broker is or how to log in; broker files say that",
        ),
        (
            "kafka.producer.=5",
            "--set kafka.producer.=5: kafka.producer.: is empty; allowed: at least one character",
        ),
        (
            "destinations=2",
            "--set destinations=2: destinations: 2 is too many: each needs a producer and a "
            "consumer, and there are 1 and 1",
        ),
        (
            "placement=split",
            "--set placement=split: placement: split needs agents of at least 2, not 1",
        ),
        (
            "name=a\x1b[31m",
            "--set name=a\\x1b[31m: name: the value holds the character U+001B, which is not "
            "printable; try it in quotes",
        ),
        (
            "interval_seconds=[1",
            "--set interval_seconds=[1: interval_seconds: the value is not valid YAML: while "
            "parsing a flow sequence, did not find expected ',' or ']'; try it in quotes",
        ),
    ],
)
def test_a_wrong_override_is_named_as_typed(override: str, message: str) -> None:
    assert errors_of(override) == [message]


def test_all_wrong_overrides_are_reported_at_once() -> None:
    assert len(errors_of("message.bytes=4", "x=1", "load=5", "load.mode=fast")) == 4


def test_a_cross_check_names_the_option_that_caused_it() -> None:
    (line,) = errors_of("amqp.ack=manual", "amqp.prefetch=5", "amqp.ack_every=10")
    assert line.startswith("--set amqp.prefetch=5: amqp.prefetch: 5 is below ack_every")


def test_an_override_may_fill_a_section_that_the_file_leaves_empty(tmp_path: Path) -> None:
    file = tmp_path / "b.yaml"
    file.write_text("kind: amqp\nuri: amqp://host\ntls:\n")
    broker = load_broker(str(file), ["tls.insecure=true"])
    assert broker.tls is not None
    assert broker.tls.insecure


def test_an_override_below_a_broken_section_leaves_the_files_own_mistake_named(
    tmp_path: Path,
) -> None:
    file = tmp_path / "s.yaml"
    file.write_text("phases: 5\n")
    with pytest.raises(ConfigurationError) as caught:
        load_scenario(str(file), ["phases.drain_seconds=1"])
    assert str(caught.value) == (
        f"{file}: phases: 5 is not a section; keys inside: "
        "warmup_seconds, measure_seconds, drain_seconds"
    )


DOTTED = [key.dotted for key in all_keys(Scenario)]


@settings(deadline=None)
@given(
    st.one_of(
        st.text(max_size=80),
        st.builds("{}={}".format, st.sampled_from(DOTTED), st.text(max_size=60)),
        st.builds("{}={}".format, st.sampled_from(DOTTED), st.integers() | st.floats()),
        st.builds("{}.{}={}".format, st.sampled_from(DOTTED), st.text(max_size=9), st.text()),
    )
)
@example("load.rate_per_second=" + "9" * 4000)
@example("load.in_flight=0x" + "f" * 5000)
@example("kafka.producer.a=" + "9" * 400)
@example("load.rate_per_second=1e999")
@example("\udcff=\udcff")
def test_any_override_is_taken_or_refused_as_a_configuration_error(text: str) -> None:
    refusal = ""
    try:
        load_scenario("steady", [text])
    except ConfigurationError as error:
        refusal = str(error)
    assert all(line.isprintable() for line in refusal.split("\n"))
    assert len(refusal) < 1500
