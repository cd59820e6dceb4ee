"""Which data plane moves the messages."""

from __future__ import annotations

from dataclasses import dataclass

import pika

from bench_spark.scenario.amqp_section import Amqp
from bench_spark.transports.amqp import handover


@dataclass(frozen=True)
class Plane:
    is_fast: bool
    reason: str = ""
    """Why it is not the one that was asked for."""

    @property
    def client_library(self) -> str:
        """For the result: what moved the messages."""
        name = "fast plane" if self.is_fast else "pika plane"
        because = f": {self.reason}" if self.reason else ""
        return f"pika {pika.__version__} ({name}{because})"


def chosen_plane(amqp: Amqp) -> Plane:
    """The one asked for, or pika's own where pika does not let the fast one work."""
    if amqp.plane == "pika":
        return Plane(is_fast=False)
    obstacle = handover.obstacle()
    return Plane(is_fast=obstacle is None, reason=obstacle or "")
