import traceback
from pathlib import Path

import pytest

from bench_spark import brokers
from bench_spark.config.broker import Broker, ResourceSource, named_sources, resolve_credentials
from bench_spark.config.fields import mask_uri
from bench_spark.config.loader import load_broker
from bench_spark.errors import ConfigurationError

SECRET = "hunter2"


def write(tmp_path: Path, text: str) -> str:
    file = tmp_path / "b.yaml"
    file.write_text(text)
    return str(file)


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        (
            "uri: amqp://h",
            ["kind: missing; allowed: amqp, kafka, mqtt, http, tcp, loopback, other"],
        ),
        ("kind: amqp", ["uri: missing; kind amqp needs it"]),
        ("kind: kafka", ["bootstrap_servers: missing; kind kafka needs it"]),
        (
            "{kind: kafka, uri: 'amqp://u:hunter2@h', bootstrap_servers: 'h:1'}",
            ["uri: does not go with kind kafka"],
        ),
        ("{kind: loopback, uri: 'amqp://h'}", ["uri: does not go with kind loopback"]),
        ("{kind: other, uri: 'stomp://h'}", ["transport: missing; kind other needs it"]),
        (
            "{kind: mqtt, uri: 'mqtt://h', transport: stomp}",
            ["transport: does not go with kind mqtt"],
        ),
        (
            "{kind: kafka, bootstrap_servers: 'a:1, b:99999'}",
            ["bootstrap_servers: has a port out of range; allowed: 1 to 65535"],
        ),
        (
            "{kind: amqp, uri: 'amqp://h:99999'}",
            ["uri: has a port out of range; allowed: 1 to 65535"],
        ),
        (
            "{kind: kafka, bootstrap_servers: 'a:1, b:x'}",
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
            ["kind: 'rabbit' is unknown; allowed: amqp, kafka, mqtt, http, tcp, loopback, other"],
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


# -- resources -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{}", "resources.0.pid: nothing to read; give one of pid, process, cgroup, docker, "),
        ("{pid: 1, process: x}", "resources.0.process: excludes pid; write two sources"),
        ("{pid: 0}", "resources.0.pid: 0 is below the minimum of 1"),
        (
            "{process: '('}",
            "resources.0.process: '(' is not allowed; allowed: a regular expression",
        ),
        ("{procces: x}", "resources.0.procces: unknown key; did you mean process?"),
        ("{docker: 'a/../b'}", "resources.0.docker: 'a/../b' is not allowed; allowed: the name or"),
        ("{command: ls}", "resources.0.command: 'ls' is not a list; allowed: lines that begin"),
        ("{command: [ls, 5]}", "resources.0.command.1: 5 is not text; allowed: text"),
        ("{prometheus: 'http://h/m'}", "resources.0.metrics: missing; name the metrics to keep"),
        ("{pid: 1, metrics: [a]}", "resources.0.metrics: does not go with pid"),
        (
            "{prometheus: 'ftp://a:hunter2@b', metrics: [a]}",
            "resources.0.prometheus: must start with http:// or https://",
        ),
        (
            "{prometheus: 'http://h/m', metrics: ['a b']}",
            "resources.0.metrics.0: 'a b' is not allowed; allowed: METRIC, ALIAS=METRIC or",
        ),
        ("{remote: 'h'}", "resources.0.remote: 'h' is not allowed; allowed: HOST:PORT"),
        ("{remote: 'h:1'}", "resources.0.token_file: missing; remote needs it, or token_env"),
        ("{listen: 'h:1', token: x}", "resources.0.token: unknown key; did you mean token_env?"),
        ("{pid: 1, token_file: x}", "resources.0.token_file: does not go with pid"),
        ("{embedded: rabitmq}", "resources.0.embedded: 'rabitmq' is unknown; allowed: kafka, "),
        ("5", "resources.0: 5 is not a section; keys inside: name, pid, "),
        ("{name: flow, pid: 1}", "resources: flow is the name of management_uri's rows"),
    ],
)
def test_a_source_of_resources_that_cannot_be_is_refused(
    tmp_path: Path, source: str, message: str
) -> None:
    file = write(tmp_path, f"{{kind: amqp, uri: 'amqp://h', resources: [{source}]}}")
    with pytest.raises(ConfigurationError) as refused:
        load_broker(file)
    assert f"{file}: {message}" in str(refused.value)
    assert SECRET not in str(refused.value)


def test_sources_have_names_of_their_own() -> None:
    sources = [
        ResourceSource(pid=1),
        ResourceSource(pid=2),
        ResourceSource(name="pid-2", pid=3),
        ResourceSource(name="beam", process="beam"),
    ]
    found = {name: source.pid for name, source in named_sources(sources).items()}
    assert list(found) == ["pid", "pid-3", "pid-2", "beam"]
    assert found == {"pid": 1, "pid-3": 2, "pid-2": 3, "beam": None}


def test_secrets_of_sources_are_kept_out_of_what_is_stored(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        """
kind: amqp
uri: amqp://h
resources:
  - {prometheus: "http://u:hunter2@h/metrics?token=hunter2", metrics: [a]}
  - command: [ctl, --password, hunter2, "--token=hunter2", "http://u:hunter2@h", plain]
""",
    )
    broker = load_broker(file)
    assert SECRET not in str(broker.masked())
    assert SECRET not in repr(broker)
    assert broker.masked()["resources"][1]["command"] == [
        *("ctl", "--password", "***", "--token=***", "http://u:***@h", "plain")
    ]


def test_a_token_comes_from_the_environment_or_a_file_and_is_no_short_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text("a token of decent length\nsecond line\n")
    assert ResourceSource(remote="h:1", token_file=str(file)).token() == "a token of decent length"
    monkeypatch.setenv("BENCH_TOKEN", "short")
    with pytest.raises(ConfigurationError, match="at least 16 characters") as refused:
        ResourceSource(remote="h:1", token_env="BENCH_TOKEN").token()
    assert "short" not in str(refused.value).replace("too short", "")
    monkeypatch.delenv("BENCH_TOKEN")
    with pytest.raises(ConfigurationError, match="the environment has no BENCH_TOKEN"):
        ResourceSource(remote="h:1", token_env="BENCH_TOKEN").token()
    with pytest.raises(ConfigurationError, match="cannot read a token"):
        ResourceSource(remote="h:1", token_file=str(tmp_path / "none")).token()


def test_every_broker_that_can_be_started_can_be_named_as_a_source() -> None:
    for name in brokers.NAMES:
        assert load_broker(name).resources == [ResourceSource.model_validate({"embedded": name})]
