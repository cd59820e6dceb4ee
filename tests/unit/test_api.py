"""The Python API without a run: what it loads, when, and what it refuses."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import bench_spark
from bench_spark import Result, api, load_broker, load_scenario, run
from bench_spark.errors import BenchError, ConfigurationError

PACKAGE = Path(bench_spark.__file__).parent
PUBLIC = {"run", "load_scenario", "load_broker", "Result"}


def test_importing_the_package_loads_nothing_of_it() -> None:
    code = (
        "import sys, bench_spark; "
        "print([m for m in sys.modules if m.startswith('bench_spark.') or m in "
        "('pyspark', 'pandas', 'pyarrow', 'numpy', 'pydantic', 'typer')])"
    )
    root = str(PACKAGE.parent)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_names_are_those_of_the_api_and_known_to_type_checkers() -> None:
    assert (run, load_scenario, load_broker, Result) == (
        *(api.run, api.load_scenario, api.load_broker, api.Result),
    )
    assert set(dir(bench_spark)) >= PUBLIC
    stub = ast.parse((PACKAGE / "__init__.pyi").read_text())
    named = {n.name for s in stub.body if isinstance(s, ast.ImportFrom) for n in s.names}
    assert named == PUBLIC
    assert (PACKAGE / "py.typed").is_file()
    with pytest.raises(AttributeError, match="no attribute 'rum'"):
        _ = bench_spark.rum  # type: ignore[attr-defined]


def test_keys_are_changed_by_their_dotted_names() -> None:
    scenario = load_scenario(
        "steady",
        {
            "load.rate_per_second": 500,
            "agents": "auto",
            "kafka.producer.linger.ms": 5,
            "kafka.producer.client.id": "5",
            "description": "# no: comment",
            "load.steps": [{"seconds": 1, "rate_per_second": 2}],
            "amqp.prefetch": None,
        },
    )
    assert scenario.load.rate_per_second == 500
    assert scenario.agents == "auto"
    assert scenario.kafka.producer == {"linger.ms": 5, "client.id": "5"}
    assert scenario.description == "# no: comment"
    assert scenario.load.steps[0].rate_per_second == 2
    assert scenario.amqp.prefetch is None


def test_files_are_found_by_path(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("kind: loopback\n")
    assert load_broker(tmp_path / "mine.yaml", {"name": "other"}).name == "other"


@pytest.mark.parametrize(
    ("scenario", "broker", "options", "problem"),
    [
        ("stedy", "loopback", {}, "did you mean steady?"),
        ("steady", "loopbak", {}, "did you mean loopback?"),
        ("steady", "loopback", {"run_id": "../x"}, "not a plain name"),
        ("steady", "loopback", {"master": "lokal"}, "no Spark master"),
        ("steady", "loopback", {"master": "local[1]"}, "need 2 slots"),
    ],
)
def test_what_is_wrong_is_raised_before_spark_starts(
    scenario: str, broker: str, options: dict[str, str], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(BenchError) as refusal:
        run(scenario, broker, store=tmp_path / "store", **options)  # type: ignore[arg-type]
    assert problem in str(refusal.value)


def test_a_misspelt_key_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="rate_per_second"):
        load_scenario("steady", {"load.rate": 5})
