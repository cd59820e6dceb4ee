"""What tests of whole agents share: transports that are watched."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from unit.loopbacks import Watch

from bench_spark.agent import endpoints as ends_module
from bench_spark.transports import loopback


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """Agents of this test use watched transports; at the end none of them has left anything."""
    watching = Watch()
    before = set(loopback._BROKERS)
    monkeypatch.setattr(ends_module, "make_transport", watching.make)
    yield watching
    assert set(loopback._BROKERS) <= before
