"""spark-defaults.conf: every setting has its reason beside it."""

from __future__ import annotations

from pathlib import Path

LINES = (Path(__file__).parents[2] / "spark-defaults.conf").read_text().splitlines()


def is_setting(line: str) -> bool:
    return line.startswith("spark.")


def test_every_setting_follows_a_reason() -> None:
    """A setting or a group of them stands directly below a comment."""
    for number, line in enumerate(LINES):
        if is_setting(line):
            assert LINES[number - 1].startswith("#") or is_setting(LINES[number - 1]), line


def test_no_setting_is_given_twice() -> None:
    keys = [line.split()[0] for line in LINES if is_setting(line)]
    assert len(keys) == len(set(keys))


def test_every_setting_is_one_key_and_one_value() -> None:
    """Spark takes the rest of the line as the value, comments included."""
    for line in filter(is_setting, LINES):
        assert len(line.split()) == 2, line
        assert "#" not in line


def test_no_value_holds_a_backslash() -> None:
    """The file is read as Java properties, where one vanishes: `\\s` in a pattern becomes `s`."""
    assert not [line for line in filter(is_setting, LINES) if "\\" in line]
