"""JSON Schemas of the files, for editors: what may be written where, with the reference's texts.

A schema knows keys, types and ranges. Rules that tie keys together (`prefetch` and `ack_every`,
say) are beyond it; `bench-spark validate` knows them all.
"""

from __future__ import annotations

from typing import Any

from bench_spark.scenario.broker import Broker
from bench_spark.scenario.fields import Section
from bench_spark.scenario.models import Scenario
from bench_spark.scenario.suite_file import SuiteFile

DIALECT = "https://json-schema.org/draft/2020-12/schema"

MODELS: dict[str, type[Section]] = {"scenario": Scenario, "broker": Broker, "suite": SuiteFile}


def json_schema(kind: str) -> dict[str, Any]:
    """The schema of one kind of file: `scenario`, `broker` or `suite`."""
    made = MODELS[kind].model_json_schema()
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
