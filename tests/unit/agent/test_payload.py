"""Bodies are exactly as large as asked for."""

from __future__ import annotations

import pytest

from bench_spark.agent.payload import head_bytes, padding
from bench_spark.scenario.load_sections import Message


@pytest.mark.parametrize(
    ("size", "head"), [(8, 8), (9, 8), (31, 8), (32, 32), (33, 32), (1000, 32)]
)
@pytest.mark.parametrize("kind", ["random", "zero"])
def test_head_and_padding_make_up_the_body(size: int, head: int, kind: str) -> None:
    message = Message.model_validate({"bytes": size, "padding": kind})
    assert head_bytes(message) == head
    assert head + len(padding(message, seed=1)) == size


def test_zero_padding_is_zero_bytes() -> None:
    assert padding(Message(bytes=100, padding="zero"), seed=1) == bytes(68)


def test_random_padding_depends_on_the_seed_alone() -> None:
    message = Message(bytes=1000)
    assert padding(message, seed=1) == padding(message, seed=1)
    assert padding(message, seed=1) != padding(message, seed=2)
