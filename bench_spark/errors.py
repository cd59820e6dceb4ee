"""Every error a user can meet, and the exit code it ends the program with.

    BenchError                       70  our own bug unless a subclass says otherwise
    |-- ConfigurationError            2  a file, key or option is wrong; found before connecting
    |-- PreflightError                3  the surroundings are not ready
    |   |-- EnvironmentNotReady           Java, jars or a package is missing
    |   |-- BrokerUnreachable             no answer at host:port, or not in this protocol
    |   |   `-- WrongProtocol                 what answers was recognised as something else
    |   |-- LoginRefused                  wrong user, password, vhost, or a missing right
    |   |-- BrokerRefused                 the broker answered no to something the scenario needs
    |   |-- TooFewSlots                   Spark cannot run all agents at once
    |   `-- StoreNotReady                 the store cannot be written, or an executor cannot read it
    |-- RunError                      4  the broker or an agent failed while the load ran
    |   |-- LaneLost                      one connection ended
    |   `-- HookFailed                    a command of the user's, so that its trial was not run
    `-- StoreError                    4  a result could not be written or read

Client libraries' exceptions stop at the module that calls the library and are raised again as one
of these (`raise ... from`). No message ever contains a password: build them from host, port and the
broker's own words, never from a URI.
"""

from __future__ import annotations

EXIT_VALID = 0
EXIT_GATE_MISSED = 1
EXIT_CONFIGURATION = 2
EXIT_PREFLIGHT = 3
EXIT_DEGRADED = 4
EXIT_DATA_LOST = 5
EXIT_BUG = 70
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


class BenchError(Exception):
    """Base of everything raised on purpose; `exit_code` is what the process ends with."""

    exit_code = EXIT_BUG

    @property
    def kind(self) -> str:
        """The class's name: travels with the text from an agent to the driver."""
        return type(self).__name__


class ConfigurationError(BenchError):
    exit_code = EXIT_CONFIGURATION


class PreflightError(BenchError):
    exit_code = EXIT_PREFLIGHT


class EnvironmentNotReady(PreflightError):
    pass


class BrokerUnreachable(PreflightError):
    pass


class WrongProtocol(BrokerUnreachable):
    pass


class LoginRefused(PreflightError):
    pass


class BrokerRefused(PreflightError):
    pass


class TooFewSlots(PreflightError):
    pass


class StoreNotReady(PreflightError):
    pass


class RunError(BenchError):
    exit_code = EXIT_DEGRADED


class LaneLost(RunError):
    pass


class HookFailed(RunError):
    pass


class StoreError(BenchError):
    exit_code = EXIT_DEGRADED


def _all_kinds(root: type[BenchError]) -> dict[str, type[BenchError]]:
    kinds = {root.__name__: root}
    for child in root.__subclasses__():
        kinds |= _all_kinds(child)
    return kinds


def error_of_kind(kind: str, text: str) -> BenchError:
    """Rebuild an error that an agent reported by name (an unknown name is our own bug)."""
    return _all_kinds(BenchError).get(kind, BenchError)(text)
