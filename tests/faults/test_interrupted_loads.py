"""Ctrl-C and SIGTERM under load, in a process of its own: quick, and nothing is left."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from fault_records import Seen

from bench_spark.config.broker import Broker, resolve_credentials
from bench_spark.transports.leftovers import Wanted
from bench_spark.transports.registry import sweeper_of

ENDS_WITHIN_SECONDS = 10.0


@pytest.mark.fault(case=12)
@pytest.mark.faults_slow
@pytest.mark.parametrize(
    ("kind", "number", "code"),
    [
        ("kafka", signal.SIGINT, 130),
        ("kafka", signal.SIGTERM, 143),
        ("rabbitmq", signal.SIGTERM, 143),
    ],
)
def test_a_signal_ends_a_load_and_leaves_nothing(
    kind: str,
    number: signal.Signals,
    code: int,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    seen: Seen,
) -> None:
    broker: Broker = request.getfixturevalue(f"{kind}_broker")
    run_id = f"cut-{kind}-{number.name}-{time.time_ns()}"
    keys = broker.model_dump(exclude_none=True, exclude_defaults=True)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(keys))
    program = subprocess.Popen(
        [
            *(sys.executable, "-m", "bench_spark.cli", "run", "steady", "--run-id", run_id),
            *("--broker", str(tmp_path / "mine.yaml"), "--store", str(tmp_path / "store")),
            *("--format", "json", "--set", "load.rate_per_second=500"),
            *("--set", "phases.warmup_seconds=1", "--set", "phases.measure_seconds=300"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stderr is not None
    for line in program.stderr:
        if "measure" in line and "msg/s" in line:
            break
    stopped = time.monotonic()
    program.send_signal(number)
    out, err = program.communicate(timeout=60)
    seconds = time.monotonic() - stopped
    assert program.returncode == code, err
    assert json.loads(out)["status"] == "aborted"
    assert json.loads(out)["counts"]["received_once"] > 0
    assert "Traceback" not in err
    assert seconds < ENDS_WITHIN_SECONDS
    left = sweeper_of(broker, resolve_credentials(broker)).find(Wanted(run_prefix=run_id))
    assert left == []
    seen(f"{kind}, {number.name}: {seconds:.1f} s, nothing left")
