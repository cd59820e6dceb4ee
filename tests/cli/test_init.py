"""`bench-spark init`: files that pass `plan`, and a password that nobody keeps."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from bench_spark.cli import main
from bench_spark.config.loader import load_broker, load_scenario

SECRET = "s3cr3t"
FILES = ("my-scenario.yaml", "my-broker.yaml")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MY_BROKER_PASSWORD", raising=False)
    return tmp_path


def typed(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))


@pytest.mark.parametrize(
    ("address", "kind", "where"),
    [
        (f"amqp://bob:{SECRET}@example.org:5673/prod", "amqp", ("example.org", 5673)),
        (f"amqps://bob:{SECRET}@example.org", "amqp", ("example.org", 5671)),
        ("amqp://bob@example.org", "amqp", ("example.org", 5672)),
        ("amqp://example.org", "amqp", ("example.org", 5672)),
        (f"kafka://bob:{SECRET}@one:9093,two:9093", "kafka", ("one", 9093)),
        ("kafka://one:9092", "kafka", ("one", 9092)),
        ("mqtt://example.org", "mqtt", ("example.org", 1883)),
        (f"mqtts://bob:{SECRET}@example.org:8884", "mqtt", ("example.org", 8884)),
        ("loopback", "loopback", ("loopback", 0)),
        ("localhost:9092", "kafka", ("localhost", 9092)),
        ("one:9092,two:9092", "kafka", ("one", 9092)),
        ("localhost:1883", "mqtt", ("localhost", 1883)),
        ("broker.example.org", "amqp", ("broker.example.org", 5672)),
        ("10.0.0.7:5671", "amqp", ("10.0.0.7", 5671)),
    ],
)
def test_what_is_written_passes_plan(
    address: str,
    kind: str,
    where: tuple[str, int],
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    typed(monkeypatch, address + "\n")
    assert main(["init", "sub"]) == 0
    shown = capsys.readouterr()
    scenario, broker = (str(here / "sub" / name) for name in FILES)
    assert load_scenario(scenario) == load_scenario("steady", ["name=my-scenario"])
    loaded = load_broker(broker)
    assert (loaded.kind, loaded.address()) == (kind, where)
    assert loaded.username == ("bob" if "bob" in address else None)
    assert loaded.password_env == ("MY_BROKER_PASSWORD" if "bob" in address else None)
    assert ("export MY_BROKER_PASSWORD" in shown.err) == ("bob" in address)
    is_bare = "://" not in address and address != "loopback"
    assert (f"://{address}, as " in shown.err) == is_bare
    monkeypatch.setenv("MY_BROKER_PASSWORD", "any")
    assert main(["plan", scenario, "--broker", broker]) == 0
    written = "".join(Path(path).read_text() for path in (scenario, broker))
    assert SECRET not in written + shown.out + shown.err


def test_the_keys_that_are_shown_but_not_set_are_right(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for address in ("amqps://example.org", "kafka://bob@one:9092", "mqtts://example.org"):
        typed(monkeypatch, address)
        assert main(["init", "--force"]) == 0
        keys = Path(FILES[1]).read_text().partition("\n\n")[2]
        every = "\n".join(line.removeprefix("# ") for line in keys.splitlines())
        Path(FILES[1]).write_text(every.replace("HOST", "example.org"))
        load_broker(FILES[1])


@pytest.mark.parametrize("name", FILES)
def test_what_is_there_is_written_over_only_when_told(
    name: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / name).write_text("precious")
    typed(monkeypatch, "loopback\n")
    assert main(["init"]) == 2
    assert f"{name}: there already; --force" in capsys.readouterr().err
    assert (here / name).read_text() == "precious"
    assert main(["init", "--force"]) == 0
    assert (here / name).read_text() != "precious"


@pytest.mark.parametrize(
    "address",
    [
        "",
        f"bob:{SECRET}@example.org",
        f"ftp://bob:{SECRET}@example.org",
        f"amqp://bob:{SECRET}@:port/",
        f"amqp://bob:{SECRET}#x@example.org",
        f"kafka://bob:{SECRET}@",
    ],
)
def test_a_bad_address_is_refused_without_repeating_it(
    address: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(monkeypatch, address)
    assert main(["init"]) == 2
    shown = capsys.readouterr()
    assert SECRET not in shown.out + shown.err
    assert "***" not in shown.err
    assert not list(here.iterdir())
