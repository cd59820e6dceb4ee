"""The Java that Spark and the embedded brokers run on: found, or started by spark-submit."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench_spark.errors import EnvironmentNotReady

OLDEST_JAVA = 17
HOW_TO_INSTALL = (
    f"install one, for instance with `apt-get install openjdk-{OLDEST_JAVA}-jre-headless`"
)

_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')


def is_submitted() -> bool:
    """Whether spark-submit started this program, and its JVM before it."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def require_java() -> Path:
    """The `java` command of the first Java that is new enough: JAVA_HOME's, else the one on PATH.

    Its home is `require_java().parent.parent`: links are followed.
    """
    found: list[str] = []
    for command, origin in _candidates():
        version = parse_major_version(java_version_text(command))
        if version is not None and version >= OLDEST_JAVA:
            return command
        found.append(f"{origin} has {'no working Java' if version is None else f'Java {version}'}")
    what = "; ".join(found) if found else "there is none in JAVA_HOME or on PATH"
    raise EnvironmentNotReady(f"Java {OLDEST_JAVA} or newer is needed and {what}; {HOW_TO_INSTALL}")


def parse_major_version(text: str) -> int | None:
    """The 17 of `openjdk version "17.0.15"`, and the 8 of `java version "1.8.0_392"`."""
    if not (match := _VERSION.search(text)):
        return None
    major, minor = match.groups()
    return int(minor) if major == "1" and minor else int(major)


def _candidates() -> Iterator[tuple[Path, str]]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java", "JAVA_HOME"
    if command := shutil.which("java"):
        # Debian's /usr/bin/java is a chain of links into the Java home.
        yield Path(command).resolve(), "PATH"


@functools.cache
def java_version_text(command: Path) -> str:
    """What `java -version` prints: version, vendor and build. Empty if it does not run."""
    try:
        answer = subprocess.run(
            [command, "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stderr if answer.returncode == 0 else ""


def main() -> int:
    """`python -m bench_spark.java`: print the Java that would be used, or say what is missing."""
    try:
        print(require_java())
    except EnvironmentNotReady as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
