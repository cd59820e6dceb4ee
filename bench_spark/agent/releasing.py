"""Tells senders that their messages have arrived, in whichever agent they did.

Of an agent's own messages it knows by itself; of others' it tells the driver, all that came in at
once, which tells their senders' agents.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from bench_spark.agent.flow import RequestFlow
from bench_spark.agent.link import Link
from bench_spark.agent.recorder import Recorder
from bench_spark.core.clock import NowNs


class Releasing:
    def __init__(
        self,
        requests: RequestFlow | None,
        recorder: Recorder,
        link: Link,
        now_ns: NowNs,
        patience_ns: int,
        on_release: Callable[[], None],
    ) -> None:
        """`requests`: the senders of this agent, if it has any. `on_release`: called when somebody
        is free for whom something is due already."""
        self._requests = requests
        self._recorder = recorder
        self._link = link
        self._now_ns = now_ns
        self._patience_ns = patience_ns
        self._on_release = on_release

    def arrived(self, producer: npt.NDArray[np.uint32], sequence: npt.NDArray[np.uint64]) -> None:
        """Messages that this agent has received."""
        if self._requests is not None:
            self.released(producer, sequence)
            is_elsewhere = ~self._requests.are_here(producer)
            producer, sequence = producer[is_elsewhere], sequence[is_elsewhere]
        if len(producer):
            numbers = {"producers": producer.tolist(), "sequences": sequence.tolist()}
            self._link.send({"type": "arrived", **numbers})

    def released(self, producer: npt.ArrayLike, sequence: npt.ArrayLike) -> None:
        """Messages that were received, here or elsewhere."""
        if self._requests is None:
            return
        lane, head = self._requests.arrived(producer, sequence)
        if not len(lane):
            return
        self._recorder.answered(self._now_ns(), lane, head)
        if self._requests.are_all_waiting:
            self._on_release()

    def give_up(self, now_ns: int) -> None:
        """Nobody waits for longer than that."""
        if self._requests is None:
            return
        given_up = self._requests.give_up(now_ns - self._patience_ns)
        if len(given_up):
            self._recorder.given_up(now_ns, given_up)
            self._on_release()
