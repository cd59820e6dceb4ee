"""YAML text to plain values, safely: mappings, lists and scalars of YAML 1.2's core schema only.

The text may come from anybody, so everything is bounded while it is read: size, depth, and the
number of values after aliases are expanded (a "billion laughs" file is a few hundred bytes long).
Tags are refused, so no object is ever made, and a key given twice is an error instead of a silent
choice.

PyYAML's own resolver follows YAML 1.1, where `no` is false, `12:30` is 750 and `1e4` is a string.
Files of this project follow YAML 1.2, as JSON and most editors do: only `true` and `false` are
booleans, and `1e4` is a number.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import yaml
from yaml.reader import Reader

MAX_BYTES = 1_000_000
MAX_DEPTH = 20
MAX_VALUES = 10_000

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


_SCALARS: tuple[tuple[re.Pattern[str], Callable[[str], object]], ...] = (
    (re.compile(r"~|null|Null|NULL|"), lambda text: None),
    (re.compile(r"true|True|TRUE|false|False|FALSE"), lambda text: text.lower() == "true"),
    (re.compile(r"[-+]?[0-9]+"), int),
    (re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+"), lambda text: int(text, 0)),
    (re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"), float),
    (
        re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"),
        lambda text: float(text.replace(".", "")),
    ),
)
"""What plain scalars are in YAML 1.2's core schema; all others are text."""


class Flaw(NamedTuple):
    """What is wrong with the text, and where; `key` is empty unless one key is meant."""

    line: int
    key: str
    problem: str


class YamlTextError(Exception):
    def __init__(self, *flaws: Flaw) -> None:
        super().__init__(*(flaw.problem for flaw in flaws))
        self.flaws = flaws


def read_yaml(text: str) -> Any:
    """The one document in `text`; None if there is none. Raises YamlTextError and nothing else."""
    if len(text) > MAX_BYTES:
        raise YamlTextError(Flaw(1, "", f"is longer than the limit of {MAX_BYTES} characters"))
    refuse_unprintable(text)
    try:
        return _Document(text).read()
    except yaml.MarkedYAMLError as error:
        raise YamlTextError(_syntax_flaw(text, error)) from None
    except yaml.YAMLError:
        raise YamlTextError(Flaw(1, "", "is not valid YAML")) from None


def refuse_unprintable(text: str) -> None:
    """Control characters and lone surrogates are no text that anything behind us could carry."""
    unprintable = Reader.NON_PRINTABLE.search(text)
    if unprintable:
        line = text.count("\n", 0, unprintable.start()) + 1
        problem = f"holds the character U+{ord(unprintable[0]):04X}, which is not printable"
        raise YamlTextError(Flaw(line, "", problem))


def plain_scalar(text: str) -> Any:
    """What an unquoted scalar means (YAML 1.2 core schema)."""
    read = next((read for pattern, read in _SCALARS if pattern.fullmatch(text)), str)
    try:
        return read(text)
    except ValueError:  # thousands of digits: Python refuses, and no key takes such a number
        return text


def _syntax_flaw(text: str, error: yaml.MarkedYAMLError) -> Flaw:
    line_index = error.problem_mark.line if error.problem_mark else 0
    problem = ", ".join(part for part in (error.context, error.problem) if part)
    lines = text.splitlines()
    if line_index < len(lines) and lines[line_index].lstrip(" ").startswith("\t"):
        problem += " (tabs cannot indent YAML)"
    return Flaw(line_index + 1, "", f"is not valid YAML: {problem}")


class _Document:
    """Builds values from parser events, so that each bound is checked before memory is spent.

    PyYAML's own composer is no way: in C it recurses without a limit, and 900,000 opening brackets
    end the process.
    """

    def __init__(self, text: str) -> None:
        self._events: Iterator[Any] = yaml.parse(text, Loader=_LOADER)
        self._values_read = 0
        self._anchored: dict[str, tuple[Any, int]] = {}
        self._duplicates: list[Flaw] = []

    def read(self) -> Any:
        value = None
        documents = 0
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                _refuse(documents > 1, event, "starts a second document; a file holds one")
                value = self._value(next(self._events), ())
        if self._duplicates:
            raise YamlTextError(*self._duplicates)
        return value

    def _value(self, event: Any, path: tuple[str, ...]) -> Any:
        if isinstance(event, yaml.AliasEvent):
            problem = "has an alias ('*...') without a finished anchor before it"
            anchor = event.anchor or ""
            _refuse(anchor not in self._anchored, event, problem)
            value, size = self._anchored[anchor]
            self._count(event, size)
            return copy.deepcopy(value)
        before = self._values_read
        _refuse_tag(event)
        self._count(event, 1)
        _refuse(len(path) >= MAX_DEPTH, event, f"is nested deeper than the limit of {MAX_DEPTH}")
        if isinstance(event, yaml.ScalarEvent):
            text = _text(event)
            value = plain_scalar(text) if event.implicit[0] else text
        elif isinstance(event, yaml.SequenceStartEvent):
            value = self._sequence(path)
        else:
            value = self._mapping(path)
        if event.anchor is not None:
            self._anchored[event.anchor] = (value, self._values_read - before)
        return value

    def _count(self, event: Any, values: int) -> None:
        self._values_read += values
        is_over = self._values_read > MAX_VALUES
        _refuse(is_over, event, f"holds more than {MAX_VALUES} values, aliases expanded")

    def _sequence(self, path: tuple[str, ...]) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.append(self._value(event, (*path, str(len(items)))))
        return items

    def _mapping(self, path: tuple[str, ...]) -> dict[str, Any]:
        """Keys are text, whatever they look like: `5: x` has the key "5"."""
        values: dict[str, Any] = {}
        first_lines: dict[str, int] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            is_text = isinstance(event, yaml.ScalarEvent)
            _refuse(not is_text, event, "has a key that is not plain text")
            _refuse_tag(event)
            key, line = _text(event), _line(event)
            if key in values:
                problem = f"given twice, first in line {first_lines[key]}"
                self._duplicates.append(Flaw(line, ".".join((*path, key)), problem))
            first_lines.setdefault(key, line)
            values[key] = self._value(next(self._events), (*path, key))
        return values


def _text(event: Any) -> str:
    is_broken = any("\ud800" <= character <= "\udfff" for character in event.value)
    _refuse(is_broken, event, "holds half of a surrogate pair, which is no character")
    return str(event.value)


def _refuse_tag(event: Any) -> None:
    _refuse(event.tag is not None, event, "has a tag ('!...'), which is not allowed")


def _refuse(is_wrong: bool, event: Any, problem: str) -> None:
    if is_wrong:
        raise YamlTextError(Flaw(_line(event), "", problem))


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1
