"""What a run records of the software it was measured with."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from bench_spark.spark.observer import git_commit, library_versions


def test_a_checkout_is_known_by_its_commit_and_whether_it_was_changed(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        who = ("-c", "user.name=n", "-c", "user.email=e@example.org")
        subprocess.run(["git", "-C", str(tmp_path), *who, *arguments], check=True)

    package = tmp_path / "package"
    package.mkdir()
    (package / "module.py").write_text("1")
    assert git_commit(package) is None, "installed, not a checkout"
    git("init", "--quiet")
    assert git_commit(package) is None, "no commit yet"
    git("add", ".")
    git("commit", "--quiet", "--message", "first")
    found = git_commit(package)
    assert found is not None
    assert re.fullmatch("[0-9a-f]{40}", found)
    (package / "module.py").write_text("2")
    assert git_commit(package) == f"{found}-dirty"


def test_the_versions_of_all_libraries_that_touch_a_figure_are_named() -> None:
    assert {"pyspark", "delta-spark", "pika", "confluent-kafka", "hdrhistogram", "numba"} <= set(
        library_versions()
    )
