"""Throughput as it was sampled at the consumers, for the result document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bench_spark.agent.sampler import SAMPLE_DTYPE, seconds_of
from bench_spark.collector.accounts import AgentSamples
from bench_spark.core.throughput import throughput, throughput_of_all


def throughput_section(pairs: int, found: Sequence[AgentSamples] | None) -> dict[str, Any] | None:
    """Sums over all pairs, and each pair on its own; None where nothing was to be sampled."""
    if found is None:
        return None
    samples = np.concatenate([np.zeros(0, SAMPLE_DTYPE), *(one.samples for one in found)])
    samples = samples[np.argsort(samples["pair"], kind="stable")]
    per_second = samples["messages"] / seconds_of(samples)
    edges = np.searchsorted(samples["pair"], np.arange(pairs + 1))
    of_pairs = [
        throughput(per_second[start:end])
        for start, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    ]
    return {
        **throughput_of_all(of_pairs).as_dict(),
        "pairs": [{"pair": pair, **figures.as_dict()} for pair, figures in enumerate(of_pairs)],
    }
