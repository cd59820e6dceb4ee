"""The command line: parse, call, exit code. What is done is done in the other rooms.

PySpark takes a second to import, so commands that need it import `bench_spark.spark` when they are
called: `--help`, `validate`, `plan`, `runs`, `show` and `broker` never pay for it.
"""

from bench_spark.cli.app import main

__all__ = ["main"]
