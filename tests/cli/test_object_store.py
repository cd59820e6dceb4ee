"""What commands say of a store on S3 that cannot be used: one sentence, before Spark is started."""

from __future__ import annotations

from pathlib import Path

import pytest
from object_store import BUCKET, SECRET, s3_server

from bench_spark.cli import main
from bench_spark.errors import EXIT_CONFIGURATION, EXIT_PREFLIGHT

RUN = ("run", "steady", "--broker", "loopback", "--store")


@pytest.mark.parametrize(
    ("uri", "variables", "options", "sentence"),
    [
        ("s3://nowhere/store", {}, (), "the bucket does not exist; create it"),
        (
            f"s3://{BUCKET}/store",
            {"AWS_SECRET_ACCESS_KEY": "another"},
            (),
            "the server does not accept the credentials; look at AWS_ACCESS_KEY_ID",
        ),
        (f"s3://{BUCKET}/store", {}, ("--readonly",), "access is denied; the credentials need"),
        (
            f"s3://{BUCKET}/store",
            {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"},
            (),
            "nobody answers at http://127.0.0.1:9; look at AWS_ENDPOINT_URL",
        ),
    ],
    ids=["no bucket", "wrong secret", "no right to write", "no server"],
)
def test_a_store_on_s3_that_cannot_be_used_is_refused_in_one_sentence(
    uri: str,
    variables: dict[str, str],
    options: tuple[str, ...],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with s3_server(tmp_path / "s3", *options) as environment:
        for name, value in {**environment, **variables}.items():
            monkeypatch.setenv(name, value)
        assert main([*RUN, uri]) == EXIT_PREFLIGHT
    (said,) = capsys.readouterr().err.strip().splitlines()
    assert said.startswith(f"bench-spark: store {uri}: ")
    assert sentence in said
    assert "<" not in said
    assert SECRET not in said
    assert not list((tmp_path / "s3" / BUCKET).iterdir())


def test_jars_are_given_to_spark_submit_where_it_has_made_the_class_path(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert main([*RUN, str(tmp_path), "--packages", "g:a:1"]) == EXIT_CONFIGURATION
    assert "spark-submit has made the class path; give them to it" in capsys.readouterr().err
