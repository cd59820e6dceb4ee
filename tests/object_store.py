"""An S3 server on this machine for tests: versitygw, which tools/setup.sh --brokers installs."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from bench_spark.cache import cache_directory

BUCKET = "bench"
KEY, SECRET = "AKTEST", "SKTEST"


@contextmanager
def s3_server(directory: Path, *options: str) -> Iterator[Mapping[str, str]]:
    """The variables of the environment that lead to a server with one bucket."""
    program = shutil.which("versitygw") or shutil.which(cache_directory() / "bin" / "versitygw")
    if program is None:
        pytest.skip("versitygw is not installed (tools/setup.sh --brokers)")
    (directory / BUCKET).mkdir(parents=True, exist_ok=True)
    login = ("--access", KEY, "--secret", SECRET)
    # Port 0: one that is free.
    server = subprocess.Popen(
        [program, *login, "--port", "127.0.0.1:0", "--quiet", *options, "posix", str(directory)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{_port_of(server)}",
            "AWS_ALLOW_HTTP": "true",
        }
    finally:
        server.kill()
        server.wait()


def _port_of(server: subprocess.Popen[bytes]) -> int:
    """Where it listens, once it does."""
    while not (listening := psutil.Process(server.pid).net_connections("tcp")):
        assert server.poll() is None, f"versitygw ended with {server.returncode}"
        time.sleep(0.05)
    return int(listening[0].laddr.port)
