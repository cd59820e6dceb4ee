import traceback
from pathlib import Path

import pytest

from bench_spark.errors import ConfigurationError
from bench_spark.scenario.broker import Broker, resolve_credentials
from bench_spark.scenario.loader import load_broker
from bench_spark.scenario.secrets import mask_uri

SECRET = "hunter2"


def write(tmp_path: Path, text: str) -> str:
    file = tmp_path / "b.yaml"
    file.write_text(text)
    return str(file)


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("uri: amqp://h", ["kind: missing; allowed: amqp, kafka, mqtt, loopback"]),
        ("kind: amqp", ["uri: missing; kind amqp needs it"]),
        ("kind: kafka", ["bootstrap_servers: missing; kind kafka needs it"]),
        (
            "{kind: kafka, uri: 'amqp://u:hunter2@h', bootstrap_servers: 'h:1'}",
            ["uri: does not go with kind kafka"],
        ),
        ("{kind: loopback, uri: 'amqp://h'}", ["uri: does not go with kind loopback"]),
        (
            "{kind: kafka, bootstrap_servers: 'a:1, b:99999'}",
            [
                "bootstrap_servers: is not a list of servers; "
                "allowed: HOST:PORT, several separated by commas"
            ],
        ),
        (
            "{kind: amqp, uri: 'mqtt://u:hunter2@h'}",
            ["uri: must start with amqp:// or amqps://"],
        ),
        ("{kind: amqp, uri: 'amqp://'}", ["uri: names no host; write amqp://HOST:PORT"]),
        ("{kind: amqp, uri: 'amqp://h:0'}", ["uri: has port 0; allowed: 1 to 65535"]),
        (
            "{kind: amqp, uri: 'amqp://u:hunter2#x@h'}",
            [
                "uri: is no valid URI; escape special characters of user and password, "
                "as in %40 for @"
            ],
        ),
        (
            "{kind: amqp, uri: 'amqp://u:hunter2@h?x=1'}",
            ["uri: has a '?' or '#' part, which is not supported; in a password write %3F or %23"],
        ),
        ("{kind: amqp, uri: [hunter2]}", ["uri: *** is not text; allowed: text"]),
        (
            "{kind: amqp, uri: 'amqp://h', management_uri: 'ftp://a:hunter2@b'}",
            ["management_uri: must start with http:// or https://"],
        ),
        (
            "{kind: amqp, uri: 'amqp://h', password: hunter2}",
            [
                "password: passwords are not taken from here; name the environment variable that "
                "holds it in password_env, or its file in password_file"
            ],
        ),
        (
            "{kind: amqp, uri: 'amqp://h', password_env: 'hunter2 !'}",
            [
                "password_env: *** is not allowed; "
                "allowed: the name of an environment variable, not the password itself"
            ],
        ),
        (
            "{kind: amqp, uri: 'amqp://h', password_env: A, password_file: b}",
            ["password_env: excludes password_file"],
        ),
        (
            "{kind: amqp, uri: 'amqp://h', tls: {key_file: k}}",
            ["tls.key_file: needs certificate_file"],
        ),
        (
            "{kind: mqtt, uri: 'mqtt://h', properties: {a: 1}, sasl_mechanism: SCRAM-SHA-256}",
            [
                "properties: does not go with kind mqtt",
                "sasl_mechanism: does not go with kind mqtt",
            ],
        ),
        (
            "{kind: kafka, bootstrap_servers: h, properties: {sasl.password: [hunter2]}}",
            [
                "properties.sasl.password: *** is not allowed; "
                "allowed: text, a number, true or false"
            ],
        ),
        (
            "{kind: rabbit, uri: 'amqp://h'}",
            ["kind: 'rabbit' is unknown; allowed: amqp, kafka, mqtt, loopback"],
        ),
    ],
)
def test_a_bad_broker_file_is_refused_without_a_secret(
    tmp_path: Path, text: str, messages: list[str]
) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ConfigurationError) as caught:
        load_broker(file)
    assert str(caught.value).splitlines() == [f"{file}: {message}" for message in messages]
    assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "override",
    [
        f"uri=amqp://u:{SECRET}@h:port",
        f"uri=amqp://u:{SECRET}#@h",
        f"password={SECRET}",
        f"password:{SECRET}",
        f"password_env={SECRET} !",
        f"properties.sasl.password={SECRET}",
        f"username.x=amqp://u:{SECRET}@h",
        f"management_uri=x:{SECRET}@h",
    ],
)
def test_a_wrong_override_of_a_broker_never_shows_its_secret(tmp_path: Path, override: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_broker(write(tmp_path, "{kind: amqp, uri: 'amqp://h'}"), [override])
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_a_broker_shows_no_password_in_any_printed_form() -> None:
    amqp = Broker(kind="amqp", uri=f"amqp://u:{SECRET}@h:5672/v")
    kafka = Broker(
        kind="kafka",
        bootstrap_servers="h:9092",
        properties={"ssl.key.password": SECRET, "sasl.oauthbearer.client.SECRET": SECRET},
    )
    for broker in (amqp, kafka):
        assert SECRET not in f"{broker!r} {broker} {broker.masked()}"
    assert amqp.masked()["uri"] == "amqp://u:***@h:5672/v"
    assert SECRET not in repr(resolve_credentials(amqp))


def test_a_broker_that_is_wrong_in_code_keeps_its_uri_out_of_the_error() -> None:
    with pytest.raises(ValueError, match="uri: must start with") as caught:
        Broker(kind="mqtt", uri=f"amqp://u:{SECRET}@h")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("uri", "masked"),
    [
        ("amqp://h/v", "amqp://h/v"),
        ("amqp://u@h/v", "amqp://u@h/v"),
        ("amqp://u:p@h:1/v", "amqp://u:***@h:1/v"),
        ("amqp://u:p%40q@h", "amqp://u:***@h"),
        ("amqp://u:p@q@h", "amqp://u:***@h"),
        ("amqp://u:p#q@h", "amqp://***@h"),
        ("amqp://u:p/q@h", "amqp://***@h"),
        ("u:p@h", "***@h"),
        ("amqp://u:p@[h", "***"),
        ("plain text", "plain text"),
    ],
)
def test_a_uri_is_masked_also_where_it_is_malformed(uri: str, masked: str) -> None:
    assert mask_uri(uri) == masked


def test_a_broker_file_is_named_by_its_stem_and_read_whole(tmp_path: Path) -> None:
    broker = load_broker(
        write(tmp_path, "kind: amqp\nuri: AMQPS://u:p%20w@h.example/%2Fx\n"), ["username=7"]
    )
    assert (broker.name, broker.host, broker.port) == ("b", "h.example", 5671)
    assert broker.uses_tls
    assert broker.virtual_host == "/x"
    credentials = resolve_credentials(broker)
    assert credentials.username == "7"
    assert credentials.password is not None
    assert credentials.password.get_secret_value() == "p w"


def test_a_password_comes_from_the_environment_or_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKER_PASSWORD", SECRET)
    (tmp_path / "pw").write_text(f"{SECRET}\nsecond line\n")
    for source in ({"password_env": "BROKER_PASSWORD"}, {"password_file": str(tmp_path / "pw")}):
        broker = Broker(kind="amqp", uri="amqp://u:other@h", **source)
        password = resolve_credentials(broker).password
        assert password is not None
        assert password.get_secret_value() == SECRET


def test_a_missing_environment_variable_is_a_configuration_error() -> None:
    broker = Broker(kind="amqp", uri="amqp://h", password_env="BENCH_SPARK_NO_SUCH_VARIABLE")
    with pytest.raises(ConfigurationError, match="the environment has no BENCH_SPARK_NO_SUCH"):
        resolve_credentials(broker)
