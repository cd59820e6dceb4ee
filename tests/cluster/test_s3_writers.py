"""What drivers write on S3, without Spark's reading: that needs 690 MB of jars (`make test-s3`)."""

from __future__ import annotations

import os
from pathlib import Path

from object_store import BUCKET, s3_server
from two_drivers import check_that_two_drivers_lose_no_row


def test_two_drivers_at_once_lose_no_row_on_s3(tmp_path: Path) -> None:
    with s3_server(tmp_path) as environment:
        check_that_two_drivers_lose_no_row(f"s3://{BUCKET}/store", os.environ | dict(environment))
