"""Making the class-data archive (AppCDS) that local sessions start from.

A Spark session loads some 15 000 classes before it does anything. Java can keep them, parsed and
verified, in a file that it maps into memory; the set-up makes that file once, by running a small
session that uses what every run uses and letting Java write the archive as it ends. An archive that
no longer fits the class path or the Java is ignored by Java, so the worst case is the old start.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from bench_spark.errors import BenchError
from bench_spark.jars import class_archive_path, class_data_archive
from bench_spark.spark.session import build_session
from bench_spark.spark.sql import arrow_table

TRAINING_SECONDS = 300
KEPT_ARCHIVES = 3


def ensure_class_archive(say: Callable[[str], None]) -> Path | None:
    """The archive, made if it is missing; None if it could not be made, which only costs time."""
    if archive := class_data_archive():
        return archive
    archive = class_archive_path()
    say("preparing Spark's classes for quick starts (about a minute, once)")
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix=".") as scratch:
        fresh = Path(scratch) / archive.name
        if why_not := _train_in_a_process_of_its_own(fresh):
            say(f"that did not work ({why_not}); sessions start seconds later than they could")
            return None
        fresh.rename(archive)
    _forget_old_archives(archive.parent)
    return archive


def _train_in_a_process_of_its_own(archive: Path) -> str:
    """Empty if it went well, else the last line it wrote."""
    # By its name: as a program, this module is called __main__.
    command = [sys.executable, "-m", "bench_spark.spark.class_archive", "--train", str(archive)]
    try:
        training = subprocess.run(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=TRAINING_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"not done after {TRAINING_SECONDS} s"
    if training.returncode == 0 and archive.is_file():
        return ""
    return (training.stderr.strip().splitlines() or ["no archive was written"])[-1]


def _forget_old_archives(directory: Path) -> None:
    """Each is some 200 MB, and most are of a Java, a Spark or a checkout that is gone."""
    archives = sorted(directory.glob("spark-*.jsa"), key=lambda path: path.stat().st_mtime)
    for old in archives[:-KEPT_ARCHIVES]:
        old.unlink(missing_ok=True)


def train(archive: Path) -> None:
    """Use what every run uses, in a JVM that writes `archive` when it ends."""
    spark = build_session(
        "local[2]",
        "bench-spark set-up",
        {"spark.driver.defaultJavaOptions": f"-XX:ArchiveClassesAtExit={archive}"},
    )
    with tempfile.TemporaryDirectory() as store:
        _use_delta(spark, store)
        _use_barrier(spark)
    _end_jvm(spark)


def _use_delta(spark: SparkSession, store: str) -> None:
    table, checkpoint = f"{store}/table", f"{store}/checkpoint"
    spark.range(10).selectExpr("id", "id % 2 AS half").write.format("delta").save(table)
    rows = spark.read.format("delta").load(table)
    rows.createOrReplaceTempView("rows")
    spark.sql("SELECT half, count(*), max(id) FROM rows GROUP BY half ORDER BY half").collect()
    arrow_table(rows)

    def merged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    def take(batch: DataFrame, _: int) -> None:
        batch.collect()

    stream = spark.readStream.format("delta").load(table)
    query = (
        stream.mapInArrow(merged, stream.schema)
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def _use_barrier(spark: SparkSession) -> None:
    def nothing(rows: Iterable[int]) -> Iterable[int]:
        return rows

    spark.sparkContext.parallelize([1], 1).barrier().mapPartitions(nothing).collect()


def _end_jvm(spark: SparkSession) -> None:
    """Java writes the archive as it ends, which takes seconds: wait for it."""
    gateway = SparkContext._gateway
    assert gateway is not None
    jvm: subprocess.Popen[bytes] = gateway.proc
    spark.stop()
    gateway.shutdown()
    assert jvm.stdin is not None
    jvm.stdin.close()
    jvm.wait()


def main(arguments: list[str]) -> int:
    """`python -m bench_spark.spark.class_archive`: make it if it is missing."""
    if arguments[:1] == ["--train"]:
        train(Path(arguments[1]))
        return 0
    try:
        ensure_class_archive(lambda line: print(line, flush=True))
    except BenchError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
