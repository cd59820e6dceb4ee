"""How errors in files are worded: a line per problem, values shown safely, words proposed.

    conf/scenarios/steady.yaml: load.rate_per_secnd: unknown key; did you mean rate_per_second?
    --set message.bytes=4: message.bytes: 4 is below the minimum of 8

Pydantic's own texts are for programmers, and they repeat the input, which may be a password. What
a key takes, and how to say so, is read from pydantic's fields: one reading serves the overrides
(where does `kafka.producer.linger.ms` lead?), these texts and the reference, so that they cannot
disagree.
"""

from __future__ import annotations

import difflib
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, groupby
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from bench_spark.config.fields import MASK, Section, is_secret_key, mask_uri
from bench_spark.config.yaml_text import plain_scalar
from bench_spark.errors import ConfigurationError

KeyPath = tuple[str, ...]


@dataclass(frozen=True)
class Described:
    """Said of a key whose type would not explain it: put into its annotation."""

    type_name: str
    allowed: str


class _ExplainedElsewhere:
    """Said of a section that repeats another: its keys are known there already."""


EXPLAINED_ELSEWHERE = _ExplainedElsewhere()

_TYPE_NAMES = {int: "whole number", float: "number", bool: "true or false", str: "text"}


class ValueType(NamedTuple):
    """One of the types that a key's values may have, with its limits."""

    type: Any
    metadata: Sequence[Any]

    @property
    def choices(self) -> KeyPath:
        return tuple(map(str, get_args(self.type))) if get_origin(self.type) is Literal else ()

    @property
    def section(self) -> type[Section] | None:
        is_section = isinstance(self.type, type) and issubclass(self.type, Section)
        return self.type if is_section else None

    @property
    def name(self) -> str:
        origin = get_origin(self.type)
        if origin is list:
            items = _types_in(get_args(self.type)[0])
            return "list of " + " or ".join(f"{item.name}s" for item in items)
        if self.section:
            return "section"
        return {Literal: "choice", dict: "map"}.get(origin) or _TYPE_NAMES[self.type]

    @property
    def range(self) -> str:
        """The allowed values, without the type: `8 to 134217728`; empty if all are allowed."""
        above, least, most = map(self.limit, ("gt", "ge", "le"))
        if self.choices:
            return ", ".join(self.choices)
        if self.type is str:
            longest = self.limit("max_length")
            return f"of at most {longest} characters" if longest else ""
        if above is not None:
            return f"above {number(above)}" + ("" if most is None else f" up to {number(most)}")
        if least is None or self.type not in (int, float):
            return ""
        return f"{number(least)} " + ("or more" if most is None else f"to {number(most)}")

    @property
    def allowed(self) -> str:
        """Type and range in one phrase: `a whole number from 1 to 100000`."""
        if self.choices:
            return self.range
        if self.section:
            return "a section with the keys " + ", ".join(self.section.model_fields)
        span = self.range
        if self.type in (int, float) and span and not span.startswith("above"):
            span = f"from {span}"
        return f"{'' if self.type in (str, bool) else 'a '}{self.name} {span}".rstrip()

    def limit(self, name: str) -> Any:
        limits = (getattr(item, name, None) for item in self.metadata)
        return next((limit for limit in limits if limit is not None), None)


@dataclass(frozen=True)
class Key:
    """A key of a model. The entries of maps and lists are keys as well: `entry` describes them."""

    path: KeyPath
    field: FieldInfo

    @property
    def dotted(self) -> str:
        return ".".join(self.path)

    @cached_property
    def types(self) -> list[ValueType]:
        """All but null."""
        found = _types_in(self.field.annotation, self.field.metadata)
        return [one for one in found if one.type is not type(None)]

    @property
    def section(self) -> type[Section] | None:
        return next(filter(None, (one.section for one in self.types)), None)

    @property
    def is_explained_elsewhere(self) -> bool:
        return EXPLAINED_ELSEWHERE in self.field.metadata

    @property
    def is_map(self) -> bool:
        return self._inside(dict) is not None

    @property
    def is_list(self) -> bool:
        return self._inside(list) is not None

    def entry(self, name: str = "") -> Key:
        """What is inside a map or list, as a key of its own."""
        annotation = self._inside(dict) or self._inside(list)
        name = name or ("NAME" if self.is_map else "N")
        return Key((*self.path, name), FieldInfo.from_annotation(annotation))

    @property
    def is_optional(self) -> bool:
        return any(one.type is type(None) for one in _types_in(self.field.annotation))

    @property
    def is_text(self) -> bool:
        """Whether every allowed value is text, so that `no` or `5` given for it mean themselves."""
        values = [get_args(one.type) if one.choices else [one.type] for one in self.types]
        return all(value is str or isinstance(value, str) for value in chain(*values))

    @property
    def choices(self) -> KeyPath:
        return tuple(choice for one in self.types for choice in one.choices)

    @property
    def most(self) -> int:
        """The highest number or length that is allowed; for keys that have such a limit."""
        limits = (one.limit(name) for one in self.types for name in ("le", "max_length"))
        most: int = next(limit for limit in limits if limit is not None)
        return most

    @property
    def type_name(self) -> str:
        """`whole number`, `text` ..., alternatives joined."""
        if self._described:
            return self._described.type_name
        types = [one.type for one in self.types]
        return " or ".join(
            one.name for one in self.types if one.type is not int or float not in types
        )

    @property
    def range(self) -> str:
        ranges = () if self._described else (one.range for one in self.types)
        return ", or ".join(filter(None, ranges))

    @property
    def allowed(self) -> str:
        """Type and range in one phrase: `a whole number from 1 to 100000, or auto`."""
        if self._described:
            return self._described.allowed
        return ", or ".join(dict.fromkeys(one.allowed for one in self.types))

    def _inside(self, container: type) -> Any:
        """What a list or map is of; None for other keys, and where the whole is described."""
        made_of = (get_args(one.type) for one in self.types if get_origin(one.type) is container)
        return None if self._described else next((inside[-1] for inside in made_of), None)

    @property
    def _described(self) -> Described | None:
        """Also where it is said of one alternative: the other is then null."""
        items = (item for one in self.types for item in one.metadata)
        return next((item for item in items if isinstance(item, Described)), None)


def keys_of(section: type[Section], path: KeyPath = ()) -> dict[str, Key]:
    return {name: Key((*path, name), field) for name, field in section.model_fields.items()}


def all_keys(section: type[Section], path: KeyPath = ()) -> Iterator[Key]:
    """Every key in the order of the model, sections before what is inside them."""
    for key in keys_of(section, path).values():
        yield key
        inside = key.entry() if key.is_list else key
        if inside.section and not inside.is_explained_elsewhere:
            yield from all_keys(inside.section, inside.path)


def follow(model: type[Section], path: KeyPath) -> Key | None:
    """The key that a path of names leads to; inside a map, the map's values. None if nowhere."""
    key = keys_of(model).get(path[0]) if path else None
    for name in path[1:]:
        if key is None:
            return None
        if key.is_map:
            return key.entry()
        if key.is_list:
            key = key.entry(name)
        else:
            key = keys_of(key.section, key.path).get(name) if key.section else None
    return key


def key_at(model: type[Section], dotted: str) -> Key:
    """A key that there is."""
    key = follow(model, tuple(dotted.split(".")))
    assert key is not None, dotted
    return key


def number(value: float) -> str:
    """Without the `.0` and exponents that Python adds to whole floats."""
    return str(int(value)) if float(value).is_integer() else str(value)


def _types_in(annotation: Any, metadata: Sequence[Any] = ()) -> list[ValueType]:
    """A union's members, each with the limits that hold for it."""
    if get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        # `Field(ge=1)` inside Annotated keeps its limits in a list of its own.
        own = (item.metadata if isinstance(item, FieldInfo) else [item] for item in more)
        return _types_in(inner, [*metadata, *chain.from_iterable(own)])
    # `Optional[X]` and `X | None` differ at run time.
    if get_origin(annotation) in (Union, types.UnionType):
        return [one for member in get_args(annotation) for one in _types_in(member, metadata)]
    return [ValueType(annotation, metadata)]


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


def did_you_mean(word: object, candidates: Iterable[str], otherwise: str = "") -> str:
    """How a refusal of `word` ends: `; did you mean X?`, or `otherwise` where none is like it."""
    guess = nearest(word, candidates) if isinstance(word, str) else None
    return f"; did you mean {guess}?" if guess else otherwise


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


def plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


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


SectionT = TypeVar("SectionT", bound=Section)


def read_model(
    model: type[SectionT], document: Mapping[str, Any], source_of: SourceOf, strict: bool = True
) -> SectionT | list[Problem]:
    """The document as a model, or what is wrong with it.

    Returned and not raised: a chained ValidationError would carry the document's secrets along.
    """
    try:
        return model.model_validate(document, strict=strict)
    except ValidationError as error:
        return problems_of(error, model, source_of)


def validated(
    model: type[SectionT], document: Mapping[str, Any], source: str, strict: bool = False
) -> SectionT:
    """The document as a model. Raises ConfigurationError, whose lines begin with `source`."""
    found = read_model(model, document, lambda _: source, strict)
    if isinstance(found, list):
        raise ConfigurationError("\n".join(map(str, found)))
    return found


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
    whole = [key.dotted for key in all_keys(model) if "N" not in key.path]
    guess = (
        completion(name, siblings)
        or _elsewhere(model, path, last or name, completion)
        or completion(".".join((*path, name)), whole)
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


_SENTENCES = {
    "missing": "missing; allowed: {allowed}",
    "greater_than_equal": "{value} is below the minimum of {ge}",
    "less_than_equal": "{value} is above the maximum of {le}",
    "greater_than": "{value} is too low; allowed: {allowed}",
    "finite_number": "{value} is not finite; allowed: {allowed}",
    "model_type": "{value} is not a section; keys inside: {inside}",
    "model_attributes_type": "{value} is not a section; keys inside: {inside}",
    "too_long": "has too many entries; allowed: at most {max_length}",
    "dict_type": "{value} is not a map; allowed: NAME: VALUE lines",
    "too_short": "is empty; allowed: {allowed}",
    "string_too_short": "is empty; allowed: at least one character",
    "string_too_long": "is too long; allowed: at most {max_length} characters",
    "value_error": "{value} is not allowed; {error}",
}
"""By the type of pydantic's error."""


def _sentence(key: Key, value: str, details: list[Any]) -> str:
    detail, given = details[0], details[0]["input"]
    if len(details) > 1:
        return f"{value} is not allowed; allowed: {key.allowed}"
    if detail["type"] == "list_type" and key.is_list:
        return f"{value} is not a list; allowed: lines that begin with '- '"
    if detail["type"] == "literal_error":
        return f"{value} is unknown; allowed: {key.allowed}{did_you_mean(given, key.choices)}"
    if detail["type"] not in _SENTENCES:
        return _wrong_type(key, value, given)
    facts = {
        name: number(fact) if isinstance(fact, int | float) else fact
        for name, fact in detail.get("ctx", {}).items()
    }
    facts["inside"] = ", ".join(key.section.model_fields) if key.section else ""
    text = _SENTENCES[detail["type"]].format(value=value, allowed=key.allowed, **facts)
    is_nested = detail["type"] == "value_error" and isinstance(given, dict)
    return f"{text}; write dotted names in one piece" if is_nested else text


def _wrong_type(key: Key, value: str, given: object) -> str:
    has_article = key.type_name not in ("text", "true or false")
    text = f"{value} is not {'a ' if has_article else ''}{key.type_name}; allowed: {key.allowed}"
    if isinstance(given, str) and not is_secret(key.dotted):
        meant = plain_scalar(given)
        if isinstance(meant, int | float):
            return f"{text}, without quotes"
    if key.is_text and isinstance(given, bool | int | float):
        return f"{text} in quotes"
    return text
