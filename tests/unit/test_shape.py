"""Limits on the package's shape; each test lists what is beyond one."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in sorted((ROOT / "bench_spark").rglob("*.py"))
}

MOST_LINES = 900
MOST_METHODS = 30
MOST_PARAMETERS = 6


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    for file, text in FILES.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                yield file, node


def methods(node: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """How many there are beside `self`."""
    given = function.args
    return len(given.posonlyargs) + len(given.args) + len(given.kwonlyargs) - 1


def test_no_file_is_longer_than_900_lines() -> None:
    lines = {file: len(text.splitlines()) for file, text in FILES.items()}
    assert [file for file, found in lines.items() if found > MOST_LINES] == []


def test_no_class_has_more_than_30_methods() -> None:
    assert [
        f"{file}: {node.name}" for file, node in classes() if len(methods(node)) > MOST_METHODS
    ] == []


def test_no_constructor_takes_more_than_6_parameters() -> None:
    assert [
        f"{file}: {node.name}"
        for file, node in classes()
        for method in methods(node)
        if method.name == "__init__" and parameters(method) > MOST_PARAMETERS
    ] == []


def test_no_public_class_shares_its_name_with_another() -> None:
    places = defaultdict(list)
    for file, node in classes():
        if not node.name.startswith("_"):
            places[node.name].append(file)
    assert {name: files for name, files in places.items() if len(files) > 1} == {}
