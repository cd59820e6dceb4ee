"""Parquet files of the table `messages`, written where the agent runs.

They are too many rows for the link to the driver: files go straight into the table's directory, and
only their names travel. What no commit names does not exist for any reader. Executors load this: a
store that is no directory is written by deltalake, which is loaded for it alone.

All rows of a message belong to one share, whoever wrote them. Each share reads every file and keeps
its own rows: for some millions of messages that is several times cheaper than to have Spark read
the rows one by one and bring them together.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from bench_spark.agent.timeline import MEASURE, PHASES
from bench_spark.agent.tracer import MessageEvent, MessageFile, Rows, TraceSetup
from bench_spark.errors import StoreError, StoreNotReady
from bench_spark.store.arrow import MESSAGES
from bench_spark.trace.joining import BLOCK_MESSAGES, ROWS, JoinRule, Mask, join_parts

ROWS_AT_ONCE = 256 * 1024
_WORDS = ("run_id", "kind", "phase")
KINDS = {event.name.lower(): int(event) for event in MessageEvent}
_COLUMNS = [*(name for name in ROWS.names if name not in ("kind", "is_measured")), *_WORDS]


@dataclass(frozen=True)
class Share:
    """One of `shares` parts of a run's messages."""

    run_id: str
    number: int
    shares: int

    def rows_of(self, files: Iterable[str]) -> Iterator[pa.RecordBatch]:
        """The rows of `ROWS` that belong to it."""
        for path in files:
            with pq.ParquetFile(path, memory_map=True, read_dictionary=list(_WORDS)) as file:
                for batch in file.iter_batches(ROWS_AT_ONCE, columns=_COLUMNS):
                    rows = self._rows_of(batch)
                    if rows.num_rows:
                        yield rows

    def _rows_of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        is_ours = _coded(batch.column("run_id"), {self.run_id: 1}) == 1
        is_ours &= self._holds(batch.column("producer"), batch.column("sequence"))
        made = {
            "kind": pa.array(_coded(batch.column("kind"), KINDS)),
            "is_measured": pa.array(_coded(batch.column("phase"), {MEASURE: 1}) == 1),
        }
        arrays = [made[name] if name in made else batch.column(name) for name in ROWS.names]
        return pa.RecordBatch.from_arrays(arrays, schema=ROWS).filter(pa.array(is_ours))

    def _holds(self, producer: pa.Array, sequence: pa.Array) -> Mask:
        """Blocks of messages are dealt out in turn, each producer's from another share on."""
        block = sequence.fill_null(0).to_numpy() // BLOCK_MESSAGES
        held: Mask = (block + producer.fill_null(0).to_numpy()) % self.shares == self.number
        return held


def join_shares(
    batches: Iterable[pa.RecordBatch],
    paths: Sequence[str],
    run_id: str,
    shares: int,
    rule: JoinRule,
) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`: numbers of shares in, rows of `PARTS` out."""
    for batch in batches:
        for number in batch.column("id").to_pylist():
            yield from join_parts(Share(run_id, number, shares).rows_of(paths), rule)


def _coded(words: pa.DictionaryArray, codes: Mapping[str, int]) -> npt.NDArray[np.int8]:
    """Each word as its code; -1 for others."""
    table = np.array([codes.get(word, -1) for word in words.dictionary.to_pylist()], np.int8)
    found: npt.NDArray[np.int8] = table[words.indices.to_numpy(zero_copy_only=False)]
    return found


COMPRESSION = "snappy"
_FILES_WORDS = ("run_id", "kind", "phase", "destination")
"""Columns of few values: a dictionary makes them small. For numbers it would only cost time."""
_KINDS = pa.array([event.name.lower() for event in MessageEvent], pa.string())


@dataclass(frozen=True)
class MessageDirectory:
    """Where the table is; travels to the agents and makes their writers."""

    table_uri: str
    is_local: bool
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What deltalake is told beside its own environment: the driver's place and credentials."""

    def __call__(self, setup: TraceSetup) -> ParquetMessages:
        return ParquetMessages(setup, self.filesystem())

    def filesystem(self) -> fs.FileSystem:
        if self.is_local:
            return fs.SubTreeFileSystem(self.table_uri, fs.LocalFileSystem())
        try:
            from deltalake.fs import DeltaStorageHandler
        except ImportError:
            raise StoreNotReady(
                f"trace: on {socket.gethostname()} the Python package deltalake is missing, which "
                f"writes rows of messages into {self.table_uri}: install it there, ship "
                "`make archive` without FOR=executors, or leave trace off"
            ) from None
        return fs.PyFileSystem(DeltaStorageHandler(self.table_uri, dict(self.options)))

    def prove_writable(self) -> None:
        """Raise StoreNotReady on a machine that cannot write there, by a file that is deleted."""
        trial = f".writable-{secrets.token_hex(8)}"
        try:
            filesystem = self.filesystem()
            with filesystem.open_output_stream(trial) as stream:
                pq.write_table(MESSAGES.empty_table(), stream)
            filesystem.delete_file(trial)
        except OSError as error:
            raise StoreNotReady(
                f"trace: {socket.gethostname()} cannot write rows of messages into "
                f"{self.table_uri}: {_reason(error)}"
            ) from error


def _reason(error: OSError) -> str:
    if error.strerror:
        return error.strerror
    # deltalake's words, so it is here.
    from bench_spark.store.delta import in_one_line

    return in_one_line(error)


class ParquetMessages:
    """The files of one agent; each run has a directory of its own in that of the table."""

    def __init__(self, setup: TraceSetup, filesystem: fs.FileSystem) -> None:
        self._setup = setup
        self._filesystem = filesystem
        self._has_directory = False

    def write(self, number: int, first_row: int, rows: Sequence[Rows]) -> MessageFile:
        setup = self._setup
        path = f"{setup.run_id}/{setup.agent}-{setup.attempt}-{number:06}.parquet"
        table = message_table(setup, first_row, rows)
        try:
            self._make_directory()
            with self._filesystem.open_output_stream(path) as stream:
                pq.write_table(
                    table, stream, compression=COMPRESSION, use_dictionary=list(_FILES_WORDS)
                )
                size_bytes = stream.tell()
        except OSError as error:
            raise StoreError(
                f"trace: agent {setup.agent} cannot write {path}: {_reason(error)}"
            ) from error
        return MessageFile(number, path, size_bytes, table.num_rows)

    def _make_directory(self) -> None:
        if not self._has_directory:
            self._filesystem.create_dir(self._setup.run_id, recursive=True)
            self._has_directory = True


def message_table(setup: TraceSetup, first_row: int, parts: Sequence[Rows]) -> pa.Table:
    """Rows of the tracer as rows of `messages`; the first is the agent's `first_row`th."""
    rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
    count = len(rows)
    envelope, kind, place = rows["envelope"], rows["kind"], rows["place"]
    is_nobodys = ~rows["is_ours"]
    is_sent, is_received = kind == MessageEvent.SENT, kind == MessageEvent.RECEIVED
    intended_ns = envelope["intended_ns"].astype(np.int64)
    no_intention = is_nobodys | (intended_ns == 0)
    at_ns = np.ascontiguousarray(rows["at_ns"])
    is_measured = setup.timeline.phase_of(np.where(no_intention, at_ns, intended_ns))
    if setup.first_measured is not None:
        of_others = no_intention & ~is_nobodys
        first = np.array(setup.first_measured, np.int64)[envelope["producer"][of_others]]
        is_measured[of_others] = envelope["sequence"][of_others].astype(np.int64) >= first
    subscriptions = np.array([*setup.subscriptions, 0], np.int32)
    columns = {
        "run_id": _repeated(setup.run_id, count),
        "agent": pa.array(np.full(count, setup.agent, np.int32)),
        "attempt": pa.array(np.full(count, setup.attempt, np.int32)),
        "number": pa.array(np.arange(first_row, first_row + count)),
        "kind": pa.DictionaryArray.from_arrays(kind.astype(np.int8), _KINDS),
        "phase": pa.DictionaryArray.from_arrays(is_measured.astype(np.int8), pa.array(PHASES)),
        "producer": _nullable(envelope["producer"].astype(np.int32), is_nobodys),
        "sequence": _nullable(envelope["sequence"].astype(np.int64), is_nobodys),
        "subscription": _nullable(subscriptions[np.where(is_received, place, -1)], ~is_received),
        "destination": _destinations(setup, place, is_received),
        "intended_ns": _nullable(intended_ns, no_intention),
        "sent_ns": _nullable(
            envelope["sent_ns"].astype(np.int64), is_nobodys | (envelope["sent_ns"] == 0)
        ),
        "at_ns": pa.array(at_ns),
        "insert_ns": _nullable(rows["insert_ns"], ~is_sent),
        "size": _nullable(rows["size"].astype(np.int64), ~(is_sent | is_received)),
        "content_hash": _nullable(rows["content_hash"], ~rows["has_hash"]),
    }
    return pa.table([columns[name] for name in MESSAGES.names], names=MESSAGES.names)


def _nullable(values: npt.NDArray[np.integer], is_null: Mask) -> pa.Array:
    return pa.array(np.ascontiguousarray(values), mask=is_null)


def _repeated(word: str, count: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(np.zeros(count, np.int8), pa.array([word]))


def _destinations(
    setup: TraceSetup, place: npt.NDArray[np.int32], is_received: Mask
) -> pa.DictionaryArray:
    """By lane for what was sent, by subscription for what was received."""
    names = [*setup.destinations_by_producer, *setup.destinations_by_subscription]
    lanes = len(setup.destinations_by_producer)
    number_of = {name: number for number, name in enumerate(dict.fromkeys(names))}
    word_of = np.array([number_of[name] for name in names], np.int32)
    return pa.DictionaryArray.from_arrays(
        word_of[np.where(is_received, place + lanes, place)], pa.array(list(number_of))
    )
