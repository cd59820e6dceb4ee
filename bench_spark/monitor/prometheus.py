"""Metrics of others, in Prometheus' text format: chosen and added up."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from bench_spark.config.broker import LABEL, METRIC
from bench_spark.monitor.endpoint import Endpoint
from bench_spark.monitor.reading import Reading


def parse_text(text: str, wanted: frozenset[str] | None = None) -> Iterator[Sample]:
    """The samples of a text; lines that are none are passed over, as are comments.

    `wanted` spares the work for all other metrics: exporters have thousands. Line by line, so that
    one that cannot be read costs no other.
    """
    for line in text.split("\n"):  # other separators may stand in a label's value
        if not line or line[0] == "#":
            continue
        if wanted is not None and re.split(r"[{ \t]", line, maxsplit=1)[0] not in wanted:
            continue
        with suppress(ValueError, IndexError, KeyError):
            for family in text_string_to_metric_families(line):
                yield from family.samples


@dataclass(frozen=True)
class Selector:
    """Which series to add up, and under which name."""

    alias: str
    metric: str
    labels: Mapping[str, str]

    @classmethod
    def parse(cls, text: str) -> Selector:
        match = METRIC.fullmatch(text)
        assert match is not None, "checked when the broker file was loaded"
        labels = {
            found["name"]: found["value"]
            for part in (match["labels"] or "").split(",")
            if (found := LABEL.fullmatch(part))
        }
        # Without an alias the labels belong to the name: two selectors may differ in them only.
        return cls(match["alias"] or text, match["metric"], labels)

    def takes(self, sample: Sample) -> bool:
        return sample.name == self.metric and all(
            sample.labels.get(name) == value for name, value in self.labels.items()
        )


def chosen_values(
    text: str, selectors: Sequence[Selector]
) -> tuple[dict[str, float], tuple[str, ...]]:
    """The sum of each selector's series, and the names of those that have none."""
    totals: dict[str, float] = {}
    for sample in parse_text(text, frozenset(selector.metric for selector in selectors)):
        for selector in selectors:
            if selector.takes(sample):
                totals[selector.alias] = totals.get(selector.alias, 0.0) + sample.value
    finite = {name: value for name, value in totals.items() if math.isfinite(value)}
    return finite, tuple(s.alias for s in selectors if s.alias not in finite)


class PrometheusSampler:
    def __init__(self, source: Endpoint, metrics: Sequence[str]) -> None:
        self._source = source
        self._selectors = [Selector.parse(text) for text in metrics]

    def read(self) -> Reading:
        body = self._source.get(accept="text/plain;version=0.0.4")
        values, missing = chosen_values(body.decode("utf-8", "replace"), self._selectors)
        return Reading(
            at_ns=time.monotonic_ns(),
            host=self._source.host,
            cores=1,
            values=values,
            unreadable=missing,
        )

    def close(self) -> None:
        pass
