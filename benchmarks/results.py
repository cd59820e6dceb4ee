"""RESULTS.md as text: a head, and a section per line between marks. Pure.

A line run alone replaces its own section and leaves the others as they are. Marks are comments, so
that nothing of them is seen; sections keep the order that the lines have.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_SECTION = re.compile(r"<!-- line (?P<name>[\w-]+) -->\n(?P<text>.*?)\n<!-- end -->", re.DOTALL)


def sections_of(document: str) -> dict[str, str]:
    """The text of each section by the name of its line."""
    return {found["name"]: found["text"] for found in _SECTION.finditer(document)}


def with_sections(
    document: str, head: str, sections: Mapping[str, str], order: Sequence[str]
) -> str:
    """The document with a new head and these sections; others stay if their line still exists."""
    known = sections_of(document) | dict(sections)
    parts = [
        f"<!-- line {name} -->\n{known[name].strip()}\n<!-- end -->"
        for name in order
        if name in known
    ]
    return "\n\n".join((head.strip(), *parts)) + "\n"
