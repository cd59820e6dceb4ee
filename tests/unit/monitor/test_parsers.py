"""Texts as recorded from real systems."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest
from prometheus_client.samples import Sample

from bench_spark.monitor.containers import (
    parse_cpu_stat,
    parse_io_stat,
    parse_memory_stat,
    parse_stats,
)
from bench_spark.monitor.endpoints import Selector, chosen_values, parse_text
from bench_spark.monitor.processes import network_bytes, with_ancestors, with_descendants
from bench_spark.monitor.sources import parse_values


def test_network_bytes_are_added_over_interfaces_without_loopback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs
    lo: 9999999   49152    0    0    0     0          0         0  9999999   49152    0 0 0 0 0 0
  eth0: 1296302    5005    0    0    0     0          0         0   389104    3731    0 0 0 0 0 0
  eth1:       8       1    0    0    0     0          0         0        2       1    0 0 0 0 0 0
"""
    (tmp_path / "7" / "net").mkdir(parents=True)
    (tmp_path / "7" / "net" / "dev").write_text(text)
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    assert network_bytes(7) == {
        "network_received_bytes": 1296310,
        "network_sent_bytes": 389106,
    }


def test_a_tree_has_every_descendant_once() -> None:
    parents = {1: 0, 5: 1, 6: 5, 7: 6}
    assert with_descendants([5, 6, 99], parents) == [5, 6, 7]
    assert with_ancestors(6, parents) == {6, 5, 1}


# -- control groups --------------------------------------------------------------------------------


def test_cpu_of_a_group_is_in_microseconds() -> None:
    text = "usage_usec 2500000\nuser_usec 2000000\nsystem_usec 500000\nnr_periods 0\n"
    assert parse_cpu_stat(text) == {"cpu_user_seconds": 2.0, "cpu_system_seconds": 0.5}


def test_memory_of_a_group_is_without_its_page_cache() -> None:
    text = "anon 1000\nfile 500000\nkernel_stack 16384\nfile_mapped 24\n"
    assert parse_memory_stat(text) == {"rss_bytes": 1024}
    assert parse_memory_stat("file 5\n") == {}


def test_device_bytes_of_a_group_are_added_over_devices() -> None:
    text = (
        "8:0 rbytes=1459200 wbytes=314773504 rios=192 wios=353 dbytes=0 dios=0\n"
        "253:1 rbytes=10 wbytes=20 rios=1 wios=1 dbytes=0 dios=0\n259:0 \n"
    )
    assert parse_io_stat(text) == {
        "device_read_bytes": 1459210,
        "device_written_bytes": 314773524,
    }
    assert parse_io_stat("") == {"device_read_bytes": 0, "device_written_bytes": 0}


# -- Docker ----------------------------------------------------------------------------------------

DOCKER = json.loads("""
{"id": "abc", "read": "2026-01-08T22:57:31.547920715Z", "pids_stats": {"current": 31},
 "networks": {"eth0": {"rx_bytes": 5338, "tx_bytes": 648}, "eth5": {"rx_bytes": 2, "tx_bytes": 3}},
 "memory_stats": {"usage": 6537216, "stats": {"anon": 4000000, "file_mapped": 96, "file": 900000}},
 "blkio_stats": {"io_service_bytes_recursive": [
   {"major": 8, "minor": 0, "op": "read", "value": 100},
   {"major": 8, "minor": 0, "op": "Write", "value": 200},
   {"major": 8, "minor": 16, "op": "write", "value": 11}]},
 "cpu_stats": {"cpu_usage": {"total_usage": 4000000000, "usage_in_kernelmode": 1000000000,
   "usage_in_usermode": 3000000000}, "system_cpu_usage": 1, "online_cpus": 4}}
""")


def test_a_containers_statistics_are_read_under_our_names() -> None:
    assert parse_stats(DOCKER) == {
        "cpu_user_seconds": 3.0,
        "cpu_system_seconds": 1.0,
        "rss_bytes": 4000096,
        "threads": 31,
        "network_received_bytes": 5340,
        "network_sent_bytes": 651,
        "device_read_bytes": 100,
        "device_written_bytes": 211,
    }


def test_what_a_daemon_does_not_tell_is_left_out_and_not_zero() -> None:
    stats = {"memory_stats": {}, "cpu_stats": {"cpu_usage": {"total_usage": 5}}, "blkio_stats": {}}
    assert parse_stats(stats) == {}
    none_yet = {"blkio_stats": {"io_service_bytes_recursive": None}}
    assert parse_stats(none_yet) == {"device_read_bytes": 0, "device_written_bytes": 0}


# -- Prometheus ------------------------------------------------------------------------------------

PROMETHEUS = r"""# TYPE erlang_vm_memory_bytes_total gauge
# HELP erlang_vm_memory_bytes_total The total amount of memory.
erlang_vm_memory_bytes_total{kind="system"} 56264016
erlang_vm_memory_bytes_total{kind="processes"} 19731216
rabbitmq_queue_messages_ready 42
rabbitmq_identity_info{rabbitmq_node="rabbit@h",path="C:\\dir \"x\"}",} 1 1395066363000
go_gc_duration_seconds{quantile="0"} 4.9351e-05
something_weird{a="b"} NaN
node_cpu_seconds_total{cpu="0",mode="user"} 10.5
node_cpu_seconds_total{cpu="1",mode="user"} 1.5
node_cpu_seconds_total{cpu="0",mode="idle"} 100
jvm_buffer_bytes{pool="direct",} +Inf
this is no metric
"""


def test_samples_are_read_with_labels_escapes_and_timestamps() -> None:
    samples = {sample.name: sample for sample in parse_text(PROMETHEUS)}
    assert samples["rabbitmq_queue_messages_ready"] == Sample(
        "rabbitmq_queue_messages_ready", {}, 42.0
    )
    assert samples["rabbitmq_identity_info"].labels == {
        "rabbitmq_node": "rabbit@h",
        "path": 'C:\\dir "x"}',
    }
    assert samples["go_gc_duration_seconds"].value == 4.9351e-05
    assert "this" not in samples


def test_chosen_metrics_are_added_up_under_their_aliases_and_missing_ones_named() -> None:
    selectors = [
        Selector.parse(text)
        for text in (
            'user=node_cpu_seconds_total{mode="user"}',
            "node_cpu_seconds_total",
            "memory=erlang_vm_memory_bytes_total",
            "gone=rabbitmq_nothing",
            "something_weird",
            "jvm_buffer_bytes",
        )
    ]
    values, missing = chosen_values(PROMETHEUS, selectors)
    assert values == {"user": 12.0, "node_cpu_seconds_total": 112.0, "memory": 75995232.0}
    assert missing == ("gone", "something_weird", "jvm_buffer_bytes")


# -- commands --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "values", "unreadable"),
    [
        ("a=1\nb = 2.5e3 \n", {"a": 1.0, "b": 2500.0}, ()),
        ("scheduler_1=0.25\nok\n\n{a,1}\n", {"scheduler_1": 0.25}, ()),
        ("a=unknown\nb=nan\nc=inf\n", {}, ("a", "b", "c")),
        ("a=1 2\n=3\n9a=4\n", {}, ()),
        ("a=1\na=2\n", {"a": 2.0}, ()),
    ],
)
def test_lines_of_name_and_value_are_kept(
    text: str, values: dict[str, float], unreadable: tuple[str, ...]
) -> None:
    assert parse_values(text) == (values, unreadable)
