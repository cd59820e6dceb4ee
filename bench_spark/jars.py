"""The jars of Delta and of the embedded brokers: fetched once, checked, then used offline.

Also where the class-data archive is, a memory image of the classes in Spark's and Delta's jars that
halves the start of a local session. bench_spark/spark/class_archive.py makes it.

jars.toml names every file of every set with its SHA-256 (tools/lock_jars.py writes it). A set is
fetched into a hidden directory and renamed when it is whole, so a directory that exists is complete
and a fetch that was interrupted is invisible. An image that brings its jars along sets
$BENCH_SPARK_JARS to a directory with one folder per set; then nothing is ever fetched.
"""

from __future__ import annotations

import argparse
import fcntl
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from bench_spark.cache import cache_directory
from bench_spark.errors import EnvironmentNotReady
from bench_spark.java import java_version_text, require_java

FETCHES_AT_ONCE = 8
ATTEMPTS = 3


@dataclass(frozen=True)
class JarSet:
    """One table of jars.toml."""

    name: str
    title: str
    version: str
    megabytes: int
    sha256: Mapping[str, str]
    """Digest by coordinate, group:artifact:version, for some with :classifier behind it."""
    on_demand: bool = False
    """Fetched by what needs it (benchmarks/, tests of S3), not by the set-up."""
    spark: str = ""
    """Of a set of Delta's: the Spark that it is for, as major.minor."""
    hadoop: str = ""
    """The Hadoop in that Spark's own distribution."""

    @property
    def coordinate(self) -> str:
        """Of a set of Delta's: what spark.jars.packages needs."""
        return next(name for name in self.sha256 if ":delta-spark" in name)

    @property
    def hadoop_aws(self) -> str:
        """Of a set of Delta's: what that Spark needs beside it for a store on S3."""
        return f"org.apache.hadoop:hadoop-aws:{self.hadoop}"

    @property
    def directory(self) -> Path:
        return cache_directory() / "jars" / f"{self.name}-{self.version}"


def jar_set(name: str, fetch: bool = True, say: Callable[[str], None] | None = None) -> list[Path]:
    """The files of a set: from the image, the cache or (if `fetch`) Maven Central."""
    wanted = known_sets()[name]
    if image := os.environ.get("BENCH_SPARK_JARS"):
        return _jars_of_image(wanted, Path(image))
    if jars := _jars_if_complete(wanted):
        return jars
    if not fetch:
        raise EnvironmentNotReady(
            f"the jars of {wanted.title} are not in {wanted.directory}; run `make setup` once with "
            "access to Maven Central"
        )
    with _one_fetch_at_a_time(wanted):
        return _jars_if_complete(wanted) or _fetch(wanted, say or _silent)


def delta_set(spark: str | None = None) -> JarSet:
    """The Delta that fits a version of Spark; without one, the installed pyspark's."""
    version = spark or importlib.metadata.version("pyspark")
    fitting = delta_sets()
    try:
        return fitting[minor_version(version)]
    except KeyError:
        raise EnvironmentNotReady(
            f"no Delta Lake fits Spark {version}: bench-spark runs on Spark "
            f"{', '.join(sorted(fitting))}"
        ) from None


def delta_sets() -> Mapping[str, JarSet]:
    """The sets of Delta's jars by the Spark they are for, as major.minor."""
    return {known.spark: known for known in known_sets().values() if known.spark}


def minor_version(version: str) -> str:
    """The 4.1 of 4.1.4."""
    return ".".join(version.split(".")[:2])


def delta_jars() -> list[Path]:
    """What the class path of the installed Spark lacks for Delta tables."""
    return jar_set(delta_set().name)


def everyday_sets() -> list[str]:
    """What runs on this machine need: Delta for the installed Spark, and the embedded brokers."""
    return [delta_set().name] + [
        name for name, known in known_sets().items() if not (known.on_demand or known.spark)
    ]


def class_archive_path() -> Path:
    """Where the class-data archive for this Java and these jars is, or would be.

    An archive holds absolute class paths and fits one build of Java, so both are part of its name.
    """
    pyspark = importlib.util.find_spec("pyspark")
    parts = [
        java_version_text(require_java()),
        importlib.metadata.version("pyspark"),
        str(pyspark.origin if pyspark else None),
        *map(str, delta_jars()),
    ]
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return cache_directory() / "class-data" / f"spark-{key}.jsa"


def class_data_archive() -> Path | None:
    """The archive to start a local session with, if the set-up has made one."""
    archive = class_archive_path()
    return archive if archive.is_file() else None


@functools.cache
def known_sets() -> Mapping[str, JarSet]:
    tables = tomllib.loads(resources.files("bench_spark").joinpath("jars.toml").read_text())
    return {name: JarSet(name=name, **table) for name, table in tables.items()}


def file_name(coordinate: str) -> str:
    _, *parts = coordinate.split(":")
    return f"{'-'.join(parts)}.jar"


def _jars_of_image(wanted: JarSet, image: Path) -> list[Path]:
    jars = sorted((image / wanted.name).glob("*.jar"))
    if not jars:
        raise EnvironmentNotReady(
            f"BENCH_SPARK_JARS is {image}, but there are no jars of {wanted.title} in its folder "
            f"{wanted.name}/"
        )
    return jars


def _jars_if_complete(wanted: JarSet) -> list[Path]:
    jars = [wanted.directory / file_name(coordinate) for coordinate in wanted.sha256]
    return jars if all(jar.is_file() for jar in jars) else []


@contextmanager
def _one_fetch_at_a_time(wanted: JarSet) -> Iterator[None]:
    """Two set-ups may run side by side; the second waits and finds the work done."""
    lock = wanted.directory.parent / f".{wanted.directory.name}.lock"
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        with lock.open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise EnvironmentNotReady(
            f"cannot store the jars of {wanted.title} in {wanted.directory.parent}: "
            f"{error.strerror or error}"
        ) from error


def _fetch(wanted: JarSet, say: Callable[[str], None]) -> list[Path]:
    say(f"fetching {wanted.title} from Maven Central ({wanted.megabytes} MB, once)")
    target = wanted.directory
    partial = target.with_name(f".{target.name}.partial")
    _remove(partial)
    partial.mkdir()
    try:
        with ThreadPoolExecutor(FETCHES_AT_ONCE) as pool:
            fetched = [
                pool.submit(_fetch_jar, coordinate, digest, partial)
                for coordinate, digest in wanted.sha256.items()
            ]
            try:
                for jar in fetched:
                    jar.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        shutil.rmtree(partial / "repository")
        _remove(target)
        partial.rename(target)
    finally:
        _remove(partial)
    return _jars_if_complete(wanted)


def _fetch_jar(coordinate: str, digest: str, directory: Path) -> None:
    """One file through jgo, which knows where Maven Central is, and only warns of wrong bytes."""
    # jgo brings an HTTP stack along; commands that find their jars in the cache need none of it.
    from jgo.maven import MavenContext

    group, artifact, version, *classifier = coordinate.split(":")
    context = MavenContext(repo_cache=directory / "repository", timeout=30)
    remote = context.project(group, artifact).at_version(version).artifact(*classifier)
    why: Exception | str = ""
    for _ in range(ATTEMPTS):
        try:
            fetched = Path(remote.resolve())
        except (OSError, RuntimeError) as error:  # requests' errors are OSErrors
            why = error
            continue
        if hashlib.sha256(fetched.read_bytes()).hexdigest() == digest:
            fetched.rename(directory / file_name(coordinate))
            return
        why = "its SHA-256 is not the one in jars.toml"
        fetched.unlink()
    raise EnvironmentNotReady(
        f"cannot fetch {coordinate} from Maven Central; the set-up needs the network once ({why})"
    )


def _remove(directory: Path) -> None:
    if directory.exists():
        shutil.rmtree(directory)


def _silent(_: str) -> None:
    pass


def main(arguments: list[str] | None = None) -> int:
    """`python -m bench_spark.jars`: fill the cache, or with --into a folder of an image."""
    parser = argparse.ArgumentParser(prog="python -m bench_spark.jars", description=main.__doc__)
    parser.add_argument(
        "sets", nargs="*", metavar="SET", help="default: Delta for this Spark, and the brokers"
    )
    parser.add_argument(
        "--into", type=Path, help="also copy each set to a folder of this directory"
    )
    options = parser.parse_args(arguments)
    if unknown := set(options.sets) - set(known_sets()):
        parser.error(f"unknown set {sorted(unknown)[0]}; known: {', '.join(known_sets())}")
    try:
        for name in options.sets or everyday_sets():
            jars = jar_set(name, say=lambda line: print(line, flush=True))
            if options.into:
                folder = options.into / name
                folder.mkdir(parents=True, exist_ok=True)
                for jar in jars:
                    shutil.copy(jar, folder)
    except EnvironmentNotReady as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
