"""The ranges that the package asks for, and the pins that the set-up installs, agree."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.pack_environment import DRIVER_ONLY

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCK = (ROOT / "requirements.lock").read_text()

FOR_EXECUTORS = (
    *("agent", "plan", "data", "transports", "config", "core", "trace"),
    *("store/arrow", "spark/merge", "spark/job"),
)

PINNED = re.compile(
    r"^(\S+)==(\S+)(?: ; .*?)? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.M
)


def locked() -> dict[str, set[str]]:
    """Versions by name; where Pythons or systems differ, one for each."""
    versions: dict[str, set[str]] = {}
    for name, version, _ in PINNED.findall(LOCK):
        versions.setdefault(name, set()).add(version)
    return versions


def requirements(texts: list[str]) -> list[Requirement]:
    return [Requirement(text) for text in texts]


def test_every_line_of_the_lock_is_one_version_with_its_hashes() -> None:
    assert "".join(match.group() for match in PINNED.finditer(LOCK)) == re.sub(
        r"^#.*\n", "", LOCK, flags=re.M
    )


def test_the_lock_names_no_place_that_packages_come_from() -> None:
    assert not re.search(r"://|^--(extra-)?index|^-f|^--find|file:", LOCK, re.M)


def test_the_lock_holds_a_version_of_every_range() -> None:
    texts = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]
    for requirement in requirements(texts):
        versions = locked()[canonicalize_name(requirement.name)]
        assert all(requirement.specifier.contains(version) for version in versions), (
            f"{requirement}: the lock has {versions}; run `make lock`"
        )


def test_the_package_asks_for_ranges() -> None:
    for requirement in requirements(PROJECT["dependencies"]):
        operators = {specifier.operator for specifier in requirement.specifier}
        assert ">=" in operators, requirement
        assert "==" not in operators, requirement


def test_what_executors_are_called_with_loads_nothing_that_only_drivers_have() -> None:
    """Functions travel by the name of their module: agents, rolling metrics, joins of messages."""
    called = "bench_spark.spark.job, bench_spark.spark.merge, bench_spark.trace.files"
    absent = sorted(
        name.replace("-", "_") for name in DRIVER_ONLY - {"pyspark", "delta-spark", "pandas"}
    )
    block = f"import sys; sys.modules.update(dict.fromkeys({[*absent, 'delta']}))"
    subprocess.run([sys.executable, "-c", f"{block}; import {called}"], check=True)


def test_the_archive_for_executors_holds_no_requirement_that_only_drivers_load() -> None:
    """Agents and the rolling metrics are what runs there."""
    rooms = [ROOT / "bench_spark" / room for room in FOR_EXECUTORS]
    files = [file for room in rooms for file in (room.with_suffix(".py"), *room.rglob("*.py"))]
    sources = [file.read_text() for file in files if file.is_file()]
    loaded = {
        canonicalize_name(distribution)
        for module, distributions in importlib.metadata.packages_distributions().items()
        if any(re.search(rf"^\s*(import|from) {module}\b", source, re.M) for source in sources)
        for distribution in distributions
    }
    for requirement in requirements(PROJECT["dependencies"]):
        name = canonicalize_name(requirement.name)
        assert (name in loaded) or (name in DRIVER_ONLY), (
            f"{name} is loaded by no agent: name it in DRIVER_ONLY of tools/pack_environment.py"
        )
