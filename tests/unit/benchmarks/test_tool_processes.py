"""Processes of tools: the CPU they and their children use, and how they end."""

from __future__ import annotations

import subprocess
import sys

import psutil

from benchmarks.processes import printed, started

WORKS_IN_A_CHILD = """
import multiprocessing, time
def work():
    while time.process_time() < 0.3:
        pass
    print("done", flush=True)
    time.sleep(60)
multiprocessing.Process(target=work, daemon=True).start()
time.sleep(60)
"""


def python(source: str) -> list[str]:
    return [sys.executable, "-c", source]


def test_the_cpu_of_a_tools_children_is_the_tools() -> None:
    with started(python(WORKS_IN_A_CHILD), at_most_seconds=50) as process:
        line = next(printed(process))
        children = psutil.Process(process.pid).children()
    assert line.text == "done"
    assert children
    assert psutil.wait_procs(children, timeout=30)[1] == []  # they end with the tool
    assert line.cpu_seconds > 0.25  # the system counts in hundredths of a second


def test_a_tool_that_has_not_ended_is_ended_after_use() -> None:
    with started(python("import time; time.sleep(60)"), at_most_seconds=50) as process:
        assert process.poll() is None
    assert process.poll() is not None


def test_a_tool_that_hangs_is_ended_so_that_its_reader_is_not_kept_waiting() -> None:
    with started(python("import time; time.sleep(60)"), at_most_seconds=0.1) as process:
        assert list(printed(process)) == []
        assert process.wait(timeout=30) < 0


def test_what_a_tool_says_of_an_error_is_read_like_the_rest() -> None:
    with started(
        python("import sys; print('why', file=sys.stderr)"), at_most_seconds=50
    ) as process:
        assert isinstance(process, subprocess.Popen)
        assert [line.text for line in printed(process)] == ["why"]
