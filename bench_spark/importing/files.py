"""The files of a draft: a scenario, and a broker where the source said where it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench_spark.importing.draft import Draft
from bench_spark.importing.writing import yaml_file


@dataclass(frozen=True)
class NewFile:
    name: str
    text: str


def files_of(draft: Draft, made_by: str) -> list[NewFile]:
    """What to write; `made_by` is the first line of each."""
    scenario, broker = f"{draft.name}.yaml", f"{draft.name}-broker.yaml"
    has_broker = bool(draft.broker.values)
    heading = [
        made_by,
        "",
        f"    bench-spark run {scenario} --broker {broker if has_broker else 'BROKER'}",
        *_told("Left out, for want of a counterpart:", draft.left_out),
        *_told("Mind:", draft.remarks),
    ]
    files = [NewFile(scenario, yaml_file(heading, draft.scenario))]
    if has_broker:
        files.append(NewFile(broker, yaml_file(_broker_heading(draft, made_by), draft.broker)))
    return files


def _told(title: str, remarks: Sequence[object]) -> Iterator[str]:
    if remarks:
        yield from ("", title)
        yield from (f"- {remark}" for remark in remarks)


def _broker_heading(draft: Draft, made_by: str) -> Iterator[str]:
    yield made_by
    if draft.has_password:
        yield ""
        yield "The password is not here. Before a run:"
        yield f"    export {draft.password_variable}=..."
