"""All commands under one name, and the one place where an error becomes an exit code.

COMMANDS says where each is, its line in the help, and examples. A module is imported when its
command is used: `bench-spark --help` loads none of them.
"""

from __future__ import annotations

import errno
import importlib
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from bench_spark import __version__
from bench_spark.errors import EXIT_BUG, EXIT_INTERRUPTED, EXIT_TERMINATED, BenchError, StoreError
from bench_spark.process import ENDING_SIGNALS, handled

PROGRAM = "bench-spark"

COMMANDS = {
    "run": ("run:run", "Run SCENARIO on a broker and print the result."),
    "search-window": (
        "search:search_window",
        "Find the number of messages in flight that gives SCENARIO the highest throughput.",
    ),
    "search-rate": (
        "search:search_rate",
        "Find the highest rate that SCENARIO sustains on a broker.",
    ),
    "init": ("files:init", "Write a scenario and a broker file to start from."),
    "validate": (
        "files:validate",
        "Check SCENARIO with its data set, and whether a broker suits it.",
    ),
    "plan": ("files:plan", "Show who would do what, and for how long."),
    "schema": (
        "files:schema",
        "Print the JSON Schema of scenario, broker or suite files, for editors.",
    ),
    "scenarios": ("files:scenarios", "List the shipped scenarios."),
    "brokers": ("files:brokers", "List the shipped broker files."),
    "runs": ("results:runs", "List the runs of the store, newest first."),
    "show": (
        "results:show",
        "Print the result of a stored run, or the result so far of one that goes on or was killed.",
    ),
    "watch": ("watch:watch", "Follow a run until it ends, and print its result."),
    "compare": (
        "results:compare",
        "Compare runs with a baseline: differences with their confidence intervals.",
    ),
    "messages": (
        "results:messages",
        "Join the traced messages of a run again, exactly, from the table `messages`.",
    ),
    "sql": (
        "results:sql",
        "Answer a query over the store's tables and views; statements that change them are "
        "refused.",
    ),
    "doctor": ("machine:doctor", "Check this machine, what is installed, the store, and brokers."),
    "demo": ("demo:demo", "Compare an embedded Kafka and an embedded Qpid."),
    "sample": ("machine:sample", "Tell runs what the broker on this machine uses, until Ctrl-C."),
    "cleanup": (
        "broker:cleanup",
        "Show, and with --delete remove, what killed runs have left in a broker.",
    ),
    "metrics": ("results:metrics", "Rolling metrics of stored runs."),
    "tables": ("results:tables", "The store's tables: their history, their names in a catalog."),
    "suite": ("suite:app", "Grids of trials around a scenario."),
    "broker": ("broker:broker_app", "Real brokers on this machine, for trying things out."),
    "import": ("files:imports", "Scenarios from the command lines and files of other tools."),
}
"""By name: module and function, or group of commands, and the first line of its help."""

WITH_EXIT_CODES = (
    *("run", "watch", "search-window", "search-rate", "demo", "compare"),
    *("suite run", "suite compare"),
)
"""Commands whose own help lists the exit codes."""

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
    "init": ("init", "init my-benchmarks --force"),
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
    "metrics": ("metrics rebuild RUN",),
    "metrics rebuild": ("metrics rebuild RUN",),
    "tables": (
        "tables history events",
        "tables register --schema main.bench --store s3://bucket/bench",
    ),
    "tables history": ("tables history events", "tables history runs --format csv"),
    "tables register": ("tables register --schema main.bench --store s3://bucket/bench",),
    "suite": (
        "suite list",
        "suite plan rabbitmq-latency-rate --quick",
        "suite run rabbitmq-latency-rate --quick",
        "suite report rabbitmq-latency-rate --quick --format html=report.html",
    ),
    "suite list": ("suite list",),
    "suite plan": ("suite plan rabbitmq-latency-rate", "suite plan mine.yaml --quick"),
    "suite run": ("suite run mine.yaml --broker rabbitmq", "suite run mine.yaml --quick --quiet"),
    "suite report": ("suite report mine.yaml --broker rabbitmq --format csv",),
    "suite compare": ("suite compare rabbitmq-latency-rate --baseline-store before --store after",),
    "broker": ("broker start kafka", "broker status kafka", "broker stop kafka"),
    "broker start": ("broker start kafka", "broker start rabbitmq --nodes 3"),
    "broker stop": ("broker stop kafka",),
    "broker status": ("broker status kafka",),
    "import": (
        "import perftest flags.txt --directory imported",
        "import omb workload.yaml driver.yaml",
    ),
    "import perftest": (
        "import perftest flags.txt",
        "import perftest --directory imported --name night < flags.txt",
    ),
    "import omb": ("import omb workload.yaml driver.yaml",),
}

_KEEPS_LINES = "\b\n"
"""Tells the help not to fill what follows into paragraphs."""


def epilog(command: str) -> str:
    """What stands below a command's options."""
    lines = "".join(f"  {PROGRAM} {example}\n" for example in EXAMPLES[command])
    examples = f"{_KEEPS_LINES}Examples:\n{lines}"
    return f"{examples}\n{_KEEPS_LINES}{EXIT_CODES}" if command in WITH_EXIT_CODES else examples


def epilog_of_program() -> str:
    first = "".join(
        f"  {PROGRAM} {line}\n"
        for line in ("demo", "run steady --broker loopback", "init", "doctor", "COMMAND --help")
    )
    return f"{_KEEPS_LINES}To begin with:\n{first}\n{_KEEPS_LINES}{EXIT_CODES}"


class _Commands(dict[str, Any]):
    """The commands by name; the module of one is imported when it is asked for."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys(COMMANDS))

    def __getitem__(self, name: str) -> Any:
        return super().__getitem__(name) or self._load(name)

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return default

    def items(self) -> Any:
        return [(name, self[name]) for name in self]

    def values(self) -> Any:
        return [self[name] for name in self]

    def _load(self, name: str) -> TyperCommand | TyperGroup:
        module, _, attribute = COMMANDS[name][0].partition(":")
        found = getattr(importlib.import_module(f"{__package__}.{module}"), attribute)
        loaded = _group(name, found) if isinstance(found, typer.Typer) else _command(name, found)
        self[name] = loaded
        return loaded


def _command(name: str, function: Callable[..., None]) -> TyperCommand:
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    alone.command(name)(function)
    command = typer.main.get_command(alone)
    assert isinstance(command, TyperCommand)
    command.epilog = epilog(name)
    return command


def _group(name: str, app: typer.Typer) -> TyperGroup:
    group = typer.main.get_group(app)
    group.epilog = epilog(name)
    for child, command in group.commands.items():
        command.epilog = epilog(f"{name} {child}")
    return group


class Program(TyperGroup):
    """All commands under one name; to show its help, none of them is imported."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = _Commands()

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


FULL_OR_BROKEN = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
"""What a disk answers that is full, may not be written, or is damaged: no bug of ours."""

_PASSWORD_IN_URI = re.compile(r"(?<=://)[^/\s'\"]*@")


@dataclass
class ProgramOptions:
    """Options of the program itself, filled in while it parses."""

    debug: bool = False


app = typer.Typer(
    cls=Program,
    help="Measures message brokers (AMQP 0-9-1, Kafka, MQTT) from Spark, into Delta tables.",
    epilog=epilog_of_program(),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"{PROGRAM} {__version__}")
        raise typer.Exit


@app.callback()
def _program(
    context: typer.Context,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show where in the program an error arose.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    context.obj.debug = debug


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is returned. Without arguments those of the process."""
    settings = ProgramOptions()
    command = typer.main.get_command(app)
    try:
        # Like Ctrl-C, SIGTERM and SIGHUP unwind: brokers and Spark that were started end with the
        # program.
        with handled(_terminate, *ENDING_SIGNALS):
            command.main(
                args=None if arguments is None else list(arguments), prog_name=PROGRAM, obj=settings
            )
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BenchError as error:
        return _refuse(error, settings)
    except OSError as error:
        if error.errno not in FULL_OR_BROKEN:
            return _admit_bug(error, settings)
        from bench_spark.cli.output import drop_buffered

        drop_buffered(sys.stdout)
        where = f"{error.filename}: " if error.filename else ""
        return _refuse(StoreError(f"{where}cannot be written: {error.strerror}"), settings)
    except Exception as error:
        return _admit_bug(error, settings)
    return 0


def _refuse(error: BenchError, settings: ProgramOptions) -> int:
    for line in str(error).splitlines():
        _complain(line)
    if settings.debug:
        _show_traceback(error)
    return error.exit_code


def _admit_bug(error: Exception, settings: ProgramOptions) -> int:
    what = "".join(str(error).splitlines()[:1])[:300]
    _complain(
        f"unexpected {type(error).__name__}: this is a bug; "
        + ("" if settings.debug else "`bench-spark --debug ...` shows where; ")
        + (f"it says: {what}" if what else "it says nothing")
    )
    if settings.debug:
        _show_traceback(error)
    return EXIT_BUG


def _show_traceback(error: BaseException) -> None:
    """Frames and messages, never the values of variables: those may be credentials."""
    sys.stderr.write(_without_passwords("".join(traceback.format_exception(error))))


def _complain(text: str) -> None:
    sys.stderr.write(f"{PROGRAM}: {_without_passwords(text)}\n")


def _without_passwords(text: str) -> str:
    """Our own errors hold none; this is for what libraries put into theirs."""
    return _PASSWORD_IN_URI.sub("***@", text)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(EXIT_TERMINATED)
