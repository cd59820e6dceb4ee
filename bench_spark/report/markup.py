"""HTML that is escaped by construction: text becomes safe here, or it does not get into a page.

Only `Markup` goes into a page as it is; every other text is escaped, wherever it comes from: a
scenario's name or a broker's answer may hold `<script>`.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_EMPTY = frozenset({"meta", "br", "hr", "col"})


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child = str | int | float | None | Iterable["Child"]
"""What an element may hold: None is nothing, and lists are flattened."""


def tag(name: str, /, *children: Child, **attributes: str | bool | None) -> Markup:
    """An element. Names of attributes: `class_` for class, `_` for `-`; True is a bare one."""
    head = name + "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _EMPTY:
        return Markup(f"<{head}>")
    return Markup(f"<{head}>{joined(children)}</{name}>")


def joined(children: Child) -> Markup:
    """Children one after the other, each escaped unless it is markup."""
    if children is None:
        return Markup("")
    if isinstance(children, Markup):
        return children
    if isinstance(children, str | int | float):
        return Markup(html.escape(str(children)))
    return Markup("".join(joined(child) for child in children))


def _attribute(name: str, value: str | bool | None) -> str:
    if value is None or value is False:
        return ""
    shown = name.rstrip("_").replace("_", "-")
    return f" {shown}" if value is True else f' {shown}="{html.escape(value)}"'


def data_element(identifier: str, data: Mapping[str, Any] | Sequence[Any]) -> Markup:
    """JSON for the page's own script, in an element that no browser runs.

    Inside it only `</script` and `<!--` would mean something to the parser, and JSON can write the
    `<` of both in another way.
    """
    text = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return tag("script", Markup(text), type="application/json", id=identifier)


def table(
    caption: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[Child]],
    words: int = 1,
    class_: str | None = None,
) -> Markup:
    """A table for people and screen readers; the first `words` columns are text, not numbers.

    The first cell of a row is its heading. The table scrolls by itself where the page is narrow.
    """
    kinds = ["words" if place < words else None for place in range(len(headings))]
    head = tag(
        "tr",
        [
            tag("th", heading, scope="col", class_=kind)
            for heading, kind in zip(headings, kinds, strict=True)
        ],
    )
    body = [
        tag(
            "tr",
            [
                tag("td" if place else "th", cell, scope=None if place else "row", class_=kind)
                for place, (cell, kind) in enumerate(zip(row, kinds, strict=True))
            ],
        )
        for row in rows
    ]
    drawn = tag(
        "table", tag("caption", caption), tag("thead", head), tag("tbody", body), class_=class_
    )
    return tag("div", drawn, class_="scroll", tabindex="0", role="region", aria_label=caption)
