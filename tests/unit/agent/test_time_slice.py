"""The wish for a short time slice: granted or not, it is over when the load is."""

from __future__ import annotations

import threading

import pytest

from bench_spark.agent import host as time_slice
from bench_spark.agent.host import SLICE_NS, short_time_slice


def slice_in_force_ns() -> int | None:
    found = time_slice._attributes()
    return found.runtime_ns if found is not None else None


def test_a_thread_and_those_it_starts_have_the_slice_that_is_told() -> None:
    inherited: list[int | None] = []
    with short_time_slice() as told:
        if told is None:
            pytest.skip("this kernel gives no say in the time slice (Linux 6.12 does)")
        thread = threading.Thread(target=lambda: inherited.append(slice_in_force_ns()))
        thread.start()
        thread.join()
        assert told == SLICE_NS == slice_in_force_ns()
    assert inherited == [SLICE_NS]


def test_afterwards_the_slice_is_what_it_was() -> None:
    before = slice_in_force_ns()
    with pytest.raises(LookupError), short_time_slice():
        raise LookupError
    assert slice_in_force_ns() == before


def test_a_system_without_the_call_runs_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_slice, "_CALLS", {})
    with short_time_slice() as told:
        assert told is None
