"""Files of messages: what an agent writes is what the table has, each row once."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from object_store import BUCKET, SECRET, s3_server
from pyarrow.fs import FileSelector

from bench_spark.agent.timeline import Timeline
from bench_spark.agent.tracer import TRACE_DTYPE, MessageEvent, MessageFile, Rows, TraceSetup
from bench_spark.driver.committer import Committer
from bench_spark.errors import StoreError, StoreNotReady
from bench_spark.store.arrow import MESSAGES
from bench_spark.store.delta import Store
from bench_spark.store.s3 import for_executors
from bench_spark.trace.files import MessageDirectory, ParquetMessages, message_table

SETUP = TraceSetup(
    run_id="run",
    run_tag=7,
    agent=2,
    attempt=0,
    every=1,
    producers=2,
    timeline=Timeline(0, 1_000, 10**12, 0),
    destinations_by_producer=("orders", "bills"),
    subscriptions=(4, 5),
    destinations_by_subscription=("bills", "orders"),
)


def rows(*kinds: MessageEvent) -> Rows:
    made = np.zeros(len(kinds), TRACE_DTYPE)
    made["kind"] = kinds
    made["is_ours"] = True
    made["place"] = 1
    made["size"] = 100
    made["insert_ns"] = 30
    made["at_ns"] = np.arange(len(kinds)) + 5_000
    made["envelope"]["sequence"] = np.arange(len(kinds))
    made["envelope"]["producer"] = 1
    made["envelope"]["sent_ns"] = 2_000
    made["envelope"]["intended_ns"] = 900
    return made


@pytest.fixture
def writer(store: Store) -> ParquetMessages:
    return MessageDirectory(store.table_uri("messages"), is_local=True)(SETUP)


def test_a_row_says_what_its_agent_knows_and_nothing_else() -> None:
    made = rows(MessageEvent.SENT, MessageEvent.RECEIVED, MessageEvent.RECEIVED, MessageEvent.SENT)
    made["envelope"]["sent_ns"][1] = made["envelope"]["intended_ns"][1] = 0
    made["is_ours"][2] = False
    made["content_hash"][3], made["has_hash"][3] = -5, True
    sent, untimed, stranger, hashed = message_table(SETUP, 10, [made]).to_pylist()
    assert sent == {
        "run_id": "run",
        "agent": 2,
        "attempt": 0,
        "number": 10,
        "kind": "sent",
        "phase": "warmup",
        "producer": 1,
        "sequence": 0,
        "subscription": None,
        "destination": "bills",
        "intended_ns": 900,
        "sent_ns": 2_000,
        "at_ns": 5_000,
        "insert_ns": 30,
        "size": 100,
        "content_hash": None,
    }
    assert (untimed["sent_ns"], untimed["intended_ns"], untimed["insert_ns"]) == (None,) * 3
    assert (untimed["subscription"], untimed["destination"]) == (5, "orders")
    assert (untimed["producer"], untimed["sequence"], untimed["phase"]) == (1, 1, "measure")
    assert (stranger["producer"], stranger["sequence"], stranger["sent_ns"]) == (None,) * 3
    assert hashed["content_hash"] == -5


def test_files_become_a_part_of_the_table_in_place(store: Store, writer: ParquetMessages) -> None:
    files = [
        writer.write(0, 0, [rows(MessageEvent.SENT), rows(MessageEvent.CONFIRMED)]),
        writer.write(1, 2, [rows(MessageEvent.RECEIVED)]),
    ]
    committer = Committer(store, "run", live=False)
    committer.add_files(2, 0, files[:1])
    committer.add_files(2, 0, files)  # the first came over the link already
    assert committer.unwritten_files == len(files)
    committer.close()
    found = store.read("messages", run_id="run")
    assert found.schema.names == MESSAGES.names
    assert sorted(found["kind"].to_pylist()) == ["confirmed", "received", "sent"]
    assert sorted(found["number"].to_pylist()) == [0, 1, 2]
    assert len(store.read("messages", run_id="other")) == 0


def test_compacting_keeps_every_row(store: Store, writer: ParquetMessages) -> None:
    committer = Committer(store, "run", live=False)
    for number in range(3):
        committer.add_files(2, 0, [writer.write(number, number, [rows(MessageEvent.SENT)])])
        committer._commit_waiting()
    store.compact("messages")
    assert sorted(store.read("messages")["number"].to_pylist()) == [0, 1, 2]


def test_a_file_that_nobody_told_of_is_no_part_of_the_table_and_is_removed(
    store: Store, writer: ParquetMessages
) -> None:
    told = writer.write(0, 0, [rows(MessageEvent.SENT)])
    orphan = writer.write(1, 1, [rows(MessageEvent.SENT)])
    committer = Committer(store, "run", live=False)
    committer.add_files(2, 0, [told])
    committer.close()
    assert len(store.read("messages")) == 1
    assert store.remove_unnamed("messages", "run", committer.message_paths) == 1
    directory = Path(store.table_uri("messages"))
    assert (directory / told.path).exists()
    assert not (directory / orphan.path).exists()
    assert store.remove_unnamed("messages", "never-ran", ()) == 0


def test_a_commit_that_is_tried_again_adds_nothing_twice(
    store: Store, writer: ParquetMessages, monkeypatch: pytest.MonkeyPatch
) -> None:
    committer = Committer(store, "run", live=False)
    committer.add_files(2, 0, [writer.write(0, 0, [rows(MessageEvent.SENT)])])
    add_files = store.add_files

    def fail_afterwards(*given: object, **named: object) -> bool:
        add_files(*given, **named)  # type: ignore[arg-type]
        monkeypatch.setattr(store, "add_files", add_files)
        raise StoreError("the answer was lost")

    monkeypatch.setattr(store, "add_files", fail_afterwards)
    committer._commit_waiting()
    assert committer.error is not None
    committer.close()
    assert len(store.read("messages")) == 1


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    writer = MessageDirectory(str(blocked), is_local=True)(SETUP)
    with pytest.raises(StoreError, match=r"trace: agent 2 cannot write run/2-0-000000.parquet"):
        writer.write(0, 0, [rows(MessageEvent.SENT)])


def test_a_directory_that_this_machine_cannot_write_is_refused_with_nothing_left(
    tmp_path: Path,
) -> None:
    MessageDirectory(str(tmp_path), is_local=True).prove_writable()
    assert not list(tmp_path.iterdir())
    with pytest.raises(
        StoreNotReady, match=r"cannot write rows of messages into .*: .*No such file"
    ):
        MessageDirectory(str(tmp_path / "absent"), is_local=True).prove_writable()


def test_a_store_elsewhere_without_deltalake_is_refused_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As from `make archive FOR=executors`."""
    monkeypatch.setitem(sys.modules, "deltalake.fs", None)
    with pytest.raises(StoreNotReady, match="install it there, ship `make archive`") as no:
        MessageDirectory("hdfs://name-node/bench/messages", is_local=False).prove_writable()
    assert "\n" not in str(no.value)


def test_a_store_that_does_not_answer_is_refused_in_one_sentence() -> None:
    with pytest.raises(StoreNotReady, match="Connection refused") as refused:
        MessageDirectory("hdfs://127.0.0.1:9/bench/messages", is_local=False).prove_writable()
    assert "\n" not in str(refused.value)


def test_files_of_messages_are_written_with_the_drivers_place_and_credentials(
    tmp_path: Path,
) -> None:
    """The environment of this process has none."""
    with s3_server(tmp_path) as environment:
        uri = f"s3://{BUCKET}/store"
        options = for_executors(uri, {**environment, "AWS_PROFILE": "mine"})
        assert options == environment
        store = Store(uri, environment).open()
        directory = MessageDirectory(store.table_uri("messages"), False, options)
        directory.prove_writable()
        file = directory(SETUP).write(0, 0, [rows(MessageEvent.SENT, MessageEvent.RECEIVED)])
        committer = Committer(store, "run", live=False)
        committer.add_files(2, 0, [file])
        committer.close()
        assert committer.error is None
        assert len(store.read("messages")) == 2
        found = directory.filesystem().get_file_info(FileSelector("", recursive=True))
        assert [each.path for each in found if "writable" in each.path] == []
        nobody = {name: text for name, text in options.items() if "KEY" not in name}
        with pytest.raises(StoreNotReady, match="no credentials were found; set AWS_ACCESS_KEY_ID"):
            MessageDirectory(store.table_uri("messages"), False, nobody).prove_writable()
    assert SECRET not in repr(directory)


def test_a_file_travels_by_name() -> None:
    file = MessageFile(3, "run/2-0-000003.parquet", 1_000, 20)
    assert MessageFile(**file.as_dict()) == file
