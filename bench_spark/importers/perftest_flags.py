"""A PerfTest command line, or its environment variables, as values by option.

The list is that of `PerfTest --help` and `--metrics-help`. Where an option has a counterpart,
`keys` names the scenario's keys that it decides (`broker:` before those of the broker file) and
`text` what differs; where it has none, `text` says why. docs/coming-from.md prints this table, and
tests hold it against what `perftest.py` really does.

Reads what PerfTest's own parser reads: `-x 2`, `-x2`, `--producers 2`, `--producers=2`, long names
behind a single dash, and beginnings of long names that no other option shares. In front may stand
whatever starts PerfTest (`bin/runjava com.rabbitmq.perf.PerfTest`, `java -jar perf-test.jar`,
`docker run ... IMAGE`, `kubectl run ... --`) and assignments such as `RATE=1000`; a text may also
consist of such assignments alone. What follows a shell's operator, such as `| tee log`, is another
command.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import PurePosixPath

from bench_spark.config.fields import mask_uri
from bench_spark.config.problems import nearest, shown_text, shown_value
from bench_spark.errors import ConfigurationError
from bench_spark.importers.draft import number, table_rows, whole_number

PERFTEST_VERSION = "2.22"


class Takes(Enum):
    """How many values follow an option, as the table writes it."""

    NOTHING = ""
    ONE = "="
    PERHAPS_ONE = "[=]"
    MANY = "=..."


@dataclass(frozen=True)
class Flag:
    short: str
    """Without its dash; empty where there is none."""
    long: str
    takes: Takes
    keys: tuple[str, ...]
    """Empty: there is no counterpart."""
    text: str

    @property
    def shown(self) -> str:
        return f"--{self.long}"

    @property
    def variable(self) -> str:
        """The environment variable that PerfTest reads instead."""
        return self.long.replace("-", "_").upper()

    @property
    def is_mapped(self) -> bool:
        return bool(self.keys)


_TABLE = """
x producers= | producers | a connection each; multiplied by --producer-channel-count
y consumers= | consumers topology | a connection each; multiplied by --consumer-channel-count.
    Several without --queue have a queue each and get all messages: `topology: fan-out`
X producer-channel-count= | producers | channels become producers, with a connection each
Y consumer-channel-count= | consumers | channels become consumers, with a connection each
r rate= | load.mode load.rate_per_second load.scope | per producer; without it load.mode is maximum.
    A fixed schedule: message k is due at a fixed time, whether or not the broker keeps up
P publishing-interval= | load.mode load.rate_per_second load.scope | its inverse is the rate per
    producer
vr variable-rate=... | load.mode load.steps load.scope | PerfTest begins anew after the last one; so
    the steps are repeated until --time is over
R consumer-rate= | consumer.rate_per_second | 1 or more
L consumer-latency= | consumer.processing_us |
z time= | phases.measure_seconds | without it PerfTest goes on until Ctrl-C; a run here has an end,
    and is given 60 s
C pmessages= | load.messages | times the number of producers: load.messages counts those of all
D cmessages= | load.messages | times the number of consumers that share a queue; with --pmessages
    that one decides
s size= | message.bytes | from 32 bytes on, losses are accounted for
vs variable-size=... | message.bytes message.steps | repeated until --time is over, as
    --variable-rate; sizes below 32 bytes become 32
B body= | dataset.path dataset.format identity.carrier | a message per file, unchanged: its number
    is in a header. One file or one directory; of several files the first is taken
i interval= | interval_seconds |
e exchange[=] | amqp.exchange.name | `amq.default` is the empty name; without the option the
    exchange is named like its type
t type= | amqp.exchange.type | direct, topic, fanout or headers
u queue= | amqp.queue.name | one name; further ones would get copies of each message, and are left
    out
qp queue-pattern= | amqp.queue.name destinations | `%03d` and the like become `%d`
qpf queue-pattern-from= | amqp.queue.first_number destinations |
qpt queue-pattern-to= | destinations |
k routing-key= | amqp.routing_key |
K random-routing-key | amqp.routing_keys | each message takes one of so many keys at random, and
    queues are bound to all of them
rkcs routing-key-cache-size= | amqp.routing_keys | with --random-routing-key: how many keys there
    are, at most 10000
qa queue-args=... | amqp.queue.arguments |
qq quorum-queue | amqp.queue.arguments amqp.queue.durable amqp.persistent keep_destinations |
    x-queue-type: quorum; as in PerfTest, messages are persistent and the queue stays
sq stream-queue | amqp.queue.arguments amqp.queue.durable amqp.persistent amqp.prefetch
    keep_destinations | x-queue-type: stream; as in PerfTest, messages are persistent, the prefetch
    is 200 and the stream stays
ll leader-locator= | amqp.queue.arguments | x-queue-leader-locator
mlb max-length-bytes= | amqp.queue.arguments | x-max-length-bytes
ma max-age= | amqp.queue.arguments | x-max-age
smssb stream-max-segment-size-bytes= | amqp.queue.arguments | x-stream-max-segment-size-bytes
ad auto-delete= | keep_destinations | queues that a run has made are deleted at its end; `false`
    keeps them
f flag=... | amqp.persistent amqp.queue.durable amqp.mandatory | `persistent` also makes the queue
    durable, as in PerfTest
mp message-properties=... | amqp.headers amqp.persistent | what is no property of AMQP is a header;
    deliveryMode is amqp.persistent, the other properties are left out
c confirm= | amqp.confirms | 0, which is no limit there, becomes the highest one here
m ptxsize= | amqp.producer_transaction |
n ctxsize= | amqp.consumer_transaction | needs manual acknowledgements
ca consumer-args=... | amqp.consumer_arguments |
sco stream-consumer-offset= | amqp.consumer_arguments | x-stream-offset: first, last, next or a
    number; a point in time is left out
a autoack | amqp.ack | without it amqp.ack is manual
A multi-ack-every= | amqp.ack_every |
q qos= | amqp.prefetch | without it amqp.prefetch is 0, no limit
Q global-qos= | amqp.prefetch | a channel has one consumer here, so both limits mean the same: the
    lower one counts
h uri= | broker:uri broker:username broker:password_env | the password goes into an environment
    variable, never into a file
H uris= | broker:uri broker:username broker:password_env | the first one; a broker file has one
    address
b heartbeat= | amqp.heartbeat_seconds | 0 leaves it at its default
dcr disable-connection-recovery | reconnect_seconds | 0
udsc use-default-ssl-context | broker:tls.insecure | certificates are checked; without it PerfTest
    accepts any, and the file says `insecure`
sni server-name-indication= | broker:tls.server_name | the first one
d id= | name | also the file's name
mt metrics-tags=... | tags | stored with the run, and labels of its metrics
vl variable-latency=... | | consumer.processing_us is the same all the time
T body-content-type= | | messages have no content type
jb json-body, bc body-count=, bfc body-field-count= | | bodies are random bytes or zeros
    (message.padding), or those of --body
qf queue-file= | | queues are numbered: amqp.queue.name with %d
sb skip-binding-queues | | queues are bound to a named exchange
p predeclared | | not needed: what is there already is always used as it is, and never deleted
E exclusive | | queues are seen by all connections of a run
na nack, re requeue= | | messages are acknowledged, never refused
po polling, pi polling-interval= | | messages are delivered by the broker (basic.consume), never
    fetched one by one
ct confirm-timeout= | | confirms are waited for during phases.drain_seconds; what is missing then is
    counted
S slow-start, csd consumer-start-delay=, prsd producer-random-start-delay= | | all producers and
    consumers start together
ew exit-when= | | a run ends after its time or its messages, and then waits for phases.drain_seconds
st shutdown-timeout= | | phases.drain_seconds is how long messages on their way are waited for
sst servers-startup-timeout= | | a broker that does not answer ends the run
sul servers-up-limit= | | a broker file has one address
cri connection-recovery-interval= | | lost connections are tried again at intervals of the program's
    own
M framemax= | | the broker's frame size is taken
tnd tcp-no-delay=, trbs tcp-receive-buffer-size=, tsbs tcp-send-buffer-size= | | the socket's
    buffers and delays are set by the program
ctp consumers-thread-pools=, hst heartbeat-sender-threads=, niot nio-threads=, niotp
    nio-thread-pool=, pst producer-scheduler-threads= | | agents have one thread for all connections
se sasl-external, o2uri oauth2-token-endpoint=, o2id oauth2-client-id=, o2sec oauth2-client-secret=,
    o2gr oauth2-grant-type=, o2p oauth2-parameters=... | | logins are by user and password
ms use-millis | | not needed: the clocks of machines are compared
ei expected-instances=, isn instance-sync-namespace=, ist instance-sync-timeout= | | not needed:
    agents on any number of machines start together and share one result
o output-file= | | an option of the command, not of the scenario: `run --format csv=FILE`
mf metrics-format=, verbose, verbose-full, ? help, v version, env environment-variables, mh
    metrics-help | | shows something and measures nothing
em exposed-metrics=, mpr metrics-prometheus, mpe metrics-prometheus-endpoint=, mpp
    metrics-prometheus-port=, mpx metrics-prefix= | | an option of the command, not of the scenario:
    `run --prometheus [HOST:]PORT`
mcla metrics-command-line-arguments | | the scenario is stored with a run
mc metrics-client | | the live line and `events` count what is sent
mcl metrics-class-loader, mjgc metrics-jvm-gc, mjm metrics-jvm-memory, mjp metrics-processor, mjt
    metrics-jvm-thread, mjx metrics-jmx | | there is no JVM in the way of the load; the broker's own
    use is measured by `resources`
mda metrics-datadog, mdak metrics-datadog-application-key=, mdd metrics-datadog-descriptions, mdh
    metrics-datadog-host-tag=, mdk metrics-datadog-api-key=, mds metrics-datadog-step-size=, mdu
    metrics-datadog-uri= | | results are Delta tables; live values are at `run --prometheus`
"""
"""Options, the keys that they decide, and what differs. In front of an option its short name; `=`:
it takes a value, `[=]`: perhaps one, `=...`: several. Options with one text are in one row."""

_OPTION = re.compile(r"(?:(?P<short>\S+) )?(?P<long>[a-z0-9-]+)(?P<takes>=\.\.\.|\[=\]|=|)")


def _flag(option: str, keys: tuple[str, ...], text: str) -> Flag:
    found = _OPTION.fullmatch(option)
    assert found is not None, option
    short, long, takes = found.groups()
    return Flag(short or "", long, Takes(takes), keys, text)


FLAGS = tuple(_flag(*row) for row in table_rows(_TABLE))

BY_LONG = {flag.long: flag for flag in FLAGS}
BY_SHORT = {flag.short: flag for flag in FLAGS if flag.short}
BY_VARIABLE = {flag.variable: flag for flag in FLAGS}


MAIN_CLASS = "com.rabbitmq.perf.PerfTest"
PREFIX_VARIABLE = "RABBITMQ_PERF_TEST_ENV_PREFIX"

_PROGRAM = re.compile(r"perf-test(?:[-_.\w]*)(?:[:@].*)?|PerfTest|runperftest")
_CONTAINERS = ("docker", "podman", "nerdctl", "kubectl")
_WITHOUT_VALUE = re.compile(
    r"-[itdPq]+|-jar|--(?:rm|interactive|tty|detach|init|privileged|publish-all|quiet|stdin)|.*=.*"
)
_SHELL_OPERATOR = re.compile(r"\|\|?|&&?|;|[0-9&]?>.*|<.*|\)|do|done")
_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)=(?P<value>.*)", re.DOTALL)
_NEGATIVE_NUMBER = re.compile(r"-[0-9]+(\.[0-9]*)?")
_TRUE = "true"


@dataclass
class Given:
    """What was asked for, by an option's long name."""

    values: dict[str, list[str]] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def add(self, flag: Flag, *values: str) -> None:
        self.values.setdefault(flag.long, []).extend(values)

    def last(self, name: str) -> str | None:
        """The value that counts, where an option was given several times."""
        values = self.values.get(name)
        return values[-1] if values else None

    def all(self, name: str) -> list[str]:
        """Every value, separated by commas or given by options of their own."""
        texts = self.values.get(name, [])
        return [part.strip() for text in texts for part in text.split(",") if part.strip()]

    @property
    def flags(self) -> list[Flag]:
        return [BY_LONG[name] for name in self.values]

    def count(self, name: str, otherwise: int, least: int = 0) -> int:
        text = self.last(name)
        if text is None:
            return otherwise
        value = whole_number(f"--{name}", text)
        if value < least:
            raise ConfigurationError(f"--{name}: {value} is below the minimum of {least}")
        return value

    def number(self, name: str) -> float | None:
        text = self.last(name)
        if text is None:
            return None
        value = number(f"--{name}", text)
        return int(value) if math.floor(value) == value else value

    def origin(self, *names: str) -> str:
        """The options among these that were given, else that this is PerfTest's default."""
        return ", ".join(f"--{name}" for name in names if name in self) or "PerfTest's default"


def read_words(text: str) -> Given:
    """Every option in `text`; an unknown one is refused with the one that is most like it."""
    try:
        words = shlex.split(text.replace("\\\r\n", " ").replace("\\\n", " "), comments=True)
    except ValueError:
        raise ConfigurationError("the flags: a quotation mark is not closed") from None
    before, flags = _divided(words)
    given = Given()
    _take_variables(given, before)
    problems = list(_take_flags(given, flags))
    if problems:
        raise ConfigurationError("\n".join(problems))
    if not given.values and _program_end(words) is None:
        raise ConfigurationError(
            "the flags: there are none; give those of PerfTest, as in --producers 2 --rate 1000"
        )
    return given


def _divided(words: list[str]) -> tuple[list[str], list[str]]:
    """What stands up to PerfTest's program, and the flags that follow it."""
    start = _program_end(words)
    if start is None:
        start = next((at for at, word in enumerate(words) if word[:1] == "-"), len(words))
        if container := _container(words[:start]):
            raise ConfigurationError(
                f"the flags: {container}: no word names PerfTest's image; expected one like "
                "pivotalrabbitmq/perf-test:latest"
            )
    flags = list[str]()
    for word in words[start:]:
        if _SHELL_OPERATOR.fullmatch(word):
            break
        flags.append(word.removesuffix(";"))
        if word.endswith(";"):
            break
    return words[:start], flags


def _container(words: list[str]) -> str:
    """The command among `words` that starts a container; empty where there is none."""
    names = (PurePosixPath(word).name for word in words)
    return next((name for name in names if name in _CONTAINERS), "")


def _program_end(words: list[str]) -> int | None:
    """The index behind the word that names PerfTest: its class, archive, script or image.

    Values of a container's options, as in `docker run --network perf-test`, are no such word.
    """
    if "--" in words and _container(words[: words.index("--")]):
        start = words.index("--") + 1
        return start + (_program_end(words[start:]) or 0)
    for at, word in enumerate(words):
        before = words[at - 1] if _container(words[:at]) else ""
        is_value = before.startswith("-") and not _WITHOUT_VALUE.fullmatch(before)
        if not is_value and (word == MAIN_CLASS or _PROGRAM.fullmatch(PurePosixPath(word).name)):
            return at + 1
    return None


def _take_variables(given: Given, words: list[str]) -> None:
    """Options among the assignments. Others are not ours: the environment has many."""
    plain = (word.removeprefix("--env=").removeprefix("-e=") for word in words)
    found = [match for match in map(_ASSIGNMENT.fullmatch, plain) if match]
    assigned = {match["name"]: match["value"] for match in found}
    prefix = assigned.get(PREFIX_VARIABLE, "")
    if prefix and not prefix.endswith("_"):
        prefix += "_"
    for name, value in assigned.items():
        flag = BY_VARIABLE.get(name.removeprefix(prefix)) if name.startswith(prefix) else None
        if flag is None:
            continue
        if flag.takes is Takes.NOTHING:
            if value.strip().lower() == _TRUE:
                given.add(flag)
        elif flag.takes is Takes.MANY:
            given.add(flag, *(part for part in value.split(",") if part))
        else:
            given.add(flag, value)


def _take_flags(given: Given, words: list[str]) -> Iterator[str]:
    """Read the flags into `given`; yields what is wrong with them."""
    waiting = list(words)
    flag: Flag | None = None
    while waiting:
        word = waiting.pop(0)
        if not _is_flag(word):
            yield _stray(word, flag)
            continue
        found = _flag_of(word)
        if found is None:
            yield _unknown(word)
            while waiting and not _is_flag(waiting[0]):
                waiting.pop(0)
            continue
        flag, value = found
        values = [] if value is None else [value]
        if flag.takes is Takes.NOTHING and values:
            yield f"{flag.shown}: takes no value"
        while waiting and _takes_more(flag, len(values)) and not _is_flag(waiting[0]):
            values.append(waiting.pop(0))
        if not values and flag.takes in (Takes.ONE, Takes.MANY):
            yield f"{flag.shown}: its value is missing"
        given.add(flag, *values)


def _takes_more(flag: Flag, taken: int) -> bool:
    return flag.takes is Takes.MANY or (flag.takes is not Takes.NOTHING and not taken)


def _is_flag(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and not _NEGATIVE_NUMBER.fullmatch(word)


def _flag_of(word: str) -> tuple[Flag, str | None] | None:
    """The option that a word names, and the value it brings along."""
    if not _is_flag(word):
        return None
    name, equals, value = word.lstrip("-").partition("=")
    brought = value if equals else None
    if word.startswith("--"):
        begun = [name] if name in BY_LONG else [long for long in BY_LONG if long.startswith(name)]
        return (BY_LONG[begun[0]], brought) if len(begun) == 1 else None
    flag = BY_SHORT.get(name) or BY_LONG.get(name)
    if flag is not None:
        return flag, brought
    whole = word[1:]
    for length in range(len(whole) - 1, 0, -1):
        flag = BY_SHORT.get(whole[:length])
        if flag is not None and flag.takes is not Takes.NOTHING:
            return flag, whole[length:]
    return None


_WITH_SECRETS = (
    "uri",
    "uris",
    "oauth2-client-secret",
    "oauth2-parameters",
    "metrics-datadog-api-key",
)


def _stray(word: str, before: Flag | None) -> str:
    """The refusal of a word that is no option's value. Behind an option that may hold a password
    it may be part of one that was not quoted, and is not repeated."""
    if before is not None and before.long in _WITH_SECRETS:
        what = f"{before.shown}: a word behind its value"
    else:
        what = f"the flags: {shown_value(mask_uri(word))}"
    return f"{what} belongs to no option; quote values with spaces"


def _unknown(word: str) -> str:
    name = mask_uri(word.partition("=")[0])
    long = nearest(name.lstrip("-"), BY_LONG)
    guess = f"; did you mean --{long}?" if long else ""
    return f"{shown_text(name)}: PerfTest {PERFTEST_VERSION} has no such option{guess}"
