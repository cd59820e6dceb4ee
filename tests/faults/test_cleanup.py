"""`bench-spark cleanup` after runs that could not delete what they had made."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pika
import psutil
import pytest
import yaml
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient
from contract import consuming, eventually, open_transport
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from fault_records import Seen
from older_stores import unpacked

from bench_spark.brokers import BrokerStatus
from bench_spark.cli import main
from bench_spark.config.broker import Broker, resolve_credentials
from bench_spark.config.models import Scenario
from bench_spark.plan import make_plan
from bench_spark.results.document import run_row
from bench_spark.store.delta import Store
from bench_spark.transports.base import Destination, TransportContext
from bench_spark.transports.leftovers import (
    KnownRun,
    Leftover,
    Wanted,
    delete_left_by,
    run_of_whole,
    sparing_kept,
    with_their_runs,
)
from bench_spark.transports.mqtt.transport import MqttControl, MqttTransport
from bench_spark.transports.registry import make_transport

Clean = Callable[..., dict[str, str]]


def file_of(directory: Path, broker: Broker) -> str:
    path = directory / f"{broker.name}.yaml"
    path.write_text(yaml.safe_dump(broker.model_dump(exclude_none=True, exclude_defaults=True)))
    return str(path)


@pytest.fixture
def clean(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Clean:
    """Calls the command; the state of each thing that it names."""

    def call(broker: Broker, *arguments: str) -> dict[str, str]:
        capfd.readouterr()
        options = ["--broker", file_of(tmp_path, broker), "--store", str(tmp_path / "store")]
        assert main(["cleanup", *options, "--format", "json", *arguments]) == 0
        rows = json.loads(capfd.readouterr().out)
        return {f"{row['kind']} {row['name']}": row["state"] for row in rows}

    return call


def unique(word: str) -> str:
    return f"{word}-{time.time_ns()}"


@contextmanager
def channel_to(broker: Broker) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.URLParameters(broker.uri))
    try:
        yield connection.channel()
    finally:
        connection.close()


def has_queue(broker: Broker, name: str) -> bool:
    with channel_to(broker) as channel:
        try:
            channel.queue_declare(name, passive=True)
        except pika.exceptions.ChannelClosedByBroker:
            return False
        return True


def remember_run(directory: Path, broker: Broker, run_id: str, **scenario: Any) -> None:
    """The row that the store has of a run whose driver was killed."""
    from datetime import UTC, datetime

    plan = make_plan(Scenario.model_validate(scenario), run_id)
    row = run_row(plan, broker.masked(), datetime.now(UTC))
    Store(directory / "store").open().replace_run(row)


@pytest.mark.fault(case=13)
def test_orphans_in_rabbitmq_are_shown_then_deleted_and_others_stay(
    rabbitmq_broker: Broker, clean: Clean
) -> None:
    dead, alive, foreign = unique("dead"), unique("alive"), unique("mine")
    amqp = {"policy": {"definition": {"max-length": 1000}}}
    keys: dict[str, Any] = {"topology": "fan-out", "consumers": 2, "amqp": amqp}
    open_transport(rabbitmq_broker, dead, **keys).declare([Destination(0)])
    living = open_transport(rabbitmq_broker, alive)
    made = living.declare([Destination(0)])
    with channel_to(rabbitmq_broker) as channel:
        channel.queue_declare(foreign)
    orphans = {f"exchange bench-{dead}", f"policy bench-{dead}"}
    orphans |= {f"queue bench-{dead}-{number}" for number in range(2)}
    with consuming(living, made):
        shown = clean(rabbitmq_broker)
        assert {name for name in shown if dead in name} == orphans
        assert {shown[name] for name in orphans} == {"orphaned"}
        assert shown[f"queue bench-{alive}-0"] == "used by 1 consumer"
        assert not any(foreign in name for name in shown)
        assert has_queue(rabbitmq_broker, f"bench-{dead}-0"), "a dry run deletes nothing"

        clean(rabbitmq_broker, "--delete", "--run-prefix", dead)
        left = clean(rabbitmq_broker)
        assert not any(dead in name for name in left)
        assert has_queue(rabbitmq_broker, f"bench-{alive}-0")
        assert has_queue(rabbitmq_broker, foreign)
    living.delete(made)
    with channel_to(rabbitmq_broker) as channel:
        channel.queue_delete(foreign)


@pytest.mark.fault(case=13)
@pytest.mark.faults_slow
def test_a_user_with_the_documented_rights_cleans_up(rabbitmq: BrokerStatus, clean: Clean) -> None:
    def control(*arguments: str) -> None:
        subprocess.run(
            [*rabbitmq.broker.rabbitmqctl, "-q", *arguments], check=True, capture_output=True
        )

    control("add_user", "sweeper", "sweeper")
    control("set_user_tags", "sweeper", "management")
    rights = ("^bench-.*", r"^(bench-.*|amq\.default)$", "^bench-.*")
    control("set_permissions", "-p", "/", "sweeper", *rights)
    dead = unique("dead")
    open_transport(rabbitmq.broker, dead).declare([Destination(0)])
    address = {
        "uri": f"amqp://sweeper:sweeper@127.0.0.1:{rabbitmq.port}/",
        "management_uri": f"http://sweeper:sweeper@127.0.0.1:{rabbitmq.ports['management']}",
    }
    sweeper = rabbitmq.broker.model_copy(update=address)
    assert clean(sweeper, "--run-prefix", dead, "--delete") == {f"queue bench-{dead}-0": "orphaned"}
    assert not has_queue(rabbitmq.broker, f"bench-{dead}-0")


@pytest.mark.fault(case=13)
@pytest.mark.faults_slow
def test_without_a_management_api_the_store_tells_which_queues_to_look_for(
    qpid_broker: Broker, clean: Clean, tmp_path: Path
) -> None:
    dead, unknown = unique("dead"), unique("unknown")
    keys = {"destinations": 2, "producers": 2, "consumers": 2}
    for run_id in (dead, unknown):
        open_transport(qpid_broker, run_id, **keys).declare([Destination(0), Destination(1)])
    remember_run(tmp_path, qpid_broker, dead, **keys)
    names = {f"queue bench-{dead}-{number}" for number in range(2)}
    assert clean(qpid_broker) == dict.fromkeys(names, "orphaned")
    clean(qpid_broker, "--delete")
    assert clean(qpid_broker) == {}
    assert has_queue(qpid_broker, f"bench-{unknown}-0")
    with channel_to(qpid_broker) as channel:
        for number in range(2):
            channel.queue_delete(f"bench-{unknown}-{number}")


@pytest.mark.fault(case=13)
@pytest.mark.faults_slow
def test_orphans_in_kafka_are_shown_then_deleted_and_others_stay(
    kafka_broker: Broker, clean: Clean
) -> None:
    dead, alive = unique("dead"), unique("alive")
    transport = open_transport(kafka_broker, dead)
    made = transport.declare([Destination(0)])
    with consuming(transport, made):
        pass  # leaves an empty group
    living = open_transport(kafka_broker, alive)
    in_use = living.declare([Destination(0)])
    # A group of that name which the run did not make for itself, but which others use.
    settings = {"bootstrap.servers": kafka_broker.bootstrap_servers, "group.id": f"bench-{alive}"}
    reader = Consumer(settings)
    reader.subscribe([f"bench-{alive}-0"])
    try:
        assert eventually(lambda: reader.poll(0.2) or reader.assignment())
        shown = clean(kafka_broker)
        assert shown[f"topic bench-{dead}-0"] == "orphaned"
        assert shown[f"group bench-{alive}"] == "used by its members"
        assert shown[f"topic bench-{alive}-0"] == f"used by its run: group bench-{alive}"
        clean(kafka_broker, "--delete", "--run-prefix", dead)
        admin = AdminClient({"bootstrap.servers": kafka_broker.bootstrap_servers})
        assert eventually(lambda: f"bench-{dead}-0" not in admin.list_topics(timeout=60).topics)
        assert f"bench-{alive}-0" in admin.list_topics(timeout=60).topics
        groups = {one.group_id for one in admin.list_consumer_groups().result().valid}
        assert f"bench-{dead}" not in groups
    finally:
        reader.close()
    living.delete(in_use)


@pytest.mark.fault(case=13)
def test_what_mqtt_retains_and_remembers_for_a_dead_run_is_deleted(
    mosquitto_broker: Broker, clean: Clean, tmp_path: Path
) -> None:
    dead = unique("dead")
    keys = {"mqtt": {"retain": True, "qos": 1, "clean_session": False}}
    context = TransportContext(
        dead, Scenario.model_validate(keys), mosquitto_broker, resolve_credentials(mosquitto_broker)
    )
    transport = make_transport(context)
    assert isinstance(transport, MqttTransport)
    leave_behind(transport, f"bench/{dead}/0")
    remember_run(tmp_path, mosquitto_broker, dead, **keys)
    retained, session = f"retained bench/{dead}/0", f"session bench-{dead}-consumer-0"
    assert clean(mosquitto_broker) == {retained: "orphaned"}
    wanted = ("--run-prefix", dead)
    assert clean(mosquitto_broker, *wanted) == {retained: "orphaned", session: "orphaned"}
    clean(mosquitto_broker, *wanted, "--delete")
    assert clean(mosquitto_broker) == {}


def leave_behind(transport: MqttTransport, topic: str) -> None:
    from bench_spark.transports.mqtt.producers import PublishPackets

    with MqttControl(transport._access, transport._login("test", 0)) as control:
        packets = PublishPackets("3.1.1", topic, qos=0, retain=True)
        control.publish(packets.message(b"left behind"), "leaving a message")
    with MqttControl(transport._access, transport._consumer_login(0)) as control:
        control.subscribe(topic, qos=1)


def test_a_run_is_known_by_its_queues_where_its_name_ends_in_a_number() -> None:
    assert run_of_whole("bench-night-7", {"night-7"}) == "night-7"
    assert run_of_whole("bench-night-7", {"night"}) == "night"
    assert run_of_whole("bench-night-7", set()) == "night-7"
    assert run_of_whole("bench-", set()) is None
    assert run_of_whole("mine", {"mine"}) is None


def test_what_belongs_to_a_run_in_use_is_in_use() -> None:
    found = with_their_runs(
        [
            Leftover("queue", "bench-a-0", "a", used_by="1 consumer"),
            Leftover("exchange", "bench-a", "a"),
            Leftover("queue", "bench-b-0", "b"),
        ]
    )
    assert [one.used_by for one in found] == ["1 consumer", "its run: queue bench-a-0", ""]


def test_what_only_a_dead_run_uses_of_its_own_is_deleted_after_it() -> None:
    class Group:
        """With members that were killed, and that its broker still believes in."""

        def __init__(self) -> None:
            self.left = {
                "bench-a": Leftover("group", "bench-a", "a", used_by="its members"),
                "bench-a-0": Leftover("topic", "bench-a-0", "a"),
            }

        def find(self, wanted: Wanted) -> list[Leftover]:
            return with_their_runs(self.left.values())

        def delete(self, leftovers: Sequence[Leftover]) -> None:
            for one in leftovers:
                del self.left[one.name]

    group = Group()
    assert delete_left_by(KnownRun("a", Scenario()), [group], 0.0) == [
        "group bench-a is used by its members"
    ]
    assert list(group.left) == ["bench-a"]


def test_what_a_run_was_told_to_keep_is_not_orphaned() -> None:
    keeping = KnownRun("a", Scenario(keep_destinations=True))
    found = sparing_kept(
        [Leftover("queue", "bench-a-0", "a"), Leftover("queue", "bench-b-0", "b")],
        [keeping, KnownRun("b", Scenario())],
    )
    assert [bool(one.used_by) for one in found] == [True, False]


@pytest.mark.parametrize("prefix", ["../x", "a b", "*", "'", "x" * 10_000])
def test_what_is_no_beginning_of_a_run_id_is_refused(
    prefix: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["cleanup", "--broker", "rabbitmq", "--run-prefix", prefix]) == 2
    assert "--run-prefix" in capfd.readouterr().err


def has_events(store: Path) -> bool:
    try:
        return bool(DeltaTable(str(store / "events")).to_pandas(columns=["sent"]).sent.sum() > 0)
    except TableNotFoundError:
        return False


def session_members(session: int) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found


def test_what_a_run_of_an_older_version_left_is_found_and_deleted(
    kafka_broker: Broker, clean: Clean, tmp_path: Path
) -> None:
    store = Store(unpacked("first_tree", tmp_path / "store")).open()
    [row] = store.read("runs", run_id="kafka-killed").to_pylist(maps_as_pydicts="strict")
    store.replace_run(row | {"broker_json": json.dumps(kafka_broker.masked())})
    open_transport(kafka_broker, "kafka-killed").declare([Destination(0)])
    assert "orphaned" in clean(kafka_broker, "--run-prefix", "kafka-killed").values()
    clean(kafka_broker, "--delete", "--run-prefix", "kafka-killed")
    assert not clean(kafka_broker, "--run-prefix", "kafka-killed")


@pytest.mark.fault(case=13)
@pytest.mark.faults_slow
def test_a_killed_driver_leaves_readable_tables_and_what_cleanup_finds(
    rabbitmq_broker: Broker, clean: Clean, tmp_path: Path, seen: Seen
) -> None:
    """The driver, Spark's JVM and the agents' processes are killed at once: a machine that died."""
    run_id = unique("killed")
    program = subprocess.Popen(
        [
            *(sys.executable, "-m", "bench_spark.cli", "run", "steady", "--run-id", run_id),
            *("--broker", file_of(tmp_path, rabbitmq_broker), "--store", str(tmp_path / "store")),
            *("--set", "load.rate_per_second=500", "--set", "phases.warmup_seconds=0"),
            *("--set", "phases.measure_seconds=300", "--set", "amqp.queue.durable=true"),
        ],
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 90
    while not has_events(tmp_path / "store"):
        assert program.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.2)
    for process in session_members(program.pid):
        process.send_signal(signal.SIGKILL)
    program.wait(20)
    events = DeltaTable(str(tmp_path / "store" / "events")).to_pandas()
    assert events[events.run_id == run_id].sent.sum() > 0
    [status] = DeltaTable(str(tmp_path / "store" / "runs")).to_pandas().status
    assert status == "running"
    queue = f"bench-{run_id}-0"

    def is_orphaned() -> bool:
        return clean(rabbitmq_broker).get(f"queue {queue}") == "orphaned"

    assert eventually(is_orphaned)
    clean(rabbitmq_broker, "--delete", "--run-prefix", run_id)
    assert not has_queue(rabbitmq_broker, queue)
    seen(f"{len(events)} event rows readable; the queue was found and deleted")
