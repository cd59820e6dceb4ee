"""How long agents that run in the test's own process wait for the end of their schedule.

An agent gives up what is still unsent a second after that end. A machine that stands still for
longer would make tests fail that count every message; so where a conftest imports `patient_agents`,
agents wait much longer. Tests of messages that stay unsent ask for `punctual_agents`.
"""

from __future__ import annotations

import pytest

from bench_spark.agent import loop as loop_module
from bench_spark.measure.clock import NANOSECONDS

USUAL_GRACE_NS = loop_module.LATE_GRACE_NS
PATIENT_GRACE_NS = 60 * NANOSECONDS


@pytest.fixture(autouse=True)
def patient_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "LATE_GRACE_NS", PATIENT_GRACE_NS)


@pytest.fixture
def punctual_agents(patient_agents: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "LATE_GRACE_NS", USUAL_GRACE_NS)
