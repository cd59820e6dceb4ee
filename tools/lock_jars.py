"""Write bench_spark/jars.toml anew: every jar of every set, with its SHA-256.

Run by whoever changes a version below (`.venv/bin/python tools/lock_jars.py`, needs the network).
Everyone else only reads the result: a set-up fetches exactly these files, asks for no POMs and
refuses a file with other bytes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from jgo.maven import Artifact, Dependency, MavenContext
from jgo.parse import Coordinate

LOCK_FILE = Path(__file__).parent.parent / "bench_spark" / "jars.toml"


@dataclasses.dataclass(frozen=True)
class Wanted:
    title: str
    version: str
    roots: tuple[str, ...]
    """Coordinates taken with everything they depend on."""
    alone: tuple[str, ...] = ()
    """Coordinates taken without their dependencies."""
    only: tuple[str, ...] = ()
    """If given, keep only the artifacts whose id starts with one of these."""
    on_demand: bool = False
    """Fetched by what needs it (benchmarks/, tests of S3), not by the set-up."""
    spark: str = ""
    """The Spark, as major.minor, that a Delta Lake is for."""
    hadoop: str = ""
    """The Hadoop in that Spark's own distribution: what hadoop-aws and hadoop-azure must be of."""


def delta(spark: str, hadoop: str, coordinate: str, *only: str) -> Wanted:
    """Delta's own jars; its other dependencies are older twins of jars that Spark brings itself."""
    version = coordinate.rpartition(":")[2]
    return Wanted("Delta Lake", version, (coordinate,), only=only, spark=spark, hadoop=hadoop)


DELTA, KAFKA, QPID, PERFTEST = "4.4.0", "4.3.1", "10.1.0", "2.22.1"
HADOOP = "3.5.0"
OWN = ("delta-", "unitycatalog-")

WANTED = {
    # The Delta that fits each Spark, named by the rule of its own wheels. The first is for
    # the Spark in requirements.lock.
    "delta": delta("4.2", HADOOP, f"io.delta:delta-spark_4.2_2.13:{DELTA}", *OWN),
    "delta-4.1": delta("4.1", "3.4.2", f"io.delta:delta-spark_4.1_2.13:{DELTA}", *OWN),
    "delta-4.0": delta("4.0", "3.4.1", f"io.delta:delta-spark_4.0_2.13:{DELTA}", *OWN),
    "delta-3.5": delta("3.5", "3.3.4", "io.delta:delta-spark_2.12:3.3.3", *OWN),
    # Without log4j-slf4j-impl a broker that cannot start says nothing about it. It is taken alone
    # because the versions that its parent manages (an older kafka-clients among them) would win.
    "kafka": Wanted(
        "Kafka",
        KAFKA,
        roots=(f"org.apache.kafka:kafka_2.13:{KAFKA}",),
        alone=("org.apache.logging.log4j:log4j-slf4j-impl:2.25.4",),
    ),
    # qpid-broker itself is only the main class; it depends on a store that Maven Central lacks.
    "qpid": Wanted(
        "Qpid Broker-J",
        QPID,
        roots=(
            f"org.apache.qpid:qpid-broker-core:{QPID}",
            f"org.apache.qpid:qpid-broker-plugins-amqp-0-8-protocol:{QPID}",
            f"org.apache.qpid:qpid-broker-plugins-memory-store:{QPID}",
            f"org.apache.qpid:qpid-broker-plugins-logging-logback:{QPID}",
        ),
        alone=(f"org.apache.qpid:qpid-broker:{QPID}", "commons-cli:commons-cli:1.11.0"),
    ),
    "perftest": Wanted(
        "RabbitMQ PerfTest",
        PERFTEST,
        roots=(f"com.rabbitmq:perf-test:{PERFTEST}",),
        on_demand=True,
    ),
    # Its performance tools need the jars of the broker and nothing more of what it depends on.
    "kafka-tools": Wanted(
        "Kafka's tools",
        KAFKA,
        roots=(),
        alone=(f"org.apache.kafka:kafka-tools:{KAFKA}",),
        on_demand=True,
    ),
    # Spark's side of a store on S3, for the Hadoop in the Spark of requirements.lock; AWS's SDK
    # is one jar of 690 MB.
    "hadoop-aws": Wanted(
        "Hadoop's S3A",
        HADOOP,
        roots=(),
        alone=(
            f"org.apache.hadoop:hadoop-aws:{HADOOP}",
            "software.amazon.awssdk:bundle:2.35.4",
            "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1",
        ),
        on_demand=True,
    ),
    # HDFS and YARN in one process, for tests. Its main class is in Hadoop's own test jars, which
    # need the libraries of those tests.
    "minicluster": Wanted(
        "Hadoop's mini cluster",
        HADOOP,
        roots=(
            f"org.apache.hadoop:hadoop-minicluster:{HADOOP}",
            "org.junit.jupiter:junit-jupiter-api:5.13.4",
            "org.mockito:mockito-core:4.11.0",
        ),
        on_demand=True,
    ),
}


def resolve(context: MavenContext, wanted: Wanted) -> list[Artifact]:
    def dependency(text: str) -> Dependency:
        return context.create_dependency(
            dataclasses.replace(Coordinate.parse(text), scope="compile")
        )

    artifacts = []
    if wanted.roots:
        inputs, transitive = context.resolver.resolve([dependency(text) for text in wanted.roots])
        needed = [found for found in transitive if found.scope in ("compile", "runtime")]
        artifacts = [found.artifact for found in (*inputs, *needed)]
    artifacts += [dependency(text).artifact for text in wanted.alone]
    artifacts = [file_of(artifact) for artifact in artifacts if artifact.packaging != "pom"]
    if not wanted.only:
        return artifacts
    return [found for found in artifacts if found.artifactId.startswith(wanted.only)]


def file_of(artifact: Artifact) -> Artifact:
    """Maven's type test-jar is the jar with the classifier `tests`."""
    if artifact.packaging == "test-jar":
        return artifact.component.artifact("tests")
    return artifact


def coordinate_of(artifact: Artifact) -> str:
    parts = (artifact.groupId, artifact.artifactId, artifact.version, artifact.classifier)
    return ":".join(filter(None, parts))


def table(name: str, wanted: Wanted, files: Iterable[tuple[str, Path]]) -> str:
    key = f'"{name}"' if "." in name else name
    jars = sorted(files)
    megabytes = round(sum(path.stat().st_size for _, path in jars) / 1e6)
    lines = [
        f"[{key}]",
        f'title = "{wanted.title} {wanted.version}"',
        f'version = "{wanted.version}"',
        f"megabytes = {megabytes}",
        *(["on_demand = true"] if wanted.on_demand else []),
        *([f'spark = "{wanted.spark}"', f'hadoop = "{wanted.hadoop}"'] if wanted.spark else []),
        "",
        f"[{key}.sha256]",
    ]
    for coordinate, path in jars:
        lines.append(f'"{coordinate}" = "{hashlib.sha256(path.read_bytes()).hexdigest()}"')
    return "\n".join(lines) + "\n"


def main() -> None:
    tables = ["# Written by tools/lock_jars.py; change versions there, not here.\n"]
    with tempfile.TemporaryDirectory() as repository, ThreadPoolExecutor(8) as pool:
        context = MavenContext(repo_cache=Path(repository))
        for name, wanted in WANTED.items():
            artifacts = resolve(context, wanted)
            coordinates = map(coordinate_of, artifacts)
            paths = pool.map(Artifact.resolve, artifacts)
            tables.append(table(name, wanted, zip(coordinates, paths, strict=True)))
    LOCK_FILE.write_text("\n".join(tables))


if __name__ == "__main__":
    main()
