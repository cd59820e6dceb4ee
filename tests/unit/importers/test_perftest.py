"""PerfTest's flags: all known, all accounted for, and a scenario that our own loader takes."""

from __future__ import annotations

import re
import string
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from bench_spark.config.broker import Broker
from bench_spark.config.models import Scenario
from bench_spark.config.yaml_text import read_yaml
from bench_spark.errors import ConfigurationError
from bench_spark.importers.draft import Draft, FileKeys, files_of
from bench_spark.importers.perftest import import_perftest
from bench_spark.importers.perftest_flags import BY_LONG, FLAGS, Takes
from bench_spark.transports.amqp.topology import refuse_impossible

HELP = Path(__file__).with_name("perftest-2.22.1.txt")

SAMPLES = {
    "producers": "-x 3",
    "consumers": "-y 3",
    "producer-channel-count": "-X 2",
    "consumer-channel-count": "-Y 2",
    "rate": "-r 1000",
    "publishing-interval": "-P 0.5",
    "variable-rate": "-vr 100:10 -vr 200:5",
    "consumer-rate": "-R 50",
    "consumer-latency": "-L 1000",
    "time": "-z 30",
    "pmessages": "-C 1000",
    "cmessages": "-D 1000",
    "size": "-s 4000",
    "variable-size": "-vs 1000:10 -vs 2000:5",
    "body": "-B order.json",
    "metrics-tags": "-mt env=performance,region=eu",
    "interval": "-i 5",
    "exchange": "-e orders",
    "type": "-t topic",
    "queue": "-u work",
    "queue-pattern": "-qp perf-%d -qpf 1 -qpt 3 -x 3 -y 3",
    "queue-pattern-from": "-qpf 2 -qpt 3 -qp perf-%d -x 3 -y 3",
    "queue-pattern-to": "-qpt 3 -qpf 2 -qp perf-%d -x 3 -y 3",
    "routing-key": "-k red",
    "random-routing-key": "-K",
    "routing-key-cache-size": "-rkcs 50 -K",
    "queue-args": "-qa x-max-length=10,x-overflow=reject-publish",
    "quorum-queue": "-qq",
    "stream-queue": "-sq",
    "consumer-args": "-ca x-priority=10",
    "stream-consumer-offset": "-sco first -sq",
    "leader-locator": "-ll balanced",
    "max-length-bytes": "-mlb 20gb",
    "max-age": "-ma PT10M30S",
    "stream-max-segment-size-bytes": "-smssb 500mb",
    "auto-delete": "-ad false",
    "flag": "-f persistent -f mandatory",
    "message-properties": "-mp colour=red,deliveryMode=2,priority=5",
    "confirm": "-c 100",
    "ptxsize": "-m 10",
    "ctxsize": "-n 10",
    "autoack": "-a",
    "multi-ack-every": "-A 10",
    "qos": "-q 100",
    "global-qos": "-Q 100",
    "uri": "-h amqp://bob:secret@example.org:5672/prod",
    "uris": "-H amqp://bob:secret@one.example.org,amqp://bob:secret@two.example.org",
    "heartbeat": "-b 10",
    "disable-connection-recovery": "-dcr",
    "use-default-ssl-context": "-udsc -h amqps://example.org",
    "server-name-indication": "-sni a.example.org,b.example.org -h amqps://example.org",
    "id": "-d night",
}
"""What each mapped option may look like."""


def scenario_of(draft: Draft) -> Scenario:
    """As our own loader reads the file that is written."""
    return Scenario.model_validate(read_yaml(files_of(draft, "test")[0].text), strict=True)


def broker_of(draft: Draft) -> Broker:
    return Broker.model_validate(read_yaml(files_of(draft, "test")[1].text), strict=True)


def imported(flags: str) -> dict[str, Any]:
    return scenario_of(import_perftest(flags)).model_dump(exclude_unset=True)


def at(document: dict[str, Any], dotted: str) -> Any:
    value: Any = document
    for name in dotted.split("."):
        value = value[name]
    return value


def test_the_table_has_exactly_perftests_options() -> None:
    listed = {
        (short.lstrip("-"), long.lstrip("-"), takes == "value")
        for short, long, takes in map(str.split, HELP.read_text().splitlines())
    }
    assert listed == {(f.short, f.long, f.takes is not Takes.NOTHING) for f in FLAGS}


def test_there_is_a_sample_of_every_option_that_is_mapped() -> None:
    assert set(SAMPLES) == {flag.long for flag in FLAGS if flag.is_mapped}


def test_mapped_options_set_the_keys_that_the_table_names() -> None:
    for option, sample in SAMPLES.items():
        draft = import_perftest(sample)
        sets = {"": draft.scenario, "broker": draft.broker}
        for key in BY_LONG[option].keys:
            file, _, dotted = key.rpartition(":")
            assert sets[file].get(dotted) is not None, (option, key)
        refuse_impossible(scenario_of(draft))


def test_options_without_a_counterpart_are_named_with_their_reasons() -> None:
    for flag in (flag for flag in FLAGS if not flag.is_mapped):
        draft = import_perftest(f"--{flag.long} {'' if flag.takes is Takes.NOTHING else '1'}")
        said = [(remark.option, remark.text) for remark in draft.left_out]
        assert said == [(f"--{flag.long}", flag.text)]
        text = " ".join(files_of(draft, "test")[0].text.replace("#", " ").split())
        assert f"--{flag.long}: {flag.text}" in text


@pytest.mark.parametrize(
    ("flags", "key", "value"),
    [
        ("-x 2 -X 3", "producers", 6),
        ("-a", "load.mode", "maximum"),
        ("-a", "message.bytes", 12),
        ("-a", "amqp.exchange.name", "direct"),
        ("-t fanout", "amqp.exchange.name", "fanout"),
        ("-e amq.default", "amqp.exchange.name", ""),
        ("-x 1", "amqp.ack", "manual"),
        ("-x 1", "amqp.prefetch", 0),
        ("-a", "phases.warmup_seconds", 0),
        ("-a", "phases.measure_seconds", 60),
        ("-r 100", "load.scope", "per_producer"),
        ("-r -1", "load.mode", "maximum"),
        ("-P 4", "load.rate_per_second", 0.25),
        ("-C 10 -x 3", "load.messages", 30),
        ("-D 10 -y 3 -x 1 -u work", "load.messages", 30),
        ("-D 10 -y 3 -x 1", "load.messages", 10),
        ("-y 3", "topology", "fan-out"),
        ("-Y 3", "topology", "fan-out"),
        ("-c 0", "amqp.confirms", 10_000_000),
        ("-q 50 -Q 20", "amqp.prefetch", 20),
        ("-mlb 20gb", "amqp.queue.arguments", {"x-max-length-bytes": 20_000_000_000}),
        ("-ma P1DT1S", "amqp.queue.arguments", {"x-max-age": "86401s"}),
        ("-y 0 -u here -r 10", "keep_destinations", True),
        ("-m 1000 -x 100 -s 1000", "load.backlog_limit_bytes", 200_000_000),
        ("-qp q-%d -qpf 3 -qpt 9 -x 2 -y 4", "destinations", 2),
        ("-qp q-%d -qpf 3 -qpt 9 -x 2 -y 4", "amqp.queue.first_number", 3),
    ],
)
def test_what_perftest_would_have_done_is_said(flags: str, key: str, value: object) -> None:
    assert at(imported(flags), key) == value


@pytest.mark.parametrize("flags", ["-y 3 -u work", "-y 1", "-y 3 -x 0 -u work", "-y 3 -t headers"])
def test_consumers_that_share_a_queue_are_no_fan_out(flags: str) -> None:
    assert "topology" not in imported(flags)


def test_variable_rates_are_repeated_until_the_time_is_over() -> None:
    document = imported("-vr 100:10 -vr 200:5 -z 32")
    assert [(s["rate_per_second"], s["seconds"]) for s in document["load"]["steps"]] == [
        *((100, 10), (200, 5), (100, 10), (200, 5), (100, 2)),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "-x 2 -r 1000 -a",
        "-x2 -r1000 -a",
        "--producers 2 --rate 1000 --autoack",
        "--producers=2 --rate=1000 --autoack",
        "-producers 2 -rate=1000 -autoack",
        "bin/runjava com.rabbitmq.perf.PerfTest -x 2 -r 1000 -a",
        "perf-test -x 2 -r 1000 -a  # a remark",
        "docker run -it --rm pivotalrabbitmq/perf-test:latest -x 2 -r 1000 -a",
        "docker run --network perf-test -e RATE=1000 --env=AUTOACK=true perf-test:2.22 -x 2",
        "java -Xmx1g -jar lib/perf-test-2.22.1.jar -x 2 -r 1000 -a 2>&1 | tee log",
        "kubectl run perf-test --image=pivotalrabbitmq/perf-test -- -x 2 -r 1000 -a",
        "-x 2 \\\n  -r 1000 \\\n  -a\n",
        "PRODUCERS=2\nRATE=1000\nAUTOACK=true\nHOME=/somewhere\n",
        "RABBITMQ_PERF_TEST_ENV_PREFIX=PT PT_PRODUCERS=2 PT_RATE=1000 RATE=5 perf-test -a",
        "RATE=5 perf-test -x 2 -r 1000 -a",
    ],
)
def test_every_way_to_write_a_flag_is_read(text: str) -> None:
    document = imported(text)
    assert document["producers"] == 2
    assert document["load"]["rate_per_second"] == 1000
    assert document["amqp"]["ack"] == "auto"


def flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in settings.items():
        is_section = isinstance(value, dict) and value
        found |= flat(value, f"{prefix}{name}.") if is_section else {f"{prefix}{name}": value}
    return found


LINES = yaml.safe_load(Path(__file__).with_name("command_lines.yaml").read_text())


def test_public_command_lines_become_the_keys_that_the_table_expects() -> None:
    usual = flat(import_perftest("perf-test").scenario.values)
    assert len({line["line"] for line in LINES}) >= 60
    for line in LINES:
        if "refused" in line:
            with pytest.raises(ConfigurationError, match=re.escape(line["refused"])):
                import_perftest(line["line"])
            continue
        draft = import_perftest(line["line"])
        values = dict.fromkeys(usual) | flat(draft.scenario.values)
        keys = {key: value for key, value in values.items() if usual.get(key) != value}
        keys |= flat(draft.broker.values, "broker:")
        assert keys == line["keys"], line["line"]
        assert [r.option for r in draft.left_out] == line.get("left_out", []), line["line"]
        scenario_of(draft)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("--producer 2", "did you mean --producers?"),
        ("--prodcers 2 --ratte 5", "did you mean --rate?"),
        ("-x", "--producers: its value is missing"),
        ("-x two", "--producers: 'two' is not allowed; allowed: a whole number"),
        ("-x -5", "--producers: -5 is below the minimum of 0"),
        ("-x 0 -y 0", "nobody would send or receive"),
        ("-r 0", "--rate"),
        ("-vr 100", "RATE:SECONDS"),
        ("-a=true", "takes no value"),
        ("-x 1 stray", "'stray' belongs to no option"),
        (
            "docker run --network perf-test rabbitmq:4 -x 1",
            "docker: no word names PerfTest's image",
        ),
        ("docker run perf-test -x 1 perf-test", "'perf-test' belongs to no option"),
        ("-u 'open", "not closed"),
        ("", "there are none"),
        ("-t x-modulus-hash", "--type"),
        ("-qa x-max-length", "KEY=VALUE"),
        ("-f presistent", "--flag"),
        ("-A 10 -q 5", "the flags: amqp.prefetch"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(text: str, problem: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        import_perftest(text)
    assert problem in str(refusal.value)


SECRET = "s3cr3t"


@pytest.mark.parametrize(
    "flags",
    [
        f"-h amqp://bob:{SECRET}@example.org",
        f"-h amqp://:{SECRET}@example.org",
        f"-H amqp://bob:{SECRET}@a.example.org,amqp://bob:{SECRET}@b.example.org",
        f"URI=amqp://bob:{SECRET}@example.org perf-test -x 1",
        f"-h amqp://bob:{SECRET}@example.org?heartbeat=5",
        f"-o2sec {SECRET} -o2id me -o2uri https://example.org",
        f"-mdk {SECRET}",
    ],
)
def test_a_password_is_in_no_file_and_no_remark(flags: str) -> None:
    draft = import_perftest(flags)
    for file in files_of(draft, "test"):
        assert SECRET not in file.text
    assert SECRET not in repr(draft)


@pytest.mark.parametrize(
    "flags",
    [
        f"--urii amqp://bob:{SECRET}@example.org",
        f"--uriamqp://bob:{SECRET}@example.org",
        f"-h amqp://bob:{SECRET}@example.org:port",
        f"-h http://bob:{SECRET}@example.org",
        f"-x 1 amqp://bob:{SECRET}@example.org",
        f"-h amqp://bob:{SECRET},x@example.org:0",
        f"-h amqp://bob:part {SECRET} part@example.org",
        f"-x 1 --passwrd {SECRET}",
    ],
)
def test_a_password_is_in_no_refusal(flags: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        import_perftest(flags)
    assert SECRET not in str(refusal.value)


def test_the_password_is_to_be_in_a_variable_named_like_the_scenario() -> None:
    draft = import_perftest("-h amqp://bob:secret@example.org -d 'night 1'")
    broker = broker_of(draft)
    assert (broker.uri, broker.username) == ("amqp://example.org/", "bob")
    assert broker.password_env == draft.password_variable == "NIGHT_1_PASSWORD"
    assert draft.has_password


def test_encryption_without_a_check_of_certificates_is_said() -> None:
    assert broker_of(import_perftest("-h amqps://example.org")).tls is not None
    assert broker_of(import_perftest("-h amqps://example.org")).masked()["tls"]["insecure"]
    checked = broker_of(import_perftest("-h amqps://example.org -udsc"))
    assert not checked.masked()["tls"]["insecure"]


@given(st.sets(st.sampled_from(sorted(SAMPLES)), min_size=1))
def test_any_flags_together_make_a_valid_scenario_or_a_refusal(options: set[str]) -> None:
    try:
        draft = import_perftest(" ".join(SAMPLES[option] for option in sorted(options)))
    except ConfigurationError:
        return
    scenario_of(draft)


@given(st.text(string.printable))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        draft = import_perftest(text)
    except ConfigurationError:
        return
    scenario_of(draft)


values = st.recursive(
    st.booleans() | st.integers(-(2**62), 2**62) | st.text(string.printable),
    lambda inside: st.lists(inside) | st.dictionaries(st.text(string.printable), inside),
    max_leaves=8,
)


@given(st.dictionaries(st.text(string.printable), values, min_size=1))
def test_what_is_written_is_read_back_as_it_was(document: dict[str, Any]) -> None:
    from bench_spark.importers.draft import yaml_file

    assert read_yaml(yaml_file(["a heading"], FileKeys(document))) == document
