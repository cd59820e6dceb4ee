"""A command of the user's that prints `name=value` lines."""

from __future__ import annotations

import math
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench_spark.monitor.reading import LONGEST_NAME, MOST_VALUES, Reading, Unreadable

MOST_OUTPUT_BYTES = 1_000_000

_LINE = re.compile(r"\s*(?P<name>[A-Za-z_][A-Za-z0-9_.:-]*)\s*=\s*(?P<value>\S+)\s*")


def parse_values(text: str) -> tuple[dict[str, float], tuple[str, ...]]:
    """The values, and the names whose value is no number. Other lines are talk."""
    values: dict[str, float] = {}
    unreadable: dict[str, None] = {}
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if match is None or len(match["name"]) > LONGEST_NAME or len(values) >= MOST_VALUES:
            continue
        try:
            value = float(match["value"])
        except ValueError:
            value = math.nan
        if math.isfinite(value):
            values[match["name"]] = value
        else:
            unreadable[match["name"]] = None
    return values, tuple(unreadable)


class CommandSampler:
    def __init__(self, arguments: Sequence[str], timeout_seconds: float) -> None:
        self._arguments = list(arguments)
        self._timeout_seconds = timeout_seconds

    def read(self) -> Reading:
        text = self._output()
        values, unreadable = parse_values(text)
        if not values and not unreadable:
            raise Unreadable(f"{self._program} printed no name=value line")
        return Reading(
            at_ns=time.monotonic_ns(),
            host=socket.gethostname(),
            cores=os.cpu_count() or 1,
            values=values,
            unreadable=unreadable,
        )

    def close(self) -> None:
        pass

    @property
    def _program(self) -> str:
        return Path(self._arguments[0]).name

    def _output(self) -> str:
        """Into a file, not a pipe: a child that outlives the command would hold a pipe open."""
        with tempfile.TemporaryFile() as output:
            try:
                process = subprocess.Popen(
                    self._arguments,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except OSError as error:
                raise Unreadable(f"{self._program}: {error.strerror}") from None
            try:
                exit_code = process.wait(self._timeout_seconds)
            except subprocess.TimeoutExpired:
                raise Unreadable(
                    f"{self._program} did not end within {self._timeout_seconds:g} s"
                ) from None
            finally:
                if process.returncode is None:
                    os.killpg(process.pid, signal.SIGKILL)  # a session of its own: nobody else
                    process.wait()
            if exit_code != 0:
                raise Unreadable(f"{self._program} ended with exit code {exit_code}")
            output.seek(0)
            return output.read(MOST_OUTPUT_BYTES).decode("utf-8", "replace")
