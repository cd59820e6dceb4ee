"""The Spark session of every command: its slots, where its JVM logs, what its errors mean.

Three ways in. A command started by hand (`bench-spark run`) launches its own JVM here, so all about
that JVM is decided here. A job started by spark-submit finds a JVM that spark-defaults.conf and the
submit command have already configured: then only what nobody has set is filled in. A program that
has a session already keeps it as it is: we make one of our own on the same application.

Where the messages of a JVM that we have started go: to a file instead of the terminal.

Java warns of modules, Spark logs errors that it recovers from, and a query that is stopped may
leave a thousand lines of stack. None of it is about the run, but where something has failed it may
hold the cause. So it is kept in a file of the temporary directory, which is removed when this
process ends, unless a message has named it.

A JVM outlives the sessions in it, and there is one per process; so there is one log.

jars.toml says which Delta Lake fits which Spark. Spark itself starts without Delta, or with one for
another Spark, and fails much later in classes that no user knows; so a session is checked first.
"""

from __future__ import annotations

import atexit
import importlib.metadata
import logging
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyspark
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from bench_spark import jars
from bench_spark.conf_files import conf_path
from bench_spark.errors import ConfigurationError, EnvironmentNotReady, TooFewSlots
from bench_spark.java import is_submitted, require_java
from bench_spark.spark.launch import CONNECT, NO_CONNECT
from bench_spark.store import s3

DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"

_NOISE = ("WARNING: Using incubator modules",)
"""Beginnings of lines that mean nothing."""

_path: Path | None = None
_is_named = False


def launch_jvm(conf: SparkConf) -> None:
    """Start the JVM of this process, with its output in the log; nothing if there is one."""
    global _path
    if SparkContext._gateway is not None:
        return
    descriptor, name = tempfile.mkstemp(prefix="bench-spark-jvm-", suffix=".log")
    _path = Path(name)
    # A process that was forked from this one must not remove it.
    atexit.register(_remove_unless_named, os.getpid())
    try:
        output = {"stdout": descriptor, "stderr": descriptor}
        gateway = launch_gateway(conf, output)  # type: ignore[no-untyped-call]
    finally:
        os.close(descriptor)
    SparkContext._ensure_initialized(gateway=gateway, conf=conf)


def log_path() -> Path | None:
    """The log, which from now on is kept, because a message names it. None where another program
    has started the JVM, and looks after its output."""
    global _is_named
    _is_named = _path is not None
    return _path


def log_of_failure() -> Path | None:
    """The log to be named beside an error; None where there is nothing to read in it, or where it
    was named already."""
    if _path is None or _is_named or not _has_content(_path):
        return None
    return log_path()


def log_hint() -> str:
    """Where to read more, behind the text of an error of Spark's."""
    path = log_of_failure()
    return "" if path is None else f"; Spark's log: {path}"


def _has_content(path: Path) -> bool:
    with suppress(OSError), path.open(errors="replace") as lines:
        return any(line.strip() and not line.startswith(_NOISE) for line in lines)
    return False


def _remove_unless_named(process: int) -> None:
    if _path is not None and not _is_named and os.getpid() == process:
        with suppress(OSError):
            _path.unlink()


LOCAL_SPARE_SLOTS = 2
"""Slots beside the agents on this machine: the rolling metrics need one and use two."""

ALL_THERE_SECONDS = 3.0
"""No executor has registered for so long: more are not expected. (Where their number is asked for,
as on YARN and Kubernetes, Spark has waited for them before.)"""

START_TIMEOUT, DEFAULT_START_TIMEOUT = "spark.benchspark.start.timeout", "300s"
"""How long a cluster may take until the load can start; see docs/cluster.md."""
EXECUTORS_TIMEOUT, EXECUTORS_SECONDS = "spark.benchspark.executors.timeout", 15.0
"""How long to wait for the first executor of a standalone cluster, which starts them at once where
it can. YARN and Kubernetes may have to start machines: there the time to start is the default."""
JVM_STARTS = 5
"""An executor is a JVM like the driver's: on a slow cluster both take long to start."""
ENOUGH_QUIET_SECONDS = 10.0
"""Executors are too few, and none has come for so long: say so."""
WAITING_WORD_SECONDS = 10.0
"""How often a line says what is being waited for."""

_SPARKS_OWN_REDACTION = "(?i)secret|password|token|access[.]?key"
_OUR_REDACTION = r"credential|passwd|sasl|://[^/\s:@]*:[^/\s@]+@"
"""Names of settings, and any value that holds a URI with a password in it."""

JVM_GONE = (Py4JError, OSError, EOFError)
"""What a call into a JVM raises that was killed."""

_PRINTS_ERRORS = "SQLQueryContextLogger"
"""PySpark prints every SQL error as a page of JSON beside raising it."""


_EVERYWHERE = {
    "spark.sql.extensions": DELTA_EXTENSION,
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Our tables' logs are small: fifty tasks to read one cost more than the reading.
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.session.timeZone": "UTC",
    # An agent must run once, and as many of them as the plan says: no copies, no changing crowd.
    "spark.speculation": "false",
    # Too few slots for the barrier stage: say so in seconds (the default is ten minutes).
    "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
    "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "5",
    # A cancelled agent drains and deletes what it declared before its process is ended.
    "spark.python.task.killTimeout": "15s",
    "spark.python.worker.reuse": "true",
    # A real event row is some 100 kB: thousands of them at once would fill a small heap.
    "spark.sql.parquet.columnarReaderBatchSize": "256",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "256",
    # The streaming query is disposable (`events` is the truth), so it keeps little of its past.
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.numRecentProgressUpdates": "10",
    "spark.ui.showConsoleProgress": "false",
}


def local_session_master(agents: int) -> str:
    """The local master that can run so many agents and the rolling metrics beside them."""
    return f"local[{agents + LOCAL_SPARE_SLOTS}]"


def has_session() -> bool:
    """Whether this process has one already. A JVM outlives the sessions in it."""
    return SparkContext._active_spark_context is not None


def chosen_master() -> str | None:
    """The master that spark-submit, or a session of this process, has chosen already."""
    if (context := SparkContext._active_spark_context) is not None:
        return context.master
    return _submitted_conf().get("spark.master") if is_submitted() else None


@contextmanager
def session_beside() -> Iterator[SparkSession]:
    """A session of our own on the application of the one that this process has already.

    It has settings, views and streams of its own; nothing of the other one changes.
    """
    refuse_connect()
    theirs = SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
    require_compatible(
        theirs,
        "the SparkSession of this program",
        f"build it with .config('spark.jars.packages', '{delta_coordinate()}'), or end it by "
        "spark.stop() before, and bench-spark starts one of its own",
    )
    java_sessions: Any = theirs._get_j_spark_session_class(theirs.sparkContext._jvm)
    was_active = SparkSession._activeSession, java_sessions.getActiveSession()
    spark = theirs.newSession()
    for key, value in _EVERYWHERE.items():
        if key.startswith(("spark.sql.", "spark.databricks.")) and key != "spark.sql.extensions":
            spark.conf.set(key, value)
    logger = logging.getLogger(_PRINTS_ERRORS)
    was_disabled, logger.disabled = logger.disabled, True
    try:
        yield spark
    finally:
        logger.disabled = was_disabled
        SparkSession._activeSession = was_active[0]
        with suppress(Py4JError):  # of a JVM that was killed meanwhile
            if was_active[1].isDefined():
                java_sessions.setActiveSession(was_active[1].get())
            else:
                java_sessions.clearActiveSession()


def build_session(
    master: str | None,
    app_name: str,
    extra_conf: Mapping[str, str] | None = None,
    slots: int = 0,
) -> SparkSession:
    """The session of this process, made if there is none.

    `master` counts only where spark-submit has not chosen one; None then means this machine.
    `extra_conf` wins over everything written here, but not over what spark-submit was given.
    `slots`: how many are needed, where that is known.
    """
    refuse_connect(master)
    conf = _submitted_conf() if is_submitted() else _own_conf(master or "local[*]")
    for key, value in s3.hadoop_settings(os.environ).items():
        conf.setIfMissing(key, value)
    for key, value in (dict(extra_conf or {}) | {"spark.app.name": app_name}).items():
        if is_submitted():
            conf.setIfMissing(key, value)
        elif key == "spark.jars" and (delta := conf.get(key)):
            conf.set(key, f"{delta},{value}")
        else:
            conf.set(key, value)
    for key, value in fixed_executors(dict(conf.getAll()), slots).items():
        conf.set(key, value)
    logging.getLogger(_PRINTS_ERRORS).disabled = True
    if not is_submitted():
        launch_jvm(conf)
    session: SparkSession = SparkSession.builder.config(conf=conf).getOrCreate()
    # When the JVM is killed, PySpark's own server would print the traceback of a reset connection.
    accumulators: Any = session.sparkContext._accumulatorServer
    accumulators.handle_error = lambda request, address: None
    require_compatible(
        session,
        "this Spark session",
        "give spark-submit `--properties-file spark-defaults.conf` (or `--packages` as in that "
        "file), or put Delta's jars on the class path of driver and executors (docs/cluster.md)",
    )
    return session


def is_alive(spark: SparkSession) -> bool:
    """Whether the JVM behind a session still answers."""
    jvm: Any = spark.sparkContext._jvm
    try:
        jvm.java.lang.System.nanoTime()
    except JVM_GONE:
        return False
    return True


def master_of(spark: SparkSession) -> str:
    return spark.sparkContext.master or ""


def free_slots(spark: SparkSession) -> int:
    """How many tasks can run at once with the executors that are there now."""
    context = spark.sparkContext._jsc.sc()
    profile = context.resourceProfileManager().defaultResourceProfile()
    return int(context.maxNumConcurrentTasks(profile))


def executors(spark: SparkSession) -> int:
    """How many executors are there now; on this machine the driver is the only one."""
    known = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size()
    return max(1, int(known) - 1)  # the driver's own block manager is one of them


def start_timeout(spark: SparkSession) -> float:
    """How many seconds a cluster may take to get executors, agents and rolling metrics going."""
    return _seconds(spark, START_TIMEOUT, DEFAULT_START_TIMEOUT)


def executors_timeout(spark: SparkSession) -> float:
    """How many seconds a cluster may take until its first executor is there."""
    context = spark.sparkContext
    if context.getConf().contains(EXECUTORS_TIMEOUT):
        return _seconds(spark, EXECUTORS_TIMEOUT, "")
    if master_of(spark).startswith(("yarn", "k8s")):
        return start_timeout(spark)
    jvm: Any = context._jvm
    began_ms: int = jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getStartTime()
    started_ms: int = context._jsc.sc().startTime()
    return max(EXECUTORS_SECONDS, JVM_STARTS * (started_ms - began_ms) / 1000)


def _seconds(spark: SparkSession, setting: str, default: str) -> float:
    text = spark.sparkContext.getConf().get(setting, default)
    jvm: Any = spark.sparkContext._jvm
    try:
        return float(jvm.org.apache.spark.network.util.JavaUtils.timeStringAsSec(text))
    except Py4JJavaError as error:
        raise ConfigurationError(f"{setting}: {text!r} is no time such as 300s") from error


def wait_for_slots(
    spark: SparkSession,
    wanted: int,
    timeout_seconds: float,
    say: Callable[[str], None],
    quiet_seconds: float = ENOUGH_QUIET_SECONDS,
) -> int:
    """`free_slots`, once there are as many as wanted: a cluster's executors register one by one.

    Gives up at the timeout, or when there are some and no more have come for `quiet_seconds`; for
    as long as the first took, if that was longer: a slow cluster gets more time. Raises TooFewSlots
    where not even one comes.
    """
    first_seconds = executors_timeout(spark)
    began = unchanged_since = time.monotonic()
    next_word = began + WAITING_WORD_SECONDS
    slots = free_slots(spark)
    while slots < wanted and (now := time.monotonic()) < began + timeout_seconds:
        if slots and now - unchanged_since > quiet_seconds:
            break
        if not slots and now - began > first_seconds:
            raise TooFewSlots(
                f"{master_of(spark)} has given no executor for {first_seconds:g} s: are its "
                "workers there, and have they cores and memory free? "
                f"{EXECUTORS_TIMEOUT} sets how long to wait"
            )
        if now >= next_word:
            next_word = now + WAITING_WORD_SECONDS
            say(f"waiting for executors: {slots} slots after {now - began:.0f} s")
        time.sleep(0.2)
        before, slots = slots, free_slots(spark)
        if slots != before:
            unchanged_since = time.monotonic()
            if not before:
                quiet_seconds = max(quiet_seconds, unchanged_since - began)
    return slots


def wait_for_all_slots(
    spark: SparkSession, timeout_seconds: float, say: Callable[[str], None]
) -> int:
    """`free_slots`, once there are some and no more have come for a while."""
    return wait_for_slots(spark, sys.maxsize, timeout_seconds, say, ALL_THERE_SECONDS)


def _submitted_conf() -> SparkConf:
    # Without this the conf would not see the JVM's properties, where spark-submit has put them.
    SparkContext._ensure_initialized()
    conf = SparkConf()
    for key, value in _EVERYWHERE.items():
        conf.setIfMissing(key, value)
    redaction = conf.get("spark.redaction.regex", _SPARKS_OWN_REDACTION)
    return conf.set("spark.redaction.regex", f"{redaction}|{_OUR_REDACTION}")


def _own_conf(master: str) -> SparkConf:
    # The JVM is launched from SPARK_HOME's Java: name the one that was found good.
    os.environ["JAVA_HOME"] = str(require_java().parent.parent)
    conf = SparkConf(loadDefaults=False).setMaster(master)
    for key, value in _EVERYWHERE.items():
        conf.set(key, value)
    conf.set("spark.redaction.regex", f"{_SPARKS_OWN_REDACTION}|{_OUR_REDACTION}")
    is_local = master.startswith("local")
    delta = [str(jar) for jar in jars.delta_jars()]
    if is_local:
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        conf.set("spark.driver.extraClassPath", ":".join(delta))
        for key, value in _on_this_machine().items():
            conf.set(key, value)
    else:
        # Workers elsewhere may have their interpreter in another place: the user can say where.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        conf.set("spark.jars", ",".join(delta))
    conf.set("spark.driver.extraJavaOptions", " ".join(_java_options(is_local)))
    return conf


def _on_this_machine() -> dict[str, str]:
    return {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        # Slots outnumber the cores by far (an agent mostly waits), but a scan does not wait.
        "spark.sql.files.minPartitionNum": str(os.cpu_count() or 1),
        # Nothing is stored there; the default would make a directory where the command was called.
        "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / "bench-spark-warehouse"),
    }


def _java_options(is_local: bool) -> list[str]:
    log_settings = conf_path("log4j2.properties")
    if not log_settings.is_file():
        raise EnvironmentNotReady(
            f"{log_settings} is missing: bench-spark is not installed completely"
        )
    options = [f"-Dlog4j2.configurationFile=file:{log_settings}"]
    if is_local:
        # A local run is over before the optimising compiler would pay (0.74 core against 0.33).
        options.append("-XX:TieredStopAtLevel=1")
        # The heap is small and the cores are the load's: no collector threads beside it.
        options.append("-XX:+UseSerialGC")
        if archive := jars.class_data_archive():
            # An archive that no longer fits is left aside, and Java need not say so.
            options += [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto"]
            options += ["-Xlog:disable", "-Xlog:all=error:stderr"]
    return options


# -- whether Spark, PySpark and Delta fit each other -----------------------------------------------

CONNECT_VARIABLES = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")
"""With one of them set, pyspark makes sessions of Spark Connect only."""

DEFAULT_EXECUTORS = 2
"""How many Spark itself asks YARN and Kubernetes for."""

_DELTA_JAR = re.compile(r"delta-spark_(?:(?P<spark>\d.\d+)_)?2.1\d-(?P<delta>\d+\.\d+)[^/]*\.jar$")
_SPARK_OF_PLAIN_DELTA = {"3.2": "3.5", "3.3": "3.5", "4.0": "4.0"}
"""Jars of these releases of Delta do not name their Spark."""


def delta_coordinate() -> str:
    """What spark.jars.packages needs for Delta tables on this Spark.

    delta-spark's own rule, where the wheel is of the release that fits; on a cluster with another
    Spark than the wheel is for, the rule would name a package that does not exist.
    """
    fitting = jars.delta_set(pyspark.__version__)
    try:
        from delta import configure_spark_with_delta_pip

        wheel = importlib.metadata.version("delta-spark")
    except (ImportError, importlib.metadata.PackageNotFoundError):
        return fitting.coordinate
    if jars.minor_version(wheel) != jars.minor_version(fitting.version):
        return fitting.coordinate
    builder: Any = configure_spark_with_delta_pip(SparkSession.builder)
    return str(builder._options["spark.jars.packages"])


def refuse_connect(master: str | None = None) -> None:
    """Raise EnvironmentNotReady where a session would be one of Spark Connect."""
    connect: Any = sys.modules.get("pyspark.sql.connect.session")
    if (
        (master or "").startswith(CONNECT)
        or not os.environ.keys().isdisjoint(CONNECT_VARIABLES)
        or (connect is not None and connect.SparkSession.getActiveSession() is not None)
    ):
        raise EnvironmentNotReady(NO_CONNECT)


def require_compatible(spark: SparkSession, session: str, remedy: str) -> None:
    """Raise EnvironmentNotReady unless Spark, PySpark and Delta fit each other.

    `session`: how the error calls it; `remedy`: how it gets Delta's classes.
    """
    refuse_dynamic_allocation(session, dict(spark.sparkContext.getConf().getAll()))
    fitting = jars.delta_set(spark.version)
    here, there = (jars.minor_version(each) for each in (pyspark.__version__, spark.version))
    if here != there:
        raise EnvironmentNotReady(
            f"{session} is Spark {spark.version}, and the Python package pyspark is "
            f"{pyspark.__version__}: install pyspark=={there}.*, or set SPARK_HOME to Spark {here}"
        )
    jar = _delta_jar(spark)
    if jar is None:
        raise EnvironmentNotReady(
            f"{session} has no Delta Lake, which the tables need: {remedy}; the package that fits "
            f"Spark {spark.version} is {delta_coordinate()}"
        )
    made_for = spark_of_delta(jar)
    if made_for is not None and made_for != there:
        raise EnvironmentNotReady(
            f"{session} is Spark {spark.version} with the Delta Lake of Spark {made_for} "
            f"({jar.rpartition('/')[2]}): give it {fitting.coordinate} instead"
        )


def fixed_executors(settings: Mapping[str, str], slots: int) -> dict[str, str]:
    """The settings with which a new session asks for its executors once, and keeps them.

    Spark starts no barrier stage while dynamic allocation is on, which platforms like to preset.
    Where nobody has said how many executors a run gets, it asks YARN or Kubernetes for those that
    `slots` need (0: unknown), a standalone cluster gives all it has. `settings`: Spark's own.
    """
    dynamic = "spark.dynamicAllocation."
    fixed = {f"{dynamic}enabled": "false"}
    is_asked_for = settings.get("spark.master", "").startswith(("yarn", "k8s"))
    if not is_asked_for or "spark.executor.instances" in settings:
        return fixed
    cores = int(settings.get("spark.executor.cores", "1"))
    tasks = max(1, cores // int(settings.get("spark.task.cpus", "1")))
    bounds = [settings.get(f"{dynamic}{key}", "0") for key in ("initialExecutors", "minExecutors")]
    wanted = max(DEFAULT_EXECUTORS, -(-slots // tasks), *map(int, bounds))
    most = settings.get(f"{dynamic}maxExecutors", "infinity")
    if most.isdecimal() and settings.get(f"{dynamic}enabled", "").lower() == "true":
        wanted = min(wanted, int(most))
    return fixed | {"spark.executor.instances": str(wanted)}


def refuse_dynamic_allocation(session: str, settings: Mapping[str, str]) -> None:
    """Raise EnvironmentNotReady where Spark would refuse the agents' barrier stage for it, much
    later and in other words; on one machine the setting means nothing."""
    is_on = settings.get("spark.dynamicAllocation.enabled", "false").lower() == "true"
    if is_on and not settings.get("spark.master", "").startswith("local"):
        raise EnvironmentNotReady(
            f"{session} has dynamic allocation on, with which Spark starts no barrier stage: add "
            "--conf spark.dynamicAllocation.enabled=false and the number of executors, as in "
            "--conf spark.executor.instances=4"
        )


def spark_of_delta(jar: str) -> str | None:
    """The Spark, as major.minor, that a jar of Delta's is for; None where its name does not say."""
    match = _DELTA_JAR.search(jar)
    return match and (match["spark"] or _SPARK_OF_PLAIN_DELTA.get(match["delta"]))


def _delta_jar(spark: SparkSession) -> str | None:
    """Where the session's Delta classes come from; empty if Java does not say, None: nowhere."""
    jvm: Any = spark.sparkContext._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        found = jvm.java.lang.Class.forName(DELTA_EXTENSION, False, loader)
    except Py4JJavaError:
        return None
    source = found.getProtectionDomain().getCodeSource()
    return "" if source is None else str(source.getLocation())


# -- errors ----------------------------------------------------------------------------------------

LONGEST = 300

_TRACEBACK = "Traceback (most recent call last):"
_STACK = re.compile(r"^(\s+at |Caused by: |Driver stacktrace:|\s*\.\.\. \d+ more)", re.MULTILINE)
_LAST_FAILURE = re.compile(r"most recent failure: (?:Lost task \S+ in stage \S+ .*?: )?(?=\S)")
_USER_IN_URI = re.compile(r"(?<=://)[^/\s'\"]*@")
_CLASS_BEFORE = re.compile(r"^(?:[a-z_]\w*\.)+(?=[A-Z]\w*(?:Exception|Error)\b)")


def cause_of(error: BaseException) -> str:
    """One line: the error that a Python worker ended with, else the first cause that Java names."""
    text = _words_of(error)
    if _TRACEBACK in text:
        found = _last_line_of_traceback(text.rpartition(_TRACEBACK)[2])
    elif (failure := _LAST_FAILURE.search(text)) is not None:
        found = _first_line(text[failure.end() :])
    else:
        found = _first_line(text)
    found = _USER_IN_URI.sub("***@", _CLASS_BEFORE.sub("", found))
    return (found or type(error).__name__)[:LONGEST]


def _words_of(error: BaseException) -> str:
    """Of a Java error all of its chain of causes, the innermost first: that is where it began."""
    java = error.java_exception if isinstance(error, Py4JJavaError) else None
    if java is None:
        return str(error) or type(error).__name__
    texts = []
    while java is not None:
        texts.append(str(java.toString()))
        java = java.getCause()
    # Spark copies what happened on an executor into the text of its outermost error.
    told = [text for text in texts if _TRACEBACK in text or _LAST_FAILURE.search(text)]
    return told[0] if told else texts[-1]


def _last_line_of_traceback(text: str) -> str:
    """The first line that is not indented, after the frames: type and message."""
    lines = _before_stack(text).splitlines()
    return next((line.strip() for line in lines if line.strip() and line[0] not in " \t"), "")


def _first_line(text: str) -> str:
    lines = (line.strip() for line in text.splitlines())
    return next((line for line in lines if line), "")


def _before_stack(text: str) -> str:
    found = _STACK.search(text)
    return text[: found.start()] if found else text
