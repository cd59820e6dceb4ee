"""Whether a stream wants colours, and how to make them.

Only terminals do, and not where NO_COLOR says otherwise (https://no-color.org: set and not empty).
"""

from __future__ import annotations

import os
from typing import TextIO

COLOURS = {
    "bold": "\x1b[1m",
    "dim": "\x1b[2m",
    "red": "\x1b[31m",
    "green": "\x1b[32m",
    "yellow": "\x1b[33m",
}
_PLAIN = "\x1b[0m"


def has_colours(stream: TextIO) -> bool:
    return rewrites_lines(stream) and not os.environ.get("NO_COLOR")


def rewrites_lines(stream: TextIO) -> bool:
    """Whether it is a terminal that understands more than text."""
    return stream.isatty() and os.environ.get("TERM", "") != "dumb"


def coloured(text: str, style: str) -> str:
    return f"{style}{text}{_PLAIN}"
