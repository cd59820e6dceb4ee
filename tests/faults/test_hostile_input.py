"""Files and names that want to do harm, at the command line: refused at once, by name."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path

import pytest
from fault_records import Seen

from bench_spark.cli import main
from bench_spark.errors import EXIT_CONFIGURATION

REFUSED_WITHIN_SECONDS = 1.0

BOMBS = {
    "a billion laughs": "a: &a [x, x, x, x, x, x, x, x, x]\n"
    + "".join(
        f"{b}: &{b} [{', '.join(f'*{a}' for _ in range(9))}]\n"
        for a, b in itertools.pairwise("abcdefghi")
    ),
    "a python object": "name: !!python/object/apply:os.system ['touch harmed']\n",
    "a python name": "name: !!python/name:os.system\n",
    "deep nesting": "a: " + "[" * 5000 + "]" * 5000 + "\n",
    "a merge of itself": "a: &a {<<: *a}\n",
    "a megabyte": "# " + "x" * 1_000_001 + "\n",
}
NAMES = {
    "a way up": "../x",
    "an absolute path": "/etc/passwd",
    "quotes": "a' OR '1'='1",
    "double quotes": 'a"; DROP TABLE runs; --',
    "markup": "<script>alert(1)</script>",
    "NUL": "a\0b",
    "a line break": "a\nb",
    "ten kilobytes": "x" * 10_240,
    "nothing": "",
}


@pytest.fixture(scope="module", autouse=True)
def _imported() -> None:
    main(["scenarios"])  # what is imported for the first time is not part of the time


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def check_refused(capfd: pytest.CaptureFixture[str], *arguments: str) -> float:
    capfd.readouterr()
    started = time.process_time()
    code = main(list(arguments))
    seconds = time.process_time() - started
    said = capfd.readouterr()
    assert code == EXIT_CONFIGURATION, said.err
    assert seconds < REFUSED_WITHIN_SECONDS
    assert said.out == ""
    assert "Traceback" not in said.err
    assert len(said.err) < 2000
    assert "\0" not in said.err
    return seconds


@pytest.mark.fault(case=17)
@pytest.mark.parametrize("kind", ["scenario", "broker"])
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_file_that_is_a_bomb_is_refused(
    bomb: str, kind: str, capfd: pytest.CaptureFixture[str], seen: Seen, tmp_path: Path
) -> None:
    (tmp_path / "bomb.yaml").write_text(BOMBS[bomb])
    files = ("bomb.yaml", "loopback") if kind == "scenario" else ("steady", "bomb.yaml")
    seconds = check_refused(capfd, "run", files[0], "--broker", files[1])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bomb.yaml"]
    if kind == "scenario":
        seen(f"{bomb}: {seconds * 1000:.0f} ms")


@pytest.mark.fault(case=17)
@pytest.mark.parametrize("name", NAMES)
def test_a_hostile_name_of_a_run_a_scenario_or_a_tag_is_refused(
    name: str, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = ("run", "steady", "--broker", "loopback")
    check_refused(capfd, *run, "--run-id", NAMES[name])
    check_refused(capfd, *run, "--tag", f"{NAMES[name]}=value")
    check_refused(capfd, "validate", "steady", "--set", f"name={NAMES[name]!r}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.fault(case=17)
@pytest.mark.parametrize("name", ["NUL", "a line break", "ten kilobytes"])
def test_a_tag_that_no_text_could_carry_is_refused(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    check_refused(capfd, "run", "steady", "--broker", "loopback", "--tag", f"a={NAMES[name]}")
    (Path.cwd() / "mine.yaml").write_text(f"tags: {{a: {json.dumps(NAMES[name])}}}\n")
    check_refused(capfd, "validate", "mine.yaml")
