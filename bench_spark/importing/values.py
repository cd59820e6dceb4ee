"""Values of other tools' options as numbers and pairs, refused by the option's name."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from bench_spark.errors import ConfigurationError
from bench_spark.scenario.shown import shown_value

_UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_SIZE = re.compile(r"(?P<number>[0-9]+)\s*(?P<unit>[kmgt]b)?", re.IGNORECASE)
_ISO_DURATION = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+)S)?)?",
    re.IGNORECASE,
)


def whole_number(option: str, text: str) -> int:
    try:
        return int(text.strip())
    except ValueError:
        raise _refused(option, text, "a whole number") from None


def number(option: str, text: str) -> float:
    try:
        value = float(text.strip())
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise _refused(option, text, "a number")
    return value


def truth(option: str, text: str) -> bool:
    known = {"true": True, "false": False}
    if text.strip().lower() not in known:
        raise _refused(option, text, "true or false")
    return known[text.strip().lower()]


def size_bytes(option: str, text: str) -> int:
    """`500`, `20mb`, `1gb`: units are powers of 1000."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise _refused(option, text, "bytes, as in 500000 or 500kb, mb, gb, tb")
    return int(match["number"]) * _UNITS[(match["unit"] or "").lower()]


def iso_seconds(option: str, text: str) -> int:
    """`PT10M30S`, `P5DT8H`."""
    match = _ISO_DURATION.fullmatch(text.strip())
    if match is None or not any(match.groups()):
        raise _refused(option, text, "an ISO 8601 duration such as PT10M30S")
    lengths = {"days": 86400, "hours": 3600, "minutes": 60, "seconds": 1}
    return sum(int(match[name] or 0) * seconds for name, seconds in lengths.items())


def pairs(option: str, texts: Iterable[str]) -> dict[str, str | int | bool]:
    """`KEY=VALUE`, the value a number or true or false where it reads like one."""
    found: dict[str, str | int | bool] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigurationError(f"{option}: allowed: KEY=VALUE, separated by commas")
        found[key.strip()] = _plain(value.strip())
    return found


def _plain(text: str) -> str | int | bool:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    return int(text) if re.fullmatch(r"[-+]?[0-9]{1,18}", text) else text


def _refused(option: str, text: str, allowed: str) -> ConfigurationError:
    return ConfigurationError(f"{option}: {shown_value(text)} is not allowed; allowed: {allowed}")
