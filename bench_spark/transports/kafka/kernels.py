"""Compiled loops over librdkafka's messages, which lie at raw addresses.

A message of librdkafka is a struct somewhere in memory that points to a body elsewhere. The kernels
read those structs and the envelopes of bodies in place, and lay messages out the way
`produce_batch` takes them. Whoever calls vouches for the addresses, as in C; `require_interface`
has made sure that the structs are laid out as MESSAGE_DTYPE says.

Those for consumers run in threads of their own, and let go of the interpreter's lock; those for
producers run in the agent's thread, which would have to wait for it again.

Kernels that destroy messages call librdkafka by name, which keeps them cacheable;
`librdkafka.library()` must have been called before.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types
from numba.core import cgutils, config
from numba.extending import intrinsic

from bench_spark.core.envelope import ENVELOPE_BYTES, ENVELOPE_DTYPE, empty_envelopes
from bench_spark.core.kernels import kernel, kernel_without_lock, warm_up
from bench_spark.transports.batches import I64, OUTCOME_DTYPE, RECEIVED_DTYPE
from bench_spark.transports.kafka.librdkafka import MESSAGE_DTYPE, NotUsable, library

Records = npt.NDArray[Any]
"""A one-dimensional structured array."""
Number = Any
"""An integer: Python's outside of kernels, an int64 inside of them."""

_TOPIC, _PARTITION, _PAYLOAD, _PAYLOAD_BYTES, _OFFSET, _OPAQUE = 8, 16, 24, 32, 56, 64
_MESSAGE_BYTES = MESSAGE_DTYPE.itemsize

_RECEIVED_BYTES, _RECEIVED_HEAD = RECEIVED_DTYPE.itemsize, RECEIVED_DTYPE.fields["envelope"][1]  # type: ignore[index]
_OUTCOME_BYTES, _OUTCOME_HEAD = OUTCOME_DTYPE.itemsize, OUTCOME_DTYPE.fields["envelope"][1]  # type: ignore[index]

ALL, PROBLEM, UNKNOWN_PLACE = 0, 1, 2
"""Why `read_messages` stopped: no more messages, one that is an error, one of a topic partition
that is not in the table yet."""

COUNT, NEXT, ROWS, TOUCHED, NUMBER, LANE, FIRST_NS, REST_NS, KEEPS, FETCH_WORDS = range(10)
"""Words of one fetch: how many messages, the next one to read, rows written, topic partitions
touched, the fetch's number; the lane, when the first message and the others were taken, and whether
messages are kept for somebody who reads more of them."""

PLACE_DTYPE = np.dtype(
    [
        ("topic", "<i8"),
        ("partition", "<i8"),
        ("route", "<i8"),
        ("next_offset", "<i8"),
        ("fetch", "<i8"),
        ("touched", "<i8"),
    ]
)
"""A table of topic partitions, hashed by topic handle and number; a handle of 0 is an empty slot.
The column `touched` is a list of its own: the slots that the last fetch has touched."""

IN_BODY, NOT_KEPT, FIRST_PLACE = 0, 1, 2
PLACE_SHIFT = 32
KEPT_DTYPE = np.dtype([("envelope", ENVELOPE_DTYPE), ("free", "<i8")])
"""Envelopes of messages whose bodies do not hold them. The column `free` is a stack of free
places."""

FIRST_ERROR, ERRORS = -256, 512
"""librdkafka's own errors are negative, the brokers' positive; beyond there are none."""

HEAD_BYTES, TAIL_BYTES, TAIL_STEP, TAILS_WRITTEN = range(4)
"""Words of how messages are laid out: how much of envelopes goes into bodies, the length of
payloads (-1: each has its own, in `payload_bytes`), how far it is from one to the next (0: all
share one), and how many messages of the block end with the shared one already."""

GROUP_DTYPE = np.dtype([("count", "<i8"), ("end", "<i8"), ("target", "<i8")])
"""Messages by target: how many, and where they end. The column `target` is a list of its own: those
that have any."""

# -- memory --------------------------------------------------------------------------------------

if config.DISABLE_JIT:

    def int64_at(address: Number) -> Number:
        return ctypes.c_int64.from_address(int(address)).value

    def int32_at(address: Number) -> Number:
        return ctypes.c_int32.from_address(int(address)).value

    def copy_bytes(to: Number, origin: Number, count: Number) -> None:
        ctypes.memmove(int(to), int(origin), int(count))

    def clear_bytes(to: Number, count: Number) -> None:
        ctypes.memset(int(to), 0, int(count))

    def destroy(address: Number) -> None:
        library().message_destroy(int(address))

else:

    def _reader(result: Any) -> Any:
        def read(_typing: Any, _address: Any) -> Any:
            def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
                pointer = context.get_value_type(result).as_pointer()
                return builder.load(builder.inttoptr(arguments[0], pointer), align=1)

            return result(types.int64), generate

        return read

    int64_at: Any = intrinsic(_reader(types.int64))  # type: ignore[no-redef]
    int32_at: Any = intrinsic(_reader(types.int32))  # type: ignore[no-redef]

    @intrinsic  # type: ignore[untyped-decorator]
    def copy_bytes(_typing: Any, _to: Any, _origin: Any, _count: Any) -> Any:
        """memcpy"""

        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            pointer = context.get_value_type(types.voidptr)
            to, origin = (builder.inttoptr(one, pointer) for one in arguments[:2])
            cgutils.raw_memcpy(builder, to, origin, arguments[2], 1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64), generate

    @intrinsic  # type: ignore[untyped-decorator]
    def clear_bytes(_typing: Any, _to: Any, _count: Any) -> Any:
        """memset to 0"""

        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            to = builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))
            cgutils.memset(builder, to, arguments[1], 0)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    destroy: Any = types.ExternalFunction(  # type: ignore[no-redef]
        "rd_kafka_message_destroy", types.void(types.int64)
    )


@kernel
def copy_envelope(to: Number, body: Number, body_bytes: Number) -> None:
    """Copy the first 32 bytes of a body, or all of a shorter one, padded with zeros."""
    if body_bytes >= ENVELOPE_BYTES:
        copy_bytes(to, body, ENVELOPE_BYTES)
        return
    clear_bytes(to, ENVELOPE_BYTES)
    if body_bytes > 0:
        copy_bytes(to, body, body_bytes)


# -- consuming -----------------------------------------------------------------------------------


@kernel
def find_place(places: Records, topic: Number, partition: Number) -> Number:
    """The slot of a topic partition, or the empty one where it belongs; one is always empty."""
    mask = len(places) - 1
    slot = ((topic >> 4) + partition * 40503) & mask
    while places[slot]["topic"] != 0:
        if places[slot]["topic"] == topic and places[slot]["partition"] == partition:
            break
        slot = (slot + 1) & mask
    return slot


@kernel_without_lock
def read_messages(addresses: I64, fetch: I64, places: Records, rows: Records) -> int:
    """Write a row for each message, and destroy it unless it is kept; returns why it stopped."""
    memory = np.int64(rows.ctypes.data)
    stopped = ALL
    slot = np.int64(0)
    while fetch[NEXT] < fetch[COUNT]:
        at = fetch[NEXT]
        message = np.int64(addresses[at])
        if int32_at(message) != 0:
            stopped = PROBLEM
            break
        topic, partition = int64_at(message + _TOPIC), np.int64(int32_at(message + _PARTITION))
        if places[slot]["topic"] != topic or places[slot]["partition"] != partition:
            slot = np.int64(find_place(places, topic, partition))
            if places[slot]["topic"] == 0:
                stopped = UNKNOWN_PLACE
                break
        if places[slot]["fetch"] != fetch[NUMBER]:
            places[slot]["fetch"] = fetch[NUMBER]
            places[fetch[TOUCHED]]["touched"] = slot
            fetch[TOUCHED] += 1
        places[slot]["next_offset"] = int64_at(message + _OFFSET) + 1
        size = int64_at(message + _PAYLOAD_BYTES)
        row = fetch[ROWS]
        rows[row]["received_ns"] = fetch[FIRST_NS] if at == 0 else fetch[REST_NS]
        rows[row]["tag"] = 0
        rows[row]["lane"] = fetch[LANE]
        rows[row]["size"] = size
        rows[row]["subscription"] = 0
        rows[row]["route"] = places[slot]["route"]
        rows[row]["redelivered"] = False
        rows[row]["corrupted"] = False
        envelope = memory + row * _RECEIVED_BYTES + _RECEIVED_HEAD
        copy_envelope(envelope, int64_at(message + _PAYLOAD), size)
        fetch[ROWS] += 1
        if fetch[KEEPS] == 0:
            destroy(message)
        fetch[NEXT] += 1
    return stopped


@kernel_without_lock
def copy_messages(addresses: I64, fields: Records) -> None:
    """Copy the structs at these addresses."""
    memory = np.int64(fields.ctypes.data)
    for at in range(len(fields)):
        copy_bytes(memory + at * _MESSAGE_BYTES, addresses[at], _MESSAGE_BYTES)


@kernel_without_lock
def destroy_messages(addresses: I64, first: int, end: int) -> None:
    """Give messages back to librdkafka."""
    for at in range(first, end):
        destroy(addresses[at])


# -- delivery reports ----------------------------------------------------------------------------


@kernel
def read_reports(
    addresses: I64,
    at_ns: int,
    free: I64,
    kept: Records,
    kinds: npt.NDArray[np.uint8],
    rows: Records,
) -> None:
    """Write an outcome for each message, with its envelope from the body or from those kept."""
    memory = np.int64(rows.ctypes.data)
    for row in range(len(rows)):
        message = np.int64(addresses[row])
        code = np.int64(int32_at(message)) - FIRST_ERROR
        opaque = int64_at(message + _OPAQUE)
        place = opaque >> PLACE_SHIFT
        rows[row]["at_ns"] = at_ns
        rows[row]["lane"] = opaque & 0xFFFFFFFF
        rows[row]["kind"] = kinds[code] if 0 <= code < ERRORS else kinds[ERRORS]
        if place >= FIRST_PLACE:
            rows[row]["envelope"] = kept[place - FIRST_PLACE]["envelope"]
            kept[free[0]]["free"] = place - FIRST_PLACE
            free[0] += 1
        else:
            size = int64_at(message + _PAYLOAD_BYTES) if place == IN_BODY else 0
            envelope = memory + row * _OUTCOME_BYTES + _OUTCOME_HEAD
            copy_envelope(envelope, int64_at(message + _PAYLOAD), size)


@kernel
def keep_envelopes(envelopes: Records, first: int, free: I64, kept: Records, rows: Records) -> None:
    """Keep the envelopes of messages laid out, and note in their opaques where; there is room."""
    for row in range(len(rows)):
        free[0] -= 1
        place = kept[free[0]]["free"]
        kept[place]["envelope"] = envelopes[first + row]
        rows[row]["opaque"] |= (place + FIRST_PLACE) << PLACE_SHIFT


# -- producing -----------------------------------------------------------------------------------


@kernel
def lay_out(
    envelopes: Records,
    lanes: npt.NDArray[np.uint32],
    first: int,
    payload: int,
    layout: I64,
    rows: Records,
    block: npt.NDArray[np.uint8],
) -> int:
    """Lay out bodies of the batch from `first` on until the block is full; returns how many."""
    memory, room = np.int64(block.ctypes.data), len(block) - 1
    width = layout[HEAD_BYTES]
    envelope = np.int64(envelopes.ctypes.data) + first * ENVELOPE_BYTES
    has_own = layout[TAIL_BYTES] < 0
    most = min(len(envelopes) - first, len(rows))
    at, count = np.int64(0), 0
    while count < most:
        payload_bytes = rows[count]["payload_bytes"] if has_own else layout[TAIL_BYTES]
        if at + width + payload_bytes > room:
            break
        if width > 0:
            copy_bytes(memory + at, envelope, width)
        if count >= layout[TAILS_WRITTEN] and payload_bytes > 0:
            copy_bytes(memory + at + width, payload, payload_bytes)
        rows[count]["error"] = 0
        rows[count]["payload"] = memory + at
        rows[count]["payload_bytes"] = width + payload_bytes
        rows[count]["opaque"] = lanes[first + count]
        rows[count]["offset"] = first + count
        at += width + payload_bytes
        envelope += ENVELOPE_BYTES
        payload += payload_bytes if has_own else layout[TAIL_STEP]
        count += 1
    if not has_own and layout[TAIL_STEP] == 0:
        layout[TAILS_WRITTEN] = max(layout[TAILS_WRITTEN], count)
    return count


@kernel
def point_keys(rows: Records, address: int) -> None:
    """Point at keys that lie one behind the other, of the lengths that are in `key_bytes`."""
    for row in range(len(rows)):
        rows[row]["key"] = address
        address += rows[row]["key_bytes"]


@kernel
def write_decimals(
    numbers: npt.NDArray[np.uint64], memory: npt.NDArray[np.uint8], rows: Records
) -> None:
    """Number keys, as people write them; 20 bytes of memory for each."""
    address = np.int64(memory.ctypes.data)
    for row in range(len(rows)):
        left = np.uint64(numbers[row])
        at = 20 * row + 20
        while True:
            at -= 1
            memory[at] = np.uint64(48) + left % np.uint64(10)
            left //= np.uint64(10)
            if left == 0:
                break
        rows[row]["key"] = address + at
        rows[row]["key_bytes"] = 20 * row + 20 - at


@kernel
def group_by_target(rows: Records, targets: I64, groups: Records, grouped: Records) -> int:
    """Sort messages by target, each group in order; returns how many targets have any."""
    for target in range(len(groups)):
        groups[target]["count"] = 0
    for row in range(len(rows)):
        groups[targets[row]]["count"] += 1
    at, found = np.int64(0), 0
    for target in range(len(groups)):
        groups[target]["end"] = at
        if groups[target]["count"] > 0:
            groups[found]["target"] = target
            found += 1
            at += groups[target]["count"]
    for row in range(len(rows)):
        end = groups[targets[row]]["end"]
        grouped[end] = rows[row]
        groups[targets[row]]["end"] = end + 1
    return found


@warm_up
def compile_kernels() -> None:
    """Call each kernel once, with arrays of the types that a run uses."""
    try:
        library()
    except NotUsable:
        return  # Runs are refused by `require_interface`, which says why.
    addresses, rows = np.zeros(1, np.int64), np.zeros(1, MESSAGE_DTYPE)
    places, kept, envelopes = np.zeros(2, PLACE_DTYPE), np.zeros(1, KEPT_DTYPE), empty_envelopes(0)
    free, layout = np.zeros(1, np.int64), np.zeros(4, np.int64)
    read_messages(addresses, np.zeros(FETCH_WORDS, np.int64), places, np.zeros(1, RECEIVED_DTYPE))
    find_place(places, 16, 0)
    copy_messages(addresses[:0], rows[:0])
    destroy_messages(addresses, 0, 0)
    kinds = np.zeros(ERRORS + 1, np.uint8)
    read_reports(addresses, 0, free, kept, kinds, np.zeros(0, OUTCOME_DTYPE))
    keep_envelopes(envelopes, 0, free, kept, rows[:0])
    lay_out(envelopes, np.zeros(0, np.uint32), 0, 0, layout, rows, np.zeros(1, np.uint8))
    point_keys(rows[:0], 0)
    write_decimals(np.zeros(0, np.uint64), np.zeros(1, np.uint8), rows[:0])
    group_by_target(rows[:0], addresses[:0], np.zeros(1, GROUP_DTYPE), rows)
