"""All commands under one name, and the one place where an error becomes an exit code."""

from __future__ import annotations

import errno
import re
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Annotated, NoReturn

import typer

from bench_spark import __version__
from bench_spark.cli.commands import PROGRAM, Program, epilog_of_program
from bench_spark.errors import EXIT_BUG, EXIT_INTERRUPTED, EXIT_TERMINATED, BenchError, StoreError
from bench_spark.process import ENDING_SIGNALS, handled

FULL_OR_BROKEN = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
"""What a disk answers that is full, may not be written, or is damaged: no bug of ours."""

_PASSWORD_IN_URI = re.compile(r"(?<=://)[^/\s'\"]*@")


@dataclass
class Settings:
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
    settings = Settings()
    command = typer.main.get_command(app)
    try:
        # Like Ctrl-C, SIGTERM and SIGHUP unwind: brokers and Spark that were started end with the
        # program.
        with handled(_terminate, *ENDING_SIGNALS):
            command.main(
                args=None if arguments is None else list(arguments),
                prog_name=PROGRAM,
                obj=settings,
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


def _refuse(error: BenchError, settings: Settings) -> int:
    for line in str(error).splitlines():
        _complain(line)
    if settings.debug:
        _show_traceback(error)
    return error.exit_code


def _admit_bug(error: Exception, settings: Settings) -> int:
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
