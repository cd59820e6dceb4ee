"""Settings as YAML files with comments, which our own loader reads back as they were."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bench_spark.importing.draft import Path, Settings
from bench_spark.scenario.shown import shown_text
from bench_spark.scenario.yaml_text import plain_scalar

_COMMENT_COLUMN = 40
_PLAIN = re.compile(r"[A-Za-z0-9_/][A-Za-z0-9_./:@+-]*")
_LONGEST_COMMENT = 92


def yaml_file(heading: Iterable[str], settings: Settings) -> str:
    """A comment for each line of the heading (empty ones part paragraphs), then the keys."""
    lines = [f"# {line}".rstrip() for text in heading for line in _wrapped(text)]
    return "\n".join([*lines, "", *_mapping(settings.values, (), settings.origins), ""])


def _mapping(values: Mapping[str, Any], path: Path, origins: Mapping[Path, str]) -> Iterator[str]:
    indent = "  " * len(path)
    for name, value in values.items():
        here = (*path, name)
        key = f"{indent}{_scalar(name)}:"
        origin = origins.get(here, "")
        if isinstance(value, Mapping) and value:
            yield _commented(key, origin)
            yield from _mapping(value, here, origins)
        else:
            yield _commented(f"{key} {_value(value)}", origin)


def _commented(text: str, comment: str) -> str:
    if not comment:
        return text
    return f"{text:<{_COMMENT_COLUMN}}  # {shown_text(comment)}"


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        inside = ", ".join(f"{_scalar(name)}: {_value(item)}" for name, item in value.items())
        return f"{{{inside}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return _scalar(value)


def _scalar(value: str | int | float | bool | None) -> str:
    if isinstance(value, str):
        is_plain = _PLAIN.fullmatch(value) and plain_scalar(value) == value
        # A plain text may not end in a colon, nor hold ': ' (which the pattern excludes).
        return value if is_plain and not value.endswith(":") else json.dumps(value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value)) if abs(value) < 2**53 else repr(value)
    return json.dumps(value)


def _wrapped(text: str) -> list[str]:
    """Lines short enough for a comment, without anything that could end it."""
    lines = textwrap.wrap(text, _LONGEST_COMMENT, subsequent_indent="    ", break_on_hyphens=False)
    return [shown_text(line, _LONGEST_COMMENT) for line in lines] or [""]
