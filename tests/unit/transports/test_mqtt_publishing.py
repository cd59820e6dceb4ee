"""Messages as they are written: batches are what single messages would be."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bench_spark.core.envelope import empty_envelopes
from bench_spark.transports.batches import Batch, Payloads
from bench_spark.transports.mqtt.producers import PacketWriter, PublishPackets
from bench_spark.transports.sockets.messages import NO_IDENTIFIERS, bodies_of

TOPICS = ("a", "bench/run/10", "t" * 200)


@st.composite
def loads(draw: st.DrawFn) -> Batch:
    count = draw(st.integers(1, 40))
    envelopes = empty_envelopes(count)
    envelopes["sequence"] = np.arange(count) + draw(st.integers(0, 1 << 60))
    envelopes["sent_ns"] = draw(st.integers(0, (1 << 63) - 1))
    envelopes["producer"] = draw(st.integers(0, (1 << 32) - 1))
    routes = draw(st.lists(st.integers(0, len(TOPICS) - 1), min_size=count, max_size=count))
    if draw(st.booleans()):
        routes = [routes[0]] * count
    size = draw(st.sampled_from((0, 1, 68, 500)))
    random = np.random.default_rng(draw(st.integers(0, 100)))
    payloads: Payloads = random.bytes(size)
    match draw(st.integers(0, 3)):
        case 1:
            payloads = random.integers(0, 256, (count, size), np.uint8)
        case 2:  # as they may come from a larger array that nobody may write to
            payloads = random.integers(0, 256, (count, size + 5), np.uint8)[:, :size]
            payloads.flags.writeable = False
        case 3:
            payloads = [random.bytes(int(one)) for one in random.integers(0, 300, count)]
    envelope_bytes = draw(st.sampled_from((32, 32, 8, 0)))
    lanes = np.zeros(len(envelopes), np.uint32)
    return Batch(
        lanes, envelopes, payloads, np.array(routes, np.uint16), envelope_bytes=envelope_bytes
    )


@settings(deadline=None)
@given(
    st.lists(loads(), min_size=1, max_size=5), st.sampled_from(("3.1.1", "5")), st.integers(0, 2)
)
def test_a_batch_is_what_its_messages_would_be_one_by_one(
    batches: list[Batch], version: str, qos: int
) -> None:
    packets = [PublishPackets(version, topic, qos, False) for topic in TOPICS]
    writer = PacketWriter()
    for load in batches:
        identifiers = NO_IDENTIFIERS
        if qos:
            identifiers = np.arange(300, 300 + len(load.envelope), dtype=np.uint16)
        numbers = identifiers.tolist() or [0] * len(load.envelope)
        assert bytes(writer.data(packets, load, identifiers)) == b"".join(
            packets[route].message(body, number)
            for body, route, number in zip(
                bodies_of(load), load.route.tolist(), numbers, strict=True
            )
        )
