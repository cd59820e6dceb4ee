"""Examples of every command, for its `--help`. Tests parse each of them."""

from __future__ import annotations

PROGRAM = "bench-spark"

EXIT_CODES = """\
Exit codes:
  0    the run is valid
  1    an objective or a comparison gate was missed
  2    a file, key or option is wrong
  3    not ready: broker unreachable or refusing, too few slots, Java or jars missing
  4    degraded: the broker, an agent or the store failed, or the rate was not kept
  5    confirmed messages were lost, and no declared limit explains it
  70   a bug in bench-spark
  130  ended by Ctrl-C (143: by SIGTERM or SIGHUP); the partial result is kept
"""

EXAMPLES: dict[str, tuple[str, ...]] = {
    "run": (
        "run steady --broker loopback",
        "run steady --broker mine.yaml --set load.rate_per_second=5000",
        "run mine.yaml --broker kafka --format json > result.json",
        "run steady --broker kafka --format terminal --format html=report.html",
        'run steady --broker rabbitmq --duration 8h --slo "p99 < 50ms" --slo "lost == 0"',
        "run steady --broker kafka --dashboard 8080",
        "run steady --master spark://host:7077 --store s3://bucket/bench --set agents=4",
    ),
    "search-window": (
        "search-window window --broker rabbitmq",
        "search-window amqp-throughput --broker mine.yaml --base 4 --plot curve.svg",
    ),
    "search-rate": (
        "search-rate steady --broker rabbitmq",
        'search-rate steady --broker mine.yaml --slo "delivery_latency.p99 < 20ms" --plot knee.svg',
    ),
    "init": (
        "init",
        "init my-benchmarks --force",
    ),
    "validate": (
        "validate mine.yaml",
        "validate steady --broker mine.yaml --set amqp.confirms=100",
    ),
    "plan": ("plan steady --set agents=2 --set producers=4 --set consumers=4",),
    "schema": ("schema scenario > scenario.schema.json",),
    "scenarios": ("scenarios",),
    "brokers": ("brokers",),
    "runs": ("runs", "runs --format json"),
    "show": ("show RUN", "show RUN --format csv=result.csv", "show RUN --exit-code"),
    "watch": ("watch", "watch RUN --store s3://bucket/bench", "watch RUN --dashboard 8080"),
    "compare": (
        "compare BASELINE CANDIDATE",
        'compare base-1,base-2 new-1,new-2 --fail-if "p99 > 1.10x" --fail-if "lost > 0"',
    ),
    "messages": ("messages RUN", "messages RUN --format json"),
    "sql": (
        'sql "SELECT run_id, status FROM runs ORDER BY started_at"',
        'sql "SELECT * FROM latency_spec" --format csv',
    ),
    "doctor": ("doctor", "doctor kafka mine.yaml", "doctor --format json"),
    "demo": ("demo", "demo --quiet"),
    "sample": (
        "sample --process beam.smp --listen 0.0.0.0:9999 --token-file token",
        "sample --pid 4711 --to driver.example.org:9999 --token-file token",
    ),
    "cleanup": (
        "cleanup --broker rabbitmq",
        "cleanup --broker mine.yaml --run-prefix nightly- --delete",
    ),
    "metrics rebuild": ("metrics rebuild RUN",),
    "suite list": ("suite list",),
    "suite plan": ("suite plan rabbitmq-latency-rate", "suite plan mine.yaml --quick"),
    "suite run": ("suite run mine.yaml --broker rabbitmq", "suite run mine.yaml --quick --quiet"),
    "suite report": ("suite report mine.yaml --broker rabbitmq --format csv",),
    "suite compare": ("suite compare rabbitmq-latency-rate --baseline-store before --store after",),
    "broker start": ("broker start kafka", "broker start rabbitmq --nodes 3"),
    "broker stop": ("broker stop kafka",),
    "broker status": ("broker status kafka",),
    "import perftest": (
        "import perftest flags.txt",
        "import perftest --directory imported --name night < flags.txt",
    ),
    "import omb": ("import omb workload.yaml driver.yaml",),
}

_KEEPS_LINES = "\b\n"
"""Tells the help not to fill what follows into paragraphs."""


def epilog(command: str, exit_codes: bool = False) -> str:
    """What stands below a command's options."""
    lines = "".join(f"  {PROGRAM} {example}\n" for example in EXAMPLES[command])
    examples = f"{_KEEPS_LINES}Examples:\n{lines}"
    return f"{examples}\n{_KEEPS_LINES}{EXIT_CODES}" if exit_codes else examples


def epilog_of_program() -> str:
    first = "".join(
        f"  {PROGRAM} {line}\n"
        for line in ("demo", "run steady --broker loopback", "init", "doctor", "COMMAND --help")
    )
    return f"{_KEEPS_LINES}To begin with:\n{first}\n{_KEEPS_LINES}{EXIT_CODES}"
