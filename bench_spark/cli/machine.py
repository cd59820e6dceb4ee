"""`bench-spark doctor` and `sample`: this machine, and what a broker uses of it."""

from __future__ import annotations

import os
import sys
import threading
from typing import Annotated

import typer

from bench_spark.cache import DEFAULT_STORE
from bench_spark.cli.options import (
    BROKER_VARIABLE,
    FormatsOption,
    StoreOption,
    Text,
    Texts,
    argument,
    option,
)
from bench_spark.cli.output import parse_formats
from bench_spark.config.broker import checked_pattern, host_and_port, read_token, refuse_weak_token
from bench_spark.errors import EXIT_PREFLIGHT, ConfigurationError, EnvironmentNotReady
from bench_spark.monitor.containers import CgroupSampler
from bench_spark.monitor.processes import ProcessSampler, matching, one_process
from bench_spark.monitor.reading import ResourceSampler, SourceUnreadable
from bench_spark.monitor.remote import Address, SamplerServer, call_and_answer


def doctor(
    brokers: Annotated[
        Texts,
        argument(
            "[BROKER]...",
            "Broker files, or names of shipped ones, to reach and log in to; unset: "
            f"${BROKER_VARIABLE}.",
            show_default=False,
        ),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    timeout_seconds: Annotated[
        float, option("--timeout SECONDS", "Longest wait for any check.", min=1, max=600)
    ] = 15.0,
    formats: FormatsOption = None,
) -> None:
    """Check this machine, what is installed, the store, and brokers.

    Each line is ok, warning or failing, with what to do about it. Nothing is fetched, started or
    changed. Ends with 3 if something is failing, else with 0.
    """
    # The client libraries of all brokers come along, which no other command should wait for.
    from bench_spark import doctor as ready

    outputs = parse_formats(formats)
    named = list(brokers or [])
    if not named and os.environ.get(BROKER_VARIABLE):
        named = [os.environ[BROKER_VARIABLE]]
    places = ready.place_checks(store, named)
    checks = {**ready.program_checks(), **ready.machine_checks(), **places}
    found = ready.examine(checks, timeout_seconds)
    report = ready.FindingsReport(found)
    outputs.write(report)
    if not report.is_ready:
        raise typer.Exit(EXIT_PREFLIGHT)


def sample(
    pid: Annotated[
        int | None, option("--pid PID", "A process, with all it started.", min=1)
    ] = None,
    process: Annotated[
        Text,
        option(
            "--process PATTERN",
            "Processes whose name or command line this regular expression is found in.",
        ),
    ] = None,
    cgroup: Annotated[
        Text, option("--cgroup PATH", "A control group (version 2), below /sys/fs/cgroup.")
    ] = None,
    listen: Annotated[
        Text, option("--listen HOST:PORT", "Wait here for runs; source `remote` calls.")
    ] = None,
    to: Annotated[
        Text, option("--to HOST:PORT", "Call the driver, which waits by source `listen`.")
    ] = None,
    token_file: Annotated[
        Text,
        option(
            "--token-file FILE",
            "File whose first line is the token that the broker file names as well.",
        ),
    ] = None,
) -> None:
    """Tell runs what the broker on this machine uses, until Ctrl-C.

    Give one of --pid, --process and --cgroup, and one of --listen and --to. Callers that do not
    know the token get no answer.
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
    except SourceUnreadable as error:
        raise EnvironmentNotReady(str(error)) from error
    if listen is not None:
        _serve(address, token, sampler)
    else:
        _say(f"calling {to}")
        call_and_answer(address, token, sampler, _say, threading.Event())


def _sampler(pid: int | None, process: str | None, cgroup: str | None) -> ResourceSampler:
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


def _serve(address: Address, token: str, sampler: ResourceSampler) -> None:
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
