"""A Mosquitto with settings of one test."""

from __future__ import annotations

import contextlib
import getpass
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from contract import (
    eventually,
)

from bench_spark.brokers.base import free_ports
from bench_spark.brokers.mosquitto import installed_program
from bench_spark.config.broker import Broker
from bench_spark.errors import (
    EnvironmentNotReady,
)


class OwnMosquitto:
    """A Mosquitto with settings of one test."""

    def __init__(self, directory: Path, settings: Sequence[str]) -> None:
        self._directory = directory
        [self.port] = free_ports(1)
        # Started by root it would become another user, who may not read the files of a test.
        user = f"user {getpass.getuser()}"
        lines = [user, f"listener {self.port} 127.0.0.1", "log_dest none", *settings]
        (directory / "mosquitto.conf").write_text("\n".join(lines) + "\n")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def broker(self) -> Broker:
        return Broker(name="own", kind="mqtt", uri=f"mqtt://127.0.0.1:{self.port}")

    def start(self) -> None:
        try:
            program = installed_program()
        except EnvironmentNotReady as missing:
            pytest.skip(str(missing))
        self._process = subprocess.Popen([program, "-c", self._directory / "mosquitto.conf"])
        assert eventually(self._listens)

    def _listens(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None


@contextmanager
def mosquitto_with(directory: Path, *settings: str) -> Iterator[OwnMosquitto]:
    own = OwnMosquitto(directory, settings)
    own.start()
    try:
        yield own
    finally:
        own.kill()
