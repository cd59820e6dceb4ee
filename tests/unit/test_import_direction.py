"""Imports point down only, and heavy libraries stay in their rooms.

    cli -> search, spark, collector, monitor, brokers, report -> agent, plan
        -> identity, datasets -> transports -> scenario -> measure

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
        "search",
        "suite",
        "spark",
        "collector",
        "monitor",
        "brokers",
        "report",
        "summary",
        "store",
        "store_opening",
        "version_checksum",
        "histogram_column",
        "importing",
        "doctor",
        "watch",
        "messages",
    },
    {"agent", "plan", "plan_of_rows", "placement", "load_course"},
    {"identity", "datasets"},
    {"transports"},
    {"scenario"},
    {"measure"},
)
"""From the top down. A room may enter its own layer and those below it."""

FOUNDATION = {"__init__", "errors", "tables", "jars", "java", "cache", "conf_files", "descriptors"}
"""Usable by all rooms, and using none of them."""

MEASURE_MAY_USE = {"measure", "errors"}

SPARK_ONLY = {"pyspark", "delta", "py4j"}
NOT_IN_AN_AGENT = SPARK_ONLY | {"pyarrow", "deltalake", "pandas"}
LIGHT_ROOMS = {
    "agent",
    "plan",
    "plan_of_rows",
    "placement",
    "load_course",
    "identity",
    "datasets",
    "transports",
    "scenario",
    "measure",
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


def libraries_reached_from(module: str, unwanted: set[str]) -> set[str]:
    return {
        f"{reached} imports {name}"
        for reached in reached_from(module)
        for name in imports_of(reached)
        if name.split(".")[0] in unwanted
    }


def test_every_module_has_a_place_in_the_picture() -> None:
    known = FOUNDATION.union(*LAYERS)
    homeless = [module for module in MODULES if room_of(module) not in known]
    assert homeless == [], "give it a layer in this test and in docs/architecture.md"


@pytest.mark.parametrize(
    "module", [name for name in MODULES if room_of(name) in DEPTH_OF.keys() | FOUNDATION]
)
def test_imports_go_down_only(module: str) -> None:
    room = room_of(module)
    entered = {room_of(name) for name in own(imports_of(module))} - {room}
    if room in FOUNDATION:
        assert entered <= FOUNDATION
        return
    upward = {other for other in entered if DEPTH_OF.get(other, math.inf) < DEPTH_OF[room]}
    assert not upward, f"{module} imports upward: {sorted(upward)}"


@pytest.mark.parametrize("module", [name for name in MODULES if room_of(name) == "measure"])
def test_measure_uses_nothing_of_ours_but_errors(module: str) -> None:
    assert {room_of(name) for name in own(imports_of(module))} <= MEASURE_MAY_USE


@pytest.mark.parametrize(
    "module", [name for name in MODULES if room_of(name) not in ("spark", "cli", "api")]
)
def test_only_spark_and_what_stands_above_it_load_pyspark_by_any_path(module: str) -> None:
    assert not libraries_reached_from(module, SPARK_ONLY)


@pytest.mark.parametrize("module", [name for name in MODULES if room_of(name) != "spark"])
def test_only_the_spark_room_imports_pyspark_itself(module: str) -> None:
    assert SPARK_ONLY.isdisjoint(name.split(".")[0] for name in imports_of(module))


@pytest.mark.parametrize("module", [name for name in MODULES if room_of(name) in LIGHT_ROOMS])
def test_light_rooms_load_no_heavy_library_by_any_path(module: str) -> None:
    assert not libraries_reached_from(module, NOT_IN_AN_AGENT)


@pytest.mark.parametrize(
    ("source", "module", "expected"),
    [
        ("import numpy as np", "bench_spark.plan", ["numpy"]),
        ("from bench_spark import plan", "bench_spark.errors", ["bench_spark.plan"]),
        ("from bench_spark.plan import Plan", "bench_spark.errors", ["bench_spark.plan"]),
        (
            "from .models import Scenario",
            "bench_spark.scenario.broker",
            ["bench_spark.scenario.models"],
        ),
        ("from . import models", "bench_spark.scenario", ["bench_spark.scenario.models"]),
        ("from ..plan import Plan", "bench_spark.scenario.broker", ["bench_spark.plan"]),
        ("def f():\n    import pyspark.sql", "bench_spark.plan", ["pyspark.sql"]),
    ],
)
def test_the_reading_of_imports_sees_every_form(
    source: str, module: str, expected: list[str]
) -> None:
    assert list(_imports(ast.parse(source), module)) == expected
