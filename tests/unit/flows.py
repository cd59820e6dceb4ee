"""What flows send next, as columns."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bench_spark.agent.flow import Flow, RoundRobinFlow
from bench_spark.core.envelope import empty_envelopes, word_rows_of

NO_HEADS = empty_envelopes(0)
"""Of messages that a flow does not look into."""


def deal(flow: Flow, messages: int) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint64]]:
    """Lane and sequence number of the next messages, at most so many."""
    envelopes, lanes = empty_envelopes(messages), np.zeros(messages, np.uint32)
    count = flow.next_batch(word_rows_of(envelopes), lanes, messages)
    return lanes[:count], envelopes["sequence"][:count]


def round_robin(lanes: int, owes: bool = False) -> RoundRobinFlow:
    return RoundRobinFlow(tuple(range(lanes)), owes=owes)
