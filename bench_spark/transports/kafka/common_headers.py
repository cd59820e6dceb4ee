"""Headers that all messages have (`kafka.headers`), beside those of each one's own. Pure."""

from __future__ import annotations

from dataclasses import replace

from bench_spark.scenario.fields import value_text
from bench_spark.scenario.kafka_section import Kafka
from bench_spark.transports.base import Batch, Headers


def common_headers(kafka: Kafka) -> Headers:
    """As they are sent: numbers and the like as people write them."""
    return {name: value_text(value).encode() for name, value in kafka.headers.items()}


def with_common_headers(batch: Batch, common: Headers) -> Batch:
    """The same messages with these headers as well; one of a message's own of that name wins."""
    if not common:
        return batch
    if batch.headers is None:
        # One object for all: by that it is seen that they are alike.
        return replace(batch, headers=[common] * len(batch))
    return replace(batch, headers=[{**common, **own} for own in batch.headers])
