"""The key `trace`: three forms, and what it needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench_spark.config.loader import load_scenario
from bench_spark.config.sections import traced_every
from bench_spark.errors import ConfigurationError


@pytest.mark.parametrize(
    ("written", "kept", "every"),
    [
        ("off", "off", 0),
        ("false", "off", 0),
        ("all", "all", 1),
        ("sample 1/100", "sample 1/100", 100),
        ("sample  1/2", "sample 1/2", 2),
    ],
)
def test_a_file_says_which_messages_are_traced(
    tmp_path: Path, written: str, kept: str, every: int
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"trace: {written}\n")
    trace = load_scenario(str(file)).trace
    assert (trace, traced_every(trace)) == (kept, every)


def test_the_command_line_says_the_same() -> None:
    assert load_scenario("steady", ["trace=off"]).trace == "off"
    assert load_scenario("steady", ["trace=sample 1/10"]).trace == "sample 1/10"


@pytest.mark.parametrize("given", ["on", "true", "1/10", "sample 1/0", "sample 1/1", "sample 2/3"])
def test_anything_else_is_refused_with_what_is_allowed(given: str) -> None:
    with pytest.raises(ConfigurationError, match=r"off, all, or sample 1/N"):
        load_scenario("steady", [f"trace={given}"])


@pytest.mark.parametrize("override", ["producers=0", "message.bytes=16"])
def test_messages_without_a_number_cannot_be_traced(override: str) -> None:
    with pytest.raises(ConfigurationError, match="trace"):
        load_scenario("steady", ["trace=all", override])
