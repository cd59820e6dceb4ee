"""Suite files: read, put together with their base scenario, and checked down to every trial.

Whatever is wrong is found before anything runs, and ends in one ConfigurationError with a line per
problem, as for scenario files. Single trials are looked at last, because a mistake in an axis would
be repeated by all of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bench_spark.config.loader import (
    File,
    Override,
    apply_overrides,
    broker_reference,
    last_source,
    load_file,
    load_scenario_file,
    locate,
    parse_overrides,
    with_brokers_located,
)
from bench_spark.config.models import Scenario
from bench_spark.config.problems import Problem, nearest, problems_of, shown_value
from bench_spark.config.suite import (
    MAX,
    RATE,
    SUSTAINED,
    Axis,
    Cell,
    Point,
    SkipRule,
    Suite,
    Value,
    combinations,
    parameters_of,
    value_text,
)
from bench_spark.config.suite_axes import (
    Complain,
    Groups,
    axis_of,
    check_keys_are_set_once,
    check_parameters,
    groups_of,
    is_known,
    key_is_varied,
    quick_axis,
    scenario_path,
    skip_rules,
)
from bench_spark.config.suite_file import Report, SuiteFile
from bench_spark.errors import ConfigurationError

MOST_TRIALS = 20_000
_MOST_PROBLEMS = 20


def load_suite(
    reference: str,
    quick: bool = False,
    overrides: Sequence[str] = (),
    variant: str | None = None,
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
    """Also of those that nobody asks for now."""
    for name, variant in text.variants.items():
        for axis in variant.axes:
            is_known(f"variants.{name}.axes", "axis", axis, list(text.axes), complain)
        for dotted in variant.set:
            path = scenario_path(dotted)
            if isinstance(path, str):
                complain(f"variants.{name}.set.{dotted}", path)


def _refuse_unknown_variant(variant: str, text: SuiteFile, file: File) -> None:
    if variant in text.variants:
        return
    guess = nearest(variant, text.variants)
    hint = f"did you mean {guess}?" if guess else f"allowed: {', '.join(text.variants) or 'none'}"
    raise ConfigurationError(
        f"--variant: {shown_value(variant)} is no variant of {file.shown}; {hint}"
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


def _report(text: Report, groups: Groups, complain: Complain) -> Report:
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
    try:
        base = Scenario.model_validate({"name": text.name} | text.base, strict=True)
        return with_brokers_located(base, file.path.parent)
    except ConfigurationError as error:
        complain("base", str(error))
        return None
    except ValidationError as error:
        found = problems_of(error, Scenario, lambda _: file.shown)
    for problem in found:
        complain(f"base.{problem.key}", problem.text)
    return None


def _changes_of(
    section: str, keys: Mapping[str, Any], axes: Sequence[Axis], file: File, complain: Complain
) -> list[Override]:
    changes = []
    for dotted, value in keys.items():
        here = f"{section}.{dotted}"
        path = scenario_path(dotted)
        if isinstance(path, str):
            complain(here, path)
        elif axis := key_is_varied(path, axes):
            complain(here, f"is set by the axis {axis}")
        else:
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
    try:
        return Scenario.model_validate(document, strict=True)
    except ValidationError as error:
        return problems_of(error, Scenario, lambda paths: last_source(file, changes, paths))


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
