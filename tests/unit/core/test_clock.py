from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_spark.core import clock
from bench_spark.core.clock import NANOSECONDS, Clock, ClockOffset, best_offset, boot_id


class TestClock:
    def test_reads_like_the_wall_clock_when_it_is_made(self) -> None:
        assert abs(Clock.local().now_ns() - time.time_ns()) < NANOSECONDS

    def test_is_the_monotonic_clock_plus_the_anchor(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(time, "monotonic_ns", lambda: 5_000)
        assert Clock(anchor_ns=70_000).now_ns() == 75_000

    def test_does_not_follow_a_step_of_the_wall_clock(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        local = Clock.local()
        before_ns = local.now_ns()
        monkeypatch.setattr(time, "time_ns", lambda: 0)
        assert 0 <= local.now_ns() - before_ns < 60 * NANOSECONDS

    def test_never_runs_backwards(self) -> None:
        local = Clock.local()
        readings = [local.now_ns() for _ in range(10_000)]
        assert readings == sorted(readings)

    def test_anchors_at_the_tightest_pair_of_readings(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # (apart by, anchor) of 16 paired readings: only the narrow one was not interrupted.
        pairs = iter([(900, 1_000_450)] * 7 + [(20, 1_000_010)] + [(500, 999_000)] * 8)
        monkeypatch.setattr(clock, "_paired_reading", lambda: next(pairs))
        assert Clock.local() == Clock(anchor_ns=1_000_010)

    @given(st.integers(-(10**18), 10**18), st.integers(-(10**15), 10**15))
    def test_shifting_moves_the_anchor_and_back(self, anchor_ns: int, offset_ns: int) -> None:
        shifted = Clock(anchor_ns).shifted(offset_ns)
        assert shifted.anchor_ns - anchor_ns == offset_ns
        assert shifted.shifted(-offset_ns) == Clock(anchor_ns)


class TestBestOffset:
    @pytest.mark.parametrize(
        ("exchanges", "expected"),
        [
            ([(100, 150, 200)], ClockOffset(offset_ns=0, bound_ns=50)),
            ([(100, 1_150, 200)], ClockOffset(offset_ns=1_000, bound_ns=50)),
            ([(100, 50, 200)], ClockOffset(offset_ns=-100, bound_ns=50)),
            ([(0, 900, 1_000), (2_000, 2_010, 2_010)], ClockOffset(offset_ns=5, bound_ns=5)),
            ([(10, 10, 10)], ClockOffset(offset_ns=0, bound_ns=0)),
        ],
        ids=["equal clocks", "ahead", "behind", "shortest round trip wins", "no delay"],
    )
    def test_is_the_middle_of_the_shortest_round_trip(
        self, exchanges: list[tuple[int, int, int]], expected: ClockOffset
    ) -> None:
        assert best_offset(exchanges) == expected

    @given(
        st.integers(-(10**12), 10**12),
        st.lists(
            st.tuples(st.integers(0, 10**15), st.integers(0, 10**9), st.integers(0, 10**9)),
            min_size=1,
            max_size=32,
        ),
    )
    def test_the_true_offset_lies_within_the_bound(
        self, true_offset_ns: int, trips: list[tuple[int, int, int]]
    ) -> None:
        exchanges = [
            (asked, asked + there + true_offset_ns, asked + there + back)
            for asked, there, back in trips
        ]
        found = best_offset(exchanges)
        assert abs(found.offset_ns - true_offset_ns) <= found.bound_ns
        assert found.bound_ns <= min((there + back + 1) // 2 for _, there, back in trips)


class TestBootId:
    def test_is_the_same_each_time(self) -> None:
        assert boot_id() == boot_id()

    def test_has_no_white_space_around_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "boot_id").write_text("5c0f\n")
        monkeypatch.setattr(clock, "_BOOT_ID", tmp_path / "boot_id")
        assert boot_id() == "5c0f"

    def test_is_unknown_where_the_kernel_does_not_say(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(clock, "_BOOT_ID", tmp_path / "absent")
        assert boot_id() is None
