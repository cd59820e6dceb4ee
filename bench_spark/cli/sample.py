"""`bench-spark sample`: reads the broker's resources on the broker's own machine."""

from __future__ import annotations

import sys
import threading
from typing import Annotated

import typer

from bench_spark.config.broker import (
    checked_pattern,
    host_and_port,
    read_token,
    refuse_weak_token,
)
from bench_spark.errors import ConfigurationError, EnvironmentNotReady
from bench_spark.monitor.containers import CgroupSampler
from bench_spark.monitor.procfs import ProcessSampler, matching, one_process
from bench_spark.monitor.reading import Sampler, Unreadable
from bench_spark.monitor.remote import Address, SamplerServer, call_and_answer


def sample(
    pid: Annotated[
        int | None,
        typer.Option("--pid", metavar="PID", min=1, help="A process, with all it started."),
    ] = None,
    process: Annotated[
        str | None,
        typer.Option(
            "--process",
            metavar="PATTERN",
            help="Processes whose name or command line this regular expression is found in.",
        ),
    ] = None,
    cgroup: Annotated[
        str | None,
        typer.Option(
            "--cgroup", metavar="PATH", help="A control group (version 2), below /sys/fs/cgroup."
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen", metavar="HOST:PORT", help="Wait here for runs; source `remote` calls."
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="HOST:PORT", help="Call the driver, which waits by source `listen`."
        ),
    ] = None,
    token_file: Annotated[
        str | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help="File whose first line is the token that the broker file names as well.",
        ),
    ] = None,
) -> None:
    """Tell runs what the broker on this machine uses, until Ctrl-C.

    Give one of --pid, --process and --cgroup, and one of --listen and --to. Nobody is answered who
    does not know the token.
    """
    sampler = _sampler(pid, process, cgroup)
    if (listen is None) == (to is None):
        raise ConfigurationError("--listen, --to: give exactly one of them")
    address = _address("--listen" if listen else "--to", listen or to or "")
    if token_file is None:
        raise ConfigurationError(
            "--token-file: missing; samples are served only to callers with the token"
        )
    token = read_token(token_file, "--token-file")
    refuse_weak_token(token, "--token-file")
    try:
        sampler.read()
    except Unreadable as error:
        raise EnvironmentNotReady(str(error)) from error
    if listen is not None:
        _serve(address, token, sampler)
    else:
        _say(f"calling {to}")
        call_and_answer(address, token, sampler, _say, threading.Event())


def _sampler(pid: int | None, process: str | None, cgroup: str | None) -> Sampler:
    if sum(given is not None for given in (pid, process, cgroup)) != 1:
        raise ConfigurationError("--pid, --process, --cgroup: give exactly one of them")
    if pid is not None:
        return ProcessSampler(one_process(pid))
    if process is not None:
        try:
            return ProcessSampler(matching(checked_pattern(process)))
        except ValueError as error:
            raise ConfigurationError(f"--process: is not allowed; {error}") from None
    return CgroupSampler(cgroup or "")


def _address(option: str, text: str) -> Address:
    try:
        return host_and_port(text)
    except ValueError as error:
        raise ConfigurationError(f"{option}: {text!r} is not allowed; {error}") from None


def _serve(address: Address, token: str, sampler: Sampler) -> None:
    try:
        server = SamplerServer(address, token, sampler, _say)
    except OSError as error:
        raise EnvironmentNotReady(
            f"--listen: cannot listen at {address[0]}:{address[1]}: {error.strerror}"
        ) from error
    _say(f"listening at {address[0]}:{server.port}")
    try:
        server.serve()
    finally:
        server.close()


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
