"""Which data plane moves the messages."""

from __future__ import annotations

import pika

from bench_spark.scenario.amqp_section import Amqp
from bench_spark.transports.amqp import handover
from bench_spark.transports.planes import Plane, plane_of


def chosen_plane(amqp: Amqp) -> Plane:
    """The one asked for, or pika's own where pika does not let the fast one work."""
    return plane_of(f"pika {pika.__version__}", amqp.plane, "pika", handover.obstacle)
