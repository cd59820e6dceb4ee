"""The JSON Schemas take what our loader takes, and refuse what a schema can refuse.

Checked by a small validator of exactly the words that the schemas use: a word that it does not know
fails the tests.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from bench_spark.conf_files import conf_path, shipped
from bench_spark.config.loader import MODELS
from bench_spark.config.reference import DIALECT, json_schema
from bench_spark.config.yaml_text import read_yaml

KINDS = [kind.removesuffix("s") for kind in MODELS]
SCHEMAS = {kind: json.loads(json.dumps(json_schema(kind))) for kind in KINDS}

_TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
    "number": (int, float),
    "integer": int,
}
_SILENT = {"$schema", "$defs", "title", "description", "default"}


def is_of_type(value: Any, name: str) -> bool:
    if isinstance(value, bool) and name != "boolean":
        return False
    return isinstance(value, _TYPES[name])


def accepts(schema: Any, value: Any, root: dict[str, Any]) -> bool:
    if isinstance(schema, bool):
        return schema
    return all(holds(word, schema, value, root) for word in schema.keys() - _SILENT)


def holds(word: str, schema: Any, value: Any, root: dict[str, Any]) -> bool:
    said = schema[word]
    match word:
        case "$ref":
            return accepts(root["$defs"][said.removeprefix("#/$defs/")], value, root)
        case "anyOf":
            return any(accepts(member, value, root) for member in said)
        case "type":
            return is_of_type(value, said)
        case "enum":
            return value in said
        case "const":
            return bool(value == said)
    of_type, holds_of_it = _WORDS[word]
    return not is_of_type(value, of_type) or holds_of_it(said, value, schema, root)


_WORDS: dict[str, tuple[str, Callable[[Any, Any, Any, Any], bool]]] = {
    "minimum": ("number", lambda said, value, *_: value >= said),
    "maximum": ("number", lambda said, value, *_: value <= said),
    "exclusiveMinimum": ("number", lambda said, value, *_: value > said),
    "exclusiveMaximum": ("number", lambda said, value, *_: value < said),
    "minLength": ("string", lambda said, value, *_: len(value) >= said),
    "maxLength": ("string", lambda said, value, *_: len(value) <= said),
    "minItems": ("array", lambda said, value, *_: len(value) >= said),
    "maxItems": ("array", lambda said, value, *_: len(value) <= said),
    "minProperties": ("object", lambda said, value, *_: len(value) >= said),
    "required": ("object", lambda said, value, *_: all(name in value for name in said)),
    "items": (
        "array",
        lambda said, value, _, root: all(accepts(said, item, root) for item in value),
    ),
    "properties": (
        "object",
        lambda said, value, _, root: all(
            accepts(said[name], value[name], root) for name in said.keys() & value.keys()
        ),
    ),
    "propertyNames": (
        "object",
        lambda said, value, _, root: all(accepts(said, name, root) for name in value),
    ),
    "additionalProperties": (
        "object",
        lambda said, value, schema, root: all(
            accepts(said, value[name], root)
            for name in value.keys() - schema.get("properties", {}).keys()
        ),
    ),
}
"""Words that say something of values of one type only."""


def test_a_schema_says_which_dialect_it_is_in() -> None:
    assert {schema["$schema"] for schema in SCHEMAS.values()} == {DIALECT}


SHIPPED = [(kind, name) for kind in KINDS for name in shipped(f"{kind}s")]


def test_every_shipped_file_is_accepted() -> None:
    for kind, name in SHIPPED:
        document = read_yaml(conf_path(f"{kind}s", f"{name}.yaml").read_text())
        assert accepts(SCHEMAS[kind], document, SCHEMAS[kind]), name


GOOD: list[tuple[str, dict[str, Any]]] = [
    ("scenario", {}),
    ("scenario", {"agents": "auto"}),
    ("scenario", {"agents": 3, "producers": 3, "consumers": 3, "destinations": 3}),
    ("scenario", {"load": {"mode": "window", "in_flight": 5}}),
    ("scenario", {"load": {"steps": [{"seconds": 1, "rate_per_second": 0.5}]}}),
    ("scenario", {"phases": {"measure_seconds": 0.5}}),
    ("scenario", {"kafka": {"producer": {"acks": 1, "linger.ms": 0.5, "x": "y", "z": True}}}),
    ("scenario", {"amqp": {"prefetch": None, "policy": {"definition": {"ha-mode": "all"}}}}),
    ("scenario", {"mqtt": {"version": 5}}),
    ("scenario", {"mqtt": {"version": "3.1.1"}}),
    ("broker", {"kind": "amqp", "uri": "amqp://h"}),
    ("broker", {"kind": "kafka", "bootstrap_servers": "h:9092", "tls": {}}),
    ("broker", {"kind": "loopback", "resources": [{"pid": 5}]}),
]
BAD: list[tuple[str, Any]] = [
    ("scenario", []),
    ("scenario", {"prodcers": 1}),
    ("scenario", {"producers": -1}),
    ("scenario", {"producers": "1"}),
    ("scenario", {"producers": 1.5}),
    ("scenario", {"producers": True}),
    ("scenario", {"agents": "many"}),
    ("scenario", {"agents": 0}),
    ("scenario", {"load": {"mode": "quick"}}),
    ("scenario", {"load": {"rate_per_second": 0}}),
    ("scenario", {"load": {"steps": [{"seconds": 1}]}}),
    ("scenario", {"load": {"steps": {}}}),
    ("scenario", {"message": {"bytes": 7}}),
    ("scenario", {"message": 7}),
    ("scenario", {"amqp": {"queue": {"name": ""}}}),
    ("scenario", {"amqp": {"policy": {"definition": {}}}}),
    ("scenario", {"kafka": {"producer": {"": 1}}}),
    ("scenario", {"kafka": {"producer": {"acks": None}}}),
    ("scenario", {"tags": {"a": 1}}),
    ("scenario", {"mqtt": {"version": 4}}),
    ("broker", {}),
    ("broker", {"kind": "carrier pigeon"}),
    ("broker", {"kind": "loopback", "password": "x"}),
    ("broker", {"kind": "loopback", "tls": {"insecure": "yes"}}),
    ("suite", {"axes": {}}),
    ("suite", {"base": "steady"}),
]


def test_what_the_models_take_is_accepted() -> None:
    for kind, document in GOOD:
        MODELS[f"{kind}s"].model_validate(document, strict=True)
        assert accepts(SCHEMAS[kind], document, SCHEMAS[kind]), document


def test_what_the_models_refuse_by_type_or_range_is_refused() -> None:
    for kind, document in BAD:
        with pytest.raises(ValidationError):
            MODELS[f"{kind}s"].model_validate(document, strict=True)
        assert not accepts(SCHEMAS[kind], document, SCHEMAS[kind]), document


def test_the_texts_are_those_of_the_reference() -> None:
    message = SCHEMAS["scenario"]["$defs"]["Message"]["properties"]
    assert message["bytes"]["description"] == (
        "Size of the body. From 32 bytes on, losses and duplicates are accounted for."
    )
