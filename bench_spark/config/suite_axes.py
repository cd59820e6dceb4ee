"""Axes of a suite file: the points they consist of, and how they stand to each other.

Nothing is raised: each function returns what it could make of the text, and tells what is wrong
with it to the `complain` it was given, so that a file is mended in one go.

Axes are zipped or crossed, and some of their points may be skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from bench_spark.config.fields import PLAIN_NAME, PLAIN_NAME_RULE
from bench_spark.config.loader import find_key, is_a_section
from bench_spark.config.models import Scenario
from bench_spark.config.problems import Problem, nearest, shown_key, shown_value
from bench_spark.config.suite import (
    MAX,
    RATE,
    SEARCH_WORDS,
    SUSTAINED,
    Axis,
    Point,
    SkipRule,
    Value,
    hook_variable,
    same_value,
    value_text,
)
from bench_spark.config.suite_file import Skip

Complain = Callable[[str, str], None]
"""Told the key of the suite file and what is wrong there."""

MOST_VALUES = 10_000
MOST_QUICK_VALUES = 3

_RANGE_KEYS = ("from", "to", "step")
_SHAPES = "allowed: a list of values, {from: , to: , step: }, or series (LABEL: {KEY: VALUE})"
_SCALARS = "allowed: text, a number, true, false or null; for more use a series"
_LONGEST_LABEL = 120


def axis_of(name: str, text: Any, declared: Collection[str], complain: Complain) -> Axis:
    """The axis of that name; without points after a complaint about it."""
    here = f"axes.{name}"
    is_mapping = isinstance(text, dict)
    if is_mapping and text and all(isinstance(inside, dict) for inside in text.values()):
        return _series(here, name, text, declared, complain)
    if not _may_be_varied(here, name, declared, complain):
        return Axis(name, ())
    if isinstance(text, list):
        return Axis(name, _listed(here, name, text, complain))
    if is_mapping and text and set(text) <= set(_RANGE_KEYS):
        return Axis(name, tuple(_point(name, value) for value in _range(here, text, complain)))
    if is_mapping and not set(text).isdisjoint(_RANGE_KEYS):
        wrong = next(key for key in text if key not in _RANGE_KEYS)
        complain(f"{here}.{wrong}", f"unknown key; allowed: {', '.join(_RANGE_KEYS)}")
    else:
        complain(here, f"{shown_value(text)} is no axis; {_SHAPES}")
    return Axis(name, ())


def quick_axis(axis: Axis, given: Sequence[Any] | None, complain: Complain) -> Axis:
    """The axis with its values for `--quick`; where none are given its first, middle and last."""
    if given is None:
        return Axis(axis.name, _thinned(axis), axis.is_series)
    here = f"quick.axes.{axis.name}"
    if axis.is_series:
        points = _labelled(here, axis, given, complain)
    else:
        points = _listed(here, axis.name, given, complain)
    number = sum(not _is_search_word(axis.name, point.value) for point in points)
    fewest = min(2, len(axis.points))
    if len(points) == len(given) and not fewest <= number <= MOST_QUICK_VALUES:
        complain(here, f"has {number} values; allowed: two or three")
    return Axis(axis.name, points, axis.is_series)


def place_in(values: Sequence[Value], given: Any) -> int | None:
    """Which of the values is meant. Labels are text, but 5 may be written for '5'."""
    for place, value in enumerate(values):
        if same_value(value, given):
            return place
    if isinstance(given, int | float):
        return next((i for i, value in enumerate(values) if value == value_text(given)), None)
    return None


def no_such_value(given: Any, values: Sequence[Value]) -> str:
    shown = [value_text(value) for value in values]
    text = f"{shown_value(given)} is none of its values; allowed: {', '.join(shown)}"
    guess = nearest(given, shown) if isinstance(given, str) else None
    return f"{text}; did you mean {guess}?" if guess else text


def scenario_path(dotted: str) -> tuple[str, ...] | str:
    """Where a dotted scenario key leads, or why it cannot be set."""
    found = find_key(Scenario, dotted, "")
    if isinstance(found, Problem):
        return found.text
    path, key = found
    return is_a_section(key.section, dotted) if key.section else path


def _may_be_varied(here: str, name: str, declared: Collection[str], complain: Complain) -> bool:
    if name in declared:
        return True
    problem = scenario_path(name)
    if not isinstance(problem, str):
        return True
    if isinstance(find_key(Scenario, name, ""), Problem):
        guess = nearest(name, declared)
        problem = f"unknown key; did you mean {guess}?" if guess else problem
        problem += " (what no scenario has is declared under parameters)"
    complain(here, problem)
    return False


def _listed(here: str, name: str, values: Sequence[Any], complain: Complain) -> tuple[Point, ...]:
    if not values:
        complain(here, "is empty; allowed: at least one value")
    points: list[Point] = []
    for value in values:
        if isinstance(value, list | dict):
            complain(here, f"{shown_value(value)} is no value; {_SCALARS}")
        elif any(same_value(value, point.value) for point in points):
            complain(here, f"{shown_value(value, name)} is given twice")
        else:
            points.append(_point(name, value))
    values = [point.value for point in points]
    if name == RATE and SUSTAINED in values and MAX not in values:
        complain(here, f"{SUSTAINED} is found from the throughput of {MAX}, which is not in it")
    return tuple(points)


def _point(name: str, value: Value) -> Point:
    if _is_search_word(name, value):
        return Point(value, {"load.mode": "maximum" if value == MAX else "rate"})
    is_scenario_key = not isinstance(scenario_path(name), str)
    return Point(value, {name: value} if is_scenario_key else {})


def _is_search_word(name: str, value: Value) -> bool:
    return name == RATE and value in SEARCH_WORDS


def _range(here: str, text: Mapping[str, Any], complain: Complain) -> Iterator[Value]:
    missing = [key for key in _RANGE_KEYS if key not in text]
    if missing:
        complain(f"{here}.{missing[0]}", "missing; allowed: a number")
        return
    for key in _RANGE_KEYS:
        number = text[key]
        if isinstance(number, bool) or not isinstance(number, int | float) or abs(number) > 1e15:
            complain(f"{here}.{key}", f"{shown_value(number)} is no number; allowed: a number")
            return
    # In decimal: three steps of 0.1 as floats are 0.30000000000000004.
    start, end, step = (Decimal(str(text[key])) for key in _RANGE_KEYS)
    if step <= 0:
        complain(f"{here}.step", f"{shown_value(text['step'])} is too low; allowed: above 0")
        return
    if end < start:
        complain(f"{here}.to", f"{shown_value(text['to'])} is below from; the range is empty")
        return
    number = int((end - start) / step) + 1
    if number > MOST_VALUES:
        complain(here, f"has {number} values; allowed: at most {MOST_VALUES}")
        return
    is_whole = all(isinstance(text[key], int) for key in _RANGE_KEYS)
    for i in range(number):
        value = start + i * step
        yield int(value) if is_whole else float(value)


def _series(
    here: str, name: str, text: Mapping[str, Any], declared: Collection[str], complain: Complain
) -> Axis:
    if name in declared or not isinstance(scenario_path(name), str):
        complain(here, "is a key of its own; a series of labels needs another name")
    elif not PLAIN_NAME.fullmatch(name):
        complain(here, f"is no name for a series; allowed: {PLAIN_NAME_RULE}")
    points = []
    for label, settings in text.items():
        there = f"{here}.{label}"
        if not label.strip() or len(label) > _LONGEST_LABEL:
            complain(there, f"is no label; allowed: text of at most {_LONGEST_LABEL} characters")
        sets: dict[str, Any] = {}
        parameters: dict[str, Value] = {}
        for key, value in settings.items():
            if key not in declared:
                path = scenario_path(key)
                if isinstance(path, str):
                    complain(f"{there}.{key}", path)
                sets[key] = value
            elif isinstance(value, list | dict):
                complain(f"{there}.{key}", f"{shown_value(value)} is no value; {_SCALARS}")
            else:
                parameters[key] = value
        points.append(Point(label, sets, parameters))
    return Axis(name, tuple(points), is_series=True)


def _labelled(here: str, axis: Axis, given: Sequence[Any], complain: Complain) -> tuple[Point, ...]:
    places: list[int] = []
    for label in given:
        place = place_in(axis.values, label)
        if place is None:
            complain(here, no_such_value(label, axis.values))
        elif place in places:
            complain(here, f"{shown_key(value_text(axis.values[place]))} is given twice")
        else:
            places.append(place)
    return tuple(axis.points[place] for place in places)


def _thinned(axis: Axis) -> tuple[Point, ...]:
    """First, middle and last; the search words stay as well."""
    words = [point for point in axis.points if _is_search_word(axis.name, point.value)]
    plain = [point for point in axis.points if not _is_search_word(axis.name, point.value)]
    if len(plain) > MOST_QUICK_VALUES:
        plain = [plain[0], plain[len(plain) // 2], plain[-1]]
    return (*plain, *words)


Groups = tuple[tuple[Axis, ...], ...]


def groups_of(
    axes: Sequence[Axis], zip_groups: Sequence[Sequence[str]], complain: Complain
) -> Groups:
    """Crossed axes alone; zipped ones together, at the place of the first of them."""
    by_name = {axis.name: axis for axis in axes}
    names_with: dict[str, tuple[str, ...]] = {name: (name,) for name in by_name}
    zipped: list[str] = []
    for number, names in enumerate(zip_groups):
        here = f"zip.{number}"
        known = [name for name in names if is_known(here, "axis", name, by_name, complain)]
        if len(known) < len(names):
            continue
        if problem := _zip_problem([by_name[name] for name in names], zipped):
            complain(here, problem)
            continue
        names_with |= dict.fromkeys(names, tuple(names))
        zipped += names
    return tuple(
        tuple(by_name[name] for name in names)
        for names in dict.fromkeys(names_with[axis.name] for axis in axes)
    )


def _zip_problem(axes: Sequence[Axis], zipped: Collection[str]) -> str | None:
    names = [axis.name for axis in axes]
    again = [name for i, name in enumerate(names) if name in zipped or name in names[:i]]
    if len(names) < 2:
        return "zips nothing; allowed: at least two axes"
    if again:
        return f"{again[0]} is zipped twice"
    if any(axis.name == RATE and set(SEARCH_WORDS) & set(axis.values) for axis in axes):
        return f"{RATE} has {' or '.join(SEARCH_WORDS)}, which can only be crossed"
    if len({len(axis.points) for axis in axes}) > 1:
        lengths = ", ".join(f"{axis.name} has {len(axis.points)}" for axis in axes)
        return f"the axes differ in their number of values: {lengths}"
    return None


def is_known(here: str, noun: str, name: str, names: Collection[str], complain: Complain) -> bool:
    if name not in names:
        guess = nearest(name, names)
        hint = f"did you mean {guess}?" if guess else f"allowed: {', '.join(names)}"
        complain(here, f"{shown_value(name)} is no {noun} of this suite; {hint}")
    return name in names


def check_keys_are_set_once(axes: Sequence[Axis], complain: Complain) -> None:
    """Of two axes that set one key the later would win in silence."""
    set_by: dict[tuple[str, ...], str] = {}
    for axis in axes:
        for path in paths_set_by(axis):
            for other_path, other in set_by.items():
                if other != axis.name and _overlap(path, other_path):
                    complain(f"axes.{axis.name}", f"sets {'.'.join(path)}, as {other} does")
            set_by.setdefault(path, axis.name)


def key_is_varied(path: tuple[str, ...], axes: Iterable[Axis]) -> str | None:
    """Name of the axis that sets this key."""
    for axis in axes:
        if any(_overlap(path, other) for other in paths_set_by(axis)):
            return axis.name
    return None


def paths_set_by(axis: Axis) -> Iterator[tuple[str, ...]]:
    for dotted in dict.fromkeys(dotted for point in axis.points for dotted in point.sets):
        path = scenario_path(dotted)
        if not isinstance(path, str):
            yield path


def _overlap(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]


def check_parameters(axes: Sequence[Axis], declared: Collection[str], complain: Complain) -> None:
    used = set(_values_by_parameter(axes))
    for name in declared:
        if not isinstance(scenario_path(name), str):
            complain(f"parameters.{name}", "is a scenario key; axes name it without declaring it")
        elif name not in used:
            complain(f"parameters.{name}", "is set by no axis")
    variables: dict[str, str] = {}
    for name in sorted(used):
        variable = hook_variable(name)
        other = variables.setdefault(variable, name)
        if other != name:
            complain("axes", f"{other} and {name} would both be {variable} for a hook")


def skip_rules(
    texts: Sequence[Skip], axes: Sequence[Axis], complain: Complain
) -> tuple[SkipRule, ...]:
    values = _values_by_parameter(axes)
    return tuple(
        _skip_rule(f"skip.{number}.when", text, values, complain)
        for number, text in enumerate(texts)
    )


def _skip_rule(
    here: str, text: Skip, values: Mapping[str, Sequence[Value]], complain: Complain
) -> SkipRule:
    when: dict[str, tuple[Value, ...]] = {}
    for name, given in text.when.items():
        if not is_known(here, "axis or parameter", name, values, complain):
            continue
        known = values[name]
        found = []
        for value in given if isinstance(given, list) else [given]:
            place = place_in(known, value)
            if place is None:
                complain(f"{here}.{name}", no_such_value(value, known))
            else:
                found.append(known[place])
        when[name] = tuple(found)
    return SkipRule(when, text.reason)


def _values_by_parameter(axes: Iterable[Axis]) -> dict[str, list[Value]]:
    values: dict[str, list[Value]] = {}
    for axis in axes:
        for point in axis.points:
            for name, value in {axis.name: point.value, **point.parameters}.items():
                known = values.setdefault(name, [])
                if place_in(known, value) is None:
                    known.append(value)
    return values
