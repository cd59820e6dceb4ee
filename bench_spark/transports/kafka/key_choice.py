"""Which key a message has, by the rule of `kafka.keys`. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from bench_spark.core.envelope import Envelopes
from bench_spark.core.mixing import U64, fractions, mixed
from bench_spark.scenario.kafka_section import Kafka


@dataclass(frozen=True)
class KeyRule:
    kind: Literal["none", "producer", "sequence", "uniform", "zipf"] = "none"
    keys: int = 1
    """How many there are, of a kind that chooses among them."""
    exponent: float = 1.0

    @property
    def is_numbered(self) -> bool:
        """Whether a key is a number that the message's own head tells."""
        return self.kind in ("sequence", "uniform", "zipf")

    def numbers(self, heads: Envelopes) -> U64:
        """The number that is each message's key."""
        if self.kind == "uniform":
            return mixed(heads) % np.uint64(self.keys)
        if self.kind == "zipf":
            drawn = np.searchsorted(self._shares_up_to, fractions(heads), side="right")
            return np.minimum(drawn, self.keys - 1).astype(np.uint64)
        return np.ascontiguousarray(heads["sequence"]).astype(np.uint64)

    @cached_property
    def _shares_up_to(self) -> npt.NDArray[np.float64]:
        """Of each key and those before it: key k is (k + 1) ** exponent times rarer than key 0."""
        weights = np.arange(1, self.keys + 1, dtype=np.float64) ** -self.exponent
        cumulated: npt.NDArray[np.float64] = np.cumsum(weights)
        cumulated /= cumulated[-1]
        return cumulated


def key_rule(kafka: Kafka) -> KeyRule:
    return KeyRule(kafka.keys, kafka.key_count, kafka.key_exponent)
