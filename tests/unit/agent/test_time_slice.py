"""The wish for a short time slice: granted or not, it is over when the load is."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from bench_spark.agent import host as time_slice
from bench_spark.agent.host import (
    LONG_SLICE_NS,
    SLICE_NS,
    short_time_slice,
    yield_to_wakeups,
)


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


def test_another_process_and_what_it_starts_later_yields_to_those_that_wake_up() -> None:
    read = "import sys; from bench_spark.agent import host; sys.stdin.readline(); "
    child = subprocess.Popen(
        [sys.executable, "-c", f"{read}print(host._attributes().runtime_ns)"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        if slice_in_force_ns() is None:
            pytest.skip("this kernel gives no say in the time slice (Linux 6.12 does)")
        yield_to_wakeups(child.pid)
        told, _ = child.communicate("now\n")
    finally:
        child.kill()
    assert int(told) == LONG_SLICE_NS
    yield_to_wakeups(child.pid)  # it is gone: nothing to do
