"""Scenarios of stored runs: keys that were renamed or removed since are read, others are not."""

from __future__ import annotations

from typing import Any

import pytest

from bench_spark.compare.comparison import differences
from bench_spark.config.models import Scenario, comparable_scenario, stored_scenario
from bench_spark.config.sections import Load
from bench_spark.errors import StoreError

REMOVED_KEYS = {("amqp", "plane"): "fast", ("kafka", "plane"): "fast"}
"""With the value that describes what is done now."""
RENAMED_KEYS = {
    ("breakdown",): (("metrics_by",), "destination"),
    ("load", "patience_seconds"): (("load", "request_timeout_seconds"), 2.5),
    ("load", "fill_first"): (("load", "prefill"), True),
}
"""With their names of today, and a value that is not the default."""


def with_key(document: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    name, *below = path
    inside = with_key(document.get(name, {}), tuple(below), value) if below else value
    return document | {name: inside}


def without_key(document: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    name, *below = path
    rest = {key: value for key, value in document.items() if key != name}
    return rest | {name: without_key(document[name], tuple(below))} if below else rest


@pytest.mark.parametrize("path", REMOVED_KEYS)
@pytest.mark.parametrize("value", ["fast", "whatever it was"])
def test_a_removed_key_is_read_past(path: tuple[str, ...], value: str) -> None:
    dumped = with_key(Scenario().dump(), path, value)
    ends = [{"broker": "kafka", path[0]: {path[1]: value}}]
    assert stored_scenario("r1", dumped) == stored_scenario("r1", Scenario().dump())
    through = stored_scenario("r1", dumped | {"ingress": ends, "egress": ends})
    assert through.ingress[0].broker == "kafka"


@pytest.mark.parametrize("path", RENAMED_KEYS)
def test_a_renamed_key_is_read_by_its_name_of_today(path: tuple[str, ...]) -> None:
    today, value = RENAMED_KEYS[path]
    dumped = Scenario(load=Load(mode="window")).dump()
    newer = with_key(dumped, today, value)
    older = with_key(without_key(dumped, today), path, value)
    assert stored_scenario("r1", older) == stored_scenario("r1", newer) != Scenario()
    assert comparable_scenario(older) == newer
    assert differences(older, newer) == {}


def test_any_other_unknown_key_is_refused_with_the_run() -> None:
    dumped = with_key(Scenario().dump(), ("amqp", "plain"), "fast")
    with pytest.raises(StoreError, match="run r1 has a scenario of another version"):
        stored_scenario("r1", dumped)


@pytest.mark.parametrize(("path", "now"), REMOVED_KEYS.items())
def test_runs_are_alike_unless_a_removed_key_asked_for_something_else(
    path: tuple[str, ...], now: str
) -> None:
    newer = comparable_scenario(Scenario().dump())
    older = with_key(newer, path, now)
    assert comparable_scenario(older) == newer
    assert differences(older, newer) == {}
    other = with_key(newer, path, "something else")
    assert differences(other, newer) == {".".join(path): ["something else", None]}


def test_what_is_given_is_left_as_it_was() -> None:
    dumped = with_key(Scenario().dump(), ("amqp", "plane"), "fast")
    stored_scenario("r1", dumped)
    comparable_scenario(dumped)
    assert dumped["amqp"]["plane"] == "fast"
