"""What is said about a suite file that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from suite_texts import errors_in

from bench_spark.config.models import Scenario
from bench_spark.config.suite_loader import MOST_TRIALS, MOST_VALUES


@pytest.mark.parametrize(
    ("text", "errors"),
    [
        ("axes: {}", ["axes: is empty; allowed: at least one axis"]),
        ("axes: {producers: []}", ["axes.producers: is empty; allowed: at least one value"]),
        ("axes: {producers: [1, 2, 1.0]}", ["axes.producers: 1.0 is given twice"]),
        (
            "axes: {load.rate_per_secnd: [1]}",
            [
                "axes.load.rate_per_secnd: unknown key; did you mean rate_per_second? "
                "(what no scenario has is declared under parameters)"
            ],
        ),
        (
            "axes: {broker.credt: [1]}\nparameters: {broker.credit: x}",
            [
                "axes.broker.credt: unknown key; did you mean broker.credit? "
                "(what no scenario has is declared under parameters)",
                "parameters.broker.credit: is set by no axis",
            ],
        ),
        (
            "axes: {phases: [1]}",
            [
                "axes.phases: is a section; set a key inside it: phases.warmup_seconds, "
                "phases.measure_seconds, phases.drain_seconds"
            ],
        ),
        (
            "axes: {producers: 3}",
            [
                "axes.producers: 3 is no axis; allowed: a list of values, "
                "{from: , to: , step: }, or series (LABEL: {KEY: VALUE})"
            ],
        ),
        (
            "axes: {producers: [[1]]}",
            [
                "axes.producers: a list is no value; allowed: text, a number, true, false or "
                "null; for more use a series"
            ],
        ),
        (
            "axes: {producers: {from: 1, to: 2, stp: 1}}",
            ["axes.producers.stp: unknown key; allowed: from, to, step"],
        ),
        (
            "axes: {producers: {from: 1, to: 2}}",
            ["axes.producers.step: missing; allowed: a number"],
        ),
        (
            "axes: {producers: {from: 1, to: 2, step: 0}}",
            ["axes.producers.step: 0 is too low; allowed: above 0"],
        ),
        (
            "axes: {producers: {from: 2, to: 1, step: 1}}",
            ["axes.producers.to: 1 is below from; the range is empty"],
        ),
        (
            "axes: {producers: {from: 1, to: x, step: 1}}",
            ["axes.producers.to: 'x' is no number; allowed: a number"],
        ),
        (
            "axes: {producers: {from: 1, to: 100000, step: 1}}",
            [f"axes.producers: has 100000 values; allowed: at most {MOST_VALUES}"],
        ),
        (
            "axes: {producers: {from: 1, to: 1000, step: 1}, message.bytes: {from: 100, to: 2000, "
            "step: 10}}",
            [f"axes: make 191000 trials; allowed: at most {MOST_TRIALS}"],
        ),
        (
            "axes: {q: {a: {amqp.queue.durabel: true}}}",
            ["axes.q.a.amqp.queue.durabel: unknown key; did you mean durable?"],
        ),
        (
            "axes: {producers: {a: {consumers: 1}}}",
            ["axes.producers: is a key of its own; a series of labels needs another name"],
        ),
        (
            "axes: {producers: [1], q: {a: {producers: 1}}}",
            ["axes.q: sets producers, as producers does"],
        ),
        (
            "axes: {amqp.queue.arguments.x-a: [1], q: {a: {amqp.queue.arguments: {}}}}",
            ["axes.q: sets amqp.queue.arguments, as amqp.queue.arguments.x-a does"],
        ),
        (
            "axes: {load.rate_per_second: [1, sustained]}",
            [
                "axes.load.rate_per_second: sustained is found from the throughput of max, which "
                "is not in it"
            ],
        ),
        (
            "axes: {load.rate_per_second: [max], load.mode: [rate]}",
            ["axes.load.mode: sets load.mode, as load.rate_per_second does"],
        ),
        (
            "axes: {load.rate_per_second: [fast]}",
            [
                "axes.load.rate_per_second: 'fast' is not a number; allowed: a number above 0 up "
                "to 100000000"
            ],
        ),
        ("axes: {message.bytes: [100, 4]}", ["axes.message.bytes: 4 is below the minimum of 8"]),
        (
            "axes: {q: {a: {message.bytes: 4}}}",
            ["axes.q.a: message.bytes: 4 is below the minimum of 8"],
        ),
        (
            "axes: {destinations: [1, 2], producers: [1, 2], consumers: [2]}",
            [
                "axes.destinations: 2 is too many: each needs a producer and a consumer, and there "
                "are 1 and 2 (where destinations=2, producers=1, consumers=2)"
            ],
        ),
        (
            "axes: {producers: [1]}\nzip: [[producers]]",
            ["zip.0: zips nothing; allowed: at least two axes"],
        ),
        (
            "axes: {producers: [1]}\nzip: [[producers, consumer]]",
            ["zip.0: 'consumer' is no axis of this suite; allowed: producers"],
        ),
        (
            "axes: {producers: [1, 2], consumers: [1, 2]}\n"
            "zip: [[producers, consumers], [producers, consumers]]",
            ["zip.1: producers is zipped twice"],
        ),
        (
            "axes: {producers: [1, 2], consumers: [1, 2, 3]}\nzip: [[producers, consumers]]",
            ["zip.0: the axes differ in their number of values: producers has 2, consumers has 3"],
        ),
        (
            "axes: {load.rate_per_second: [1, max], consumers: [1, 2]}\n"
            "zip: [[load.rate_per_second, consumers]]",
            ["zip.0: load.rate_per_second has max or sustained, which can only be crossed"],
        ),
        (
            "axes: {producers: [1]}\nparameters: {consumers: x}",
            ["parameters.consumers: is a scenario key; axes name it without declaring it"],
        ),
        (
            "axes: {a.b: [1], a_b: [1]}\nparameters: {a.b: x, a_b: x}",
            ["axes: a.b and a_b would both be BENCH_SPARK_PARAMETER_A_B for a hook"],
        ),
        (
            "axes: {producers: [1]}\nskip: [{when: {produces: 1}, reason: x}]",
            [
                "skip.0.when: 'produces' is no axis or parameter of this suite; did you mean "
                "producers?"
            ],
        ),
        (
            "axes: {q: {lazy: {}, plain: {}}}\nskip: [{when: {q: lasy}, reason: x}]",
            [
                "skip.0.when.q: 'lasy' is none of its values; allowed: lazy, plain; did you mean "
                "lazy?"
            ],
        ),
        (
            "axes: {producers: [1]}\nskip: [{when: {producers: 1}, reason: x}]",
            ["skip: leaves no trial to run"],
        ),
        (
            "axes: {producers: [1]}\nskip: [{whn: {producers: 1}, reason: ''}]",
            [
                "skip.0.when: missing; allowed: a map",
                "skip.0.reason: is empty; allowed: at least one character",
                "skip.0.whn: unknown key; did you mean when?",
            ],
        ),
        (
            "axes: {producers: [1, 2]}\nquick: {axes: {consumers: [1, 2]}}",
            ["quick.axes: 'consumers' is no axis of this suite; allowed: producers"],
        ),
        (
            "axes: {producers: [1, 2]}\nquick: {axes: {producers: [1]}}",
            ["quick.axes.producers: has 1 values; allowed: two or three"],
        ),
        (
            "axes: {q: {a: {}, b: {}}}\nquick: {axes: {q: [a, c]}}",
            ["quick.axes.q: 'c' is none of its values; allowed: a, b"],
        ),
        (
            "axes: {producers: [1, 2]}\nquick: {set: {producers: 1, phases: {}}}",
            [
                "quick.set.producers: is set by the axis producers",
                "quick.set.phases: is a section; set a key inside it: phases.warmup_seconds, "
                "phases.measure_seconds, phases.drain_seconds",
            ],
        ),
        (
            "axes: {producers: [1, 2]}\nset: {message.bytes: 4}",
            ["set: message.bytes: 4 is below the minimum of 8"],
        ),
        (
            "axes: {producers: [1, 2]}\nhooks: {before: ls, after: [], timeout: 3}",
            [
                "hooks.before: 'ls' is not a list of texts; allowed: a list of texts, the program "
                "first",
                "hooks.after: is empty; allowed: a list of texts, the program first",
                "hooks.timeout: unknown key; did you mean timeout_seconds?",
            ],
        ),
        (
            "axes: {producers: [1, 2], consumers: [1, 2]}\nreport: {rows: [producers]}",
            ["report.rows: leaves out the axis consumers, and so does across"],
        ),
        (
            "axes: {producers: [1, 2]}\nreport: {rows: [producers, producers], across: consumer}",
            [
                "report.across: 'consumer' is no axis of this suite; allowed: producers",
                "report.rows: producers is given twice",
            ],
        ),
        (
            "axes: {producers: [1, 2], consumers: [1, 2]}\nzip: [[producers, consumers]]\n"
            "report: {rows: [producers], across: consumers}",
            ["report.across: consumers is zipped with producers, which is in rows"],
        ),
        (
            "axes: {producers: [1]}\nreport: {columns: [{value: send_rate}, {value: send_rate}]}",
            ["report.columns.1: send_rate (run) is given twice"],
        ),
        (
            "axes: {producers: [1]}\nreport: {columns: [{value: receive_rate, aggregation: max}]}",
            [
                "report.columns.0.aggregation: 'max' is unknown; allowed: run, interval_max, "
                "interval_mean"
            ],
        ),
        (
            "base: {messag: 1}\naxes: {producers: [1]}",
            ["base.messag: unknown key; did you mean message?"],
        ),
        (
            "base: 5\naxes: {producers: [1]}",
            [
                "base: 5 is not allowed; allowed: a shipped scenario's name, a path, or scenario "
                "keys"
            ],
        ),
        ("axes: {producers: [1]}\nrepetitions: 0", ["repetitions: 0 is below the minimum of 1"]),
        ("axes: {producers: [1]}\naxis: 3", ["axis: unknown key; did you mean axes?"]),
    ],
)
def test_a_bad_suite_is_refused_by_name(tmp_path: Path, text: str, errors: list[str]) -> None:
    assert errors_in(tmp_path, text) == errors


def test_an_unknown_base_or_broker_is_named_with_the_nearest(tmp_path: Path) -> None:
    lines = errors_in(tmp_path, "base: stedy\nbroker: rabbit\naxes: {producers: [1]}")
    assert [line.partition(";")[0] for line in lines] == [
        "broker: rabbit: unknown broker",
        "base: stedy: unknown scenario",
    ]
    assert lines[1].endswith("did you mean steady?")


def test_a_bad_column_lists_what_can_be_shown(tmp_path: Path) -> None:
    (line,) = errors_in(
        tmp_path, "axes: {producers: [1]}\nreport: {columns: [{value: latency.p98}]}"
    )
    assert line.startswith("report.columns.0.value: 'latency.p98' is not allowed; allowed: MEASURE")


def test_an_option_cannot_set_what_an_axis_varies(tmp_path: Path) -> None:
    assert errors_in(tmp_path, "axes: {producers: [1]}", False, "producers=2", "x=1") == [
        f"--set x=1: x: unknown key; allowed: {', '.join(Scenario.model_fields)}",
        "--set producers=2: is set by the axis producers",
    ]


def test_many_problems_are_cut_short(tmp_path: Path) -> None:
    sizes = ", ".join(str(number) for number in range(-30, 0))
    lines = errors_in(tmp_path, f"axes: {{message.bytes: [{sizes}]}}")
    assert len(lines) == 21
    assert lines[-1] == "... and 10 more"
