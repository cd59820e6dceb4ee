"""What the driver runs on, for the record of a run (F6)."""

from __future__ import annotations

import importlib.metadata
import platform
from typing import Any

from pyspark.sql import SparkSession

_LIBRARIES = ("pyspark", "delta-spark", "deltalake", "pika", "confluent-kafka", "numpy")


def driver_environment(spark: SparkSession) -> dict[str, Any]:
    context = spark.sparkContext
    jvm = context._jvm
    assert jvm is not None
    return {
        "python": platform.python_version(),
        "java": str(jvm.java.lang.System.getProperty("java.version")),
        "master": context.master,
        "application": context.applicationId,
        "libraries": {name: importlib.metadata.version(name) for name in _LIBRARIES},
    }
