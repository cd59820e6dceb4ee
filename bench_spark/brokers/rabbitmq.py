"""RabbitMQ as a private node, if the package is installed; with management API and Prometheus.

The wrapper on PATH insists on the user `rabbitmq` and on files in /var, so the plain script behind
it is run, with every path and port of its own. epmd, Erlang's port mapper, would be started by the
node as a daemon that outlives it: it is started first, as a process we know and can end.
"""

from __future__ import annotations

import base64
import os
import secrets
import shutil
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench_spark.brokers.amqp_login import accepts_login
from bench_spark.brokers.base import ANSWER_TIMEOUT_SECONDS, HOST, PASSWORD, USER, Say
from bench_spark.brokers.process import Command
from bench_spark.errors import EnvironmentNotReady

PACKAGE_SCRIPTS = "rabbitmq_server-*/sbin/rabbitmq-server"
PACKAGE_DIRECTORY = Path("/usr/lib/rabbitmq/lib")


class RabbitMQ:
    name = "rabbitmq"
    ports: Mapping[str, int] = {
        "amqp": 21672,
        "management": 21673,
        "prometheus": 21692,
        "distribution": 0,
        "epmd": 0,
    }

    def prepare(self, directory: Path, ports: Mapping[str, int], say: Say) -> Sequence[Command]:
        server, epmd = installed_programs()
        settings = directory / "rabbitmq.conf"
        settings.write_text(configuration(ports))
        plugins = directory / "enabled_plugins"
        plugins.write_text("[rabbitmq_management,rabbitmq_prometheus].\n")
        cookie = directory / ".erlang.cookie"
        cookie.write_text(secrets.token_hex(16))
        cookie.chmod(0o400)
        mapper = {"ERL_EPMD_PORT": str(ports["epmd"]), "ERL_EPMD_ADDRESS": HOST}
        node = {
            "RABBITMQ_NODENAME": f"bench-spark-{ports['amqp']}@localhost",
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RABBITMQ_CONFIG_FILE": str(settings),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
            "RABBITMQ_MNESIA_BASE": str(directory / "data"),
            "RABBITMQ_LOG_BASE": str(directory / "logs"),
            "RABBITMQ_PID_FILE": str(directory / "node.pid"),
            "RABBITMQ_DIST_PORT": str(ports["distribution"]),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            # The script then becomes the node instead of guarding it: one process, its own id.
            "RUNNING_UNDER_SYSTEMD": "true",
        }
        return [Command([epmd], mapper), Command([server], mapper | node)]

    def answers(self, ports: Mapping[str, int]) -> bool:
        return accepts_login(ports["amqp"]) and _management_answers(ports["management"])

    def address(self, ports: Mapping[str, int]) -> dict[str, Any]:
        login = f"{USER}:{PASSWORD}@{HOST}"
        return {
            "kind": "amqp",
            "uri": f"amqp://{login}:{ports['amqp']}/",
            "management_uri": f"http://{login}:{ports['management']}",
        }


def installed_programs() -> tuple[Path, Path]:
    """The server's plain script and epmd."""
    scripts = sorted(PACKAGE_DIRECTORY.glob(PACKAGE_SCRIPTS))
    epmd = shutil.which("epmd")
    if not scripts or not epmd:
        raise EnvironmentNotReady(
            "RabbitMQ is not installed; install it with `apt-get install rabbitmq-server`"
        )
    return scripts[-1], Path(epmd)


def configuration(ports: Mapping[str, int]) -> str:
    settings = {
        "listeners.tcp.1": f"{HOST}:{ports['amqp']}",
        "management.tcp.ip": HOST,
        "management.tcp.port": ports["management"],
        "prometheus.tcp.ip": HOST,
        "prometheus.tcp.port": ports["prometheus"],
        "log.console": "true",
        "log.console.level": "warning",
        "log.file": "false",
        # Absolute limits: relative ones would depend on the machine, and stop publishers on a small
        # one from the beginning. Two thousand connections alone take more than half a gigabyte.
        "vm_memory_high_watermark.absolute": "2GB",
        "disk_free_limit.absolute": "200MB",
    }
    return "".join(f"{key} = {value}\n" for key, value in settings.items())


def _management_answers(port: int) -> bool:
    login = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    request = urllib.request.Request(
        f"http://{HOST}:{port}/api/overview", headers={"Authorization": f"Basic {login}"}
    )
    # A proxy of the user's shell has no business on loopback.
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(request, timeout=ANSWER_TIMEOUT_SECONDS) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
