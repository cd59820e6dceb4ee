"""Ingress and egress: which brokers a run is about, and what each end is asked to do."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench_spark.config.broker import Broker
from bench_spark.config.ends import Ends, scenario_at
from bench_spark.config.loader import load_scenario, with_ends
from bench_spark.config.models import Scenario
from bench_spark.errors import ConfigurationError
from bench_spark.plan import make_plan
from bench_spark.transports.registry import fitted_to

RABBIT = Broker(name="rabbit", kind="amqp", uri="amqp://me:hidden@one:5672/")
KAFKA = Broker(name="log", kind="kafka", bootstrap_servers="two:9092")
MQTT = Broker(name="things", kind="mqtt", uri="mqtt://three:1883")


def scenario(**keys: Any) -> Scenario:
    return Scenario.model_validate(keys)


def test_one_broker_is_both_ends() -> None:
    ends = Ends.of(RABBIT)
    assert not ends.are_apart
    assert ends.every == ends.ingress == ends.egress
    assert ends.name == "rabbit"
    assert scenario_at(scenario(), ends.ingress[0]) == scenario()
    assert ends.ingress[0].run_id("r") == "r"
    assert [one["role"] for one in ends.all_shown] == ["both"]


def test_brokers_apart_have_one_name_and_keep_their_secrets() -> None:
    ends = Ends.apart([RABBIT, MQTT], [KAFKA, RABBIT])
    assert ends.name == "rabbit-things-to-log-rabbit"
    assert [one["role"] for one in ends.all_shown] == ["ingress", "ingress", "egress", "egress"]
    assert [end.broker.name for end in ends.once] == ["rabbit", "things", "log"]
    assert "hidden" not in json.dumps(ends.all_shown) + json.dumps(ends.shown) + repr(ends)
    assert pickle.loads(pickle.dumps(ends)) == ends
    names = [end.run_id("r") for end in ends.every]
    assert names == ["r-in0", "r-in1", "r-out0", "r-out1"]


def test_members_are_dealt_out_evenly_or_as_said() -> None:
    two = [{"broker": "a"}, {"broker": "b"}]
    wiring: Any = scenario(ingress=two, egress=two, producers=5, destinations=3).wiring
    assert [(end.members, end.destinations) for end in wiring.ingress] == [(3, 3), (2, 2)]
    assert [(end.members, end.destinations) for end in wiring.egress] == [(1, 1), (1, 1)]
    said = [{"broker": "a", "producers": 1}, {"broker": "b", "producers": 4, "destinations": 2}]
    made = scenario(ingress=said, egress=[{"broker": "c"}])
    assert (made.producers, made.consumers) == (5, 1)
    wiring = made.wiring
    assert [wiring.destination_of_producer(number) for number in range(5)] == [0, 1, 2, 1, 2]
    assert list(wiring.destinations_of_consumer(0)) == [3]
    assert wiring.stream_of_producer.tolist() == [0, 1, 2, 3, 4]


def test_every_agent_of_a_plan_counts_for_the_one_subscription() -> None:
    made = scenario(
        agents=2,
        producers=4,
        consumers=2,
        ingress=[{"broker": "a"}],
        egress=[{"broker": "b"}, {"broker": "c"}],
    )
    plan = make_plan(made, "r")
    assert plan.assignments[0].declares == (0, 1, 2)
    assert plan.assignments[1].declares == ()
    assert all(one.shares_destinations for one in plan.assignments)
    assert plan.assignments[0].inspects == (0,)


def test_per_agent_the_members_of_each_end_are_multiplied() -> None:
    made = scenario(
        agents=3,
        load={"scope": "per_agent"},
        ingress=[{"broker": "a", "producers": 2}],
        egress=[{"broker": "b"}],
    )
    effective = make_plan(made, "r").scenario
    assert (effective.producers, effective.consumers) == (6, 3)
    wiring: Any = effective.wiring
    assert [end.members for end in (*wiring.ingress, *wiring.egress)] == [6, 3]


def test_an_end_sees_its_own_keys_over_those_of_all() -> None:
    made = scenario(
        amqp={"confirms": 10, "queue": {"durable": True}},
        ingress=[{"broker": "a", "amqp": {"queue": {"name": "in"}}}],
        egress=[{"broker": "b", "kafka": {"topic": {"name": "out"}}}],
        producers=3,
        consumer={"processing_us": 5},
    )
    ends = Ends.apart([RABBIT], [KAFKA])
    at_ingress, at_egress = (scenario_at(made, end) for end in ends.every)
    assert (at_ingress.producers, at_ingress.consumers, at_ingress.destinations) == (3, 0, 1)
    queue = at_ingress.amqp.queue
    assert (at_ingress.amqp.confirms, queue.durable, queue.name) == (10, True, "in")
    assert not at_ingress.consumer.is_slow
    assert (at_egress.consumers, at_egress.kafka.topic.name) == (1, "out")
    assert at_egress.consumer.is_slow


def test_one_word_of_delivery_means_each_end_in_its_own_way() -> None:
    made = scenario(delivery="at_least_once", ingress=[{"broker": "a"}], egress=[{"broker": "b"}])
    fitted = fitted_to(made, Ends.apart([RABBIT], [KAFKA]))
    assert fitted.ingress[0].amqp is not None
    assert fitted.ingress[0].amqp.confirms > 0
    assert fitted.egress[0].kafka is not None
    assert fitted.egress[0].kafka.producer["acks"] == "all"


ONE_EACH: dict[str, Any] = {"ingress": [{"broker": "a"}], "egress": [{"broker": "b"}]}


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"topology": "fan-in"}, "fan-in does not go with ingress"),
        ({"metrics_by": "destination"}, "destination does not go with ingress"),
        ({"consumers": 0}, "0, but ingress is for messages that come out again"),
        ({"producers": 2, "ingress": [{"broker": "a", "producers": 3}]}, "have 3 producers in all"),
        ({"ingress": [{"broker": "a", "producers": 1}, {"broker": "b"}]}, "of every entry or of"),
        ({"producers": 1, "ingress": [{"broker": "a"}] * 2}, "1 is too few for 2 entries"),
        ({"egress": [{"broker": "b", "destinations": 2}]}, "entry 0 has 2 destinations"),
    ],
)
def test_ends_that_do_not_add_up_are_refused(keys: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        scenario(**(ONE_EACH | keys))


@pytest.mark.parametrize(
    ("keys", "brokers", "problem"),
    [
        (
            {"consumer": {"processing_us": 5}},
            ([RABBIT], [KAFKA]),
            "egress log: consumer: kind kafka",
        ),
        (
            {"ingress": [{"broker": "a", "amqp": {"queue": {"name": "in"}}}], "destinations": 2}
            | {"producers": 2},
            ([RABBIT], [KAFKA]),
            "ingress rabbit: ingress.0: amqp.queue.name: one name for 2 destinations",
        ),
        (
            {"ingress": [{"broker": "a", "amqp": {"confirms": 5}}, {"broker": "b"}]},
            ([RABBIT, MQTT], [KAFKA]),
            "ingress things confirms no message, but others do",
        ),
        ({"delivery": "exactly_once"}, ([RABBIT], [KAFKA]), "ingress rabbit: delivery"),
    ],
)
def test_what_an_end_can_never_do_is_refused_by_its_name(
    keys: dict[str, Any], brokers: tuple[list[Broker], list[Broker]], problem: str
) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        fitted_to(scenario(**(ONE_EACH | keys)), Ends.apart(*brokers))


@pytest.mark.parametrize("mode", [{"load": {"mode": "window"}}, {"sampling": {"samples": 2}}])
def test_closed_loops_stay_within_one_agent(mode: dict[str, Any]) -> None:
    keys = {"load": {"mode": "maximum"}} | mode | ONE_EACH | {"producers": 2, "consumers": 2}
    make_plan(scenario(**keys), "r")
    with pytest.raises(ConfigurationError, match="may come out at any egress: use agents: 1"):
        make_plan(scenario(agents=2, **keys), "r")


# -- naming them -----------------------------------------------------------------------------------


def write(path: Path, **keys: Any) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump(keys))
    return str(path)


def test_brokers_of_a_scenario_are_found_beside_it(tmp_path: Path) -> None:
    write(tmp_path / "files" / "mine.yaml", kind="kafka", bootstrap_servers="h:1")
    ends = {"ingress": [{"broker": "rabbitmq"}], "egress": [{"broker": "mine.yaml"}]}
    loaded = load_scenario(write(tmp_path / "files" / "through.yaml", **ends))
    named, found = with_ends(loaded, None)
    assert found.name == "rabbitmq-to-mine"
    assert named.ingress[0].broker == "rabbitmq"
    assert found.egress[0].address == "h:1"
    ends["egress"] = [{"broker": "kafak"}]
    with pytest.raises(ConfigurationError, match=r"through.yaml: egress.0.broker: kafak: unknown"):
        load_scenario(write(tmp_path / "files" / "through.yaml", **ends))


def test_options_go_before_the_file_and_the_one_broker_is_what_is_left() -> None:
    named, ends = with_ends(scenario(), KAFKA, ingress=[RABBIT, MQTT])
    assert ends.name == "rabbit-things-to-log"
    assert named.producers == 2, "each ingress has a producer"
    assert [end.broker for end in named.egress] == ["log"]
    _, ends = with_ends(scenario(**ONE_EACH), None, [MQTT], [KAFKA])
    assert ends.name == "things-to-log"
    _, ends = with_ends(scenario(), "loopback")
    assert not ends.are_apart


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((None,), "broker: missing"),
        ((None, [RABBIT]), "egress: missing"),
        ((None, [RABBIT, RABBIT], [KAFKA]), "--ingress: 2 given, but the scenario has 1"),
    ],
)
def test_ends_that_nobody_has_named_are_refused(arguments: Any, problem: str) -> None:
    made = scenario() if len(arguments) < 3 else scenario(**ONE_EACH)
    with pytest.raises(ConfigurationError, match=problem):
        with_ends(made, *arguments)
