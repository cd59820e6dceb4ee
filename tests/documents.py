"""What README and docs/ show: their fenced blocks, and the commands in them."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]

JOBS = {
    "jobs/run_scenario.py": ("run",),
    "jobs/search_window.py": ("search-window",),
    "jobs/search_rate.py": ("search-rate",),
    "jobs/run_suite.py": ("suite", "run"),
}
"""What spark-submit is given instead of the program, and the command that it stands for."""

FENCE = re.compile(
    r"(?:^<!-- example: (?P<file>\S+) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_SHELL_OPERATORS = {"|", ">", "2>", "&&", "&", ";"}


@dataclass(frozen=True)
class Block:
    """A fenced block of a document."""

    document: Path
    language: str
    text: str
    file: str | None
    """Name given by an `example:` comment above it."""


@dataclass(frozen=True)
class Command:
    """Arguments of one call of bench-spark that a document shows."""

    document: Path
    arguments: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.document.name}: {' '.join(self.arguments)}"


def blocks(language: str) -> list[Block]:
    return [
        Block(document, found["language"], found["text"], found["file"])
        for document in DOCUMENTS
        for found in FENCE.finditer(document.read_text())
        if found["language"] == language
    ]


def commands() -> list[Command]:
    found = []
    for block in blocks("sh"):
        for line in block.text.replace("\\\n", " ").splitlines():
            arguments = arguments_of(shlex.split(line, comments=True))
            if arguments is not None:
                found.append(Command(block.document, arguments))
    return found


def arguments_of(words: list[str]) -> tuple[str, ...] | None:
    """What bench-spark is called with in a line of shell; None where it is not called."""
    end = next((i for i, word in enumerate(words) if word in _SHELL_OPERATORS), len(words))
    words = words[:end]
    for place, word in enumerate(words):
        for job, command in JOBS.items():
            if word.endswith(job):
                return (*command, *words[place + 1 :])
    if words and Path(words[0]).name == "bench-spark":
        return tuple(words[1:])
    if words[:2] == ["docker", "run"]:
        # The image is called like the program in it.
        return tuple(words[len(words) - words[::-1].index("bench-spark") :])
    return None


COMMANDS = commands()


def section_of(document: Path, heading: str) -> str:
    """From a heading to the next one of its level or above."""
    level = heading.split()[0]
    text = document.read_text()
    _, found, rest = text.partition(f"\n{heading}\n")
    assert found, f"{document.name} has no {heading}"
    return re.split(rf"^#{{1,{len(level)}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0]
