"""Compiled kernels on disk: found again, never trusted blindly, never an error, and fixed in types
while a load runs. Each test looks at processes of its own, as a cache is for the next process."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_kernels

from bench_spark.core import kernel_cache
from bench_spark.core.kernels import KERNELS, PACKAGE, directory_name, kernel_sources
from tools.pack_environment import compiled_kernels

HERE = Path(__file__).parent

PROGRAM = """
import json, sys
import small_kernels
from bench_spark.core import kernel_cache, kernels
if len(sys.argv) > 1:
    small_kernels.STEP = int(sys.argv[1])
kernel_cache.warm_up()
import numpy as np
total = small_kernels.total
print(json.dumps({
    "found": total(np.full(4, 200, np.uint8), 4),
    "loaded": sum(total.stats.cache_hits.values()),
    "compiled": sum(total.stats.cache_misses.values()),
    "directory": str(kernels.kernels_directory()),
    "cpu": total.targetctx.codegen().magic_tuple()[1:],
}))
"""


def in_a_process(
    cache: Path,
    *arguments: str,
    program: str = PROGRAM,
    package: Path = PACKAGE.parent,
    **more: str,
) -> dict[str, Any]:
    path = os.pathsep.join([str(package), str(HERE)])
    environment = os.environ | {"PYTHONPATH": path, "BENCH_SPARK_CACHE": str(cache)} | more
    for name in {"NUMBA_CACHE_DIR", "NUMBA_DISABLE_JIT"} - set(more):
        environment.pop(name, None)
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, *arguments],
        env=environment,
        cwd=package,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with the kernels of tests."""
    cache = tmp_path_factory.mktemp("cache")
    in_a_process(cache)
    return cache


def test_a_kernel_is_compiled_once_for_all_processes(tmp_path: Path) -> None:
    first, second = in_a_process(tmp_path), in_a_process(tmp_path)
    assert (first["found"], first["loaded"], first["compiled"]) == (812, 0, 1)
    assert (second["found"], second["loaded"], second["compiled"]) == (812, 1, 0)
    assert Path(second["directory"]).parent == tmp_path / "kernels"


@pytest.mark.parametrize(
    ("suffix", "damage"),
    [
        (".nbi", "cut"),
        (".nbi", "empty"),
        (".nbc", "cut"),
        (".nbc", "other bytes"),
        (".nbc", "gone"),
    ],
)
def test_damaged_files_cost_a_compilation_and_are_replaced(
    tmp_path: Path, filled: Path, suffix: str, damage: str
) -> None:
    shutil.copytree(filled, tmp_path, dirs_exist_ok=True)
    [file] = tmp_path.glob(f"kernels/*/*total*{suffix}")
    content = file.read_bytes()
    half = len(content) // 2
    if damage == "cut":
        file.write_bytes(content[:half])
    elif damage == "other bytes":
        file.write_bytes(content[:half] + bytes(byte ^ 0xFF for byte in content[half:]))
    elif damage == "empty":
        file.write_bytes(b"")
    else:
        file.unlink()
    second, third = in_a_process(tmp_path), in_a_process(tmp_path)
    assert (second["found"], second["compiled"]) == (812, 1)
    assert (third["found"], third["loaded"]) == (812, 1)


def test_a_cache_that_cannot_be_written_costs_a_compilation(tmp_path: Path) -> None:
    """A file where the directory should be stops root, too."""
    (tmp_path / "kernels").write_text("in the way")
    assert in_a_process(tmp_path)["found"] == 812
    assert in_a_process(tmp_path)["compiled"] == 1


def test_processes_may_fill_the_cache_at_the_same_time(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as several:
        found = list(several.map(in_a_process, [tmp_path] * 4))
    assert {one["found"] for one in found} == {812}
    assert in_a_process(tmp_path)["loaded"] == 1


def test_a_constant_of_a_called_kernel_makes_other_code(tmp_path: Path) -> None:
    assert in_a_process(tmp_path)["found"] == 812
    assert in_a_process(tmp_path, "5")["found"] == 820
    assert in_a_process(tmp_path, "5")["loaded"] == 1


def test_bounds_checks_have_a_directory_of_their_own(tmp_path: Path) -> None:
    plain = in_a_process(tmp_path)
    checked = in_a_process(tmp_path, NUMBA_BOUNDSCHECK="1")
    assert plain["directory"] != checked["directory"]
    assert (checked["found"], checked["compiled"]) == (812, 1)


@pytest.mark.deployment
def test_a_packed_environment_brings_kernels_for_any_cpu(tmp_path: Path) -> None:
    wheel, unpacked = tmp_path / "some.whl", tmp_path / "unpacked"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in PACKAGE.rglob("*.py"):
            archive.write(path, path.relative_to(PACKAGE.parent))
        archive.write(HERE / "small_kernels.py", "bench_spark/core/small_kernels.py")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked)
    for name, data in compiled_kernels(wheel):
        (unpacked / name).parent.mkdir(parents=True, exist_ok=True)
        (unpacked / name).write_bytes(data)
    program = PROGRAM.replace("import small_kernels", "from bench_spark.core import small_kernels")
    found = in_a_process(tmp_path / "unused", program=program, package=unpacked)
    assert (found["found"], found["loaded"]) == (812, 1)
    assert found["cpu"] == ["generic", ""]
    assert not (tmp_path / "unused").exists()


def test_the_directory_is_named_by_the_sources() -> None:
    one, other = (directory_name(text, has_bounds_checks=False) for text in (b"1", b"2"))
    assert one != other
    assert one == directory_name(b"1", has_bounds_checks=False)


def test_every_module_that_uses_the_decorator_is_found() -> None:
    """Kernels elsewhere would not change the directory's name."""
    users = {
        path
        for path in PACKAGE.rglob("*.py")
        if re.search(
            r"(?m)^from bench_spark.core.kernels import (inlined|kernel|warm_up)", path.read_text()
        )
    }
    assert users == set(kernel_sources())


def test_while_a_load_runs_other_types_are_refused_and_not_compiled() -> None:
    kernel_cache.warm_up()
    assert small_kernels.total in KERNELS
    of_wrong_type: Any = np.zeros(2, np.uint16)
    with kernel_cache.only_compiled():
        assert small_kernels.total(np.ones(2, np.uint8), 2) == 8
        with pytest.raises(TypeError, match="No matching definition"):
            small_kernels.total(of_wrong_type, 2)
    assert small_kernels.total(of_wrong_type, 2) == 6, "afterwards they are"


def test_all_kernels_of_the_package_are_warm_with_one_signature_each() -> None:
    """In a process that has called none of them with other types, from the cache that is there.
    Kernels that others call are compiled into those, for whatever types these have."""
    program = (
        "from bench_spark.core import kernel_cache, kernels\n"
        "assert not kernel_cache.load_all_modules()\n"
        "kernel_cache.warm_up()\n"
        "called = {name for k in kernels.KERNELS for name in k.py_func.__code__.co_names}\n"
        "outer = [k for k in kernels.KERNELS if k.py_func.__name__ not in called]\n"
        "print([str(k) for k in outer if len(k.signatures) > 1])\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stdout.strip() == "[]", ended.stderr


def test_a_warm_up_in_the_background_tells_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ValueError("no such kernel")

    monkeypatch.setattr("bench_spark.core.kernels.WARM_UPS", [broken])
    warming = kernel_cache.WarmUp()
    with pytest.raises(ValueError, match="no such kernel"):
        warming.wait()


def test_what_has_to_go_on_goes_on_while_kernels_are_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_served = threading.Event()
    monkeypatch.setattr(kernel_cache, "warm_up", lambda: is_served.wait(60))

    kernel_cache.WarmUp().wait(meanwhile=is_served.set)

    assert is_served.is_set()


def test_old_directories_are_forgotten(tmp_path: Path) -> None:
    for age in range(5):
        (tmp_path / str(age)).mkdir()
        os.utime(tmp_path / str(age), (1000 - age, 1000 - age))
    kernel_cache.forget_old_directories(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2"]
