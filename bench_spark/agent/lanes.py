"""The open connections of one agent, and what its loop must know of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bench_spark.agent.carrying import Carrying
from bench_spark.transports.base import Consumers, Producers, Signal

SubscriptionTable = np.ndarray[tuple[int, int], np.dtype[np.int64]]
"""[consumer lane, route] -> subscription, by its place among those that this agent serves."""


@dataclass
class Lanes:
    """A role without members has None."""

    producers: Producers | None
    consumers: Consumers | None
    subscription_of: SubscriptionTable
    addresses: Mapping[str, str]
    """By role the broker's host and port, for messages to people."""
    confirms: bool = False
    """Whether every message sent will have an outcome."""
    fills_first: bool = False
    """Whether the consumers are still to be attached, once the windows are full."""
    are_self_limiting: bool = False
    """Whether the destinations drop what is too much, so that nothing else need bound a backlog."""
    early_signals: Sequence[tuple[str, Signal]] = ()
    """Role and what happened to its lanes before the load began."""
    carrying: Carrying | None = None
    """What makes bodies of real records and finds their IDs; None where bodies have envelopes."""
