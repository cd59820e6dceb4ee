"""Keeping passwords out of whatever is printed, and out of where they do not belong."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Iterable

MASK = "***"

_SECRET_WORDS = ("password", "passwd", "passphrase", "secret", "token", "jaas", "key.pem")
_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")


def is_secret_key(key: str) -> bool:
    """Whether values under this name are kept out of whatever is printed."""
    return any(word in key.lower() for word in _SECRET_WORDS)


def mask_uri(uri: str) -> str:
    """The URI without its password. One that cannot be read is masked as far as one may lie."""
    try:
        parts = urllib.parse.urlsplit(uri)
        if parts.password is not None:
            host = parts.netloc.rpartition("@")[2]
            return parts._replace(netloc=f"{parts.username}:{MASK}@{host}").geturl()
    except ValueError:
        return MASK
    before, at, after = uri.rpartition("@")
    scheme, colon, user_info = before.partition("://")
    if not at or ":" not in (user_info if colon else scheme):
        return uri
    # A raw '/', '#' or '?' in a password hides it from urlsplit.
    return f"{scheme}{colon}{MASK}@{after}" if colon else f"{MASK}@{after}"


def environment_name(value: str) -> str:
    if not _ENVIRONMENT_NAME.fullmatch(value):
        raise ValueError("allowed: the name of an environment variable, not the password itself")
    return value


def uri_problem(
    uri: str,
    schemes: Iterable[str],
    *,
    allows_query: bool = False,
    allows_port_0: bool = False,
    needs_port: bool = False,
) -> str | None:
    """What is wrong with a URI, in words that hold nothing of it: it may contain a password."""
    try:
        parts = urllib.parse.urlsplit(uri)
        port = parts.port
    except ValueError:
        return "is no valid URI; escape special characters of user and password, as in %40 for @"
    if parts.scheme not in schemes:
        return "must start with " + " or ".join(f"{scheme}://" for scheme in schemes)
    if not parts.hostname:
        return f"names no host; write {parts.scheme}://HOST:PORT"
    if port is None and needs_port:
        return f"names no port; write {parts.scheme}://HOST:PORT"
    if port == 0 and not allows_port_0:
        return "has port 0; allowed: 1 to 65535"
    if parts.fragment or (parts.query and not allows_query):
        return "has a '?' or '#' part, which is not supported; in a password write %3F or %23"
    return None
