"""IDs of 32 characters: written and read again, and told from what is none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bench_spark.core.envelope import (
    Envelopes,
    decode_ids,
    empty_envelopes,
    encode_ids,
    id_rows,
    id_texts,
)

NAMES = ("run_tag", "producer", "sequence")
NUMBERS = st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1))


def envelopes_of(numbers: Sequence[tuple[int, int, int]]) -> Envelopes:
    envelopes = empty_envelopes(len(numbers))
    for place, values in enumerate(numbers):
        for name, value in zip(NAMES, values, strict=True):
            envelopes[name][place] = value
    return envelopes


def test_an_id_is_run_tag_producer_and_sequence_in_lower_case_hexadecimal() -> None:
    [text] = id_texts(encode_ids(envelopes_of([(0xC0FFEE01, 0x2A, 0xABCDEF)])))
    assert text == b"c0ffee010000002a0000000000abcdef"


@given(st.lists(NUMBERS, max_size=20))
def test_every_id_is_read_back_in_either_case(numbers: list[tuple[int, int, int]]) -> None:
    texts = id_texts(encode_ids(envelopes_of(numbers)))
    for changed in (texts, [text.upper() for text in texts]):
        envelopes, valid = decode_ids(id_rows(changed))
        assert valid.all()
        assert [tuple(int(row[name]) for name in NAMES) for row in envelopes] == numbers


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_what_is_no_id_gives_a_envelope_of_zeros(texts: list[bytes]) -> None:
    envelopes, valid = decode_ids(id_rows(texts))
    expected = [
        len(text) == 32 and all(c in b"0123456789abcdefABCDEF" for c in text) for text in texts
    ]
    assert valid.tolist() == expected
    assert not np.any(envelopes["run_tag"][~valid])
    assert not np.any(envelopes["sequence"][~valid])
