"""Samplers on this machine: real processes, real sockets, and directories made up like /proc."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from test_parsers import DOCKER

from bench_spark.config.broker import Broker, ResourceSource
from bench_spark.monitor.containers import ROOT, CgroupSampler, DockerSampler
from bench_spark.monitor.processes import ProcessSampler, matching, one_process
from bench_spark.monitor.reading import COUNTERS, GAUGES, Reading, SourceUnreadable, usage_between
from bench_spark.monitor.remote import CalledSampler, RemoteSampler, SamplerServer, call_and_answer
from bench_spark.monitor.sources import CommandSampler, make_sampler

TOKEN = "a token of decent length"

BUSY = """
import subprocess, sys, time
held = bytearray(30_000_000)
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=-1)
print("ready", flush=True)
until = time.process_time() + 0.5
while time.process_time() < until:
    pass
with open(sys.argv[1], "wb") as file:
    file.write(bytes(5_000_000))
print("done", flush=True)
sys.stdin.read()
child.stdin.close()
child.wait()
"""


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process with a child that uses half a second of CPU and writes 5 MB."""
    with subprocess.Popen(
        [sys.executable, "-c", BUSY, str(tmp_path / "written-by-busy-child")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        assert process.stdin is not None
        process.stdin.close()


def wait_until_done(busy: subprocess.Popen[str]) -> None:
    assert busy.stdout is not None
    assert busy.stdout.readline() == "done\n"


def test_a_tree_of_processes_is_summed_as_psutil_sees_it(busy: subprocess.Popen[str]) -> None:
    sampler = ProcessSampler(one_process(busy.pid))
    before = sampler.read()
    wait_until_done(busy)
    after = sampler.read()
    seen = [psutil.Process(busy.pid), *psutil.Process(busy.pid).children()]
    assert after.gauges["processes"] == len(seen) == 2
    cpu = sum(process.cpu_times().user + process.cpu_times().system for process in seen)
    assert after.counters["cpu_user_seconds"] + after.counters["cpu_system_seconds"] == (
        pytest.approx(cpu, abs=0.1)
    )
    rss = sum(process.memory_info().rss for process in seen)
    assert after.gauges["rss_bytes"] == pytest.approx(rss, rel=0.05)
    assert after.gauges["rss_bytes"] > 30_000_000
    assert after.gauges["threads"] == sum(process.num_threads() for process in seen)
    assert after.gauges["open_files"] == sum(process.num_fds() for process in seen)
    usage = usage_between(before, after)
    assert 5_000_000 <= usage["written_bytes"] < 6_000_000
    used = usage["cpu_user_share_of_core"] + usage["cpu_system_share_of_core"]
    assert used * usage["interval_seconds"] == pytest.approx(0.5, abs=0.25)
    assert usage["cpu_user_share_of_machine"] == pytest.approx(
        usage["cpu_user_share_of_core"] / (os.cpu_count() or 1)
    )


def test_cpu_and_disk_figures_are_those_of_proc_read_by_hand(busy: subprocess.Popen[str]) -> None:
    """The second reader: nothing of the sampler's, and no psutil."""

    def by_hand() -> tuple[float, int, int]:
        fields = Path(f"/proc/{busy.pid}/stat").read_text().rpartition(")")[2].split()
        io = dict(
            line.split(": ") for line in Path(f"/proc/{busy.pid}/io").read_text().splitlines()
        )
        ticks = sum(map(int, fields[11:15]))
        return ticks / os.sysconf("SC_CLK_TCK"), int(io["wchar"]), int(io["write_bytes"])

    sampler = ProcessSampler(one_process(busy.pid))
    wait_until_done(busy)
    before = by_hand()
    counters = sampler.read().counters
    after = by_hand()
    assert after[1] >= 5_000_000, "the process has written so much"
    # The child of the process waits from its start on: it adds what its own start took.
    cpu_seconds = counters["cpu_user_seconds"] + counters["cpu_system_seconds"]
    assert before[0] <= cpu_seconds <= after[0] + 5
    child = psutil.Process(busy.pid).children()[0].io_counters()
    assert before[1] <= counters["written_bytes"] - child.write_chars <= after[1]
    assert before[2] <= counters["device_written_bytes"] - child.write_bytes <= after[2]


def test_a_pattern_finds_processes_by_their_command_line_but_not_ourselves(
    busy: subprocess.Popen[str],
) -> None:
    """The busy process is a child of this one, so another stands for the sampler here."""
    sampler = ProcessSampler(matching("written-by-busy-child", own_pid=1 << 22))
    assert sampler.read().gauges["processes"] == 2
    with pytest.raises(SourceUnreadable, match="no process matches"):
        ProcessSampler(matching("written-by-busy-child")).read()


def test_a_process_that_is_not_there_is_unreadable() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    with pytest.raises(SourceUnreadable, match=f"there is no process {process.pid}"):
        ProcessSampler(one_process(process.pid)).read()


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory that stands for /proc."""
    directory = tmp_path / "proc"
    directory.mkdir()
    (directory / "stat").write_text("btime 1700000000\n")
    psutil.process_iter.cache_clear()  # type: ignore[attr-defined]
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(directory))
    yield directory
    psutil.process_iter.cache_clear()  # type: ignore[attr-defined]


def made_up_process(proc: Path, pid: int, birth: int = 5) -> Path:
    directory = proc / str(pid)
    (directory / "net").mkdir(parents=True)
    zeros = " ".join(["0"] * 20)
    (directory / "stat").write_text(
        f"{pid} (broker) S 1 1 1 0 -1 0 0 0 0 0 100 50 0 0 20 0 1 0 {birth} {zeros}"
    )
    (directory / "status").write_text("Name:\tbroker\nThreads:\t3\n")
    (directory / "statm").write_text("900 10 0 0 0 0 0\n")
    return directory


def test_what_may_not_be_read_is_null_and_named(proc: Path) -> None:
    """A directory where a file is expected fails as a file without the right does: for root too."""
    directory = made_up_process(proc, 77)
    (directory / "io").mkdir()
    (directory / "fd").write_text("")
    reading = ProcessSampler(one_process(77)).read()
    assert reading.gauges == {
        "processes": 1,
        "threads": 3,
        "rss_bytes": 10 * os.sysconf("SC_PAGE_SIZE"),
    }
    assert set(reading.counters) == {"cpu_user_seconds", "cpu_system_seconds"}
    assert set(reading.unreadable) == {
        *("read_bytes", "written_bytes", "device_read_bytes", "device_written_bytes"),
        *("network_received_bytes", "network_sent_bytes", "open_files"),
    }


def test_what_this_kernel_does_not_have_is_named_too(proc: Path) -> None:
    (made_up_process(proc, 77) / "fd").mkdir()
    reading = ProcessSampler(one_process(77)).read()
    assert reading.gauges["open_files"] == 0
    assert {"read_bytes", "device_written_bytes"} <= set(reading.unreadable)


def test_a_number_that_was_handed_to_another_process_is_not_the_broker(proc: Path) -> None:
    directory = made_up_process(proc, 77, birth=5)
    sampler = ProcessSampler(one_process(77))
    sampler.read()
    (directory / "stat").write_text((directory / "stat").read_text().replace(" 5 0", " 6 0"))
    with pytest.raises(SourceUnreadable, match="belongs to another one"):
        sampler.read()


# -- control groups --------------------------------------------------------------------------------


def test_a_control_group_is_read_with_the_groups_inside_it(tmp_path: Path, proc: Path) -> None:
    root = tmp_path / "cgroup"
    group = root / "system.slice" / "broker.service"
    (group / "inner").mkdir(parents=True)
    (group / "cpu.stat").write_text("user_usec 2000000\nsystem_usec 500000\n")
    (group / "memory.stat").write_text("anon 1000\nfile_mapped 24\n")
    for directory, pids in ((group, "77\n"), (group / "inner", "78\n79\n")):
        (directory / "cgroup.procs").write_text(pids)
        (directory / "cgroup.threads").write_text(pids)
    for pid in (77, 78, 79):
        (made_up_process(proc, pid) / "fd").mkdir()
        (proc / str(pid) / "fd" / "0").touch()
    for path in ("system.slice/broker.service", "/system.slice/broker.service", str(group)):
        reading = CgroupSampler(path, root).read()
        assert reading.counters == {"cpu_user_seconds": 2.0, "cpu_system_seconds": 0.5}
        assert reading.gauges == {
            "rss_bytes": 1024,
            "threads": 3,
            "processes": 3,
            "open_files": 3,
        }
        told = {*reading.counters, *reading.gauges}
        assert set(reading.unreadable) == {*COUNTERS, *GAUGES} - told


def test_a_path_that_is_no_control_group_is_unreadable(tmp_path: Path) -> None:
    with pytest.raises(SourceUnreadable, match="is no control group"):
        CgroupSampler("nothing", tmp_path).read()


def test_a_real_control_group_of_version_2_is_read_where_there_is_one() -> None:
    found = [path for path in ("", "unified") if (ROOT / path / "cgroup.procs").is_file()]
    if not found or not (ROOT / found[0] / "cpu.stat").is_file():
        pytest.skip("this machine has no control groups of version 2")
    reading = CgroupSampler(str(ROOT / found[0])).read()
    assert reading.counters["cpu_user_seconds"] > 0
    assert reading.gauges["processes"] >= 1


# -- Docker's socket -------------------------------------------------------------------------------


@pytest.fixture
def docker_socket(tmp_path: Path) -> Iterator[tuple[str, list[str]]]:
    """Answers one request per connection, as the daemon would."""
    path, asked = str(tmp_path / "docker.sock"), list[str]()
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()

    def answer() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                asked.append(connection.recv(65536).decode().splitlines()[0])
                is_known = "/broker/" in asked[-1]
                status = "200 OK" if is_known else "404 Not Found"
                body = json.dumps(DOCKER if is_known else {"message": "No such container"})
                connection.sendall(
                    f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
                )

    thread = threading.Thread(target=answer)
    thread.start()
    yield path, asked
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join()


def test_a_container_is_asked_for_at_the_socket(docker_socket: tuple[str, list[str]]) -> None:
    path, asked = docker_socket
    reading = DockerSampler("broker", path, 5.0).read()
    assert asked == ["GET /containers/broker/stats?stream=false&one-shot=true HTTP/1.1"]
    assert (reading.cores, reading.identity) == (4, "abc")
    assert reading.counters["cpu_user_seconds"] == 3.0
    assert set(reading.unreadable) == {"read_bytes", "written_bytes", "processes", "open_files"}


def test_a_container_or_a_daemon_that_is_not_there_says_so(
    docker_socket: tuple[str, list[str]], tmp_path: Path
) -> None:
    with pytest.raises(SourceUnreadable, match="404 for container other"):
        DockerSampler("other", docker_socket[0], 5.0).read()
    with pytest.raises(SourceUnreadable, match="No such file"):
        DockerSampler("broker", str(tmp_path / "none"), 5.0).read()


# -- commands --------------------------------------------------------------------------------------


def python(code: str, timeout_seconds: float = 10.0) -> CommandSampler:
    return CommandSampler([sys.executable, "-c", code], timeout_seconds)


def test_a_command_is_run_and_its_lines_are_kept() -> None:
    reading = python("print('hello'); print('a=1'); print('b=x')").read()
    assert reading.values == {"a": 1.0}
    assert reading.unreadable == ("b",)


def test_rabbitmqctl_is_the_one_that_the_broker_file_names() -> None:
    own = [sys.executable, "-c", "import sys; print('told=' + sys.argv[1])"]
    broker = Broker(kind="amqp", uri="amqp://127.0.0.1/", rabbitmqctl=own)
    sampler = make_sampler(ResourceSource(command=["rabbitmqctl", "7"]), broker)
    assert sampler.read().values == {"told": 7.0}


@pytest.mark.parametrize(
    ("sampler", "problem"),
    [
        (CommandSampler(["/no/such/program", "--password", "hunter2"], 5), "No such file"),
        (python("print('a=1'); raise SystemExit(3)"), "ended with exit code 3"),
        (python("print('nothing')"), "printed no name=value line"),
        (
            python("import time; print('a=1', flush=True); time.sleep(60)", 0.3),
            "did not end within",
        ),
    ],
)
def test_a_command_that_fails_or_hangs_says_so(sampler: CommandSampler, problem: str) -> None:
    began = time.monotonic()
    with pytest.raises(SourceUnreadable, match=problem) as refused:
        sampler.read()
    assert "hunter2" not in str(refused.value)
    assert time.monotonic() - began < 30


# -- samplers elsewhere ----------------------------------------------------------------------------


class Counting:
    """A sampler that numbers its readings, and fails when told to."""

    def __init__(self) -> None:
        self.number = 0
        self.problem: str | None = None

    def read(self) -> Reading:
        if self.problem:
            raise SourceUnreadable(self.problem)
        self.number += 1
        return Reading(self.number, "there", 8, values={"number": self.number})

    def close(self) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[SamplerServer, Counting, list[str]]]:
    sampler, said = Counting(), list[str]()
    server = SamplerServer(("127.0.0.1", 0), TOKEN, sampler, said.append)
    thread = threading.Thread(target=server.serve)
    thread.start()
    yield server, sampler, said
    server.close()
    thread.join()


def test_a_remote_sampler_is_asked_over_one_connection(
    server: tuple[SamplerServer, Counting, list[str]],
) -> None:
    remote = RemoteSampler(("127.0.0.1", server[0].port), TOKEN, 5.0)
    assert [remote.read().values["number"] for _ in range(3)] == [1, 2, 3]
    assert remote.read().host == "there"
    assert len(server[2]) == 1
    server[1].problem = "there is no process 5"
    with pytest.raises(SourceUnreadable, match="there is no process 5"):
        remote.read()
    remote.close()


def test_who_does_not_know_the_token_learns_nothing(
    server: tuple[SamplerServer, Counting, list[str]],
) -> None:
    wrong = RemoteSampler(("127.0.0.1", server[0].port), TOKEN + "!", 5.0)
    with pytest.raises(SourceUnreadable, match="is the token the same") as refused:
        wrong.read()
    assert TOKEN not in str(refused.value)
    with socket.create_connection(("127.0.0.1", server[0].port)) as stranger:
        stranger.sendall(b"\xff" * 4096)
        while stranger.recv(65536):
            pass  # the challenge, then the end
    assert server[1].number == 0
    assert RemoteSampler(("127.0.0.1", server[0].port), TOKEN, 5.0).read().values["number"] == 1


def test_a_sampler_that_nobody_runs_says_where_it_was_looked_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(SourceUnreadable, match=f"127.0.0.1:{port}: Connection refused"):
        RemoteSampler(("127.0.0.1", port), TOKEN, 5.0).read()


def wait_for_reading(sampler: CalledSampler) -> Reading:
    deadline = time.monotonic() + 20
    while True:
        try:
            return sampler.read()
        except SourceUnreadable:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_a_sampler_may_call_the_driver_instead_and_calls_again_for_the_next_run() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = ("127.0.0.1", int(free.getsockname()[1]))
    has_ended, said = threading.Event(), list[str]()
    calling = threading.Thread(
        target=call_and_answer, args=(address, TOKEN, Counting(), said.append, has_ended)
    )
    calling.start()
    try:
        for _ in range(2):
            called = CalledSampler(address, TOKEN, 5.0)
            assert wait_for_reading(called).host == "there"
            called.close()
    finally:
        has_ended.set()
        calling.join()


def test_a_caller_with_another_token_is_not_taken_for_the_sampler() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = ("127.0.0.1", int(free.getsockname()[1]))
    called = CalledSampler(address, TOKEN, 5.0)
    has_ended, said = threading.Event(), list[str]()
    calling = threading.Thread(
        target=call_and_answer, args=(address, "x" * 20, Counting(), said.append, has_ended)
    )
    calling.start()
    try:
        deadline = time.monotonic() + 20
        while not said:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        with pytest.raises(SourceUnreadable, match="does not know the token"):
            called.read()
    finally:
        has_ended.set()
        called.close()
        calling.join()
