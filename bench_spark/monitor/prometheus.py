"""Metrics of others, in Prometheus' text format: parsed, chosen and added up."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bench_spark.config.broker import LABEL, METRIC
from bench_spark.monitor.http_client import HttpSource
from bench_spark.monitor.reading import Reading

_SAMPLE = re.compile(
    r"(?P<name>[A-Za-z_:][A-Za-z0-9_:]*)"
    r"(?:\{(?P<labels>(?:[^\"}]|\"(?:[^\"\\]|\\.)*\")*)\})?"
    r"[ \t]+(?P<value>\S+)(?:[ \t]+-?[0-9]+)?[ \t]*"
)
_LABEL = re.compile(r'(?P<name>[A-Za-z_][A-Za-z0-9_]*)\s*=\s*"(?P<value>(?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


@dataclass(frozen=True)
class Sample:
    name: str
    labels: Mapping[str, str]
    value: float


def parse_text(text: str, wanted: frozenset[str] | None = None) -> Iterator[Sample]:
    """The samples of a text; lines that are none (comments, exemplars' remains) are passed over.

    `wanted` spares the work for all other metrics: exporters tell thousands.
    """
    for line in text.split("\n"):  # other separators may stand in a label's value
        if not line or line[0] == "#":
            continue
        if wanted is not None and re.split(r"[{ \t]", line, maxsplit=1)[0] not in wanted:
            continue
        match = _SAMPLE.match(line)
        if match is None:
            continue
        try:
            value = float(match["value"])  # Go writes NaN and +Inf as Python reads them
        except ValueError:
            continue
        yield Sample(match["name"], _labels(match["labels"] or ""), value)


def _labels(text: str) -> dict[str, str]:
    return {found["name"]: _unescaped(found["value"]) for found in _LABEL.finditer(text)}


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: "\n" if found[1] == "n" else found[1], text)


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
    def __init__(self, source: HttpSource, metrics: Sequence[str]) -> None:
        self._source = source
        self._selectors = [Selector.parse(text) for text in metrics]

    def read(self) -> Reading:
        body = self._source.get(headers={"Accept": "text/plain;version=0.0.4"})
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
