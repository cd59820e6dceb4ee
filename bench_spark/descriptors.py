"""Room for connections: how many files a process may have open (RLIMIT_NOFILE).

Every connection is an open file. Systems give a process few to begin with, often 1024, and let it
ask for more up to a hard limit; whoever needs many asks here, before the first connection.
"""

from __future__ import annotations

import resource

import psutil

from bench_spark.errors import EnvironmentNotReady

MOST_FOR_A_BROKER = 65_536
"""Not simply the hard limit: Erlang's runtime makes tables as large as its limit, and on some
systems that is a billion."""

_SPARE = 64
"""For what else a process opens while it is connected."""
_UNLIMITED = 2**31


def raise_limit(wanted: int) -> int:
    """Be allowed so many open files, as far as the system lets us; how many are allowed now.

    Programs started afterwards inherit it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = _as_number(soft)
    if allowed < wanted:
        allowed = min(wanted, _as_number(hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed


def make_room_for(connections: int, files_each: int = 1) -> None:
    """So that none of them fails half-way for want of a descriptor."""
    files = connections * files_each
    needed = psutil.Process().num_fds() + files + _SPARE
    allowed = raise_limit(needed)
    if allowed < needed:
        raise EnvironmentNotReady(
            f"{connections} connections of one agent need {needed} open files, and this system "
            f"allows a process {allowed}: raise its hard limit (ulimit -Hn), or use more agents"
        )


def _as_number(limit: int) -> int:
    return _UNLIMITED if limit == resource.RLIM_INFINITY else limit
