"""Memory of driver, JVM and agents over a long run: is it flat, or does it level off?

    python tools/soak.py [MINUTES] [--broker NAME] [--rate MESSAGES_PER_SECOND]

Runs `bench-spark run` in a process of its own and samples what each process holds for itself (USS).
Of the JVM also what is alive on its heap and how much metaspace it uses, right after a collection:
its USS only says how far the heap was ever touched. Prints a Markdown table of six equal parts of
the run. Exit code 1 if the last part holds a tenth and 16 MiB more than the second.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import psutil

MEBIBYTE = 1 << 20
PARTS = 6
SAMPLE_SECONDS = 5.0
HEAP_SECONDS = 60.0
ALLOWED_GROWTH, ALLOWED_MIB = 1.1, 16.0

Samples = dict[str, list[tuple[float, float]]]
"""Per series: seconds since the start of the load, and MiB."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Memory over a long run.")
    parser.add_argument("minutes", type=float, nargs="?", default=30.0)
    parser.add_argument("--broker", default="loopback")
    parser.add_argument("--rate", type=int, default=1000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-spark-soak-") as directory:
        command = [
            *(str(Path(sys.executable).parent / "bench-spark"), "run", "steady", "--quiet"),
            *("--broker", asked.broker, "--store", directory),
            *("--set", f"load.rate_per_second={asked.rate}"),
            *("--duration", f"{asked.minutes * 60:.0f}s"),
        ]
        samples: Samples = defaultdict(list)
        with subprocess.Popen(command) as process:
            watch(psutil.Process(process.pid), samples)
        if process.returncode != 0:
            print(f"soak: bench-spark run ended with exit code {process.returncode}")
            return process.returncode
    return report(samples, asked.minutes * 60)


def watch(driver: psutil.Process, samples: Samples) -> None:
    began = time.monotonic()
    next_heap = HEAP_SECONDS
    while driver.is_running() and driver.status() != psutil.STATUS_ZOMBIE:
        now = time.monotonic() - began
        for process in [driver, *driver.children(recursive=True)]:
            try:
                name = "driver" if process == driver else process.name()
                uss = process.memory_full_info().uss / MEBIBYTE
                if name != "java":
                    samples[name if name == "driver" else f"worker {process.pid}"].append(
                        (now, uss)
                    )
                    continue
                samples["JVM"].append((now, uss))
                if now >= next_heap:
                    next_heap = now + HEAP_SECONDS
                    for what, mib in alive_in_jvm(process.pid).items():
                        samples[what].append((now, mib))
            except psutil.Error:
                continue  # it ended meanwhile
        time.sleep(SAMPLE_SECONDS)


def alive_in_jvm(pid: int) -> dict[str, float]:
    """After a collection; nothing where no JDK's jcmd is installed."""
    try:
        subprocess.run(["jcmd", str(pid), "GC.run"], capture_output=True, check=True)
        told = subprocess.run(
            ["jcmd", str(pid), "GC.heap_info"], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return {}
    found = {
        "JVM, old objects": re.search(r"tenured generation .*?used (\d+)K", told),
        "JVM, metaspace": re.search(r"Metaspace\s+used (\d+)K", told),
    }
    return {name: int(match[1]) / 1024 for name, match in found.items() if match}


def report(samples: Samples, seconds: float) -> int:
    """Medians by part of the run; processes that did not last are left out."""
    parts = [f"{(part + 1) * seconds / PARTS / 60:.0f} min" for part in range(PARTS)]
    print(f"| MiB, median until | {' | '.join(parts)} |")
    print("|---|" + "--:|" * PARTS)
    grown = []
    for name, values in sorted(samples.items()):
        by_part = [
            [mib for at, mib in values if part <= at / seconds * PARTS < part + 1]
            for part in range(PARTS)
        ]
        if not all(by_part):
            continue
        medians = [statistics.median(part) for part in by_part]
        print(f"| {name} | {' | '.join(f'{median:.0f}' for median in medians)} |")
        if medians[-1] > medians[1] * ALLOWED_GROWTH + ALLOWED_MIB:
            grown.append(name)
    if grown:
        print(f"soak: grew by more than a tenth: {', '.join(grown)}")
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
