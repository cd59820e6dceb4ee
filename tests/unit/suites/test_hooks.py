"""Hooks: real commands, with what they are told, and what becomes of those that fail."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from bench_spark.errors import HookFailed
from bench_spark.suites.suite import run_hook


def script(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "hook.sh"
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)
    return ["./hook.sh"]


def test_a_hook_has_arguments_an_environment_and_a_directory(tmp_path: Path) -> None:
    command = [*script(tmp_path, 'echo "$1 $RATE $HOME" > said\n'), "rate=80000"]
    run_hook(command, "before", tmp_path, {"RATE": "80000", "HOME": "here"}, timeout_seconds=10)
    assert (tmp_path / "said").read_text() == "rate=80000 80000 here\n"


def test_a_program_without_a_slash_is_looked_for_as_usual(tmp_path: Path) -> None:
    run_hook(["touch", "mark"], "before", tmp_path, {}, timeout_seconds=10)
    assert (tmp_path / "mark").exists()


def test_a_hook_that_fails_is_told_with_its_exit_code_and_last_words(tmp_path: Path) -> None:
    command = script(tmp_path, "echo no such node >&2\nexit 7\n")
    with pytest.raises(
        HookFailed, match=r"hook after: \./hook\.sh ended with exit code 7: no such"
    ):
        run_hook(command, "after", tmp_path, {}, timeout_seconds=10)


def test_a_hook_that_is_missing_is_told_by_name(tmp_path: Path) -> None:
    with pytest.raises(HookFailed, match=r"hook before: \./none: No such file"):
        run_hook(["./none"], "before", tmp_path, {}, timeout_seconds=10)


def test_a_hook_that_hangs_is_ended_with_all_it_started(tmp_path: Path) -> None:
    command = script(tmp_path, "(sleep 1; touch mark) &\nsleep 60\n")
    with pytest.raises(HookFailed, match=r"was not done after 0\.2 s"):
        run_hook(command, "before", tmp_path, {}, timeout_seconds=0.2)
    time.sleep(1.2)
    assert not (tmp_path / "mark").exists()


def test_what_a_hook_leaves_in_the_background_is_not_waited_for(tmp_path: Path) -> None:
    command = script(tmp_path, "sleep 600 &\necho $! > pid\nexit 0\n")
    run_hook(command, "before", tmp_path, {}, timeout_seconds=120)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)  # it was still there
