"""What runs that were killed have left in a broker: found by name, listed, and deleted on request.

Everything that a run makes has a name that begins with `bench-` and its run id. A run that ends
deletes it; one whose processes were killed cannot. Whatever is in use is listed, and left
alone with all else of its run.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from bench_spark.config.models import Scenario
from bench_spark.errors import BenchError

PREFIX = "bench-"
WATCHED_SECONDS = 1.0
"""What changes in so long a time is in use, though nobody consumes from it."""

_ITS_RUN = "its run: "
_NUMBERED = re.compile(rf"{PREFIX}(?P<run_id>.+)-[0-9]+")


@dataclass(frozen=True)
class Leftover:
    kind: str
    """`queue`, `exchange`, `policy`, `topic`, `group`, `retained` or `session`."""
    name: str
    run_id: str
    holds: str = ""
    """What is in it, for people."""
    used_by: str = ""
    """Who uses it, for people. Then it is not ours to delete."""

    @property
    def is_used_by_its_run_only(self) -> bool:
        """Whether nothing uses it but another leftover of the run, as a group does its topics."""
        return self.used_by.startswith(_ITS_RUN)


@dataclass(frozen=True)
class KnownRun:
    """A run of the store, for brokers that cannot tell what they have."""

    run_id: str
    scenario: Scenario


@dataclass(frozen=True)
class Wanted:
    """Which runs' leftovers to look for."""

    run_prefix: str = ""
    """What their ids begin with."""
    known: Sequence[KnownRun] = ()

    @property
    def is_narrow(self) -> bool:
        """Whether somebody has said which runs are meant."""
        return bool(self.run_prefix)

    def takes(self, run_id: str) -> bool:
        return run_id.startswith(self.run_prefix)


class Sweeper(Protocol):
    """One kind of broker's way to find and delete them."""

    def find(self, wanted: Wanted) -> list[Leftover]: ...

    def delete(self, leftovers: Sequence[Leftover]) -> None:
        """What is gone already, or has come into use meanwhile, stays as it is."""


def run_of_numbered(name: str) -> str | None:
    """The run that a queue's or topic's name names; None if it is not named after a run."""
    found = _NUMBERED.fullmatch(name)
    return found["run_id"] if found else None


def run_of_whole(name: str, runs: Collection[str]) -> str | None:
    """The run of a name that may end in a number of its own or of the run's: one of `runs`, if it
    is among them."""
    if not name.startswith(PREFIX) or name == PREFIX:
        return None
    whole, numbered = name.removeprefix(PREFIX), run_of_numbered(name)
    return numbered if numbered in runs and whole not in runs else whole


def with_their_runs(leftovers: Iterable[Leftover]) -> list[Leftover]:
    """What belongs to a run that uses something of its own is in use as well."""
    found = list(leftovers)
    users = {one.run_id: f"{_ITS_RUN}{one.kind} {one.name}" for one in found if one.used_by}
    return [
        one if one.used_by or one.run_id not in users else replace(one, used_by=users[one.run_id])
        for one in found
    ]


def sparing_kept(leftovers: Iterable[Leftover], known: Sequence[KnownRun]) -> list[Leftover]:
    """What a run was configured to keep was not left by accident."""
    kept = {run.run_id for run in known if run.scenario.keep_destinations}
    return [
        replace(one, used_by="whoever it was kept for (keep_destinations)")
        if one.run_id in kept and not one.used_by
        else one
        for one in leftovers
    ]


def delete_left_by(
    run: KnownRun, sweepers: Iterable[Sweeper], patience_seconds: float
) -> list[str]:
    """Delete what agents of a run have left that were killed; returns why something stays, if so.

    A broker may take a while to notice that a killed process has let go of its queues: Kafka keeps
    the members of a group for 45 s. All agents of the run are gone, so its topics need not wait for
    that.
    """
    problems = []
    for sweeper in sweepers:
        deadline = time.monotonic() + patience_seconds
        try:
            while True:
                found = sweeper.find(Wanted(run.run_id, [run]))
                left = [one for one in found if one.run_id == run.run_id]
                used = [one for one in left if one.used_by and not one.is_used_by_its_run_only]
                sweeper.delete([one for one in left if one not in used])
                if not used or time.monotonic() > deadline:
                    break
                time.sleep(0.2)
        except BenchError as error:
            problems.append(str(error))
        else:
            problems += [f"{one.kind} {one.name} is used by {one.used_by}" for one in used]
    return problems


class NothingLeft:
    """Of kinds whose messages are nowhere but on their way."""

    def find(self, wanted: Wanted) -> list[Leftover]:
        return []

    def delete(self, leftovers: Sequence[Leftover]) -> None:
        pass
