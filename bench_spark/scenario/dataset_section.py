"""The section `dataset` of a scenario: messages whose bodies are somebody's real records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, model_validator

from bench_spark.scenario.fields import Conflict, Section, refuse

RecordFormat = Literal["lines", "jsonl", "csv", "files", "length_prefixed"]
RecordOrder = Literal["sequential", "shuffled", "sampled"]

_Path = Annotated[str, Field(min_length=1, max_length=4096)]
_Column = Annotated[str, Field(min_length=1, max_length=255)]


class Columns(Section):
    """Columns of `dataset.table`."""

    body: _Column = "body"
    """What is sent: text or binary."""
    key: _Column | None = None
    """The message's key, text or binary, where the protocol has keys (Kafka)."""
    headers: _Column | None = None
    """The message's headers, a map of text to text or binary, where the protocol has them."""
    interval: _Column | None = None
    """Seconds between the row before and this one (a number, or a day-time interval): the rows are
    then sent at the pace at which they were recorded."""
    sort: _Column | None = None
    """By what the rows are sorted; unset: in the order in which Spark reads them, which is that of
    the files only where there is one file."""


class Replay(Section):
    """Recorded traffic (`dataset.columns.interval`)."""

    speed: Annotated[float, Field(ge=0.001, le=1_000_000, allow_inf_nan=False)] = 1.0
    """How much faster than recorded: at 2, every interval is half as long."""


class Found(Section):
    """What the data set held when it was read before the run. Filled in, for the result: what a
    file says here is overwritten."""

    records: int = Field(0, ge=0)
    """How many."""
    mean_bytes: float = Field(0.0, ge=0)
    """Mean size of a record."""
    largest_bytes: int = Field(0, ge=0)
    """Size of the largest."""
    largest_body_bytes: int = Field(0, ge=0)
    """Size of the largest as it is sent, with an ID where the body carries it."""
    smallest_bytes: int = Field(0, ge=0)
    """Size of the smallest."""
    is_found_as_sent: bool | None = None
    """Whether `identity.find` finds the ID in the first record as it is sent; where it does not,
    only what a system makes of records is recognised. Unset without `find`."""


class Dataset(Section):
    """Bodies from files or a table; see data.md."""

    path: _Path | None = None
    """A file of records, or a directory: all files in it and below, in the order of their names,
    without those whose names begin with `.` or `_`. From where the command is given, else from
    where the scenario's file is. Every agent reads it, so on a cluster it must be on all machines.
    Names that end in `.gz` are read decompressed."""
    table: _Path | None = None
    """Instead: a table that Spark reads, by name or by the path of Parquet files or of a Delta
    table. The driver reads it once and puts its rows into the store, from where the agents read
    them."""
    format: RecordFormat | None = None
    """What a record of `path` is. `lines`: a line, without its end; blank lines are none. `jsonl`:
    a line that is JSON. `csv`: a row, as it is in the file; ends of lines in quotes are part of
    it. `files`: a whole file. `length_prefixed`: what follows its length (4 bytes, big-endian).
    Unset: by the name of the file or of the directory's first one, `.jsonl` and `.ndjson`, `.csv`,
    else `lines`."""
    header_row: bool = True
    """Format `csv`: the first row of each file names the columns and is not sent."""
    order: RecordOrder = "sequential"
    """In which order records are sent. `sequential`: as they are. `shuffled`: each once in random
    order, then each once in another. `sampled`: any at any time. Producers share the records: with
    4 of them, each sends every fourth of that order."""
    seed: int = Field(0, ge=0, lt=2**63)
    """What random orders depend on: the same number gives the same order."""
    repeat: bool = True
    """Begin again after the last record. `false`: the measured phase ends when each was sent once;
    needs `phases.warmup_seconds: 0`."""
    columns: Columns = Field(default_factory=Columns)
    replay: Replay = Field(default_factory=Replay)
    found: Found = Field(default_factory=Found)

    @property
    def is_set(self) -> bool:
        return self.path is not None or self.table is not None

    @property
    def is_recorded(self) -> bool:
        """Whether the data says when messages are due."""
        return self.table is not None and self.columns.interval is not None

    @model_validator(mode="after")
    def _keys_agree(self) -> Dataset:
        refuse([*self._source_conflicts(), *self._table_conflicts(), *self._order_conflicts()])
        return self

    def _source_conflicts(self) -> Iterator[Conflict]:
        if self.path is not None and self.table is not None:
            yield Conflict(("table", "path"), "excludes path: records come from one of them")
        if not self.is_set:
            for name in ("format", "order", "seed", "repeat", "columns", "replay"):
                if getattr(self, name) != getattr(_UNSET, name):
                    problem = "needs dataset.path or dataset.table: there is no data set"
                    yield Conflict((name, "path"), problem)

    def _table_conflicts(self) -> Iterator[Conflict]:
        if self.table is not None and self.format is not None:
            yield Conflict(
                ("format", "table"), "is for dataset.path: the rows of a table have none"
            )
        if self.path is not None and self.columns != Columns():
            yield Conflict(("columns", "path"), "are those of dataset.table; files have none")
        if self.replay != Replay() and not self.is_recorded:
            yield Conflict(("replay", "columns"), "needs dataset.columns.interval: what to replay")

    def _order_conflicts(self) -> Iterator[Conflict]:
        if self.is_recorded and self.order != "sequential":
            problem = (
                f"{self.order} does not go with columns.interval: recorded traffic has an order"
            )
            yield Conflict(("order", "columns"), problem)
        if self.order == "sampled" and not self.repeat:
            problem = "false does not go with order sampled, which never has sent each record"
            yield Conflict(("repeat", "order"), problem)


_UNSET = Dataset.model_construct()
