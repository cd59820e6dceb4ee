"""Imports point down only, and heavy libraries stay in their rooms.

    cli, api -> spark, driver, results, report, suites, ... -> agent, plan
        -> data -> transports -> config -> core

The rule is what keeps an agent small enough to start in every executor, and a transport testable
without Spark. Everything is read from the source, so an import inside a function counts as well.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "bench_spark"

LAYERS = (
    {"cli", "api"},
    {
        "compare",
        "runs",
        "suites",
        "spark",
        "driver",
        "monitor",
        "brokers",
        "report",
        "results",
        "driver_process",
        "importers",
        "doctor",
        "watch",
        "trace",
    },
    {"agent", "plan"},
    {"data"},
    {"transports"},
    {"config"},
    {"store"},
    {"core"},
)
"""From the top down. A room may enter its own layer and those below it."""

FOUNDATION = {"__init__", "errors", "process", "jars", "java", "cache", "conf_files"}
"""Usable by all rooms, and using none of them."""

CORE_MAY_USE = {"core", "errors", "cache"}

SPARK_ONLY = {"pyspark", "delta", "py4j"}
NOT_IN_AN_AGENT = SPARK_ONLY | {"pyarrow", "deltalake", "pandas", "prometheus_client", "jinja2"}
LIGHT_ROOMS = {
    "agent",
    "plan",
    "data",
    "transports",
    "config",
    "core",
}

MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


def room_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


DEPTH_OF = {room: depth for depth, rooms in enumerate(LAYERS) for room in rooms}


@cache
def imports_of(module: str) -> tuple[str, ...]:
    """Every module it names, as `bench_spark.x.y` or `numpy.z`."""
    return tuple(_imports(ast.parse(MODULES[module].read_text()), module))


def _imports(tree: ast.Module, module: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, module)
            # `from bench_spark import plan` imports a module, `from ... import Scenario` a name.
            submodules = [f"{base}.{alias.name}" for alias in node.names]
            named = [name for name in submodules if name in MODULES]
            yield from named
            if len(named) < len(submodules):
                yield base


def _absolute(node: ast.ImportFrom, module: str) -> str:
    if not node.level:
        return node.module or ""
    is_package = MODULES[module].name == "__init__.py"
    package = module.split(".") if is_package else module.split(".")[:-1]
    above = package[: len(package) - node.level + 1]
    return ".".join([*above, *([node.module] if node.module else [])])


def own(names: tuple[str, ...]) -> list[str]:
    return [name for name in names if name.split(".")[0] == "bench_spark"]


def reached_from(module: str) -> set[str]:
    """Every module of ours that is loaded with this one, packages around them included."""
    reached = {module}
    waiting = [module]
    while waiting:
        for name in own(imports_of(waiting.pop())):
            parts = name.split(".")
            loaded = {".".join(parts[:depth]) for depth in range(1, len(parts) + 1)}
            new = (loaded & MODULES.keys()) - reached
            reached |= new
            waiting += new
    return reached


def heavy_loads(modules: list[str], unwanted: set[str]) -> list[str]:
    """By which modules each of these loads a library that it may not, whatever the path."""
    direct = {
        module: {name for name in imports_of(module) if name.split(".")[0] in unwanted}
        for module in MODULES
    }
    return [
        f"{module} loads {reached}, which imports {', '.join(sorted(direct[reached]))}"
        for module in modules
        for reached in sorted(reached_from(module))
        if direct[reached]
    ]


def upward_imports(module: str) -> Iterator[str]:
    room = room_of(module)
    for name in own(imports_of(module)):
        other = room_of(name)
        is_allowed = (
            other in FOUNDATION
            if room in FOUNDATION
            else DEPTH_OF.get(other, math.inf) >= DEPTH_OF[room]
        )
        if other != room and not is_allowed:
            yield f"{module} imports {name}"


def test_every_module_has_a_place_in_the_picture() -> None:
    known = FOUNDATION.union(*LAYERS)
    homeless = [module for module in MODULES if room_of(module) not in known]
    assert homeless == [], "give it a layer in this test and in docs/architecture.md"


def test_imports_go_down_only() -> None:
    placed = [name for name in MODULES if room_of(name) in DEPTH_OF.keys() | FOUNDATION]
    assert [line for module in placed for line in upward_imports(module)] == []


def test_core_uses_nothing_of_ours_but_errors() -> None:
    offenders = [
        f"{module} imports {name}"
        for module in MODULES
        if room_of(module) == "core"
        for name in own(imports_of(module))
        if room_of(name) not in CORE_MAY_USE
    ]
    assert offenders == []


def test_only_spark_and_what_stands_above_it_load_pyspark() -> None:
    above = ("spark", "cli", "api", "runs", "suites")
    others = [name for name in MODULES if room_of(name) not in above]
    assert heavy_loads(others, SPARK_ONLY) == []
    imported_elsewhere = [
        f"{module} imports {name}"
        for module in MODULES
        if room_of(module) != "spark"
        for name in imports_of(module)
        if name.split(".")[0] in SPARK_ONLY
    ]
    assert imported_elsewhere == []


def test_the_list_of_columns_is_plain_data() -> None:
    assert heavy_loads(["bench_spark.store.schema"], NOT_IN_AN_AGENT) == []


def test_nothing_that_an_agent_loads_reaches_a_heavy_library() -> None:
    light = [name for name in MODULES if room_of(name) in LIGHT_ROOMS]
    assert heavy_loads(light, NOT_IN_AN_AGENT) == []


@pytest.mark.parametrize(
    ("source", "module", "expected"),
    [
        ("import numpy as np", "bench_spark.plan", ["numpy"]),
        ("from bench_spark import plan", "bench_spark.errors", ["bench_spark.plan"]),
        ("from bench_spark.plan import Plan", "bench_spark.errors", ["bench_spark.plan"]),
        (
            "from .models import Scenario",
            "bench_spark.config.broker",
            ["bench_spark.config.models"],
        ),
        ("from . import models", "bench_spark.config", ["bench_spark.config.models"]),
        ("from ..plan import Plan", "bench_spark.config.broker", ["bench_spark.plan"]),
        ("def f():\n    import pyspark.sql", "bench_spark.plan", ["pyspark.sql"]),
    ],
)
def test_the_reading_of_imports_sees_every_form(
    source: str, module: str, expected: list[str]
) -> None:
    assert list(_imports(ast.parse(source), module)) == expected
