"""Bodies are exactly as large as asked for, and random padding differs from message to message."""

from __future__ import annotations

import lzma

import numpy as np
import pytest

from bench_spark.agent.records import PaddedBodies, envelope_bytes
from bench_spark.config.sections import Message
from bench_spark.core.envelope import empty_envelopes
from bench_spark.transports.batches import U8, Batch, common_payload_bytes

NO_BATCH = Batch(np.zeros(0, np.uint32), empty_envelopes(0), b"", np.zeros(0, np.uint16))


def padding(size: int, kind: str = "random", seed: int = 1, messages: int = 10) -> PaddedBodies:
    message = Message.model_validate({"bytes": size, "padding": kind})
    made = PaddedBodies(message, seed)
    made.set_size(size, messages)
    return made


def rows(made: PaddedBodies, messages: int) -> U8:
    found = made.payloads(messages)
    assert isinstance(found, np.ndarray)
    return found.copy()


@pytest.mark.parametrize(
    ("size", "envelope"), [(8, 8), (9, 8), (31, 8), (32, 32), (33, 32), (1000, 32)]
)
@pytest.mark.parametrize("kind", ["random", "zero"])
def test_envelope_and_padding_make_up_the_body(size: int, envelope: int, kind: str) -> None:
    assert envelope_bytes(Message(bytes=size)) == envelope
    assert common_payload_bytes(padding(size, kind).payloads(3)) == size - envelope


def test_zero_padding_is_zero_bytes() -> None:
    assert padding(100, "zero").payloads(5) == bytes(68)


def test_random_padding_depends_on_the_seed_alone() -> None:
    assert np.array_equal(rows(padding(1000), 3), rows(padding(1000), 3))
    assert not np.array_equal(rows(padding(1000), 3), rows(padding(1000, seed=2), 3))


def test_every_message_that_goes_out_has_bytes_of_its_own() -> None:
    # As where a socket takes a part of each batch: what did not go out is offered again.
    made, sent = padding(1000, messages=50), []
    for accepted in [50, 1, 0, 7, 50, 3] * 20:
        offered = rows(made, 50)
        made.accepted(NO_BATCH, accepted)
        sent += [row.tobytes() for row in offered[:accepted]]
    assert len(set(sent)) == len(sent)
    whole = b"".join(sent)
    assert len(lzma.compress(whole)) > 0.97 * len(whole)
