"""`--set KEY=VALUE`: where a dotted key leads and what its value means.

Keys follow the model. Once they enter a free map the rest is one name, dots included, because that
is how clients name their properties: `kafka.producer.linger.ms=5`. Values are YAML, except where a
key only takes text: there `no`, `5` or `#` mean themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench_spark.scenario.fields import Section
from bench_spark.scenario.keys import Key, Path, keys_of
from bench_spark.scenario.problems import Problem, unknown_key
from bench_spark.scenario.shown import shown_override
from bench_spark.scenario.yaml_text import YamlTextError, read_yaml, refuse_unprintable


@dataclass(frozen=True)
class Override:
    path: Path
    value: Any
    source: str
    """What an error text calls it: the option as typed, secrets masked."""


def parse_overrides(
    model: type[Section], texts: Sequence[str]
) -> tuple[list[Override], list[Problem]]:
    overrides: list[Override] = []
    problems: list[Problem] = []
    for text in texts:
        parsed = _parse(model, text)
        if isinstance(parsed, Override):
            overrides.append(parsed)
        else:
            problems.append(parsed)
    return overrides, problems


def apply_overrides(document: dict[str, Any], overrides: Sequence[Override]) -> None:
    """Later overrides win. Where the document has no section to descend into, it is left as it
    is: validation then names the document's own mistake."""
    for override in overrides:
        target: Any = document
        for name in override.path[:-1]:
            if isinstance(target, dict):
                if target.get(name) is None:
                    target[name] = {}
                target = target[name]
        if isinstance(target, dict):
            target[override.path[-1]] = override.value


def _parse(model: type[Section], text: str) -> Override | Problem:
    source = shown_override(text)
    dotted, equals, value_text = text.partition("=")
    dotted = dotted.strip()
    if not equals or not dotted:
        return Problem(source, "", "is not of the form KEY=VALUE")
    found = find_key(model, dotted, source)
    if isinstance(found, Problem):
        return found
    path, key = found
    try:
        value = _value(key, value_text)
    except YamlTextError as error:
        return Problem(source, dotted, f"the value {error.flaws[0].problem}; try it in quotes")
    if key.section and not isinstance(value, dict) and not (value is None and key.is_optional):
        return Problem(source, dotted, is_a_section(key.section, dotted))
    return Override(path, value, source)


def is_a_section(section: type[Section], dotted: str) -> str:
    """Why a section cannot be set as if it were a key."""
    inside = ", ".join(f"{dotted}.{name}" for name in section.model_fields)
    return f"is a section; set a key inside it: {inside}"


def find_key(model: type[Section], dotted: str, source: str) -> tuple[Path, Key] | Problem:
    """The path into the document, and the key that says what the value may be."""
    names = dotted.split(".")
    section = model
    for depth, name in enumerate(names):
        before, rest = tuple(names[:depth]), names[depth + 1 :]
        key = keys_of(section, before).get(name)
        if key is None:
            return Problem(source, dotted, unknown_key(model, section, before, name))
        if not rest:
            return key.path, key
        if key.is_map:
            return (*key.path, ".".join(rest)), key.member
        if key.section is None:
            return Problem(source, dotted, f"nothing is inside {key.dotted}")
        section = key.section
    raise AssertionError("a split text has at least one part")


def _value(key: Key, text: str) -> Any:
    is_quoted = text.startswith(("'", '"'))
    if not key.is_text or is_quoted:
        return read_yaml(text)
    if key.is_optional and text in ("null", "~"):
        return None
    refuse_unprintable(text)
    return text
