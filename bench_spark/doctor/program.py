"""What bench-spark itself needs: Python, its packages, Java, jars and the class archive."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from collections.abc import Iterable, Iterator

from bench_spark import jars, java
from bench_spark.core import kernel_cache, kernel_files, kernels
from bench_spark.doctor.examining import Check
from bench_spark.doctor.finding import Finding, failing, ok, warning
from bench_spark.errors import EnvironmentNotReady

OLDEST_PYTHON = (3, 11)
DISTRIBUTION = "bench-spark"
SETUP = "run `make setup` once with access to the network"

_PINNED = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^;\s]+)(?P<marker>.*)")


def program_checks() -> list[Check]:
    return [
        Check("python", lambda: python_finding(sys.version_info[:3])),
        Check("packages", _packages),
        Check("kafka client", _kafka_client),
        Check("spark", _spark),
        Check("java", _java),
        *(Check(f"jars {name}", lambda name=name: _jars(name)) for name in _everyday_sets()),  # type: ignore[misc]
        Check("class archive", _class_archive),
        Check("kernels", _kernels),
    ]


def python_finding(version: tuple[int, int, int]) -> Finding:
    text = "Python " + ".".join(map(str, version))
    if version[:2] < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        return failing("python", text, f"install Python {oldest} or newer")
    return ok("python", f"{text} ({sys.executable})")


def _packages() -> Finding:
    try:
        required = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return warning(
            "packages",
            f"{DISTRIBUTION} is not installed, so nothing says which packages it needs",
            SETUP,
        )
    return packages_finding(required)


def packages_finding(required: Iterable[str]) -> Finding:
    """Whether what is pinned is installed, in the version that it was tested with."""
    missing, others = [], []
    for name, pinned in _pinned(required):
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
            continue
        if version != pinned:
            others.append(f"{name} {version} instead of {pinned}")
    if missing:
        return failing("packages", f"missing: {', '.join(missing)}", SETUP)
    if others:
        return warning("packages", f"not as tested: {', '.join(others)}", SETUP)
    return ok("packages", "all as pinned")


def _pinned(required: Iterable[str]) -> Iterator[tuple[str, str]]:
    for text in required:
        match = _PINNED.match(text)
        if match is not None and "extra" not in match["marker"]:
            yield match["name"], match["version"]


def _kafka_client() -> Finding:
    """Messages of Kafka go through librdkafka's C interface, which must be the one we know."""
    try:
        from bench_spark.transports.kafka.interface_check import client_library, require_interface
    except ImportError as error:
        return failing("kafka client", f"cannot be imported: {error}", SETUP)
    try:
        require_interface()
    except EnvironmentNotReady as error:
        return failing("kafka client", str(error), SETUP)
    return ok("kafka client", f"{client_library()}, with the C interface that runs use")


def _spark() -> Finding:
    try:
        return ok("spark", f"Spark {importlib.metadata.version('pyspark')}")
    except importlib.metadata.PackageNotFoundError:
        return failing("spark", "pyspark is not installed", SETUP)


def _java() -> Finding:
    try:
        command = java.require_java()
    except EnvironmentNotReady as error:
        return failing("java", str(error), java.HOW_TO_INSTALL)
    version = java.java_version_text(command).splitlines()[:1]
    return ok("java", f"{version[0] if version else 'Java'} ({command})")


def _everyday_sets() -> list[str]:
    return [name for name, each in jars.known_sets().items() if not each.for_benchmarks]


def _jars(name: str) -> Finding:
    """Spark's are needed by every run, those of the brokers only to start them here."""
    check, title = f"jars {name}", jars.known_sets()[name].title
    try:
        found = jars.jar_set(name, fetch=False)
    except EnvironmentNotReady as error:
        if name == "delta":
            return failing(check, str(error), SETUP)
        return warning(check, str(error), f"{SETUP}; only `bench-spark broker start` needs them")
    return ok(check, f"{title}: {len(found)} files")


def _class_archive() -> Finding:
    check = "class archive"
    try:
        jars.jar_set("delta", fetch=False)  # its path is part of the archive's name
        archive = jars.class_data_archive()
    except EnvironmentNotReady:
        return warning(check, "cannot be there without Java and the jars", "see java and jars")
    if archive is None:
        return warning(
            check,
            "there is none: Spark starts some seconds later than it could",
            "run `make setup`, or `python -m bench_spark.spark.class_archive`",
        )
    return ok(check, str(archive))


def _kernels() -> Finding:
    return kernels_finding(
        kernels.are_compiled(),
        kernel_cache.compiled_count(),
        str(kernel_files.kernels_directory()),
    )


def kernels_finding(are_compiled: bool, files: int, directory: str) -> Finding:
    """Whether the agents' inner loops are compiled, and where the files are."""
    if not are_compiled:
        return warning(
            "kernels",
            "not compiled: NUMBA_DISABLE_JIT is set, so agents are some hundred times slower",
            "unset NUMBA_DISABLE_JIT",
        )
    if not files:
        return warning(
            "kernels",
            f"none are compiled in {directory}: the first agents compile them, which takes seconds",
            "run `make setup`, or `python -m bench_spark.core.kernel_cache`",
        )
    return ok("kernels", f"{files} compiled ({directory})")
