"""How long tests wait for what must come, and agents in the test's own process for their schedule.

Bounds are for machines that are busy with other things: on an idle one nothing waits for them.

An agent gives up what is still unsent a second after the end of its schedule. A machine that stands
still for longer would make tests fail that count every message; so where a conftest imports
`patient_agents`, agents wait much longer. Tests of messages that stay unsent ask for
`punctual_agents`.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from bench_spark.agent import loop as loop_module
from bench_spark.core.clock import NANOSECONDS

PATIENCE_SECONDS = 120.0


def eventually(is_so: Callable[[], object], timeout_seconds: float = PATIENCE_SECONDS) -> bool:
    """Whether it becomes so within a generous time."""
    deadline = time.monotonic() + timeout_seconds
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


USUAL_GRACE_NS = loop_module.LATE_GRACE_NS
PATIENT_GRACE_NS = 60 * NANOSECONDS


@pytest.fixture(autouse=True)
def patient_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "LATE_GRACE_NS", PATIENT_GRACE_NS)


@pytest.fixture
def punctual_agents(patient_agents: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "LATE_GRACE_NS", USUAL_GRACE_NS)
