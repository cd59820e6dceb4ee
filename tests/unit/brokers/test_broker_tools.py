"""How hooks and commands find the tools of a broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench_spark.brokers.lifecycle import rabbitmqctl_of, tools_environment
from bench_spark.config.broker import Broker


def broker(*rabbitmqctl: str, embedded: str | None = None) -> Broker:
    return Broker.model_validate(
        {
            "kind": "amqp",
            "uri": "amqp://127.0.0.1/",
            "rabbitmqctl": list(rabbitmqctl),
            "resources": [] if embedded is None else [{"embedded": embedded}],
        }
    )


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (
            ("docker", "exec", "my rabbit", "rabbitmqctl"),
            {
                "RABBITMQCTL": "docker exec 'my rabbit' rabbitmqctl",
                "RABBITMQ_PLUGINS": "docker exec 'my rabbit' rabbitmq-plugins",
            },
        ),
        (
            ("/opt/rabbit/rabbitmqctl",),
            {
                "RABBITMQCTL": "/opt/rabbit/rabbitmqctl",
                "RABBITMQ_PLUGINS": "/opt/rabbit/rabbitmq-plugins",
            },
        ),
        (("ssh", "rabbit", "sudo ctl"), {"RABBITMQCTL": "ssh rabbit 'sudo ctl'"}),
        ((), {}),
    ],
)
def test_the_broker_file_names_the_tools(
    command: tuple[str, ...], expected: dict[str, str]
) -> None:
    assert tools_environment(broker(*command)) == expected


def test_a_password_in_the_command_is_masked_where_the_broker_is_shown() -> None:
    shown = repr(broker("ctl", "--password", "hunter2", "rabbitmqctl"))
    assert "rabbitmqctl" in shown
    assert "hunter2" not in shown


def test_a_broker_that_is_not_running_has_no_tools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCH_SPARK_STATE", str(tmp_path))
    assert rabbitmqctl_of(broker(embedded="rabbitmq")) is None
