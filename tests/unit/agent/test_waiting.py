"""One place to wait for everything."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from bench_spark.agent.host import Waiting


@pytest.fixture
def pipes() -> Iterator[list[tuple[int, int]]]:
    made = [os.pipe() for _ in range(2)]
    yield made
    for ends in made:
        for end in ends:
            os.close(end)


@pytest.fixture
def waiting() -> Iterator[Waiting]:
    made = Waiting()
    yield made
    made.close()


def test_waiting_names_those_that_have_something_until_it_is_read(
    waiting: Waiting, pipes: list[tuple[int, int]]
) -> None:
    (first, into_first), (second, into_second) = pipes
    waiting.add(first, second)
    assert not waiting.wait(0)
    os.write(into_second, b"!")
    assert set(waiting.wait(5)) == {second}
    os.write(into_first, b"!")
    assert set(waiting.wait(0)) == {first, second}
    os.read(second, 1)
    assert set(waiting.wait(0)) == {first}


def test_waiting_in_vain_ends_in_time(waiting: Waiting, pipes: list[tuple[int, int]]) -> None:
    waiting.add(pipes[0][0])
    began = time.monotonic()
    assert not waiting.wait(0.0005)
    assert time.monotonic() - began >= 0.0005


def test_a_descriptor_given_twice_is_one(waiting: Waiting, pipes: list[tuple[int, int]]) -> None:
    (shared, into), _ = pipes
    waiting.add(shared, shared)
    os.write(into, b"!")
    assert set(waiting.wait(1)) == {shared}
