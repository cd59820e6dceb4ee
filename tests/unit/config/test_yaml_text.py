import contextlib
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench_spark.config.yaml_text import MAX_BYTES, MAX_VALUES, YamlTextError, read_yaml


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 5", {"a": 5}),
        ("a: 1e4", {"a": 10000.0}),
        ("a: 0x10", {"a": 16}),
        ("a: 0o10", {"a": 8}),
        ("a: 010", {"a": 10}),
        ("a: -.5", {"a": -0.5}),
        ("a: .inf", {"a": math.inf}),
        ("a: true", {"a": True}),
        ("a: no", {"a": "no"}),
        ("a: 12:30", {"a": "12:30"}),
        ("a: 2024-01-01", {"a": "2024-01-01"}),
        ("a: 10_000", {"a": "10_000"}),
        ("a: '5'", {"a": "5"}),
        ("a:", {"a": None}),
        ("a: ~", {"a": None}),
        ("5: x", {"5": "x"}),
        ("a: &x [1]\nb: *x", {"a": [1], "b": [1]}),
        ("# only a comment", None),
        ("--- {a: 1}\n...\n", {"a": 1}),
        ("a: " + "9" * 5000, {"a": "9" * 5000}),
    ],
)
def test_scalars_follow_the_core_schema_of_yaml_1_2(text: str, expected: Any) -> None:
    assert read_yaml(text) == expected


def test_an_alias_is_a_copy_so_that_changing_one_place_leaves_the_other() -> None:
    value = read_yaml("a: &x {k: 1}\nb: *x")
    value["b"]["k"] = 2
    assert value["a"] == {"k": 1}


def laughs(levels: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        (laughs(10), 4, f"holds more than {MAX_VALUES} values, aliases expanded"),
        ("[" * 500_000, 1, "is nested deeper than the limit of 20"),
        ("{a: " * 100_000, 1, "is nested deeper than the limit of 20"),
        (
            "a:\n" + "- x\n" * 20_000,
            10_000,
            f"holds more than {MAX_VALUES} values, aliases expanded",
        ),
        ("x" * (MAX_BYTES + 1), 1, f"is longer than the limit of {MAX_BYTES} characters"),
        ("a: &a [*a]", 1, "has an alias ('*...') without a finished anchor before it"),
        ("a: *b", 1, "has an alias ('*...') without a finished anchor before it"),
        (
            "a: 1\nb: !!python/object/apply:os.system [id]",
            2,
            "has a tag ('!...'), which is not allowed",
        ),
        ("!x a: 1", 1, "has a tag ('!...'), which is not allowed"),
        ("a: 1\n---\nb: 2", 2, "starts a second document; a file holds one"),
        ("[1, 2]: x", 1, "has a key that is not plain text"),
        ("a: 1\nb: \x00", 2, "holds the character U+0000, which is not printable"),
        ("a: \ud800", 1, "holds the character U+D800, which is not printable"),
    ],
)
@pytest.mark.fault(case=17)
def test_hostile_text_is_refused_with_its_line(text: str, line: int, problem: str) -> None:
    with pytest.raises(YamlTextError) as caught:
        read_yaml(text)
    (flaw,) = caught.value.flaws
    assert (flaw.line, flaw.problem) == (line, problem)


@pytest.mark.parametrize(
    ("text", "line"), [("a: [1\nb: 2", 2), ("a: 1\n b: 2", 2), ("a: 'x", 1), ("a: }", 1)]
)
def test_a_syntax_error_is_one_sentence_with_its_line(text: str, line: int) -> None:
    with pytest.raises(YamlTextError) as caught:
        read_yaml(text)
    (flaw,) = caught.value.flaws
    assert flaw.line == line
    assert flaw.problem.startswith("is not valid YAML: ")
    assert "\n" not in flaw.problem


def test_a_tab_is_named_as_the_cause() -> None:
    with pytest.raises(YamlTextError, match="tabs cannot indent YAML"):
        read_yaml("a:\n\tb: 1")


def test_every_key_given_twice_is_reported_with_both_lines() -> None:
    with pytest.raises(YamlTextError) as caught:
        read_yaml("a: 1\nload:\n  mode: x\n  'mode': y\na: 2")
    assert [(flaw.line, flaw.key, flaw.problem) for flaw in caught.value.flaws] == [
        (4, "load.mode", "given twice, first in line 3"),
        (5, "a", "given twice, first in line 1"),
    ]


@settings(deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_read_or_refused_and_nothing_else_happens(text: str) -> None:
    with contextlib.suppress(YamlTextError):
        read_yaml(text)
