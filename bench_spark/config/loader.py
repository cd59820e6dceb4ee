"""Scenario and broker files: found by path or shipped name, read, overridden, validated.

Whatever is wrong ends in one ConfigurationError with a line per problem, so that a file is mended
in one go. The error never holds a password; see `problems.py`.

`--set KEY=VALUE`: where a dotted key leads and what its value means. Keys follow the model. Once
they enter a free map the rest is one name, dots included, because that is how clients name their
properties: `kafka.producer.linger.ms=5`. Values are YAML, except where a key only takes text: there
`no`, `5` or `#` mean themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bench_spark.conf_files import conf_path, shipped
from bench_spark.config.broker import Broker
from bench_spark.config.ends import Ends
from bench_spark.config.fields import PLAIN_NAME, PLAIN_NAME_RULE, Section, plain_name, tag_value
from bench_spark.config.models import Scenario
from bench_spark.config.problems import (
    Key,
    KeyPath,
    Problem,
    SectionT,
    did_you_mean,
    keys_of,
    read_model,
    shown_override,
    shown_path,
    shown_text,
    shown_value,
    unknown_key,
    validated,
)
from bench_spark.config.sections import Egress, Ingress
from bench_spark.config.suite import SuiteFile
from bench_spark.config.yaml_text import MAX_BYTES, YamlTextError, read_yaml, refuse_unprintable
from bench_spark.errors import ConfigurationError


@dataclass(frozen=True)
class Override:
    path: KeyPath
    value: Any
    source: str
    """What an error text calls it: the option as typed, secrets masked."""


def parse_overrides(
    model: type[Section], texts: Sequence[str]
) -> tuple[list[Override], list[Problem]]:
    parsed = [_parse(model, text) for text in texts]
    overrides = [one for one in parsed if isinstance(one, Override)]
    return overrides, [one for one in parsed if isinstance(one, Problem)]


def apply_overrides(document: dict[str, Any], overrides: Sequence[Override]) -> None:
    """Later overrides win. Where the document has no section to descend into, it is left as it
    is: validation then names the document's own mistake."""
    for override in overrides:
        target: Any = document
        for name in override.path[:-1]:
            if isinstance(target, dict):
                if target.get(name) is None:
                    target[name] = {}
                target = target[name]
        if isinstance(target, dict):
            target[override.path[-1]] = override.value


def _parse(model: type[Section], text: str) -> Override | Problem:
    source = shown_override(text)
    dotted, equals, value_text = text.partition("=")
    dotted = dotted.strip()
    if not equals or not dotted:
        return Problem(source, "", "is not of the form KEY=VALUE")
    found = find_key(model, dotted, source)
    if isinstance(found, Problem):
        return found
    path, key = found
    try:
        value = _value(key, value_text)
    except YamlTextError as error:
        return Problem(source, dotted, f"the value {error.flaws[0].problem}; try it in quotes")
    if key.section and not isinstance(value, dict) and not (value is None and key.is_optional):
        return Problem(source, dotted, is_a_section(key.section, dotted))
    return Override(path, value, source)


def is_a_section(section: type[Section], dotted: str) -> str:
    """Why a section cannot be set as if it were a key."""
    inside = ", ".join(f"{dotted}.{name}" for name in section.model_fields)
    return f"is a section; set a key inside it: {inside}"


def find_key(model: type[Section], dotted: str, source: str) -> tuple[KeyPath, Key] | Problem:
    """The path into the document, and the key that says what the value may be."""
    names = dotted.split(".")
    section = model
    for depth, name in enumerate(names):
        before, rest = tuple(names[:depth]), names[depth + 1 :]
        key = keys_of(section, before).get(name)
        if key is None:
            return Problem(source, dotted, unknown_key(model, section, before, name, names[-1]))
        if not rest:
            return key.path, key
        if key.is_map:
            return (*key.path, ".".join(rest)), key.entry()
        if key.section is None:
            return Problem(source, dotted, f"nothing is inside {key.dotted}")
        section = key.section
    raise AssertionError("a split text has at least one part")


def _value(key: Key, text: str) -> Any:
    is_quoted = text.startswith(("'", '"'))
    if not key.is_text or is_quoted:
        return read_yaml(text)
    if key.is_optional and text in ("null", "~"):
        return None
    refuse_unprintable(text)
    return text


_SUFFIXES = (".yaml", ".yml")
_HERE = Path()


def load_scenario(reference: str, overrides: Sequence[str] = ()) -> Scenario:
    """The scenario of a path or a shipped name, with `KEY=VALUE` overrides on top."""
    return load_scenario_file(locate("scenarios", reference), overrides)


def load_scenario_file(file: File, overrides: Sequence[str] = ()) -> Scenario:
    scenario = load_file(Scenario, file, overrides)
    try:
        return with_brokers_located(scenario, file.path.parent)
    except ConfigurationError as error:
        raise ConfigurationError(f"{file.shown}: {error}") from None


def with_brokers_located(scenario: Scenario, directory: Path) -> Scenario:
    """The scenario with the broker files of its ends as they are found from here, and not from the
    directory of the file that names them."""
    if not scenario.has_ends_apart:
        return scenario
    changed = {}
    for role, ends in (("ingress", scenario.ingress), ("egress", scenario.egress)):
        changed[role] = [
            end.model_copy(update={"broker": _located(end.broker, directory, f"{role}.{place}")})
            for place, end in enumerate(ends)
        ]
    return scenario.model_copy(update=changed)


def _located(reference: str, directory: Path, place: str) -> str:
    try:
        return broker_reference(reference, directory)
    except ConfigurationError as error:
        raise ConfigurationError(f"{place}.broker: {error}") from None


def broker_reference(reference: str, directory: Path) -> str:
    """What is written in a file of that directory, as it is found from here."""
    file = locate("brokers", reference, directory)
    return reference if file.shown == f"conf/brokers/{reference}.yaml" else str(file.path)


def load_broker(reference: str, overrides: Sequence[str] = ()) -> Broker:
    """The broker of a path or a shipped name, with `KEY=VALUE` overrides on top."""
    return load_file(Broker, locate("brokers", reference), overrides)


def check_run_id(text: str) -> str:
    """A run id becomes part of queue names, directories and SQL: only plain names will do."""
    if not PLAIN_NAME.fullmatch(text):
        raise ConfigurationError(
            f"--run-id: {shown_value(text)} is not a plain name; allowed: {PLAIN_NAME_RULE}"
        )
    return text


def with_tags(scenario: Scenario, tags: Mapping[str, str], source: str) -> Scenario:
    """The scenario with these tags over its own; `source` is where they were given."""
    for name, value in tags.items():
        for check, text in ((plain_name, name), (tag_value, value)):
            try:
                check(text)
            except ValueError as error:
                raise ConfigurationError(f"{source}: {shown_value(text)}: {error}") from None
    return scenario.model_copy(update={"tags": {**scenario.tags, **tags}})


class File(NamedTuple):
    path: Path
    shown: str


def locate(kind: str, reference: str, directory: Path = _HERE) -> File:
    """The file that a reference of this kind (`scenarios`, ...) means: a shipped name, or a path
    relative to `directory`."""
    if "://" in reference:
        raise ConfigurationError(
            f"{shown_value(reference)}: is a URI; allowed: a path, or one of "
            f"{', '.join(shipped(kind))}"
        )
    looks_like_path = "/" in reference or reference.endswith(_SUFFIXES)
    names = shipped(kind)
    if not looks_like_path and reference in names:
        return File(conf_path(kind, f"{reference}.yaml"), f"conf/{kind}/{reference}.yaml")
    path = directory / reference
    if looks_like_path or _exists(path):
        return File(path, shown_path(reference if directory == _HERE else str(path)))
    for other in MODELS:
        if reference in shipped(other):
            raise ConfigurationError(f"{reference}: {_misplaced(other, kind)}")
    raise ConfigurationError(
        f"{shown_text(reference)}: unknown {kind.removesuffix('s')}; "
        f"allowed: a path, or one of {', '.join(names)}{did_you_mean(reference, names)}"
    )


def described(kind: str) -> list[list[str]]:
    """The shipped files of a kind, each with its one-line description."""
    return [
        [name, str(read_mapping(locate(kind, name)).get("description", ""))]
        for name in shipped(kind)
    ]


def load_file(model: type[SectionT], file: File, override_texts: Sequence[str] = ()) -> SectionT:
    """The validated content of a file, named by its stem unless it names itself."""
    document = read_mapping(file)
    _refuse_other_kind(model, file, document)
    _look_for_data_beside(file, document)
    if PLAIN_NAME.fullmatch(file.path.stem):
        document.setdefault("name", file.path.stem)
    overrides, problems = parse_overrides(model, override_texts)
    apply_overrides(document, overrides)
    loaded = read_model(model, document, partial(last_source, file, overrides))
    if isinstance(loaded, list):
        problems += loaded
    if isinstance(loaded, list) or problems:
        raise ConfigurationError("\n".join(map(str, problems)))
    return loaded


MODELS: dict[str, type[Section]] = {"scenarios": Scenario, "brokers": Broker, "suites": SuiteFile}
_TAKEN_BY = {
    "scenarios": "`bench-spark run`",
    "brokers": "--broker",
    "suites": "`bench-spark suite run`",
}


def _refuse_other_kind(model: type[Section], file: File, document: Mapping[str, Any]) -> None:
    """Say it in one sentence where all that a file knows is known to files of another kind only."""
    kinds = [kind for kind, known in MODELS.items() if _own_keys(known) & document.keys()]
    if len(kinds) == 1 and MODELS[kinds[0]] is not model:
        [wanted] = (kind for kind, known in MODELS.items() if known is model)
        raise ConfigurationError(f"{file.shown}: {_misplaced(kinds[0], wanted)}")


def _own_keys(model: type[Section]) -> set[str]:
    others = (other.model_fields for other in MODELS.values() if other is not model)
    return set(model.model_fields).difference(*others)


def _misplaced(kind: str, wanted: str) -> str:
    return (
        f"is a {kind.removesuffix('s')}, not a {wanted.removesuffix('s')}; "
        f"{_TAKEN_BY[kind]} takes {kind}"
    )


def _look_for_data_beside(file: File, document: dict[str, Any]) -> None:
    """A data set that is not where the command is given may be where the scenario's file is."""
    dataset = document.get("dataset")
    if not isinstance(dataset, dict):
        return
    given = dataset.get("path")
    if isinstance(given, str) and not _exists(Path(given)):
        beside = file.path.parent / given
        if _exists(beside):
            dataset["path"] = str(beside.resolve())


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long for a name, or a NUL inside
        return False


def last_source(file: File, overrides: Sequence[Override], paths: Sequence[KeyPath]) -> str:
    """The option that last set one of these keys, else the file."""
    for path in paths:
        for override in reversed(overrides):
            if path[: len(override.path)] == override.path:
                return override.source
    return file.shown


def read_mapping(file: File) -> dict[str, Any]:
    text = read_text(file)
    try:
        document = read_yaml(text)
    except YamlTextError as error:
        raise ConfigurationError(
            "\n".join(
                str(Problem(f"{file.shown}:{flaw.line}", flaw.key, flaw.problem))
                for flaw in error.flaws
            )
        ) from None
    if document is None:
        raise ConfigurationError(f"{file.shown}: is empty; allowed: KEY: VALUE lines")
    if not isinstance(document, dict):
        raise ConfigurationError(
            f"{file.shown}: holds {shown_value(document)}; allowed: KEY: VALUE lines"
        )
    return document


def read_text(file: File) -> str:
    """Bounded, whatever the path leads to: a pipe or a device has no size to ask for first."""
    try:
        with file.path.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except IsADirectoryError:
        raise ConfigurationError(f"{file.shown}: is a directory, not a file") from None
    except FileNotFoundError:
        parent = file.path.parent
        what = "file" if _exists(parent) else f"directory {shown_path(str(parent))}"
        raise ConfigurationError(f"{file.shown}: there is no such {what}") from None
    except OSError as error:
        raise ConfigurationError(f"{file.shown}: cannot be read: {error.strerror}") from None
    except ValueError:  # a NUL in the path
        raise ConfigurationError(f"{file.shown}: is no file name") from None
    if len(content) > MAX_BYTES:
        raise ConfigurationError(f"{file.shown}: is larger than the limit of {MAX_BYTES} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigurationError(f"{file.shown}: is not UTF-8 text") from None


Given = str | Broker
"""A broker, or the reference of its file."""


def with_ends(
    scenario: Scenario,
    broker: Given | None,
    ingress: Sequence[Given] = (),
    egress: Sequence[Given] = (),
) -> tuple[Scenario, Ends]:
    """The scenario with both ends named, or with none, and the brokers that these names mean.

    `ingress` and `egress` go before what the scenario says; `broker` is for the end left over.
    """
    named = _named(_named(scenario, "ingress", ingress), "egress", egress)
    if not named.has_ends_apart:
        return named, Ends.of(_broker(_needed(broker, "broker")))
    sides = {
        "ingress": list(ingress) or [end.broker for end in named.ingress],
        "egress": list(egress) or [end.broker for end in named.egress],
    }
    for role, brokers in sides.items():
        if not brokers:
            brokers.append(_needed(broker, role))
            named = _named(named, role, brokers)
    return named, Ends.apart(*(list(map(_broker, brokers)) for brokers in sides.values()))


def _needed(broker: Given | None, role: str) -> Given:
    if broker is None:
        raise ConfigurationError(f"{role}: missing; no broker is named")
    return broker


def _broker(given: Given) -> Broker:
    return given if isinstance(given, Broker) else load_broker(given)


def _named(scenario: Scenario, role: str, given: Sequence[Given]) -> Scenario:
    """With these brokers at the ends of that role."""
    if not given:
        return scenario
    known: Sequence[Ingress | Egress] = getattr(scenario, role)
    if known and len(known) != len(given):
        raise ConfigurationError(
            f"--{role}: {len(given)} given, but the scenario has {len(known)} entries of {role}; "
            "name a broker for each of them"
        )
    references = [one.name if isinstance(one, Broker) else one for one in given]
    document = scenario.model_dump(exclude_unset=True)
    entries = document.get(role) or [{} for _ in given]
    document[role] = [
        entry | {"broker": name} for entry, name in zip(entries, references, strict=True)
    ]
    return validated(Scenario, document, f"--{role}")
