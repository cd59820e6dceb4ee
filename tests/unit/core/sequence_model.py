"""Streams of messages, and sets of their sequences as Python's own sets would be."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable

import numpy as np
from hypothesis import strategies as st

from bench_spark.core.sequences import (
    SEQUENCE_LIMIT,
    Added,
    SequencePages,
    SequenceSets,
)

Message = tuple[int, int]
"""Group and sequence."""

GROUPS = 4
EVERYTHING = (0, SEQUENCE_LIMIT)


@st.composite
def streams(draw: st.DrawFn) -> list[Message]:
    """Stretches of sequences as brokers deliver them: in order, with jumps, repeats and returns."""
    messages: list[Message] = []
    for _ in range(draw(st.integers(0, 5))):
        group = draw(st.integers(0, GROUPS - 1))
        near = draw(
            st.sampled_from([0, 5, 1000, 1023, 1024, 2048, 65_500, 65_536, 2**39, SEQUENCE_LIMIT])
        )
        length = draw(st.sampled_from([1, 2, 7, 40, 1024]))
        step = draw(st.sampled_from([1, 1, 1, -1, 2, 3]))
        first = near - length * abs(step) // draw(st.sampled_from([1, 2])) if near else 0
        stretch = [max(0, first) + abs(step) * i for i in range(length)]
        stretch = [sequence for sequence in stretch if sequence < SEQUENCE_LIMIT]
        messages += [(group, sequence) for sequence in stretch[:: 1 if step > 0 else -1]]
    if draw(st.booleans()):
        messages = random.Random(draw(st.integers(0, 99))).sample(messages, len(messages))
    return messages


@st.composite
def batches(draw: st.DrawFn) -> list[list[Message]]:
    """A stream cut into calls."""
    messages = draw(streams())
    size = draw(st.sampled_from([1, 3, 100, 1024, 5000]))
    size = max(size, len(messages) // 30)
    return [messages[at : at + size] for at in range(0, len(messages), size)]


class Model:
    """The same judgements, one message at a time."""

    def __init__(self) -> None:
        self.members: dict[int, set[int]] = defaultdict(set)
        self.largest: dict[int, int] = defaultdict(lambda: -1)

    def add(self, messages: Iterable[Message]) -> tuple[list[bool], list[bool]]:
        duplicate, out_of_order = [], []
        for group, sequence in messages:
            duplicate.append(sequence in self.members[group])
            out_of_order.append(not duplicate[-1] and sequence < self.largest[group])
            self.members[group].add(sequence)
            self.largest[group] = max(self.largest[group], sequence)
        return duplicate, out_of_order


def add(sets: SequenceSets, messages: list[Message]) -> Added:
    columns = np.array(messages, dtype=np.int64).reshape(-1, 2)
    return sets.add(columns[:, 0], columns[:, 1])


def sets_of(messages: list[Message]) -> SequenceSets:
    sets = SequenceSets(GROUPS)
    add(sets, messages)
    return sets


def members_of(pages: SequencePages) -> dict[int, set[int]]:
    members: dict[int, set[int]] = defaultdict(set)
    for group, page, bits in zip(pages.group, pages.page, pages.bits, strict=True):
        set_bits = np.flatnonzero(np.unpackbits(bits, bitorder="little"))
        members[int(group)] |= set((int(page) * 1024 + set_bits).tolist())
    return members


def contents(sets: SequenceSets) -> dict[int, set[int]]:
    """Everything in the sets, read through a copy's first export."""
    copy = SequenceSets(GROUPS)
    for group in range(sets.groups):
        gaps = sets.missing(group, 0, SEQUENCE_LIMIT, limit=10**6)
        edges = [0, *(edge for gap in gaps for edge in gap), SEQUENCE_LIMIT]
        for first, end in zip(edges[::2], edges[1::2], strict=True):
            copy.add(np.full(end - first, group), np.arange(first, end))
    return members_of(copy.export())
