"""The reason in errors of Spark, in one line and without credentials."""

from __future__ import annotations

import pytest

from bench_spark.spark.session import LONGEST, cause_of

STAGE = (
    "Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 times, most recent failure: "
    "Lost task 0.3 in stage 3.0 (TID 12) (10.0.0.7 executor 1): "
)
WORKER = """org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/opt/spark/python/lib/pyspark.zip/pyspark/worker.py", line 1245, in main
    func, profiler = read_command(pickle, infile)
ModuleNotFoundError: No module named 'bench_spark'

\tat org.apache.spark.api.python.BasePythonRunner.read(PythonRunner.scala:572)
Driver stacktrace:"""
LOST = "ExecutorLostFailure (executor 1 exited) Reason: Container killed: out of memory"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (STAGE + WORKER, "ModuleNotFoundError: No module named 'bench_spark'"),
        (f"{STAGE}{LOST}\nDriver stacktrace:", LOST),
        (
            "java.lang.ClassNotFoundException: org.apache.hadoop.fs.s3a.S3AFileSystem\n\tat x.y.Z",
            "ClassNotFoundException: org.apache.hadoop.fs.s3a.S3AFileSystem",
        ),
        ("\n[PATH_NOT_FOUND] no such path\nmore", "[PATH_NOT_FOUND] no such path"),
        ("cannot reach amqp://bench:secret@host/x", "cannot reach amqp://***@host/x"),
        ("", "RuntimeError"),
        ("x" * 1000, "x" * LONGEST),
    ],
)
def test_the_cause_is_one_line(text: str, cause: str) -> None:
    assert cause_of(RuntimeError(text)) == cause
