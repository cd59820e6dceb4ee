"""Qpid Broker-J: AMQP 0-9-1 with a store in memory, from jars, without root."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench_spark.brokers.base import HOST, PASSWORD, USER, Command, Say, accepts_login, java_command
from bench_spark.jars import jar_set


class QpidRecipe:
    name = "qpid"
    ports: Mapping[str, int] = {"amqp": 20672}

    def prepare(self, directory: Path, ports: Mapping[str, int], say: Say) -> Sequence[Command]:
        settings = directory / "config.json"
        settings.write_text(json.dumps(initial_configuration(ports), indent=2))
        # Message bodies live outside the heap.
        jars = jar_set("qpid", say=say)
        java = java_command(jars, directory, ["-Xmx512m", "-XX:MaxDirectMemorySize=512m"])
        main = [*java, "org.apache.qpid.server.Main", "-st", "Memory", "-icp", settings]
        return [Command([*main, "-prop", f"qpid.work_dir={directory}/work"])]

    def answers(self, ports: Mapping[str, int]) -> bool:
        return accepts_login(ports["amqp"])

    def address(self, ports: Mapping[str, int], directory: Path) -> dict[str, Any]:
        return {"kind": "amqp", "uri": f"amqp://{USER}:{PASSWORD}@{HOST}:{ports['amqp']}/"}


def initial_configuration(ports: Mapping[str, int]) -> dict[str, Any]:
    return {
        "name": "bench-spark",
        "modelVersion": "9.1",
        "authenticationproviders": [
            {
                "name": "plain",
                "type": "Plain",
                "secureOnlyMechanisms": [],  # else a password is taken over TLS only
                "users": [{"name": USER, "type": "managed", "password": PASSWORD}],
            }
        ],
        "brokerloggers": [
            {
                "name": "console",
                "type": "Console",
                "brokerloginclusionrules": [
                    {
                        "name": "warnings",
                        "type": "NameAndLevel",
                        "loggerName": "ROOT",
                        "level": "WARN",
                    }
                ],
            }
        ],
        "ports": [
            {
                "name": "amqp",
                "type": "AMQP",
                "bindingAddress": HOST,
                "port": ports["amqp"],
                "protocols": ["AMQP_0_9_1"],
                "authenticationProvider": "plain",
                "virtualhostaliases": [
                    {"name": "nameAlias", "type": "nameAlias"},
                    {"name": "defaultAlias", "type": "defaultAlias"},
                ],
            }
        ],
        "virtualhostnodes": [
            {
                "name": "default",
                "type": "Memory",
                "defaultVirtualHostNode": "true",
                "virtualHostInitialConfiguration": '{"type": "Memory"}',
            }
        ],
    }
