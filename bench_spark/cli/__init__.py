"""The command line: parse, call, exit code. What is done is done in the other rooms.

PySpark and the brokers' client libraries take a second to import, so the commands that need them
import them when they are called: `--help`, `validate`, `plan`, `runs` and `show` never pay for it.
"""

from bench_spark.cli.app import main

__all__ = ["main"]
