"""A command of the user's before or after a trial: to change a setting of the broker, say."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench_spark.errors import HookFailed

_SHOWN_CHARACTERS = 300


def run_hook(
    command: Sequence[str],
    when: str,
    directory: Path,
    environment: Mapping[str, str],
    timeout_seconds: float,
) -> None:
    """Run it in that directory; its environment is added to our own."""
    program = command[0]
    if "/" in program:
        program = str(directory / program)
    # A file and not a pipe: what the hook leaves running in the background would hold a pipe open.
    with tempfile.TemporaryFile() as output:
        try:
            hook = subprocess.Popen(
                [program, *command[1:]],
                cwd=directory,
                env=os.environ | dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise HookFailed(f"hook {when}: {command[0]}: {error.strerror}") from error
        try:
            exit_code = hook.wait(timeout_seconds)
        except BaseException as error:
            os.killpg(hook.pid, signal.SIGKILL)
            hook.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            raise HookFailed(
                f"hook {when}: {command[0]} was not done after {timeout_seconds:g} s"
            ) from None
        if exit_code != 0:
            output.seek(0)
            said = " ".join(output.read().decode(errors="replace").split())[-_SHOWN_CHARACTERS:]
            ending = f"hook {when}: {command[0]} ended with exit code {exit_code}"
            raise HookFailed(f"{ending}: {said}" if said else ending)
