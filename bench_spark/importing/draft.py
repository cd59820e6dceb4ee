"""A scenario and a broker in the making: keys with where they come from, and what was left out."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from bench_spark.errors import ConfigurationError
from bench_spark.scenario.broker import Broker
from bench_spark.scenario.fields import PLAIN_NAME, Section
from bench_spark.scenario.models import Scenario
from bench_spark.scenario.problems import problems_of

Path = tuple[str, ...]

_LONGEST_NAME = 80
"""Shorter than a name may be: runs and files add to it."""


@dataclass(frozen=True)
class Remark:
    """Something about an option that its user should know; never holds a password."""

    option: str
    text: str

    def __str__(self) -> str:
        return f"{self.option}: {self.text}"


@dataclass(frozen=True)
class Settings:
    """The keys of one file. Their order is the one they are written in."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[Path, str] = field(default_factory=dict)
    """What to say beside a key: the option it comes from."""

    def put(self, path: Path, value: Any, origin: str = "") -> None:
        section = self.values
        for name in path[:-1]:
            section = section.setdefault(name, {})
        section[path[-1]] = value
        self.origins[path] = origin

    def set(self, dotted: str, value: Any, origin: str = "") -> None:
        """`put` for keys without dots in their names."""
        self.put(tuple(dotted.split(".")), value, origin)

    def get(self, dotted: str) -> Any:
        """The value, None where it was not set."""
        section: Any = self.values
        for name in dotted.split("."):
            section = section.get(name) if isinstance(section, dict) else None
        return section


@dataclass
class Draft:
    """What has been understood so far."""

    name: str
    scenario: Settings = field(default_factory=Settings)
    broker: Settings = field(default_factory=Settings)
    left_out: list[Remark] = field(default_factory=list)
    """Options without a counterpart, and why."""
    remarks: list[Remark] = field(default_factory=list)
    """Options that were understood, but mean something else here, or nothing more."""
    has_password: bool = False
    """Whether the source held a password, which was dropped."""

    def leave_out(self, option: str, reason: str) -> None:
        self.left_out.append(Remark(option, reason))

    def remark(self, option: str, text: str) -> None:
        self.remarks.append(Remark(option, text))

    @property
    def password_variable(self) -> str:
        """The environment variable that is to hold the password."""
        return password_variable(self.name)

    def check(self, source: str) -> None:
        """Refuse what our own files could not say; `source` names where it came from."""
        _check(Scenario, self.scenario.values, source)
        if self.broker.values:
            _check(Broker, self.broker.values, source)


def password_variable(name: str) -> str:
    """What to call the environment variable with the password of a broker of this name."""
    plain = re.sub(r"[^A-Z0-9]+", "_", name.upper()).strip("_")
    return f"{plain}_PASSWORD" if plain[:1].isalpha() else f"BENCH_{plain}_PASSWORD"


def plain_name(text: str, otherwise: str) -> str:
    """A name that files and runs may have, as near to `text` as can be."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:_LONGEST_NAME].rstrip("-._")
    return plain if PLAIN_NAME.fullmatch(plain) else otherwise


def _check(model: type[Section], values: dict[str, Any], source: str) -> None:
    try:
        model.model_validate(values, strict=True)
        return
    except ValidationError as error:
        problems = problems_of(error, model, lambda _: source)
    # Raised here and not above: a chained ValidationError would carry the values along.
    raise ConfigurationError("\n".join(map(str, problems)))
