"""`bench-spark sample`: what it refuses, and one that is asked from here."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from bench_spark.cli import main
from bench_spark.monitor.remote import RemoteSampler

TOKEN = "a token of decent length"


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    return str(file)


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (["--listen", "h:1"], 2, "--pid, --process, --cgroup: give exactly one of them"),
        (["--pid", "1", "--cgroup", "x", "--listen", "h:1"], 2, "give exactly one of them"),
        (["--pid", "1"], 2, "--listen, --to: give exactly one of them"),
        (["--pid", "1", "--listen", "h:1", "--to", "h:1"], 2, "--listen, --to: give exactly one"),
        (["--pid", "1", "--listen", "h"], 2, "--listen: 'h' is not allowed; allowed: HOST:PORT"),
        (["--process", "(", "--to", "h:1"], 2, "--process: is not allowed; allowed: a regular"),
        (["--pid", "1", "--listen", "127.0.0.1:1"], 2, "--token-file: missing; samples are served"),
        (["--pid", "1", "--to", "h:1", "--token-file", "SHORT"], 2, "at least 16 characters"),
        (["--pid", "1", "--to", "h:1", "--token-file", "NONE"], 2, "cannot read a token from"),
        (["--pid", "4194304", "--to", "h:1", "--token-file", "GOOD"], 3, "no process 4194304"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    arguments: list[str],
    exit_code: int,
    message: str,
    token_file: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "short").write_text("hunter2")
    files = {"SHORT": str(tmp_path / "short"), "NONE": str(tmp_path / "no"), "GOOD": token_file}
    assert main(["sample", *(files.get(word, word) for word in arguments)]) == exit_code
    told = capsys.readouterr().err
    assert message in told
    assert "hunter2" not in told


def test_a_sampler_in_another_process_is_asked_until_it_is_ended(token_file: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    command = ["sample", "--pid", str(os.getpid()), "--token-file", token_file]
    with subprocess.Popen(
        [sys.executable, "-m", "bench_spark.cli", *command, "--listen", f"127.0.0.1:{port}"],
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == f"listening at 127.0.0.1:{port}\n"
        remote = RemoteSampler(("127.0.0.1", port), TOKEN, 10.0)
        reading = remote.read()
        assert reading.host == socket.gethostname()
        assert reading.gauges["rss_bytes"] > 1_000_000
        remote.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        assert TOKEN not in process.stderr.read()
