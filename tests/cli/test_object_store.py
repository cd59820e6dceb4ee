"""What commands say of a store on S3 that cannot be used: one sentence, before Spark is started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from object_store import BUCKET, SECRET, s3_server
from refused import check_refused

from bench_spark.cli import main
from bench_spark.errors import EXIT_CONFIGURATION

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
        said = check_refused(main([*RUN, uri]), capsys.readouterr().err, sentence)
    assert said.startswith(f"bench-spark: store {uri}: ")
    assert SECRET not in said
    assert not list((tmp_path / "s3" / BUCKET).iterdir())


@pytest.mark.parametrize("offset", ["+1h", "-1h"])
def test_a_clock_that_is_wrong_is_refused_in_one_sentence(offset: str, tmp_path: Path) -> None:
    """The clock of the command alone: libfaketime sets it for deltalake too."""
    library = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
    if library is None:
        pytest.skip("libfaketime is not installed (apt-get install libfaketime)")
    shifted = {"LD_PRELOAD": str(library), "FAKETIME": offset}
    uri = f"s3://{BUCKET}/store"
    with s3_server(tmp_path) as environment:
        done = subprocess.run(
            [sys.executable, "-m", "bench_spark.cli", *RUN, uri],
            env={**os.environ, **environment, **shifted},
            capture_output=True,
            text=True,
            check=False,
        )
    check_refused(
        done.returncode, done.stderr, "the clocks of this machine and of the server", "NTP"
    )
    assert not list((tmp_path / BUCKET).iterdir())


@pytest.mark.parametrize(
    "option", [("--packages", "g:a:1"), ("--jars", "a.jar"), ("--conf", "spark.executor.cores=1")]
)
def test_what_spark_is_started_with_is_given_to_spark_submit_where_it_has_started_it(
    option: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert main([*RUN, str(tmp_path), *option]) == EXIT_CONFIGURATION
    said = capsys.readouterr().err
    assert f"{option[0]}: spark-submit has started Spark; give it there" in said


@pytest.mark.parametrize("text", ["spark.executor.cores", "cores=1", "spark.master=local[2]"])
def test_a_setting_that_is_none_of_sparks_is_refused(
    text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main([*RUN, str(tmp_path), "--conf", text]) == EXIT_CONFIGURATION
    assert "is not KEY=VALUE with a setting of Spark's" in capsys.readouterr().err
