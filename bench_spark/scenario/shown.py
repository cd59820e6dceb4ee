"""How values and keys from outside appear in messages: short, on one line, without secrets."""

from __future__ import annotations

from bench_spark.scenario.secrets import MASK, is_secret_key, mask_uri

_LONGEST = 60
_LONGEST_KEY = 120
_LONGEST_PATH = 300


def shown_text(text: str, longest: int = _LONGEST) -> str:
    """Bounded, and with every character that could disturb a terminal escaped."""
    cut = text if len(text) <= longest else text[: longest - 3] + "..."
    return "".join(
        character if character.isprintable() else ascii(character)[1:-1] for character in cut
    )


def shown_key(dotted: str) -> str:
    return shown_text(dotted, _LONGEST_KEY)


def shown_path(path: str) -> str:
    return shown_text(path, _LONGEST_PATH)


def shown_value(value: object, key: str = "") -> str:
    """The value of `key` as a person would write it in YAML."""
    if is_secret(key):
        return MASK
    if isinstance(value, str):
        return f"'{shown_text(mask_uri(value))}'"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value.bit_length() >= 64:
        return "a number beyond 64 bits"
    return str(value)


def shown_override(text: str) -> str:
    """The option as it was typed, unless it was typed with a secret."""
    key, equals, value = text.partition("=")
    if is_secret(key):
        return f"--set {shown_text(key)}={MASK}" if equals else f"--set {MASK}"
    return f"--set {shown_text(key + equals + mask_uri(value))}"


def is_secret(key: str) -> bool:
    """Whether a value given for `key` must not be repeated: a URI may hold a password as well."""
    return is_secret_key(key) or key.rpartition(".")[2].lower().endswith("uri")
