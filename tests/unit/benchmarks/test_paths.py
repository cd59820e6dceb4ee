"""The hot paths still fit the code they measure. How fast they are is no matter here."""

from __future__ import annotations

import pytest

from benchmarks import paths
from benchmarks.paths import HotPath, processor_seconds_per_call


@pytest.mark.parametrize(
    "path",
    [
        paths.publish_to_a_sink,
        paths.decode_deliveries,
        paths.settle_confirms,
        paths.stamp_envelopes,
        paths.carry_records,
        paths.record_latencies,
        paths.record_by_hdrhistogram,
        paths.record_both_ends,
        paths.record_confirms,
    ],
)
def test_a_path_can_be_gone_again_and_again(path: HotPath) -> None:
    for batch in (1, 2, 300):
        with path(batch) as work:
            for _ in range(20):
                work()


def test_work_is_called_until_it_has_used_enough_time() -> None:
    calls = 0

    def work() -> None:
        nonlocal calls
        calls += 1
        sum(range(1000))

    assert processor_seconds_per_call(work, for_seconds=0.01) > 0
    assert calls > 1
