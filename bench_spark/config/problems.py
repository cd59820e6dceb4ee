"""How errors in files are worded: a line per problem, values shown safely, words proposed.

    conf/scenarios/steady.yaml: load.rate_per_secnd: unknown key; did you mean rate_per_second?
    --set message.bytes=4: message.bytes: 4 is below the minimum of 8

Pydantic's own texts are for programmers, and they repeat the input, which may be a password.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from pydantic import ValidationError

from bench_spark.config.fields import MASK, Section, is_secret_key, mask_uri
from bench_spark.config.keys import Key, KeyPath, all_keys, follow, keys_of, number
from bench_spark.config.yaml_text import plain_scalar

_SIMILAR_ENOUGH = 0.65
_LONGEST_WORD = 100
_SHORTEST_PREFIX = 3


def nearest(word: str, candidates: Iterable[str]) -> str | None:
    """The candidate most like `word`, or None if a guess would rather mislead than help.

    Case and the choice between '-', '_', '.' and a space do not count. A beginning that only one
    candidate has is taken for it: `rate` for `rate_per_second`.
    """
    known = list(candidates)
    return completion(word, known) or _similar(word, known)


def completion(word: str, candidates: Iterable[str]) -> str | None:
    """The only candidate that begins with `word`."""
    by_plain = {_plain(candidate): candidate for candidate in candidates}
    plain = _plain(word)
    if plain in by_plain:
        return by_plain[plain]
    completions = [known for known in by_plain if known.startswith(plain)]
    is_clear = len(plain) >= _SHORTEST_PREFIX and len(completions) == 1
    return by_plain[completions[0]] if is_clear else None


def _similar(word: str, candidates: Iterable[str]) -> str | None:
    if len(word) > _LONGEST_WORD:
        return None
    by_plain = {_plain(candidate): candidate for candidate in candidates}
    similar = difflib.get_close_matches(_plain(word), by_plain, n=1, cutoff=_SIMILAR_ENOUGH)
    return by_plain[similar[0]] if similar else None


def _plain(word: str) -> str:
    return word.lower().translate(str.maketrans("- .", "___"))


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


SourceOf = Callable[[Sequence[KeyPath]], str]
"""Which file or option gave one of these keys."""

_FOLLOWS_FROM_OTHERS = "default_factory_not_called"
"""Said of a key whose default depends on others, when one of those is wrong."""

_PASSWORD_KEYS = ("password", "passwd", "secret")


class Problem(NamedTuple):
    source: str
    key: str
    text: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.source, shown_key(self.key), self.text) if part)


def problems_of(error: ValidationError, model: type[Section], source_of: SourceOf) -> list[Problem]:
    found = [
        (_path_of(model, detail["loc"]), detail)
        for detail in error.errors(include_url=False, include_context=True)
        if detail["type"] != _FOLLOWS_FROM_OTHERS
    ]
    problems = []
    # A union reports once per alternative, one after the other, for the same key.
    for path, details in groupby(found, key=lambda item: item[0]):
        problems += _problems_at(model, path, [detail for _, detail in details], source_of)
    return problems


def unknown_key(
    model: type[Section], section: type[Section], path: KeyPath, name: str, last: str | None = None
) -> str:
    """Why `name` is wrong inside `section`, which lies at `path` of `model`; `last` is the name
    that the whole key ended with."""
    if name in section.former_keys:
        return section.former_keys[name].problem
    siblings = list(section.model_fields)
    if name.lower() in _PASSWORD_KEYS and "password_env" in siblings:
        return (
            "passwords are not taken from here; name the environment variable that holds it in "
            "password_env, or its file in password_file"
        )
    guess = (
        completion(name, siblings)
        or _elsewhere(model, path, last or name, completion)
        or _similar(name, siblings)
        or _elsewhere(model, path, last or name, _similar)
    )
    if guess:
        return f"unknown key; did you mean {guess}?"
    return f"unknown key; allowed: {', '.join(siblings)}"


def _elsewhere(
    model: type[Section], path: KeyPath, name: str, choose: Callable[..., str | None]
) -> str | None:
    """The keys of other sections whose last name is the one chosen; those of list entries only
    where there are no others."""
    by_name: dict[str, list[Key]] = {}
    for key in all_keys(model):
        if key.path[:-1] != path:
            by_name.setdefault(key.path[-1], []).append(key)
    chosen = choose(name, by_name)
    keys = by_name[chosen] if chosen else []
    plain = [key for key in keys if "N" not in key.path]
    return " or ".join(key.dotted for key in plain or keys) or None


def _path_of(model: type[Section], location: Sequence[int | str]) -> KeyPath:
    """Pydantic's location without what is not a key: the names it gives to union members."""
    path: KeyPath = ()
    for name in map(str, location):
        if path:
            key = follow(model, path)
            if key is None or not (key.section or key.is_map or key.is_list):
                break
        path = (*path, name)
    return path


def _problems_at(
    model: type[Section], path: KeyPath, details: list[Any], source_of: SourceOf
) -> list[Problem]:
    kind, context, value = details[0]["type"], details[0].get("ctx", {}), details[0]["input"]
    key = follow(model, path)
    if kind == "conflict":
        in_map = key is not None and key.is_map
        return [
            Problem(
                source_of([_joined(path, name, in_map) for name in conflict.keys]),
                ".".join((*path, conflict.keys[0])),
                conflict.problem,
            )
            for conflict in context["conflicts"]
        ]
    dotted = ".".join(path)
    if kind == "extra_forbidden":
        parent = follow(model, path[:-1])
        section = (parent and parent.section) or model
        text = unknown_key(model, section, path[:-1], path[-1])
    else:
        text = _sentence(key, shown_value(value, dotted), details) if key else details[0]["msg"]
    return [Problem(source_of([path]), dotted, text)]


def _joined(path: KeyPath, dotted: str, in_map: bool) -> KeyPath:
    """A map's keys are names with dots inside them; elsewhere dots lead into sections."""
    return (*path, dotted) if in_map else (*path, *dotted.split("."))


def _sentence(key: Key, value: str, details: list[Any]) -> str:
    if len(details) > 1:
        return f"{value} is not allowed; allowed: {key.allowed}"
    detail = details[0]
    context = detail.get("ctx", {})
    match detail["type"]:
        case "missing":
            return f"missing; allowed: {key.allowed}"
        case "greater_than_equal":
            return f"{value} is below the minimum of {number(context['ge'])}"
        case "less_than_equal":
            return f"{value} is above the maximum of {number(context['le'])}"
        case "greater_than":
            return f"{value} is too low; allowed: {key.allowed}"
        case "finite_number":
            return f"{value} is not finite; allowed: {key.allowed}"
        case "literal_error":
            return _unknown_choice(key, value, detail["input"])
        case "model_type" | "model_attributes_type":
            inside = ", ".join(keys_of(key.section)) if key.section else ""
            return f"{value} is not a section; keys inside: {inside}"
        case "list_type" if key.is_list:
            return f"{value} is not a list; allowed: lines that begin with '- '"
        case "too_long":
            return f"has too many entries; allowed: at most {context['max_length']}"
        case "dict_type":
            return f"{value} is not a map; allowed: NAME: VALUE lines"
        case "too_short":
            return f"is empty; allowed: {key.allowed}"
        case "string_too_short":
            return "is empty; allowed: at least one character"
        case "string_too_long":
            return f"is too long; allowed: at most {context['max_length']} characters"
        case "value_error":
            nested = (
                "; write dotted names in one piece" if isinstance(detail["input"], dict) else ""
            )
            return f"{value} is not allowed; {context['error']}{nested}"
        case _:
            return _wrong_type(key, value, detail["input"])


def _unknown_choice(key: Key, value: str, given: object) -> str:
    text = f"{value} is unknown; allowed: {key.allowed}"
    guess = nearest(given, key.choices) if isinstance(given, str) else None
    return f"{text}; did you mean {guess}?" if guess else text


def _wrong_type(key: Key, value: str, given: object) -> str:
    text = f"{value} is not {_with_article(key.type_name)}; allowed: {key.allowed}"
    if isinstance(given, str) and not is_secret(key.dotted):
        meant = plain_scalar(given)
        if isinstance(meant, int | float):
            return f"{text}, without quotes"
    if key.is_text and isinstance(given, bool | int | float):
        return f"{text} in quotes"
    return text


def _with_article(type_name: str) -> str:
    return type_name if type_name in ("text", "true or false") else f"a {type_name}"
