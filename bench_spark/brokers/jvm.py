"""How the brokers that are Java programs are started."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from bench_spark.java import require_java


def java_command(jars: Iterable[Path], directory: Path, options: Iterable[str]) -> list[str | Path]:
    """`java` with its class path; everything it may write stays in `directory`."""
    class_path = ":".join(str(jar) for jar in jars)
    scratch = directory / "scratch"
    scratch.mkdir(exist_ok=True)
    return [
        require_java(),
        "-XX:-UsePerfData",  # else a file in the system's temporary directory
        f"-XX:ErrorFile={directory}/crash.log",
        "-XX:+ExitOnOutOfMemoryError",  # a broker that limps on would spoil a measurement
        f"-Djava.io.tmpdir={scratch}",
        *options,
        "-cp",
        class_path,
    ]
