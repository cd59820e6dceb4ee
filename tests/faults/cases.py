"""The cases of the fault table in docs/reliability.md: what goes wrong, and what must come of it.

Tests are marked with the number of the case that they show (`fault(case=N)`).
"""

from __future__ import annotations

from typing import NamedTuple


class Case(NamedTuple):
    fault: str
    expected: str


CASES: dict[int, Case] = {
    1: Case(
        "The broker is stopped and started again in mid-run",
        "Lanes are opened again within 5 s of the port, the gap is in `events`, every message is "
        "accounted for; degraded, exit 4",
    ),
    2: Case(
        "kill -9 of the broker; durable queue, persistent messages, confirms",
        "No confirmed message is lost, duplicates are counted; degraded, exit 4",
    ),
    3: Case(
        "kill -9 of the broker; transient messages, automatic acknowledgement",
        "The loss is reported; degraded, exit 4, or 5 where the broker had confirmed what it lost",
    ),
    4: Case(
        "The broker stands still for 2 s (SIGSTOP)",
        "`delivery_latency` shows the whole pause",
    ),
    5: Case(
        "Refused connection, wrong password, wrong vhost or topic, a silent or foreign peer, TLS "
        "with an unknown authority, an expired certificate or another host's",
        "Exit 3 within 15 s and 3 attempts; `tls.insecure` lets TLS through and is in the result",
    ),
    6: Case("A queue is deleted in mid-run", "Noticed within 2 s; degraded, exit 4"),
    7: Case(
        "A queue or topic of the same name has other arguments",
        "Explained in the broker's words (406), what is there stays untouched; exit 3",
    ),
    8: Case(
        "The broker's memory alarm blocks producers for 6 s, or for good",
        "Blocked time within 0.5 s of the truth; without an end to the alarm the run ends within "
        "duration + drain + 10 s",
    ),
    9: Case(
        "A Kafka broker dies; a leader changes in a cluster of three; a group rebalances",
        "An error row within 5 s and no hang; the load goes on with the new leader; duplicates and "
        "gaps are counted",
    ),
    10: Case(
        "kill -9 of an executor: a Python worker, a standalone worker",
        "Degraded with what was measured, exit 4; no second producer of the same identity",
    ),
    11: Case("Too few slots", "Refused within 15 s; exit 3"),
    12: Case(
        "Ctrl-C, SIGTERM",
        "Ends within 10 s with the partial result; no queue, topic or consumer group is left; exit "
        "130, 143",
    ),
    13: Case(
        "kill -9 of the driver and all its processes",
        "Tables stay readable; `bench-spark cleanup` shows what is orphaned, deletes it with "
        "`--delete`, and nothing else",
    ),
    14: Case(
        "Store: disk full, read-only, a corrupted checkpoint, two applications at once, a batch "
        "that comes twice",
        "A clear error or correct isolation; earlier versions stay readable; rows are kept once",
    ),
    15: Case(
        "The clock steps by 5 s, forwards and backwards; latencies below zero and above 10 s",
        "Pacing and latencies do not change, the audit names the step; such latencies are counted",
    ),
    16: Case(
        "Malformed, truncated, foreign and stale messages; a million fuzzed streams per protocol, "
        "100 000 bodies",
        "Counted apart, latency unaffected; no exception but the refusal that is meant",
    ),
    17: Case(
        "YAML bombs and Python tags; `../x`, quotes, NUL, 10 kB in names; markup in reports",
        "Refused within 1 s, exit 2; SQL takes names as parameters; HTML escapes everything",
    ),
    18: Case(
        "A canary password with AMQP, Kafka and MQTT; strangers at the collector's socket",
        "Found nowhere: output, logs, tables, reports, `ps`, tracebacks, Spark's UI and event log; "
        "without the run's token nothing is heard, sizes and connections are capped",
    ),
    19: Case(
        "Consumers slower than producers",
        "The backlog is reported, the agent's memory stays bounded",
    ),
    20: Case(
        "An hour of soak at half the limit, in compressed form",
        "Memory, threads and file descriptors do not grow",
    ),
}
