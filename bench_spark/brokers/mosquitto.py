"""Mosquitto, if the package is installed: MQTT without a login, nothing kept on disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench_spark.brokers.base import HOST, Command, Say, exchange
from bench_spark.errors import EnvironmentNotReady

# MQTT 3.1.1, clean session, keep-alive 10 s, client id "bench-spark-probe"; and: accepted.
_CLIENT_ID = b"bench-spark-probe"
_CONNECT_BODY = b"\x00\x04MQTT\x04\x02\x00\x0a" + len(_CLIENT_ID).to_bytes(2) + _CLIENT_ID
CONNECT = b"\x10" + len(_CONNECT_BODY).to_bytes(1) + _CONNECT_BODY
CONNACK_ACCEPTED = b"\x20\x02\x00\x00"


class MosquittoRecipe:
    name = "mosquitto"
    ports: Mapping[str, int] = {"mqtt": 20883}

    def prepare(self, directory: Path, ports: Mapping[str, int], say: Say) -> Sequence[Command]:
        program = installed_program()
        settings = directory / "mosquitto.conf"
        settings.write_text(configuration(ports))
        return [Command([program, "-c", settings])]

    def answers(self, ports: Mapping[str, int]) -> bool:
        return exchange(ports["mqtt"], CONNECT, CONNACK_ACCEPTED)

    def address(self, ports: Mapping[str, int], directory: Path) -> dict[str, Any]:
        return {"kind": "mqtt", "uri": f"mqtt://{HOST}:{ports['mqtt']}"}


def installed_program() -> Path:
    # Debian puts it where only root's PATH looks.
    places = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])
    program = shutil.which("mosquitto", path=places)
    if not program:
        raise EnvironmentNotReady(
            "Mosquitto is not installed; install it with `apt-get install mosquitto`"
        )
    return Path(program)


def configuration(ports: Mapping[str, int]) -> str:
    return (
        f"listener {ports['mqtt']} {HOST}\n"
        "allow_anonymous true\n"
        "persistence false\n"
        # Else it drops what a consumer has not fetched beyond a thousand messages, and says nothing
        # of that. Publishers watch the backlog.
        "max_queued_messages 0\n"
        # Unacknowledged messages per client, both ways. Without a limit it would use packet
        # identifiers twice.
        "max_inflight_messages 1000\n"
        "log_dest stderr\n"
        "log_type error\n"
        "log_type warning\n"
        "connection_messages false\n"
    )
