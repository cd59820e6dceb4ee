"""A result for other programs: the document as it is, and nothing else."""

from __future__ import annotations

import json
from typing import TextIO

from bench_spark.report.measures import Document


def write_json(document: Document, writer: TextIO) -> None:
    # NaN is no JSON: a document that holds one is our bug, and better found here than by a reader.
    writer.write(json.dumps(document, indent=2, allow_nan=False) + "\n")
