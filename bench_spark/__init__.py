"""bench-spark measures message brokers from a Spark cluster.

`run`, `load_scenario`, `load_broker` and `Result` are those of `bench_spark.api`, loaded when they
are first asked for: an agent imports this package in every executor, and needs none of what they
need. __init__.pyi tells type checkers about them.
"""

import importlib

__version__ = "0.1.0"

_API = ("Result", "load_broker", "load_scenario", "run")

__all__ = ["Result", "__version__", "load_broker", "load_scenario", "run"]


def __getattr__(name: str) -> object:
    if name in _API:
        return getattr(importlib.import_module("bench_spark.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_API})
