"""Where the files of conf/ are: beside the package in a checkout, inside it when installed."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def conf_path(*parts: str) -> Path:
    """The path of a file or folder below conf/, whether it exists or not."""
    installed = _PACKAGE / "conf"
    root = installed if installed.is_dir() else _PACKAGE.parent / "conf"
    return root.joinpath(*parts)


def shipped(kind: str) -> list[str]:
    """Names of the YAML files of one kind (`scenarios`, `brokers`, `suites`) that are shipped."""
    return sorted(path.stem for path in conf_path(kind).glob("*.yaml"))
