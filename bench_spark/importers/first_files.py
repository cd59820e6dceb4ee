"""Makes a first scenario and broker file from a broker's address."""

from __future__ import annotations

import re
import urllib.parse
from dataclasses import dataclass

from bench_spark.conf_files import conf_path
from bench_spark.errors import ConfigurationError
from bench_spark.importers.draft import Draft, NewFile, take_password, take_uri, yaml_file

SCENARIO_FILE, BROKER_FILE = "my-scenario.yaml", "my-broker.yaml"
ALLOWED = (
    "amqp://HOST:5672/VHOST, amqps://..., mqtt://HOST:1883, mqtts://..., "
    "kafka://HOST:9092,HOST:9092, http://HOST/PATH, https://..., tcp://HOST:PORT, tcps://..., "
    "HOST:PORT or HOST, with USER@ before the host where a login is needed; or loopback"
)

USUAL_PORTS = {
    **dict.fromkeys((5672, 20672, 21672), "amqp"),
    5671: "amqps",
    **dict.fromkeys((1883, 20883, 21883), "mqtt"),
    8883: "mqtts",
    **dict.fromkeys((9092, 9093, 9094, 20092), "kafka"),
    80: "http",
    443: "https",
}
"""Protocols by port; those from 20000 on are of the brokers that `bench-spark broker` starts."""
DEFAULT_SCHEME = "amqp"

_BARE = re.compile(
    r"[A-Za-z0-9.-]+(?P<port>:[0-9]{1,5})?(?P<more>(?:,[A-Za-z0-9.-]+(?::[0-9]+)?)*)/?"
)

_KINDS = {
    "kafka": "kafka",
    **{scheme: kind for kind in ("amqp", "mqtt", "http", "tcp") for scheme in (kind, f"{kind}s")},
}
_OF_A_SYSTEM = """\
# tls:                                  # encryption; {scheme}:// is enough where it is trusted
#   ca_file: ca.pem                     # certificate authorities to trust
# resources:                            # the system's CPU, memory and disk beside the result
#   - process: NAME                     # on this machine; docs/resources.md has the other ways
"""

_SCENARIO_HEADING = f"""\
# A steady stream on a fixed schedule, whether or not the broker keeps up. Every key that most
# people change is here with its default; docs/reference.md has them all.
#
#     bench-spark plan {SCENARIO_FILE} --broker {BROKER_FILE}
#     bench-spark run {SCENARIO_FILE} --broker {BROKER_FILE}
"""

_MORE_KEYS = {
    "amqp": """\
# tls:                                  # encryption; amqps:// alone means the system's authorities
#   ca_file: ca.pem                     # certificate authorities to trust
# management_uri: http://HOST:15672     # RabbitMQ: also tell when it holds producers back
# resources:                            # the broker's CPU, memory and disk beside the result
#   - process: beam.smp                 # on this machine; docs/resources.md has the other ways
""",
    "kafka": """\
# sasl_mechanism: SCRAM-SHA-512         # PLAIN unless given; used where there is a username
# tls:                                  # encryption
#   ca_file: ca.pem                     # certificate authorities to trust
# properties:                           # what all clients have in common, by librdkafka's names
#   client.dns.lookup: use_all_dns_ips
# resources:                            # the broker's CPU, memory and disk beside the result
#   - process: kafka.Kafka              # on this machine; docs/resources.md has the other ways
""",
    "mqtt": """\
# tls:                                  # encryption; mqtts:// alone means the system's authorities
#   ca_file: ca.pem                     # certificate authorities to trust
# resources:                            # the broker's CPU, memory and disk beside the result
#   - process: mosquitto                # on this machine; docs/resources.md has the other ways
""",
    "http": _OF_A_SYSTEM.format(scheme="https"),
    "tcp": _OF_A_SYSTEM.format(scheme="tcps"),
    "loopback": "",
}


@dataclass(frozen=True)
class FirstFiles:
    files: tuple[NewFile, ...]
    password_variable: str | None
    """The environment variable that is to hold the password; None where no one logs in."""
    assumed: str = ""
    """What was assumed of an address without a protocol."""


def begin(address: str) -> FirstFiles:
    """Files for a broker at this address. Its password, if there is one, is in none of them."""
    draft = Draft("my-broker")
    address, assumed = completed(address.strip())
    kind = _take_address(draft, address)
    if draft.broker.get("username") and not draft.has_password:
        take_password(draft, "the user")
    draft.check("the address")
    heading = ["Where the broker is, and how to log in. docs/brokers.md explains all of it."]
    if draft.has_password:
        heading += ["The password is not here. Before a run:", f"    {export_line(draft)}"]
    broker = yaml_file(heading, draft.broker) + _MORE_KEYS[kind]
    return FirstFiles(
        (NewFile(SCENARIO_FILE, _scenario()), NewFile(BROKER_FILE, broker)),
        draft.password_variable if draft.has_password else None,
        assumed,
    )


def completed(address: str) -> tuple[str, str]:
    """The address with a protocol, and what was assumed where it had none."""
    bare = _BARE.fullmatch(address)
    if bare is None or address == "loopback":
        return address, ""
    port = int((bare["port"] or ":0")[1:])
    if bare["more"]:
        scheme, reason = "kafka", "only Kafka has several addresses"
    elif port in USUAL_PORTS:
        scheme, reason = USUAL_PORTS[port], f"port {port} is its usual one"
    else:
        scheme, reason = DEFAULT_SCHEME, "there is no protocol"
    full = f"{scheme}://{address}"
    return full, f"assuming {full}, as {reason}; give PROTOCOL:// for another"


def export_line(draft: Draft) -> str:
    return f"export {draft.password_variable}=..."


def _take_address(draft: Draft, address: str) -> str:
    """Fill the broker in; returns its kind."""
    if address == "loopback":
        draft.broker.set("kind", "loopback", "no broker: what the generator itself can do")
        return "loopback"
    scheme, colon, rest = address.partition("://")
    kind = _KINDS.get(scheme.lower()) if colon else None
    if kind is None:
        raise ConfigurationError(f"the address: allowed: {ALLOWED}")
    draft.broker.set("kind", kind, "the protocol to speak")
    if kind == "kafka":
        _take_servers(draft, rest)
    else:
        take_uri(draft, "the address", address, (kind, f"{kind}s"))
    draft.broker.origins.clear()
    return kind


def _take_servers(draft: Draft, rest: str) -> None:
    """`USER:PASSWORD@HOST:PORT,HOST:PORT/`: no scheme of Kafka's own, but easily guessed."""
    login, at, servers = rest.rpartition("@")
    draft.broker.set("bootstrap_servers", servers.rstrip("/"))
    if at:
        user, colon, _ = login.partition(":")
        draft.broker.set("username", urllib.parse.unquote(user))
        if colon:
            take_password(draft, "the address")


def _scenario() -> str:
    """The shipped one to start from, with a heading that fits its new place."""
    _, _, keys = conf_path("scenarios", "steady.yaml").read_text().partition("\n\n")
    return f"{_SCENARIO_HEADING}\n{keys}"
