"""Suite files: read, put together with their base scenario, and checked down to every trial.

Whatever is wrong is found before anything runs, and ends in one ConfigurationError with a line per
problem, as for scenario files. Single trials are looked at last, because a mistake in an axis would
be repeated by all of them. The functions that read axes raise nothing: each returns what it could
make of the text, and passes what is wrong with it to `complain`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

from bench_spark.config.fields import PLAIN_NAME, PLAIN_NAME_RULE
from bench_spark.config.loader import (
    File,
    Override,
    apply_overrides,
    broker_reference,
    find_key,
    is_a_section,
    last_source,
    load_file,
    load_scenario_file,
    locate,
    parse_overrides,
    with_brokers_located,
)
from bench_spark.config.models import Scenario
from bench_spark.config.problems import (
    Problem,
    did_you_mean,
    nearest,
    read_model,
    shown_key,
    shown_value,
)
from bench_spark.config.suite import (
    MAX,
    RATE,
    SEARCH_WORDS,
    SUSTAINED,
    Axis,
    Cell,
    Point,
    ReportLayout,
    Skip,
    SkipRule,
    Suite,
    SuiteFile,
    Value,
    combinations,
    hook_variable,
    parameters_of,
    same_value,
    value_text,
)
from bench_spark.errors import ConfigurationError

MOST_TRIALS = 20_000
_MOST_PROBLEMS = 20


def load_suite(
    reference: str, quick: bool = False, overrides: Sequence[str] = (), variant: str | None = None
) -> Suite:
    """The suite of a path or a shipped name; with `quick`, as its section `quick` says, and of
    `variants` the one asked for. The `overrides` (`KEY=VALUE`) go to its base scenario. Raises
    ConfigurationError."""
    file = locate("suites", reference)
    text = load_file(SuiteFile, file)
    problems: list[Problem] = []

    def complain(key: str, problem: str) -> None:
        problems.append(Problem(file.shown, key, problem))

    _check_variants(text, complain)
    if variant is not None:
        _refuse_unknown_variant(variant, text, file)
        text = _varied(text, variant)
    whole = [axis_of(name, axis, text.parameters, complain) for name, axis in text.axes.items()]
    small = _quick_axes(text, whole, complain)
    axes = small if quick else whole
    groups = groups_of(axes, text.zip, complain)
    check_keys_are_set_once(axes, complain)
    check_parameters(whole, text.parameters, complain)
    rules = skip_rules(text.skip, [*whole, *small], complain)
    report = _report(text.report, groups, complain)
    broker = _broker(text.broker, file.path.parent, complain)
    repetitions = text.quick.repetitions if quick else text.repetitions
    _check_size(groups, repetitions, complain)
    base = _base(text, file, complain)
    changes = _changes_of("set", text.set, axes, file, complain)
    quick_changes = _changes_of("quick.set", text.quick.set, axes, file, complain)
    changes += [*(quick_changes if quick else ()), *_options(overrides, axes, problems)]
    _raise(problems)

    assert base is not None, "without a base there is a problem"
    changed = _changed(base, changes, file)
    if isinstance(changed, list):
        _raise(changed)
    else:
        base = changed
    return Suite(
        name=text.name,
        description=text.description,
        file=file.shown,
        directory=file.path.parent,
        base=base,
        broker=broker,
        groups=groups,
        cells=_cells(base, groups, rules, file),
        parameters=text.parameters,
        repetitions=repetitions,
        order=text.order,
        seed=text.seed,
        hooks=text.hooks,
        search=text.search,
        report=report,
        is_quick=quick,
    )


def _check_variants(text: SuiteFile, complain: Complain) -> None:
    """Also of those that are not asked for now."""
    for name, variant in text.variants.items():
        for axis in variant.axes:
            is_known(f"variants.{name}.axes", "axis", axis, list(text.axes), complain)
        for dotted in variant.set:
            _path_of(f"variants.{name}.set.{dotted}", dotted, complain)


def _refuse_unknown_variant(variant: str, text: SuiteFile, file: File) -> None:
    if variant in text.variants:
        return
    allowed = f"; allowed: {', '.join(text.variants) or 'none'}"
    raise ConfigurationError(
        f"--variant: {shown_value(variant)} is no variant of {file.shown}"
        + did_you_mean(variant, text.variants, allowed)
    )


def _varied(text: SuiteFile, name: str) -> SuiteFile:
    """The suite's text as this variant has it."""
    variant = text.variants[name]
    title = text.report.title or text.name
    return text.model_copy(
        update={
            "name": f"{text.name}-{name}",
            "axes": text.axes | variant.axes,
            "set": text.set | variant.set,
            "report": text.report.model_copy(update={"title": f"{title}: {name}"}),
        }
    )


def _raise(problems: Sequence[Problem]) -> None:
    lines = list(dict.fromkeys(map(str, problems)))
    if len(lines) > _MOST_PROBLEMS:
        lines[_MOST_PROBLEMS:] = [f"... and {len(lines) - _MOST_PROBLEMS} more"]
    if lines:
        raise ConfigurationError("\n".join(lines))


def _quick_axes(text: SuiteFile, axes: Sequence[Axis], complain: Complain) -> list[Axis]:
    names = [axis.name for axis in axes]
    for name in text.quick.axes:
        is_known("quick.axes", "axis", name, names, complain)
    return [quick_axis(axis, text.quick.axes.get(axis.name), complain) for axis in axes]


def _check_size(groups: Groups, repetitions: int, complain: Complain) -> None:
    if not groups:
        complain("axes", "is empty; allowed: at least one axis")
    trials = repetitions * math.prod(len(group[0].points) for group in groups)
    if trials > MOST_TRIALS:
        complain("axes", f"make {trials} trials; allowed: at most {MOST_TRIALS}")


def _report(text: ReportLayout, groups: Groups, complain: Complain) -> ReportLayout:
    """The report with all rows named; every axis must be in it, or trials would fall together."""
    axes = [axis.name for group in groups for axis in group]
    named = [("report.rows", name) for name in text.rows]
    named += [("report.across", text.across)] if text.across is not None else []
    drawn = {"report.figures.x": text.figures.x, "report.figures.series": text.figures.series}
    mentioned = [*named, *(("report.headings", name) for name in text.headings), *drawn.items()]
    for here, name in mentioned:
        if name is not None:
            is_known(here, "axis", name, axes, complain)
    if text.figures.x is not None and text.figures.x == text.figures.series:
        complain("report.figures.series", f"{text.figures.series} is along the bottom already")
    names = [name for _, name in named]
    for i, name in enumerate(names):
        if name in names[:i]:
            complain("report.rows", f"{name} is given twice")
    shown: list[tuple[str, str]] = []
    for i, column in enumerate(text.columns):
        if (column.value, column.aggregation) in shown:
            complain(f"report.columns.{i}", f"{column.value} ({column.aggregation}) is given twice")
        shown.append((column.value, column.aggregation))
    across_group = next(
        (group for group in groups if any(axis.name == text.across for axis in group)), ()
    )
    beside = [axis.name for axis in across_group]
    if not text.rows:
        return text.model_copy(update={"rows": [name for name in axes if name not in beside]})
    for name in text.rows:
        if name in beside and name != text.across:
            complain("report.across", f"{text.across} is zipped with {name}, which is in rows")
    for group in groups:
        if all(axis.name not in names for axis in group):
            complain("report.rows", f"leaves out the axis {group[0].name}, and so does across")
    return text


def _broker(reference: str | None, directory: Path, complain: Complain) -> str | None:
    if reference is None:
        return None
    try:
        return broker_reference(reference, directory)
    except ConfigurationError as error:
        complain("broker", str(error))
        return None


def _base(text: SuiteFile, file: File, complain: Complain) -> Scenario | None:
    if isinstance(text.base, str):
        try:
            base_file = locate("scenarios", text.base, file.path.parent)
        except ConfigurationError as error:
            complain("base", str(error))
            return None
        return load_scenario_file(base_file)
    base = read_model(Scenario, {"name": text.name} | text.base, lambda _: file.shown)
    if isinstance(base, Scenario):
        try:
            return with_brokers_located(base, file.path.parent)
        except ConfigurationError as error:
            complain("base", str(error))
            return None
    for problem in base:
        complain(f"base.{problem.key}", problem.text)
    return None


def _changes_of(
    section: str, keys: Mapping[str, Any], axes: Sequence[Axis], file: File, complain: Complain
) -> list[Override]:
    changes = []
    for dotted, value in keys.items():
        here = f"{section}.{dotted}"
        path = _path_of(here, dotted, complain)
        if path and (axis := key_is_varied(path, axes)):
            complain(here, f"is set by the axis {axis}")
        elif path:
            changes.append(Override(path, value, f"{file.shown}: {section}"))
    return changes


def _options(texts: Sequence[str], axes: Sequence[Axis], problems: list[Problem]) -> list[Override]:
    overrides, found = parse_overrides(Scenario, texts)
    problems += found
    for override in overrides:
        if axis := key_is_varied(override.path, axes):
            problems.append(Problem(override.source, "", f"is set by the axis {axis}"))
    return overrides


def _changed(base: Scenario, changes: Sequence[Override], file: File) -> Scenario | list[Problem]:
    document = base.model_dump(exclude_unset=True)
    apply_overrides(document, changes)
    return read_model(Scenario, document, partial(last_source, file, changes))


def _cells(
    base: Scenario, groups: Groups, rules: Sequence[SkipRule], file: File
) -> tuple[Cell, ...]:
    cells: list[Cell] = []
    problems: dict[str, Problem] = {}
    for combination in combinations(groups):
        parameters = parameters_of(combination)
        reason = _skip_reason(parameters, rules)
        scenario = base if reason else _changed(base, _changes(combination, file), file)
        if isinstance(scenario, Scenario):
            cells.append(Cell(parameters, scenario, reason))
            continue
        for problem in scenario:
            problems.setdefault(str(problem), _with_place(problem, base, combination, file))
    _raise(list(problems.values()))
    if all(cell.skipped_because for cell in cells):
        _raise([Problem(file.shown, "skip", "leaves no trial to run")])
    return tuple(cells)


def _skip_reason(parameters: Mapping[str, Value], rules: Sequence[SkipRule]) -> str | None:
    """A search goes with the trial that it starts from."""
    starts_from = {**parameters, RATE: MAX} if parameters.get(RATE) == SUSTAINED else parameters
    return next(
        (rule.reason for rule in rules if rule.matches(parameters) or rule.matches(starts_from)),
        None,
    )


def _changes(combination: Sequence[tuple[Axis, Point]], file: File) -> list[Override]:
    changes = []
    for axis, point in combination:
        label = f".{point.value}" if axis.is_series else ""
        source = f"{file.shown}: axes.{axis.name}{label}"
        for dotted, value in point.sets.items():
            path = scenario_path(dotted)
            assert not isinstance(path, str), "the axes have been checked"
            changes.append(Override(path, value, source))
    return changes


def _with_place(
    problem: Problem, base: Scenario, combination: Sequence[tuple[Axis, Point]], file: File
) -> Problem:
    """Says where in the grid it is, unless one point alone is wrong wherever it stands."""
    source, key, text = problem
    for pair in combination:
        alone = _changed(base, _changes([pair], file), file)
        if isinstance(alone, list) and problem in alone:
            break
    else:
        place = ", ".join(f"{axis.name}={value_text(point.value)}" for axis, point in combination)
        text = f"{text} (where {place})"
    # An axis is mostly named by the one key that it sets: once is enough.
    return Problem(source, "" if source.endswith(f" axes.{key}") else key, text)


# -- axes ------------------------------------------------------------------------------------------

Complain = Callable[[str, str], None]
"""Called with the key of the suite file and what is wrong there."""

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
    return text + did_you_mean(given, shown)


def scenario_path(dotted: str) -> tuple[str, ...] | str:
    """Where a dotted scenario key leads, or why it cannot be set."""
    found = find_key(Scenario, dotted, "")
    if isinstance(found, Problem):
        return found.text
    path, key = found
    return is_a_section(key.section, dotted) if key.section else path


def _path_of(here: str, dotted: str, complain: Complain) -> tuple[str, ...]:
    """Where a dotted scenario key leads; empty after a complaint that it leads nowhere."""
    path = scenario_path(dotted)
    if isinstance(path, str):
        complain(here, path)
        return ()
    return path


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
                _path_of(f"{there}.{key}", key, complain)
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
        hint = did_you_mean(name, names, f"; allowed: {', '.join(names)}")
        complain(here, f"{shown_value(name)} is no {noun} of this suite{hint}")
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
