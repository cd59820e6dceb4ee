"""bench-spark measures message brokers from a Spark cluster."""

__version__ = "0.1.0"
