from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_spark.core.envelope import (
    ENVELOPE_BYTES,
    ENVELOPE_DTYPE,
    TIMESTAMP_BYTES,
    byte_rows_of,
    empty_envelopes,
    envelopes_from_bytes,
    joined_envelopes,
    run_tag,
)

u64 = st.integers(0, 2**64 - 1)
u32 = st.integers(0, 2**32 - 1)
fields = st.tuples(u64, u64, u64, u32, u32)


def test_the_layout_is_the_one_other_programs_rely_on() -> None:
    envelopes = empty_envelopes(1)
    envelopes[0] = (1, 2, 3, 4, 5)
    assert byte_rows_of(envelopes)[0].tobytes() == struct.pack("<QQQII", 1, 2, 3, 4, 5)
    assert (ENVELOPE_BYTES, TIMESTAMP_BYTES) == (32, 8)


@given(u64)
def test_the_first_eight_bytes_are_the_send_time_as_a_plain_number(sent_ns: int) -> None:
    envelopes = empty_envelopes(1)
    envelopes["sent_ns"] = sent_ns
    body = byte_rows_of(envelopes)[0].tobytes()
    assert int.from_bytes(body[:TIMESTAMP_BYTES], "little") == sent_ns


@given(st.lists(fields, max_size=20))
def test_envelopes_survive_the_way_through_bytes(
    rows: list[tuple[int, int, int, int, int]],
) -> None:
    envelopes = np.array(rows, dtype=ENVELOPE_DTYPE)
    read = envelopes_from_bytes(byte_rows_of(envelopes))
    assert read.dtype == ENVELOPE_DTYPE
    assert [tuple(row) for row in read.tolist()] == rows


def test_new_envelopes_are_blank() -> None:
    envelopes = empty_envelopes(3)
    assert len(envelopes) == 3
    assert not byte_rows_of(envelopes).any()


def test_bytes_are_the_envelopes_own_memory() -> None:
    envelopes = empty_envelopes(2)
    rows = byte_rows_of(envelopes)
    envelopes["sequence"][1] = 0xAB
    assert rows[1, 16] == 0xAB


def test_envelopes_at_the_front_of_longer_bodies_can_be_read() -> None:
    envelopes = empty_envelopes(4)
    envelopes["sequence"] = [7, 8, 9, 10]
    bodies = np.full((4, 100), 0xEE, dtype=np.uint8)
    bodies[:, :ENVELOPE_BYTES] = byte_rows_of(envelopes)
    read = envelopes_from_bytes(bodies[:, :ENVELOPE_BYTES])
    assert read["sequence"].tolist() == [7, 8, 9, 10]


class TestRunTag:
    def test_is_the_same_everywhere(self) -> None:
        assert run_tag("2024-steady-1") == zlib.crc32(b"2024-steady-1")

    @pytest.mark.parametrize("run_id", ["", "a", "überlauf", "x" * 1000])
    def test_fits_the_field_and_is_never_the_zero_of_a_blank_envelope(self, run_id: str) -> None:
        envelopes = empty_envelopes(1)
        envelopes["run_tag"] = run_tag(run_id)
        assert envelopes["run_tag"][0] == run_tag(run_id) != 0

    def test_tells_runs_apart(self) -> None:
        assert len({run_tag(f"run-{number}") for number in range(1000)}) == 1000


@given(st.lists(st.lists(fields, max_size=3), max_size=5))
def test_parts_are_joined_in_their_order(parts: list[list[tuple[int, ...]]]) -> None:
    joined = joined_envelopes([np.array(part, dtype=ENVELOPE_DTYPE) for part in parts])
    assert joined.tolist() == [row for part in parts for row in part]
    joined["sequence"] = 7  # the memory is the caller's own
