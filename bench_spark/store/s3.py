"""Stores on S3: what a server's refusal means, and Spark's settings for the same place.

deltalake writes the tables and follows the usual variables (AWS_ENDPOINT_URL, AWS_REGION and so
on). Spark reads them by Hadoop's S3A, which knows the variables of credentials, but not these, so
they become its settings. Credentials are no settings: both find them by their own chain. Spark
hands those of the driver's variables on to its executors' JVM; their Python gets the same in its
tasks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_CODE = re.compile(r"<Code>([^<]+)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]*)</Message>")
_NO_ANSWER = re.compile(
    r"(?:GET|PUT|POST|HEAD|DELETE) (https?://[^/\s]+)\S* .*error sending request.*"
)

_ROLES = "//169.254.169.254/"
"""Asked for a role, as the last of the chain."""

HANDED_ON = (
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
    *("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"),
    *("AWS_ALLOW_HTTP", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST"),
)
"""What executors are told. Others may name files of the driver's machine."""

_NO_CREDENTIALS = (
    "no credentials were found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY where the driver "
    "runs, or give driver and executors a role"
)
_WRONG_CREDENTIALS = (
    "the server does not accept the credentials; look at AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY, or at the profile or role"
)
_OTHER_REGION = "the bucket is in another region; set AWS_REGION to it"
_MEANING = {
    "NoSuchBucket": "the bucket does not exist; create it, or correct the store's URI",
    "AccessDenied": (
        "access is denied; the credentials need the right to list, read, write and delete below "
        "the store's URI"
    ),
    "InvalidAccessKeyId": _WRONG_CREDENTIALS,
    "XAdminUserNotFound": _WRONG_CREDENTIALS,
    "SignatureDoesNotMatch": _WRONG_CREDENTIALS,
    "InvalidToken": _WRONG_CREDENTIALS,
    "ExpiredToken": "the credentials have expired; get new ones",
    "RequestTimeTooSkewed": (
        "the clocks of this machine and of the server differ by too much; set this machine's (NTP)"
    ),
    "PermanentRedirect": _OTHER_REGION,
    "AuthorizationHeaderMalformed": _OTHER_REGION,
    "IllegalLocationConstraintException": _OTHER_REGION,
}


def refusal(error: str) -> str | None:
    """What the text of an error says that quotes a server's answer, in words and without the
    answer, which may repeat parts of the request's signature; None for any other text."""
    if _ROLES in error or "No AWS Credentials" in error:
        return _NO_CREDENTIALS
    if (code := _CODE.search(error)) is not None:
        message = _MESSAGE.search(error)
        known = _MEANING.get(code[1]) or (
            message[1].rstrip(".") if message else "the server refused"
        )
        return f"{known} ({code[1]})"
    if (unanswered := _NO_ANSWER.search(error)) is not None:
        return f"nobody answers at {unanswered[1]}; look at AWS_ENDPOINT_URL and the network"
    return None


def for_executors(uri: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The driver's place and credentials for a store there, as deltalake takes them."""
    if not uri.startswith(("s3://", "s3a://")):
        return {}
    return {name: environment[name] for name in HANDED_ON if name in environment}


def hadoop_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Spark's settings for the place that the variables name; none where they name none."""
    settings = {}
    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    if endpoint:
        by_host = environment.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "").lower() in ("1", "true")
        settings["spark.hadoop.fs.s3a.endpoint"] = endpoint
        settings["spark.hadoop.fs.s3a.path.style.access"] = "false" if by_host else "true"
    if region := environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION"):
        settings["spark.hadoop.fs.s3a.endpoint.region"] = region
    return settings
