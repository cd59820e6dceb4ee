"""The section `identity` of a scenario: how a message says which one it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from bench_spark.core.identity import ID_PATTERN
from bench_spark.scenario.fields import Conflict, Name, Section, WireName, refuse
from bench_spark.scenario.pattern import Pattern

ENVELOPE = "envelope"
HEADER_NAME = "bench-spark-id"
IN_BODY = ("prefix", "append", "regex")
"""Carriers that put the ID into the body, where a pattern can find it again."""
ANY_ID = rb"(?<![0-9A-Fa-f])(" + ID_PATTERN + rb")(?![0-9A-Fa-f])"


def compiled(pattern: str) -> Pattern[bytes]:
    """Of bytes: bodies need not be text."""
    return Pattern(pattern.encode())


def _pattern(most_groups: int, least_groups: int, rule: str) -> AfterValidator:
    def check(value: str) -> str:
        try:
            groups = compiled(value).groups
        except UnicodeEncodeError as error:
            raise ValueError(f"is no regular expression: {error}; allowed: {rule}") from None
        except ValueError as error:
            raise ValueError(f"{error}; allowed: {rule}") from None
        if not least_groups <= groups <= most_groups:
            raise ValueError(f"has {groups} groups; allowed: {rule}")
        return value

    return AfterValidator(check)


_INSERT_RULE = "Python's syntax, with at most one group: where the ID goes"
_FIND_RULE = "Python's syntax, with one group: the ID"
_LONGEST_PATTERN = 4096

InsertPattern = Annotated[str, Field(max_length=_LONGEST_PATTERN), _pattern(1, 0, _INSERT_RULE)]
FindPattern = Annotated[str, Field(max_length=_LONGEST_PATTERN), _pattern(1, 1, _FIND_RULE)]


class Identity(Section):
    """How a message that came out is known to be one that went in; see data.md."""

    carrier: Name | None = None
    """What carries the number of a message. `envelope`: the first 32 bytes of the body, which are
    made for it. The others leave the record as it is and add an ID of 32 hexadecimal characters:
    `prefix` before it, `append` behind it, `regex` at a place inside it, `header` in a header
    (AMQP, Kafka, MQTT 5, HTTP), `key` as the key (Kafka); `acknowledgement` adds nothing: an HTTP
    server names the ID in its answer. Others are installed as entry points. Unset: `envelope`
    without a data set, `prefix` with one."""
    insert: InsertPattern | None = None
    """Carrier `regex`: where in the body the ID goes, a regular expression that matches once in
    every record: at the start of its group, or behind what it matches if it has none. With
    `"id": "()` it becomes the beginning of a JSON text. Nothing is replaced."""
    find: FindPattern | None = None
    """What finds the ID in the body that comes out, where the system changes bodies: a regular
    expression with one group. Unset: carriers `prefix` and `append` look where they put it,
    `regex` and `acknowledgement` for 32 hexadecimal characters that no other digit adjoins."""
    name: WireName = HEADER_NAME
    """Carrier `header`: the header's name."""
    content_hash: bool = False
    """Hash every body without its ID when it is sent and when it is received, to count those that
    were `corrupted`. For systems that pass bodies on unchanged."""

    @model_validator(mode="after")
    def _keys_agree(self) -> Identity:
        refuse(list(self._conflicts()))
        return self

    def _conflicts(self) -> Iterator[Conflict]:
        if self.carrier == "regex" and self.insert is None:
            yield Conflict(("insert", "carrier"), "is missing: carrier regex inserts the ID there")
        if self.carrier != "regex" and self.insert is not None:
            yield Conflict(("insert", "carrier"), "is for carrier regex")
        if self.find is not None and self.carrier in (ENVELOPE, "header", "key"):
            problem = f"is for IDs in bodies; carrier {self.carrier} has it elsewhere"
            yield Conflict(("find", "carrier"), problem)
        if self.name != HEADER_NAME and self.carrier != "header":
            yield Conflict(("name", "carrier"), "is for carrier header")
        if self.content_hash and self.carrier == ENVELOPE:
            problem = "needs a carrier other than envelope, whose bodies change with every message"
            yield Conflict(("content_hash", "carrier"), problem)
