"""Addresses of brokers as other tools are given them: with the password inside."""

from __future__ import annotations

import urllib.parse

from bench_spark.errors import ConfigurationError
from bench_spark.importing.draft import Draft
from bench_spark.scenario.secrets import uri_problem


def take_uri(draft: Draft, option: str, uri: str, schemes: tuple[str, ...]) -> None:
    """Put an address into the broker file: its user as `username`, its password as the name of an
    environment variable."""
    uri = uri.strip()
    if "://" not in uri:
        uri = f"{schemes[0]}://{uri}"
    bare, question, _ = uri.partition("?")
    if problem := uri_problem(bare, schemes):
        raise ConfigurationError(f"{option}: {problem}")
    if question:
        draft.leave_out(f"{option} ...?...", "addresses have no parameters behind a '?' here")
    parts = urllib.parse.urlsplit(bare)
    host = parts.netloc.rpartition("@")[2]
    draft.broker.set("uri", parts._replace(netloc=host, path=parts.path or "/").geturl(), option)
    if parts.username:
        draft.broker.set("username", urllib.parse.unquote(parts.username), option)
    if parts.password is not None:
        take_password(draft, option)


def take_password(draft: Draft, option: str) -> None:
    """There is a password: name the variable that is to hold it. The password itself is dropped."""
    draft.has_password = True
    draft.broker.set(
        "password_env", draft.password_variable, f"the variable that holds the password of {option}"
    )
