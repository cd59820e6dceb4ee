"""Scenarios of stored runs, which outlive the keys that they were written with.

A store keeps a run's scenario as it was dumped by the version that ran it. A key that this version
no longer has is listed in REMOVED_KEYS, with the value that describes what is done without it: such
scenarios are still read, and still compare equal to those of newer runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from bench_spark.errors import StoreError
from bench_spark.scenario.models import Scenario

REMOVED_KEYS: dict[tuple[str, ...], Any] = {
    ("amqp", "plane"): "fast",
    ("kafka", "plane"): "fast",
}
"""Keys that scenarios of older versions may have, and the value that each of them stands at now."""

_LISTS_OF_ENDS = ("ingress", "egress")
"""Their entries repeat sections of the scenario."""


def stored_scenario(run_id: str, dumped: Mapping[str, Any]) -> Scenario:
    """The scenario of a stored run. Raises StoreError if this version cannot read it."""
    scenario = dict(dumped)
    for path in REMOVED_KEYS:
        scenario = _everywhere_without(scenario, path)
    try:
        return Scenario.model_validate(scenario)
    except ValidationError as error:
        raise StoreError(
            f"run {run_id} has a scenario of another version of bench-spark: "
            f"{error.errors()[0]['msg']}"
        ) from error


def comparable_scenario(dumped: Mapping[str, Any]) -> dict[str, Any]:
    """A dumped scenario without removed keys, except those that asked for something else than what
    is done now."""
    scenario = dict(dumped)
    for path, value in REMOVED_KEYS.items():
        scenario = _everywhere_without(scenario, path, value)
    return scenario


_ANY = object()


def _everywhere_without(
    scenario: Mapping[str, Any], path: tuple[str, ...], value: Any = _ANY
) -> dict[str, Any]:
    left = _without(scenario, path, value)
    for name in _LISTS_OF_ENDS:
        if name in left:
            left[name] = [_without(end, path, value) for end in left[name]]
    return left


def _without(section: Mapping[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """A copy without the key at `path`, if it is there and has this value."""
    left = dict(section)
    name, *below = path
    if below:
        if isinstance(left.get(name), Mapping):
            left[name] = _without(left[name], tuple(below), value)
    elif name in left and (value is _ANY or left[name] == value):
        del left[name]
    return left
