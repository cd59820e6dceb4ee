"""Refusals of an S3 server in words, and Spark's settings for the place that the variables name."""

from __future__ import annotations

import pytest

from bench_spark.store.s3 import for_executors, hadoop_settings, refusal

ANSWER = (
    "Generic S3 error : Error performing PUT https://bucket.s3.amazonaws.com/x in 5ms - Server "
    'returned non-2xx status code : 403 Forbidden : <?xml version="1.0" encoding="UTF-8"?> <Error>'
    "<Code>{code}</Code><Message>{message}</Message><AWSAccessKeyId>AKSECRET</AWSAccessKeyId>"
)


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("NoSuchBucket", "the bucket does not exist; create it"),
        ("AccessDenied", "access is denied; the credentials need the right to list, read, write"),
        ("RequestTimeTooSkewed", "the clocks of this machine and of the server differ by too much"),
        ("ExpiredToken", "the credentials have expired; get new ones"),
        ("PermanentRedirect", "the bucket is in another region; set AWS_REGION to it"),
        ("SlowDown", "Please reduce your request rate (SlowDown)"),
    ],
)
def test_a_refusal_is_said_in_words_without_the_servers_answer(code: str, sentence: str) -> None:
    said = refusal(ANSWER.format(code=code, message="Please reduce your request rate."))
    assert said is not None
    assert said.startswith(sentence)
    assert said.endswith(f"({code})")
    assert "AKSECRET" not in said


def test_credentials_that_nobody_has_are_asked_for_where_the_driver_runs() -> None:
    """deltalake asks the machine for a role at last; these are its words and Hadoop's."""
    for words in (
        "Generic S3 error : Error performing PUT http://169.254.169.254/latest/api/token in 2 ms",
        "NoAuthWithAWSException: No AWS Credentials provided by TemporaryAWSCredentialsProvider",
    ):
        assert (refusal(words) or "").startswith("no credentials were found; set AWS_ACCESS_KEY_ID")


def test_executors_get_no_credentials_for_a_store_elsewhere() -> None:
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SHARED_CREDENTIALS_FILE": "/home/me/keys"}
    assert for_executors("hdfs://name-node/bench", keys) == {}
    assert for_executors("s3://bucket/bench", keys) == {"AWS_ACCESS_KEY_ID": "key"}


def test_other_errors_are_left_as_they_are() -> None:
    assert refusal("No such file or directory (os error 2)") is None


@pytest.mark.parametrize(
    ("environment", "settings"),
    [
        ({}, {}),
        ({"AWS_SECRET_ACCESS_KEY": "hidden", "AWS_ACCESS_KEY_ID": "key"}, {}),
        ({"AWS_DEFAULT_REGION": "eu-west-1"}, {"endpoint.region": "eu-west-1"}),
        (
            {"AWS_ENDPOINT_URL": "http://127.0.0.1:9000", "AWS_REGION": "us-east-1"},
            {
                "endpoint": "http://127.0.0.1:9000",
                "path.style.access": "true",
                "endpoint.region": "us-east-1",
            },
        ),
        (
            {
                "AWS_ENDPOINT_URL": "http://other",
                "AWS_ENDPOINT_URL_S3": "https://s3.example.org",
                "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true",
            },
            {"endpoint": "https://s3.example.org", "path.style.access": "false"},
        ),
    ],
)
def test_spark_is_told_of_the_place_but_never_of_credentials(
    environment: dict[str, str], settings: dict[str, str]
) -> None:
    expected = {f"spark.hadoop.fs.s3a.{name}": value for name, value in settings.items()}
    assert hadoop_settings(environment) == expected
