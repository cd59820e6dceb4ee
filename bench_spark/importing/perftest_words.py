"""A PerfTest command line, or its environment variables, as values by option.

Reads what PerfTest's own parser reads: `-x 2`, `-x2`, `--producers 2`, `--producers=2`, and long
names behind a single dash. In front may stand whatever starts PerfTest (`bin/runjava
com.rabbitmq.perf.PerfTest`, `perf-test`, `docker run ...`) and assignments such as `RATE=1000`; a
text may also consist of such assignments alone.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from bench_spark.errors import ConfigurationError
from bench_spark.importing.perftest_flags import (
    BY_LONG,
    BY_SHORT,
    BY_VARIABLE,
    PERFTEST_VERSION,
    Flag,
    Takes,
)
from bench_spark.importing.values import number, whole_number
from bench_spark.scenario.nearest import nearest
from bench_spark.scenario.secrets import mask_uri
from bench_spark.scenario.shown import shown_text

MAIN_CLASS = "com.rabbitmq.perf.PerfTest"
PREFIX_VARIABLE = "RABBITMQ_PERF_TEST_ENV_PREFIX"

_PROGRAM = re.compile(r"perf-test(?:[:@].*)?|PerfTest")
_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)=(?P<value>.*)", re.DOTALL)
_NEGATIVE_NUMBER = re.compile(r"-[0-9]+(\.[0-9]*)?")
_TRUE = "true"


@dataclass
class Given:
    """What was asked for, by an option's long name."""

    values: dict[str, list[str]] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def add(self, flag: Flag, *values: str) -> None:
        self.values.setdefault(flag.long, []).extend(values)

    def last(self, name: str) -> str | None:
        """The value that counts, where an option was given several times."""
        values = self.values.get(name)
        return values[-1] if values else None

    def all(self, name: str) -> list[str]:
        """Every value, separated by commas or given by options of their own."""
        texts = self.values.get(name, [])
        return [part.strip() for text in texts for part in text.split(",") if part.strip()]

    @property
    def flags(self) -> list[Flag]:
        return [BY_LONG[name] for name in self.values]

    def count(self, name: str, otherwise: int, least: int = 0) -> int:
        text = self.last(name)
        if text is None:
            return otherwise
        value = whole_number(f"--{name}", text)
        if value < least:
            raise ConfigurationError(f"--{name}: {value} is below the minimum of {least}")
        return value

    def number(self, name: str) -> float | None:
        text = self.last(name)
        if text is None:
            return None
        value = number(f"--{name}", text)
        return int(value) if math.floor(value) == value else value

    def origin(self, *names: str) -> str:
        """The options among these that were given, else that this is PerfTest's default."""
        return ", ".join(f"--{name}" for name in names if name in self) or "PerfTest's default"


def read_words(text: str) -> Given:
    """Every option in `text`; an unknown one is refused with the one that is most like it."""
    try:
        words = shlex.split(text.replace("\\\r\n", " ").replace("\\\n", " "), comments=True)
    except ValueError:
        raise ConfigurationError("the flags: a quotation mark is not closed") from None
    before, flags = _divided(words)
    given = Given()
    _take_variables(given, before)
    problems = list(_take_flags(given, flags))
    if problems:
        raise ConfigurationError("\n".join(problems))
    if not given.values:
        raise ConfigurationError(
            "the flags: there are none; give those of PerfTest, as in --producers 2 --rate 1000"
        )
    return given


def _divided(words: list[str]) -> tuple[list[str], list[str]]:
    """What stands before PerfTest's own flags, and these flags."""
    for place, word in enumerate(words):
        if word == MAIN_CLASS or _PROGRAM.fullmatch(PurePosixPath(word).name):
            return words[:place], words[place + 1 :]
    place = next((place for place, word in enumerate(words) if word[:1] == "-"), len(words))
    return words[:place], words[place:]


def _take_variables(given: Given, words: list[str]) -> None:
    """Options among the assignments. Others are not ours: the environment has many."""
    found = [match for match in map(_ASSIGNMENT.fullmatch, words) if match]
    assigned = {match["name"]: match["value"] for match in found}
    prefix = assigned.get(PREFIX_VARIABLE, "")
    if prefix and not prefix.endswith("_"):
        prefix += "_"
    for name, value in assigned.items():
        flag = BY_VARIABLE.get(name.removeprefix(prefix)) if name.startswith(prefix) else None
        if flag is None:
            continue
        if flag.takes is Takes.NOTHING:
            if value.strip().lower() == _TRUE:
                given.add(flag)
        elif flag.takes is Takes.MANY:
            given.add(flag, *(part for part in value.split(",") if part))
        else:
            given.add(flag, value)


def _take_flags(given: Given, words: list[str]) -> Iterator[str]:
    """Read the flags into `given`; gives what is wrong with them."""
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        found = _flag_of(word)
        if found is None:
            yield _unknown(word)
            continue
        flag, value = found
        values = [] if value is None else [value]
        if flag.takes is Takes.NOTHING and values:
            yield f"{flag.shown}: takes no value"
        while waiting and _takes_more(flag, len(values)) and not _is_flag(waiting[0]):
            values.append(waiting.pop(0))
        if not values and flag.takes in (Takes.ONE, Takes.MANY):
            yield f"{flag.shown}: its value is missing"
        given.add(flag, *values)


def _takes_more(flag: Flag, taken: int) -> bool:
    return flag.takes is Takes.MANY or (flag.takes is not Takes.NOTHING and not taken)


def _is_flag(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and not _NEGATIVE_NUMBER.fullmatch(word)


def _flag_of(word: str) -> tuple[Flag, str | None] | None:
    """The option that a word names, and the value it brings along."""
    if not _is_flag(word):
        return None
    name, equals, value = word.lstrip("-").partition("=")
    brought = value if equals else None
    if word.startswith("--"):
        return (BY_LONG[name], brought) if name in BY_LONG else None
    flag = BY_SHORT.get(name) or BY_LONG.get(name)
    if flag is not None:
        return flag, brought
    whole = word[1:]
    for length in range(len(whole) - 1, 0, -1):
        flag = BY_SHORT.get(whole[:length])
        if flag is not None and flag.takes is not Takes.NOTHING:
            return flag, whole[length:]
    return None


def _unknown(word: str) -> str:
    if not _is_flag(word):
        # It may be part of a password that was not quoted: not repeated.
        return "the flags: there is a word that belongs to no option; quote values with spaces"
    name = mask_uri(word.partition("=")[0])
    long = nearest(name.lstrip("-"), BY_LONG)
    guess = f"; did you mean --{long}?" if long else ""
    return f"{shown_text(name)}: PerfTest {PERFTEST_VERSION} has no such option{guess}"
