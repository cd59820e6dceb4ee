from pathlib import Path

import pytest

from bench_spark.config.broker import Broker
from bench_spark.config.fields import Section
from bench_spark.config.models import Scenario
from bench_spark.config.problems import all_keys
from bench_spark.config.reference import reference_markdown
from bench_spark.config.suite import SuiteFile

DOCUMENT = Path(__file__).parents[3] / "docs" / "reference.md"


def test_the_reference_in_docs_is_current() -> None:
    assert DOCUMENT.read_text() == reference_markdown(), (
        "run: python -m bench_spark.config.reference > docs/reference.md"
    )


@pytest.mark.parametrize("model", [Scenario, Broker, SuiteFile])
def test_every_key_is_explained(model: type[Section]) -> None:
    unexplained = [
        key.dotted
        for key in all_keys(model)
        if not (key.field.description or (key.section and key.section.__doc__))
    ]
    assert unexplained == []


def test_a_row_has_type_default_range_and_meaning() -> None:
    assert (
        "| `message.bytes` | whole number | `1000` | 8 to 134217728 | Size of the body. From 32 "
        "bytes on, losses and duplicates are accounted for. |"
    ) in reference_markdown()
