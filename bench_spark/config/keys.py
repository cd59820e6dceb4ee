"""The keys a model knows, read from the model itself: what each takes and how to say so.

One reading serves the overrides (where does `kafka.producer.linger.ms` lead?), the error texts
(what would have been allowed?) and the reference, so the three cannot disagree.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, MaxLen
from pydantic.fields import FieldInfo

from bench_spark.config.fields import Section

KeyPath = tuple[str, ...]

_UNIONS = (Union, types.UnionType)  # `Optional[X]` and `X | None` differ at run time


@dataclass(frozen=True)
class Described:
    """Said of a key whose type would not explain it: put into its annotation."""

    type_name: str
    allowed: str


class _ExplainedElsewhere:
    """Said of a section that repeats another: its keys are known there already."""


EXPLAINED_ELSEWHERE = _ExplainedElsewhere()


@dataclass(frozen=True)
class Key:
    """A key of a model. A map's own keys are free; `member` then describes its values.

    A list's entries are keys too, named by their number: `item` describes them.
    """

    path: KeyPath
    field: FieldInfo

    @property
    def dotted(self) -> str:
        return ".".join(self.path)

    @property
    def section(self) -> type[Section] | None:
        for kind, _ in self._alternatives():
            if isinstance(kind, type) and issubclass(kind, Section):
                return kind
        return None

    @property
    def is_explained_elsewhere(self) -> bool:
        return EXPLAINED_ELSEWHERE in self.field.metadata

    @property
    def is_map(self) -> bool:
        return self._is_made_of(dict)

    @property
    def member(self) -> Key:
        """The values of a map, as a key of their own."""
        for kind, _ in self._alternatives():
            if get_origin(kind) is dict:
                value_annotation = get_args(kind)[1]
                return Key((*self.path, "NAME"), FieldInfo.from_annotation(value_annotation))
        raise TypeError(f"{self.dotted} is no map")

    @property
    def is_list(self) -> bool:
        return self._is_made_of(list)

    def item(self, number: str = "N") -> Key:
        """An entry of a list, as a key of its own."""
        for kind, _ in self._alternatives():
            if get_origin(kind) is list:
                return Key((*self.path, number), FieldInfo.from_annotation(get_args(kind)[0]))
        raise TypeError(f"{self.dotted} is no list")

    @property
    def is_optional(self) -> bool:
        return type(None) in (kind for kind, _ in _alternatives(self.field.annotation, ()))

    @property
    def is_text(self) -> bool:
        """Whether every allowed value is text, so that `no` or `5` given for it mean themselves."""
        return all(kind is str or _are_texts(_choices(kind)) for kind, _ in self._alternatives())

    @property
    def choices(self) -> KeyPath:
        return tuple(choice for kind, _ in self._alternatives() for choice in _choices(kind))

    @property
    def type_name(self) -> str:
        """`whole number`, `text` ..., alternatives joined."""
        if self._described:
            return self._described.type_name
        kinds = [kind for kind, _ in self._alternatives()]
        return " or ".join(
            _type_name(kind) for kind in kinds if kind is not int or float not in kinds
        )

    @property
    def range(self) -> str:
        """The allowed values, without the type: `8 to 134217728`; empty if all are allowed."""
        if self._described:
            return ""
        return ", or ".join(
            filter(None, (_range(kind, limits) for kind, limits in self._alternatives()))
        )

    @property
    def allowed(self) -> str:
        """Type and range in one phrase: `a whole number from 1 to 100000, or auto`."""
        if self._described:
            return self._described.allowed
        return ", or ".join(
            dict.fromkeys(_allowed(kind, limits) for kind, limits in self._alternatives())
        )

    def _is_made_of(self, container: type) -> bool:
        """Whether there are keys inside; a key that is described is explained as a whole."""
        return not self._described and any(
            get_origin(kind) is container for kind, _ in self._alternatives()
        )

    @property
    def _described(self) -> Described | None:
        """Also where it is said of one alternative: the other is then null."""
        for _, metadata in self._alternatives():
            for item in metadata:
                if isinstance(item, Described):
                    return item
        return None

    def _alternatives(self) -> list[tuple[Any, Sequence[Any]]]:
        return [
            (kind, limits)
            for kind, limits in _alternatives(self.field.annotation, self.field.metadata)
            if kind is not type(None)
        ]


def keys_of(section: type[Section], path: KeyPath = ()) -> dict[str, Key]:
    return {name: Key((*path, name), field) for name, field in section.model_fields.items()}


def all_keys(section: type[Section], path: KeyPath = ()) -> Iterator[Key]:
    """Every key in the order of the model, sections before what is inside them."""
    for key in keys_of(section, path).values():
        yield key
        inside = key.item() if key.is_list else key
        if inside.section and not inside.is_explained_elsewhere:
            yield from all_keys(inside.section, inside.path)


def follow(model: type[Section], path: KeyPath) -> Key | None:
    """The key that a path of names leads to; inside a map, the map's values. None if nowhere."""
    key = keys_of(model).get(path[0]) if path else None
    for name in path[1:]:
        if key is None or key.is_map:
            break
        if key.is_list:
            key = key.item(name)
        else:
            key = keys_of(key.section, key.path).get(name) if key.section else None
    return key.member if key is not None and key.is_map and len(path) > len(key.path) else key


def number(value: float) -> str:
    """Without the `.0` and exponents that Python adds to whole floats."""
    return str(int(value)) if float(value).is_integer() else str(value)


def _alternatives(annotation: Any, limits: Sequence[Any]) -> list[tuple[Any, Sequence[Any]]]:
    """A union's members, each with the limits that hold for it."""
    if get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        return _alternatives(inner, [*limits, *_flat(more)])
    if get_origin(annotation) in _UNIONS:
        return [found for member in get_args(annotation) for found in _alternatives(member, limits)]
    return [(annotation, limits)]


def _flat(metadata: Sequence[Any]) -> Iterator[Any]:
    """`Field(ge=1)` inside Annotated keeps its limits in a list of its own."""
    for item in metadata:
        if isinstance(item, FieldInfo):
            yield from item.metadata
        else:
            yield item


def _choices(kind: Any) -> KeyPath:
    return tuple(map(str, get_args(kind))) if get_origin(kind) is Literal else ()


def _are_texts(choices: KeyPath) -> bool:
    return bool(choices) and all(isinstance(choice, str) for choice in choices)


def _type_name(kind: Any) -> str:
    if _choices(kind):
        return "choice"
    if get_origin(kind) is dict:
        return "map"
    if get_origin(kind) is list:
        (item,) = get_args(kind)
        return "list of " + " or ".join(f"{_type_name(one)}s" for one, _ in _alternatives(item, ()))
    if isinstance(kind, type) and issubclass(kind, Section):
        return "section"
    return {int: "whole number", float: "number", bool: "true or false", str: "text"}[kind]


def _allowed(kind: Any, limits: Sequence[Any]) -> str:
    if _choices(kind):
        return ", ".join(map(str, _choices(kind)))
    if isinstance(kind, type) and issubclass(kind, Section):
        return "a section with the keys " + ", ".join(kind.model_fields)
    name = _type_name(kind)
    article = "" if kind in (str, bool) else "a "
    span = _range(kind, limits)
    if kind in (int, float) and span and not span.startswith("above"):
        span = f"from {span}"
    return f"{article}{name} {span}".rstrip()


def _range(kind: Any, limits: Sequence[Any]) -> str:
    if _choices(kind):
        return ", ".join(map(str, _choices(kind)))
    least: Any = next((limit.ge for limit in limits if isinstance(limit, Ge)), None)
    above: Any = next((limit.gt for limit in limits if isinstance(limit, Gt)), None)
    most: Any = next((limit.le for limit in limits if isinstance(limit, Le)), None)
    longest = next((limit.max_length for limit in limits if isinstance(limit, MaxLen)), None)
    if kind is str:
        return f"of at most {longest} characters" if longest else ""
    if kind not in (int, float):
        return ""
    if above is not None:
        return f"above {number(above)}" + (f" up to {number(most)}" if most is not None else "")
    if least is None:
        return ""
    return f"{number(least)} to {number(most)}" if most is not None else f"{number(least)} or more"


def merged(given: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Section by section; whatever is no section is replaced."""
    result = dict(given)
    for key, value in over.items():
        if isinstance(value, Mapping):
            below = result.get(key)
            result[key] = merged(below if isinstance(below, Mapping) else {}, value)
        else:
            result[key] = value
    return result
