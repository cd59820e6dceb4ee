"""Writes the table of faults into docs/reliability.md, from what the fault suite has seen.

    python tools/fault_table.py build/faults.json

The cases are those of tests/faults/cases.py; results of tests that were not run again are kept in
the file that pytest wrote (`--fault-results`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- faults: begin -->", "<!-- faults: end -->"

sys.path.insert(0, str(ROOT / "tests" / "faults"))
from cases import CASES, Case  # noqa: E402 - the tests are no package

Result = dict[str, Any]


def table(results: Sequence[Result]) -> str:
    rows = [
        "| Case | What goes wrong | What must come of it | Seen | Tests |",
        "|---|---|---|---|---|",
    ]
    rows += [row(number, case, results) for number, case in CASES.items()]
    return "\n".join(rows)


def row(number: int, case: Case, results: Sequence[Result]) -> str:
    own = [one for one in results if number in one["cases"]]
    passed = [one for one in own if one["outcome"] == "passed"]
    seen = [text for one in passed for of, text in one["seen"] if of in (None, number)]
    files = sorted({one["test"].partition("::")[0] for one in own})
    slow = sum(one["slow"] for one in own)
    where = (
        (f"{len(passed)} of {len(own)}" if len(passed) < len(own) else f"{len(own)}")
        + (f" ({slow} slow)" if slow else "")
        + " in "
        + ", ".join(f"[{Path(file).stem}](../{file})" for file in files)
    )
    cells = (str(number), case.fault, case.expected, "; ".join(seen), where if own else "not run")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def with_table(document: str, made: str) -> str:
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{DOCUMENT} has no {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{made}\n\n{END}{after}"


def main() -> None:
    results: list[Result] = json.loads(Path(sys.argv[1]).read_text())
    DOCUMENT.write_text(with_table(DOCUMENT.read_text(), table(results)))
    failed = [one["test"] for one in results if one["outcome"] == "failed"]
    print(f"{DOCUMENT.relative_to(ROOT)}: {len(results)} tests, {len(failed)} failed")


if __name__ == "__main__":
    main()
