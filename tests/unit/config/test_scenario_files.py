"""Scenario files: where they are found, what they may say, and that results can be run again."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench_spark.conf_files import conf_path, shipped
from bench_spark.config.loader import check_run_id, load_broker, load_scenario
from bench_spark.config.models import Scenario
from bench_spark.config.suite_loader import load_suite
from bench_spark.config.yaml_text import MAX_BYTES
from bench_spark.errors import ConfigurationError

CONTRACT_KEYS = (
    *("agents", "producers", "consumers", "destinations", "bytes"),
    *("mode", "rate_per_second", "in_flight"),
    *("warmup_seconds", "measure_seconds", "drain_seconds", "interval_seconds"),
)


@pytest.mark.parametrize("name", ["steady", "maximum", "window", "confirmed", "demo", "publish"])
def test_every_shipped_scenario_loads_under_its_own_name(name: str) -> None:
    scenario = load_scenario(name)
    assert scenario.name == name
    assert scenario.description
    assert name in shipped("scenarios")


def test_no_shipped_scenario_is_left_untested() -> None:
    for name in shipped("scenarios"):
        load_scenario(name)


def test_steady_is_one_pair_of_1000_bytes_at_10_000_a_second() -> None:
    steady = load_scenario("steady")
    assert (steady.agents, steady.producers, steady.consumers, steady.destinations) == (1, 1, 1, 1)
    assert steady.message.bytes == 1000
    assert (steady.load.mode, steady.load.rate_per_second) == ("rate", 10_000)
    assert (steady.phases.warmup_seconds, steady.phases.measure_seconds) == (5, 10)
    assert (steady.phases.drain_seconds, steady.interval_seconds) == (5, 1)


def test_steady_spells_out_the_keys_of_the_command_line_contract() -> None:
    text = conf_path("scenarios", "steady.yaml").read_text()
    for key in CONTRACT_KEYS:
        assert f"{key}: " in text


def test_confirmed_asks_for_at_least_once_in_both_protocols() -> None:
    confirmed = load_scenario("confirmed")
    amqp = confirmed.amqp
    assert (amqp.confirms, amqp.ack, amqp.ack_every) == (100, "manual", 100)
    assert amqp.persistent
    assert amqp.queue.durable
    assert confirmed.kafka.producer["acks"] == "all"


def test_a_file_is_found_by_path_and_named_by_its_stem(tmp_path: Path) -> None:
    file = tmp_path / "mine.yml"
    file.write_text("message: {bytes: 32}\n")
    scenario = load_scenario(str(file))
    assert (scenario.name, scenario.message.bytes) == ("mine", 32)


def test_a_name_inside_the_file_goes_before_the_files_name(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("name: other\n")
    assert load_scenario(str(file)).name == "other"


def test_a_file_without_a_suffix_is_found_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plain").write_text("agents: 3\n")
    assert load_scenario("plain").agents == 3


def test_a_shipped_name_is_not_hidden_by_a_folder_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("steady").mkdir()
    assert load_scenario("steady").name == "steady"


def test_an_unknown_name_lists_the_shipped_ones_and_the_nearest() -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_scenario("stedy")
    names = ", ".join(shipped("scenarios"))
    assert str(caught.value) == (
        f"stedy: unknown scenario; allowed: a path, or one of {names}; did you mean steady?"
    )


CONF = conf_path()


@pytest.mark.parametrize(
    ("load", "reference", "message"),
    [
        (load_scenario, "kafka", "is a broker, not a scenario; --broker takes brokers"),
        (load_broker, "steady", "is a scenario, not a broker; `bench-spark run` takes scenarios"),
        (
            load_scenario,
            "delivery",
            "is a suite, not a scenario; `bench-spark suite run` takes suites",
        ),
        (
            load_suite,
            f"{CONF}/scenarios/steady.yaml",
            "is a scenario, not a suite; `bench-spark run` takes scenarios",
        ),
        (
            load_scenario,
            f"{CONF}/brokers/kafka.yaml",
            "is a broker, not a scenario; --broker takes brokers",
        ),
        (
            load_broker,
            f"{CONF}/scenarios/steady.yaml",
            "is a scenario, not a broker; `bench-spark run` takes scenarios",
        ),
        (
            load_broker,
            f"{CONF}/suites/delivery.yaml",
            "is a suite, not a broker; `bench-spark suite run` takes suites",
        ),
    ],
)
def test_a_file_of_another_kind_is_one_sentence(
    load: Callable[[str], object], reference: str, message: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(reference)
    assert str(caught.value) == f"{reference}: {message}"


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("/no-such-file.yaml", "/no-such-file.yaml: there is no such file"),
        ("/no/such/file.yaml", "/no/such/file.yaml: there is no such directory /no/such"),
        ("/", "/: is a directory, not a file"),
        ("/a\0b", "/a\\x00b: is no file name"),
        ("/dev/zero", f"/dev/zero: is larger than the limit of {MAX_BYTES} bytes"),
    ],
)
def test_an_unreadable_path_is_named(reference: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_scenario(reference)
    assert str(caught.value) == message


def test_a_uri_in_place_of_a_broker_file_is_refused_without_its_password() -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_broker("amqp://guest:hunter2@host/")
    assert "is a URI" in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("reference", ["", "x" * 10_000, "a\0b", "\udcff"])
def test_a_hostile_reference_is_refused_in_a_short_text(reference: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_scenario(reference)
    assert len(str(caught.value)) < 500


def test_a_bounded_maximum_may_be_split(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text("{placement: split, agents: 2, load: {mode: maximum, messages: 1000}}")
    assert load_scenario(str(file)).placement == "split"


@pytest.mark.parametrize(
    "text",
    [
        "{consumers: 0, producers: 3, destinations: 3}",
        "{consumers: 0, load: {mode: maximum, messages: 1000}}",
        "{consumers: 0, load: {mode: maximum}, amqp: {queue: {arguments: {x-max-length: 5}}}}",
        "{consumers: 0, load: {mode: maximum}, kafka: {topic: {properties: {retention.bytes: 5}}}}",
        "{producers: 0, consumers: 3, destinations: 3}",
        "{producers: 0, load: {mode: maximum}}",
    ],
)
def test_a_run_may_have_one_end_only(tmp_path: Path, text: str) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(text)
    assert not load_scenario(str(file)).has_both_ends


def test_a_whole_number_is_a_number_too(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text("load: {rate_per_second: 5000}")
    assert load_scenario(str(file)).load.rate_per_second == 5000.0


@pytest.mark.parametrize("text", ["a", "run-1", "2024.01.01_x", "x" * 120])
def test_a_plain_run_id_is_taken_as_it_is(text: str) -> None:
    assert check_run_id(text) == text


@pytest.mark.parametrize(
    "text",
    ["", "../x", "a/b", "a b", "'; DROP", 'a"b', "a\0b", "a\n", ".a", "-a", "é", "x" * 10_240],
)
def test_a_run_id_that_is_no_plain_name_is_refused_briefly(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"--run-id: .* is not a plain name") as caught:
        check_run_id(text)
    assert len(str(caught.value)) < 250
    assert str(caught.value).isprintable()


NAMES = st.from_regex(r"[a-z][a-z0-9.-]{0,15}", fullmatch=True)
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), max_size=20)
PROPERTIES = st.dictionaries(
    NAMES.filter(lambda name: not name.startswith(("sasl.", "ssl."))),
    TEXTS | st.booleans() | st.integers(-(2**62), 2**62) | st.floats(-1e9, 1e9),
    max_size=3,
)
SCENARIOS = st.fixed_dictionaries(
    {
        "name": st.from_regex(r"[a-z0-9][a-zA-Z0-9._-]{0,20}", fullmatch=True),
        "description": TEXTS,
        "agents": st.integers(2, 100) | st.just("auto"),
        "producers": st.integers(5, 50),
        "consumers": st.integers(5, 50),
        "destinations": st.integers(1, 5),
        "message": st.fixed_dictionaries({"bytes": st.integers(8, 10_000)}),
        "load": st.fixed_dictionaries(
            {
                "mode": st.sampled_from(["rate", "maximum", "window"]),
                "rate_per_second": st.floats(0.001, 1e8),
                "messages": st.none() | st.integers(1, 10**15),
            }
        ),
        "phases": st.fixed_dictionaries({"warmup_seconds": st.floats(0, 1e6)}),
        "tags": st.dictionaries(NAMES, TEXTS, max_size=3),
        "kafka": st.fixed_dictionaries({"producer": PROPERTIES}),
        "amqp": st.fixed_dictionaries(
            {"queue": st.fixed_dictionaries({"arguments": PROPERTIES, "durable": st.booleans()})}
        ),
    }
)


@settings(max_examples=60, deadline=None)
@given(SCENARIOS)
def test_a_dumped_scenario_loads_as_the_same_scenario(
    tmp_path_factory: pytest.TempPathFactory, document: dict[str, Any]
) -> None:
    """JSON is YAML 1.2, so a scenario taken from a result file can be run again."""
    scenario = Scenario.model_validate(document)
    file = tmp_path_factory.getbasetemp() / "dumped.yaml"
    file.write_text(json.dumps(scenario.dump(), ensure_ascii=False))
    assert load_scenario(str(file)) == scenario


def test_no_limit_of_a_model_lets_a_number_through_that_is_none() -> None:
    for value in (math.nan, math.inf):
        with pytest.raises(ValueError, match="finite"):
            Scenario.model_validate({"load": {"rate_per_second": value}})
