"""What is known of a data set before a run, and what is refused then."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from bench_spark.config.broker import Broker
from bench_spark.config.models import Scenario
from bench_spark.data import checking as checking
from bench_spark.data.checking import with_records
from bench_spark.errors import ConfigurationError

LOOPBACK = Broker(kind="loopback")
KAFKA = Broker(kind="kafka", bootstrap_servers="h:1")


def prepared(path: Path, broker: Broker = LOOPBACK, **keys: Any) -> Scenario:
    dataset = {"path": str(path)} | keys.pop("dataset", {})
    return with_records(Scenario.model_validate({"dataset": dataset} | keys), broker)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "records.txt"
    path.write_bytes(b"a\n\nbbb\ncc\n")
    return path


def test_a_scenario_learns_what_its_data_set_holds(data: Path) -> None:
    scenario = prepared(data)
    assert scenario.dataset.found.model_dump() == {
        "records": 3,
        "mean_bytes": 2.0,
        "largest_bytes": 3,
        "largest_body_bytes": 35,
        "smallest_bytes": 1,
        "is_found_as_sent": None,
    }
    assert (scenario.message.bytes, scenario.largest_body_bytes) == (34, 35)
    beside = prepared(data, identity={"carrier": "header"})
    assert (beside.message.bytes, beside.largest_body_bytes) == (8, 3)


def test_records_that_are_sent_once_say_how_many_messages_there_are(data: Path) -> None:
    scenario = prepared(data, dataset={"repeat": False}, phases={"warmup_seconds": 0})
    assert scenario.load.messages == 3


def test_a_prepared_scenario_can_be_read_again(data: Path) -> None:
    for dataset, warmup in (({}, 5), ({"repeat": False}, 0)):
        scenario = prepared(data, dataset=dataset, phases={"warmup_seconds": warmup})
        assert Scenario.model_validate(scenario.dump()) == scenario


def test_a_file_that_has_changed_is_read_again(data: Path) -> None:
    assert prepared(data).dataset.found.records == 3
    data.write_bytes(b"one\n")
    assert prepared(data).dataset.found.records == 1


@pytest.mark.parametrize(
    ("keys", "broker", "told"),
    [
        (
            {"identity": {"carrier": "regex", "insert": "b+()"}},
            LOOPBACK,
            r"records.txt:1: identity.insert does not match: a",
        ),
        (
            {"identity": {"carrier": "regex", "insert": "[abc]()", "find": r"a?(.{32})\Z"}},
            LOOPBACK,
            r"records.txt:3: identity.insert matches 3 times: bbb",
        ),
        (
            {"kafka": {"topic": {"properties": {"max.message.bytes": 1058}}}},
            KAFKA,
            r"records.txt:3: the record has 35 bytes with its ID, .* 34 that "
            r"kafka.topic.properties.max.message.bytes",
        ),
        (
            {"kafka": {"producer": {"message.max.bytes": 1026}}, "identity": {"carrier": "key"}},
            KAFKA,
            r"records.txt:3: the record has 3 bytes, .* 2 that kafka.producer.message.max.bytes",
        ),
        ({"dataset": {"format": "jsonl"}}, LOOPBACK, r"records.txt:1: is not JSON .*: a"),
    ],
)
def test_records_that_cannot_be_sent_are_named_by_file_and_line(
    data: Path, keys: dict[str, Any], broker: Broker, told: str
) -> None:
    with pytest.raises(ConfigurationError, match=re.compile(told)):
        prepared(data, broker, **keys)


def test_of_large_data_sets_records_at_even_distances_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "MOST_RECORDS_CHECKED", 10)
    identity = {"carrier": "regex", "insert": "x()", "find": "x([0-9a-f]{32})"}
    path = tmp_path / "many.txt"
    path.write_bytes(b"".join(b"y\n" if number % 10 else b"x\n" for number in range(100)))
    assert prepared(path, identity=identity).dataset.found.records == 100
    path.write_bytes(
        b"".join(b"y\n" if number % 10 or number == 90 else b"x\n" for number in range(100))
    )
    with pytest.raises(ConfigurationError, match=r"many.txt:91: identity.insert does not match: y"):
        prepared(path, identity=identity)


def test_a_record_is_shown_in_short_and_without_control_characters(tmp_path: Path) -> None:
    path = tmp_path / "binary.bin"
    path.write_bytes(b"\x1b[31m\xff" + b"z" * 500)
    with pytest.raises(ConfigurationError) as raised:
        prepared(path, identity={"carrier": "regex", "insert": "none()"})
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < len(str(path)) + 250
