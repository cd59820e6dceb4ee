"""docs/reference.md and the JSON Schemas, made from the models so that they cannot fall behind.

    python -m bench_spark.config.reference > docs/reference.md

JSON Schemas of the files, for editors: what may be written where, with the reference's texts. A
schema knows keys, types and ranges. Rules that tie keys together (`prefetch` and `ack_every`, say)
are beyond it; `bench-spark validate` knows them all.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from pydantic_core import PydanticUndefined

from bench_spark.config.broker import Broker
from bench_spark.config.fields import Section
from bench_spark.config.loader import MODELS
from bench_spark.config.models import Scenario
from bench_spark.config.problems import Key, all_keys
from bench_spark.config.suite import SuiteFile

_INTRODUCTION = """\
# Reference: scenario, broker and suite files

<!-- Made by `python -m bench_spark.config.reference`; edit the models' docstrings instead. -->

Files are YAML 1.2. Unknown keys, keys given twice, numbers in quotes and values out of range are
refused before anything starts, each with the file and the key. Any key can be set on the command
line: `--set load.rate_per_second=5000`, `--set kafka.producer.linger.ms=5`. Scenarios never name a
broker and brokers never a load, so that every scenario runs on every broker. Suites vary a
scenario; [suites.md](suites.md) explains how.

Editors that know JSON Schema complete and check keys while you type: write the schema once with
`bench-spark schema scenario > scenario.schema.json` (or `broker`, `suite`), and begin files with
`# yaml-language-server: $schema=scenario.schema.json`. `bench-spark validate` checks more: keys
that contradict each other.
"""

_CHAPTERS: tuple[tuple[str, str, type[Section]], ...] = (
    (
        "Scenario files",
        "A load, and how long it lasts. Every key has a default; shipped ones are in "
        "`conf/scenarios/`.",
        Scenario,
    ),
    (
        "Broker files",
        "Where a broker is, and how to log in. Only `kind` and an address are needed; shipped ones "
        "are in `conf/brokers/`. There is no key for a password itself: name the environment "
        "variable or the file that holds it. Wherever a broker is printed its passwords are `***`.",
        Broker,
    ),
    (
        "Suite files",
        "A grid of trials around one scenario. Only `base` and `axes` are needed; shipped ones are "
        "in `conf/suites/`. `N` stands for a number, as in `skip.0.when`: lists are counted from 0 "
        "in error texts.",
        SuiteFile,
    ),
)


def reference_markdown() -> str:
    return "\n".join([_INTRODUCTION, *(_chapter(*chapter) for chapter in _CHAPTERS)])


def _chapter(title: str, introduction: str, model: type[Section]) -> str:
    return "\n".join(
        [
            f"## {title}",
            "",
            introduction,
            "",
            "| Key | Type | Default | Allowed | Meaning |",
            "|---|---|---|---|---|",
            *(_row(*cells) for cells in map(_cells, all_keys(model))),
            "",
        ]
    )


def _cells(key: Key) -> Iterator[str]:
    if key.section or (key.is_list and key.entry().section):
        yield from (f"**`{key.dotted}`**", key.type_name, "", "", _explanation(key))
        return
    yield f"`{key.dotted}.NAME`" if key.is_map else f"`{key.dotted}`"
    described = key.entry() if key.is_map else key
    yield described.type_name
    yield _default(key)
    yield described.range
    yield _explanation(key)


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(key: Key) -> str:
    default = key.field.get_default(call_default_factory=True, validated_data={})
    if default is PydanticUndefined:
        return "required"
    if default is None or default in ({}, []):
        return "unset"
    if isinstance(default, float) and default.is_integer():
        default = int(default)
    return f"`{default if isinstance(default, str) and default else json.dumps(default)}`"


def _explanation(key: Key) -> str:
    """The key's own docstring, else that of its section's class."""
    text = key.field.description or (key.section.__doc__ if key.section else None) or ""
    return " ".join(text.split())


DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema(kind: str) -> dict[str, Any]:
    """The schema of one kind of file: `scenario`, `broker` or `suite`."""
    made = MODELS[f"{kind}s"].model_json_schema()
    return {"$schema": DIALECT, **_one_line(made), "title": f"bench-spark {kind} file"}


def _one_line(node: Any) -> Any:
    """Docstrings are wrapped for the source; editors wrap for themselves."""
    if isinstance(node, dict):
        return {
            name: " ".join(value.split())
            if name == "description" and isinstance(value, str)
            else _one_line(value)
            for name, value in node.items()
        }
    return [_one_line(item) for item in node] if isinstance(node, list) else node


if __name__ == "__main__":
    sys.stdout.write(reference_markdown())
