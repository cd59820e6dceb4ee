"""Rows of `messages`, read from their files and shared out by message: what joining needs.

All rows of a message belong to one share, whoever wrote them. Each share reads every file and keeps
its own rows: for some millions of messages that is several times cheaper than to have Spark read
the rows one by one and bring them together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from bench_spark.agent.timeline import MEASURE
from bench_spark.agent.tracer import MessageEvent
from bench_spark.messages.joining import BLOCK_MESSAGES, ROWS

ROWS_AT_ONCE = 256 * 1024
_WORDS = ("run_id", "kind", "phase")
KINDS = {event.name.lower(): int(event) for event in MessageEvent}
_COLUMNS = [*(name for name in ROWS.names if name not in ("kind", "is_measured")), *_WORDS]

Mask = npt.NDArray[np.bool_]


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


def _coded(words: pa.DictionaryArray, codes: Mapping[str, int]) -> npt.NDArray[np.int8]:
    """Each word as its code; -1 for others."""
    table = np.array([codes.get(word, -1) for word in words.dictionary.to_pylist()], np.int8)
    found: npt.NDArray[np.int8] = table[words.indices.to_numpy(zero_copy_only=False)]
    return found
