"""Keys of one document over those of another. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def merged(given: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Section by section; whatever is no section is replaced."""
    result = dict(given)
    for key, value in over.items():
        if isinstance(value, Mapping):
            below = result.get(key)
            result[key] = merged(below if isinstance(below, Mapping) else {}, value)
        else:
            result[key] = value
    return result
