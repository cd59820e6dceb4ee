"""A Python environment as one archive that runs wherever it is unpacked, for spark-submit.

    python tools/pack_environment.py dist/bench_spark-0.1.0-py3-none-any.whl
    spark-submit --archives dist/bench-spark-env.tar.gz#environment \
        --conf spark.pyspark.python=./environment/bin/python ...

A virtual environment cannot be moved: it points to an interpreter elsewhere. So this packs the
interpreter itself with its standard library, the wheel, and the distributions it requires as they
are installed here; the machines it is unpacked on need no Python. They do need the same processor
architecture, a C library that is not older than this machine's, and the system libraries that the
interpreter was built with (OpenSSL, libffi and so on), as the same Linux distribution has them.

`--for-executors` leaves out what only a driver uses; that is less than half, and all that agents
and rolling metrics need where the driver runs outside the cluster (client mode).
"""

from __future__ import annotations

import argparse
import importlib.metadata
import io
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement

PROJECT = "bench-spark"
DRIVER_ONLY = frozenset(
    {"deltalake", "delta-spark", "jgo", "jinja2", "packaging", "pandas", "pyspark", "rich"}
    | {"prometheus-client", "typer", "vl-convert-python"}
)
"""Executors get pyspark from Spark itself."""

_PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
_LIBRARY = PurePosixPath("lib") / _PYTHON
_PACKAGES = _LIBRARY / "site-packages"
_NOT_OF_THE_LIBRARY = frozenset(
    {"site-packages", "dist-packages", "test", "idlelib", "tkinter", "lib2to3", "ensurepip"}
    | {"turtledemo", "__pycache__"}
)
_NOT_OF_PACKAGES = re.compile(
    r"(^|/)__pycache__/|^(numpy|pandas|pyarrow|pyspark)/(.*/)?tests?/|^pyarrow/include/"
    # Spark itself, a second time: SPARK_HOME names the first.
    r"|^pyspark/(jars|examples|data|sbin|bin|licenses)/|^\.\./"
)

_NOT_FOR_KERNELS = {"NUMBA_CACHE_DIR", "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NUMBA_BOUNDSCHECK"}
_NOT_FOR_KERNELS |= {"NUMBA_DISABLE_JIT"}

# The interpreter may need its own libpython, which it looks for where it was built.
_LAUNCHER = f"""\
#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
export LD_LIBRARY_PATH="$here/../lib${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}" PYTHONNOUSERSITE=1
exec "$here/{_PYTHON}" "$@"
"""


def pack(wheel: Path, archive: Path, without: frozenset[str]) -> None:
    """Write the archive; `without`: distributions to leave out, by their normalised names."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w:gz", compresslevel=3) as packed:
        for source, name in [*_interpreter(), *_standard_library(), *_distributions(without)]:
            packed.add(source, name.as_posix(), recursive=False)
        _add_text(packed, PurePosixPath("bin/python"), _LAUNCHER)
        with zipfile.ZipFile(wheel) as unpacked:
            for entry in unpacked.namelist():
                _add_bytes(packed, _PACKAGES / entry, unpacked.read(entry))
        for entry, data in compiled_kernels(wheel):
            _add_bytes(packed, _PACKAGES / entry, data)


def compiled_kernels(wheel: Path) -> Iterator[tuple[PurePosixPath, bytes]]:
    """Files of the wheel's kernels, compiled for any CPU of this architecture, so that the machines
    of a cluster need not compile them."""
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        shutil.unpack_archive(wheel, root, "zip")
        directory = root / "bench_spark" / "compiled_kernels"
        directory.mkdir()
        environment = {name: os.environ[name] for name in os.environ.keys() - _NOT_FOR_KERNELS}
        command = [sys.executable, "-m", "bench_spark.core.kernel_cache"]
        subprocess.run(command, env=environment | {"PYTHONPATH": scratch}, cwd=root, check=True)
        for path in _files_below(directory):
            yield PurePosixPath(path.relative_to(root).as_posix()), path.read_bytes()


def _interpreter() -> Iterator[tuple[Path, PurePosixPath]]:
    base = Path(sys.base_prefix) / "bin" / _PYTHON
    yield base.resolve(), PurePosixPath("bin") / _PYTHON
    if sysconfig.get_config_var("Py_ENABLE_SHARED"):
        name = sysconfig.get_config_var("INSTSONAME")
        for directory in (sysconfig.get_config_var("LIBDIR"), Path(sys.base_prefix) / "lib"):
            if (library := Path(directory) / name).exists():
                yield library.resolve(), PurePosixPath("lib") / name
                return


def _standard_library() -> Iterator[tuple[Path, PurePosixPath]]:
    root = Path(sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix}))
    for path in _files_below(root):
        inside = path.relative_to(root)
        is_wanted = _NOT_OF_THE_LIBRARY.isdisjoint(inside.parts) and path.suffix != ".a"
        if is_wanted:
            yield path.resolve(), _LIBRARY / inside.as_posix()


def _distributions(without: frozenset[str]) -> Iterator[tuple[Path, PurePosixPath]]:
    for name in sorted(required(PROJECT, without)):
        for file in importlib.metadata.distribution(name).files or ():
            source = Path(str(file.locate()))
            if not _NOT_OF_PACKAGES.search(file.as_posix()) and source.is_file():
                yield source, _PACKAGES / file.as_posix()


def required(name: str, without: frozenset[str] = frozenset()) -> set[str]:
    """The distributions that this one requires, and those that they require, without extras."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        for text in importlib.metadata.requires(waiting.pop()) or ():
            requirement = Requirement(text)
            needed = _normalised(requirement.name)
            applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if applies and needed not in without and needed not in found:
                found.add(needed)
                waiting.append(needed)
    return found


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _files_below(root: Path) -> Iterable[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


def _add_text(packed: tarfile.TarFile, name: PurePosixPath, text: str) -> None:
    _add_bytes(packed, name, text.encode(), mode=0o755)


def _add_bytes(
    packed: tarfile.TarFile, name: PurePosixPath, data: bytes, mode: int = 0o644
) -> None:
    entry = tarfile.TarInfo(name.as_posix())
    entry.size, entry.mode = len(data), mode
    packed.addfile(entry, io.BytesIO(data))


def main() -> None:
    description = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="pack_environment", description=description)
    parser.add_argument("wheel", type=Path, help="of bench-spark, as `make wheel` builds it")
    parser.add_argument(
        "--out", type=Path, default=Path("dist/bench-spark-env.tar.gz"), metavar="FILE"
    )
    parser.add_argument("--for-executors", action="store_true", help="without what drivers use")
    asked = parser.parse_args()
    pack(asked.wheel, asked.out, DRIVER_ONLY if asked.for_executors else frozenset())
    print(f"{asked.out}: {asked.out.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
