"""Runs whose agents do as a test says, on a clock that it moves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bench_spark.agent.protocol import EventRow, Message
from bench_spark.config.models import Scenario
from bench_spark.core.clock import NANOSECONDS
from bench_spark.driver.control import RunControl
from bench_spark.plan import make_plan

DRAIN_SECONDS = 4.0
STEPS_BEFORE_START = ("probed", "declared", "ready")


@dataclass
class Play:
    """A run control with agents that do as the test says and a clock that it moves."""

    agents: int = 2
    keys: dict[str, Any] = field(default_factory=dict)
    now_ns: int = 1_000 * NANOSECONDS
    sent: list[tuple[int, str]] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    rows: list[tuple[int, int, list[EventRow]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        pairs = {"producers": self.agents, "consumers": self.agents, "destinations": self.agents}
        scenario = Scenario.model_validate(
            {"agents": self.agents, "phases": {"drain_seconds": DRAIN_SECONDS}} | pairs | self.keys
        )
        self.control = RunControl(
            make_plan(scenario, "run-1"),
            lambda: self.now_ns,
            self._send,
            lambda agent, attempt, rows: self.rows.append((agent, attempt, rows)),
        )

    def _send(self, agent: int, message: Message) -> None:
        self.sent.append((agent, message["type"]))
        self.messages.append(message)

    def heard(self) -> list[tuple[int, str]]:
        """What agents were told since the last time; news of the backlog left out."""
        heard, self.sent = [told for told in self.sent if told[1] != "backlog"], []
        return heard

    def join(self, *agents: int) -> None:
        for agent in agents or range(self.agents):
            self.control.on_joined(agent, 0)

    def reach(self, step: str, *agents: int, payload: bytes = b"", **fields: Any) -> None:
        if step == "declared":
            fields.setdefault("destinations", [])
        for agent in agents or range(self.agents):
            message = {"type": "reached", "step": step} | fields
            self.control.on_message(agent, message, payload)

    def progress(self, agent: int, **fields: int) -> None:
        self.control.on_message(agent, {"type": "progress"} | fields, b"")

    def fail(self, agent: int, kind: str = "RunError", text: str = "it broke") -> None:
        """As an agent does it: the failure, and that it is through with everything."""
        self.control.on_message(agent, {"type": "failed", "kind": kind, "text": text}, b"")
        self.reach("inspected", agent, depths={})

    def start(self) -> None:
        self.join()
        for step in STEPS_BEFORE_START:
            self.reach(step)
        assert self.control.started.is_set()
        self.heard()

    def pass_time(self, seconds: float) -> None:
        self.now_ns += round(seconds * NANOSECONDS)
        self.control.on_time()


def to_all(*commands: str, agents: int = 2) -> list[tuple[int, str]]:
    return [(agent, command) for command in commands for agent in range(agents)]
