"""Charts drawn outside a browser, and the library that draws them inside one: vl-convert's work.

vl-convert brings Vega, Vega-Lite and Vega-Embed with it, so nothing is fetched: neither here nor by
whoever opens a report.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from bench_spark.cache import cache_directory
from bench_spark.report.charts import PAPER, SeriesColours, Spec, themed

if TYPE_CHECKING:
    from types import ModuleType

WIDTH, HEIGHT = 720, 400
PNG_SCALE = 2.0

_SNIPPET = "window.vegaEmbed = vegaEmbed;"


DRAWN_AS = (".svg", ".png")


def drawn(spec: Spec, ending: str, colours: SeriesColours | None = None) -> bytes:
    """A chart as the content of a file with one of the endings above.

    `colours`: those of the other charts that belong to it.
    """
    on_paper = _on_paper(spec, colours or SeriesColours())
    if ending == ".svg":
        text: str = _library().vegalite_to_svg(on_paper)
        return text.encode()
    image: bytes = _library().vegalite_to_png(on_paper, scale=PNG_SCALE)
    return image


def _on_paper(spec: Spec, colours: SeriesColours) -> Spec:
    sized = {"width": WIDTH, "height": HEIGHT, "title": spec["description"], "padding": 12}
    return themed(
        {**spec, **sized, "autosize": {"type": "fit", "contains": "padding"}}, PAPER, colours
    )


def browser_library() -> str:
    """JavaScript that defines `vegaEmbed`. Putting it together takes seconds, so it is kept."""
    library = _library()
    known_by = hashlib.sha256(f"{library.__version__} {_SNIPPET}".encode()).hexdigest()[:16]
    file = cache_directory() / "vega" / f"embed-{known_by}.js"
    try:
        return file.read_text()
    except FileNotFoundError:
        # Inside an element `script` this would end it; in JavaScript both forms mean the same.
        text: str = library.javascript_bundle(_SNIPPET).replace("</script", r"<\/script")
        _keep(file, text)
        return text


def _keep(file: Path, text: str) -> None:
    """Whole or not at all: another command may be reading."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(f".{os.getpid()}")
        unfinished.write_text(text)
        unfinished.replace(file)
    except OSError:
        pass  # a cache that cannot be written costs seconds, not the report


def _library() -> ModuleType:
    # Loaded when something is drawn: it is large, and most commands draw nothing.
    import vl_convert

    return vl_convert
