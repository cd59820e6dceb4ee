"""How the axes of a suite file stand to each other: zipped, crossed, and where they are skipped.

As in `suite_axes.py`, what is wrong is told to `complain`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from bench_spark.scenario.nearest import nearest
from bench_spark.scenario.shown import shown_value
from bench_spark.scenario.suite import (
    RATE,
    SEARCH_WORDS,
    Axis,
    SkipRule,
    Value,
    hook_variable,
)
from bench_spark.scenario.suite_axes import Complain, no_such_value, place_in, scenario_path
from bench_spark.scenario.suite_file import Skip

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
