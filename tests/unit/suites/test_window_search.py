"""The search for the best window, on curves whose answer is known."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from curves import (
    Curve,
    bell,
    exact,
    falling,
    flat,
    highest_of,
    knee,
    noisy,
    pipeline,
    rising,
    spread,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from bench_spark.config.sections import Phases, Sampling
from bench_spark.suites.window import (
    MOST_TRIALS,
    NARROW_ENOUGH,
    STARTUP_SECONDS,
    WindowLimits,
    WindowSearch,
    WindowThroughput,
    find_window,
    search_time,
    throughput_of,
    united,
)

UNIMODAL: dict[str, Curve] = {
    **{f"bell {p} {w}": bell(p, w) for p in (1, 7, 33, 517, 4321, 50_000) for w in (0.3, 1, 2)},
    **{f"pipeline {h} {o}": pipeline(h, o) for h in (1, 30, 200) for o in (300, 3_000, 100_000)},
}


def share_of_best(found: WindowSearch, curve: Curve) -> float:
    return curve(found.chosen.in_flight) / highest_of(curve)


# -- the guarantees --------------------------------------------------------------------------------


def test_without_noise_99_per_cent_of_the_best_is_found() -> None:
    for name, curve in UNIMODAL.items():
        found = find_window(exact(curve), WindowLimits())
        assert share_of_best(found, curve) >= 0.99, name
        assert len(found.trials) <= MOST_TRIALS, name


@settings(deadline=None)
@given(
    peak=st.floats(1, 1e5),
    decades=st.floats(0.2, 3),
    base=st.sampled_from([2.0, 3.0, 10.0]),
)
def test_without_noise_any_bell_is_found(peak: float, decades: float, base: float) -> None:
    # A base of 2 needs 17 steps to reach the furthest peak.
    limits = WindowLimits(base=base, most_trials=MOST_TRIALS if base > 2 else 30)
    curve = bell(peak, decades)
    found = find_window(exact(curve), limits)
    whole = max(curve(max(1, int(peak))), curve(int(peak) + 1))
    assert curve(found.chosen.in_flight) >= 0.99 * whole
    assert len(found.trials) <= limits.most_trials


def test_with_noise_of_5_per_cent_97_per_cent_of_the_best_is_found() -> None:
    for name, curve in UNIMODAL.items():
        for seed in range(20):
            found = find_window(noisy(curve, seed), WindowLimits())
            assert share_of_best(found, curve) >= 0.97, f"{name}, seed {seed}"
            assert len(found.trials) <= MOST_TRIALS


@settings(deadline=None, max_examples=200)
@given(values=st.lists(st.floats(0, 1e6), min_size=1, max_size=60), noise=st.floats(0, 0.5))
def test_whatever_the_trials_say_the_search_ends(values: list[float], noise: float) -> None:
    """Throughputs without any order: no search can be right, but it must not go on for ever."""

    def run(in_flight: int) -> WindowThroughput:
        value = values[in_flight % len(values)]
        return throughput_of(in_flight, [np.linspace(value * (1 - noise), value * (1 + noise), 10)])

    found = find_window(run, WindowLimits(highest=100_000))
    tried = [trial.in_flight for trial in found.trials]
    assert len(tried) <= MOST_TRIALS
    assert all(1 <= window <= 100_000 for window in tried)
    assert all(tried.count(window) <= 2 for window in tried)
    assert found.chosen in found.curve
    assert found.smallest in found.curve
    assert found.smallest.in_flight <= found.chosen.in_flight


# -- shapes with a known answer --------------------------------------------------------------------


def test_a_flat_curve_answers_with_its_smallest_window_at_once() -> None:
    found = find_window(exact(flat), WindowLimits())
    assert (found.chosen.in_flight, found.smallest.in_flight, found.end) == (1, 1, "plateau")
    assert len(found.trials) == 3


def test_a_flat_curve_with_noise_answers_with_a_small_window() -> None:
    answers = [
        find_window(noisy(flat, seed), WindowLimits()).chosen.in_flight for seed in range(200)
    ]
    assert answers.count(1) >= 180


@pytest.mark.parametrize("at", [5, 37, 100, 640])
def test_a_plateau_answers_with_the_window_where_it_begins(at: int) -> None:
    found = find_window(exact(knee(at)), WindowLimits())
    assert found.end == "plateau"
    assert found.chosen == found.smallest
    assert 0.99 * at <= found.chosen.in_flight <= 1.1 * at


def test_a_curve_that_rises_for_ever_answers_with_the_highest_window() -> None:
    found = find_window(exact(rising), WindowLimits(highest=50_000))
    assert (found.chosen.in_flight, found.end) == (50_000, "highest")
    assert [trial.in_flight for trial in found.trials] == [1, 10, 100, 1000, 10_000, 50_000]


def test_a_curve_that_falls_at_once_answers_with_the_first_window() -> None:
    found = find_window(exact(falling), WindowLimits())
    assert (found.chosen.in_flight, found.smallest.in_flight) == (1, 1)
    assert found.end == "adjacent"


def test_the_maximum_may_hide_between_the_first_two_steps() -> None:
    found = find_window(exact(bell(3, 0.2)), WindowLimits())
    assert found.chosen.in_flight == 3


def test_the_bracket_is_narrowed_to_one_per_cent_of_its_mean() -> None:
    found = find_window(exact(bell(700, 0.5)), WindowLimits())
    assert found.end == "narrowed"
    assert found.chosen.in_flight == pytest.approx(700, rel=NARROW_ENOUGH)
    first_steps = [trial.in_flight for trial in islice(found.trials, 5)]
    assert first_steps == [1, 10, 100, 1000, 10_000]
    assert all(100 < trial.in_flight < 10_000 for trial in found.trials[5:])


def test_a_single_window_is_its_own_answer() -> None:
    found = find_window(exact(rising), WindowLimits(lowest=1, highest=1))
    assert (found.chosen.in_flight, len(found.trials)) == (1, 1)


def test_a_broker_that_delivers_nothing_has_a_result_all_the_same() -> None:
    found = find_window(exact(lambda in_flight: 0.0), WindowLimits())
    assert found.chosen.median_per_second == 0


def test_the_trials_end_the_search() -> None:
    found = find_window(exact(bell(700, 0.5)), WindowLimits(most_trials=7))
    assert (found.end, len(found.trials)) == ("trials", 7)
    assert found.chosen == max(found.curve, key=lambda point: point.median_per_second)


# -- noise -----------------------------------------------------------------------------------------


def test_a_fall_within_the_noise_is_measured_once_more() -> None:
    """10 seems lower than 1 by chance; the second time it shows that it is higher."""
    medians = {1: [100.0], 10: [95.0, 145.0], 100: [50.0]}

    def run(in_flight: int) -> WindowThroughput:
        answers = medians.get(in_flight, [80.0])
        return spread(in_flight, answers.pop(0) if len(answers) > 1 else answers[0], 6.0)

    found = find_window(run, WindowLimits(highest=1000))
    assert [trial.in_flight for trial in found.trials][:4] == [1, 10, 10, 100]
    assert found.chosen.in_flight == 10
    assert found.chosen.samples == 200


def test_differences_that_do_not_matter_are_not_measured_again() -> None:
    found = find_window(lambda f: spread(f, 100.0 + (f == 10) * 0.5, 2.0), WindowLimits())
    assert [trial.in_flight for trial in found.trials] == [1, 10, 100]
    assert found.chosen.in_flight == 1


def test_two_golden_steps_within_the_noise_end_the_search() -> None:
    curve = bell(1000, 1)
    found = find_window(lambda f: spread(f, curve(f), 8_000.0), WindowLimits())
    assert found.end == "noise"
    assert len(found.trials) < MOST_TRIALS


def test_a_window_measured_twice_has_the_median_of_all_its_samples() -> None:
    """Not the mean of the two medians, which is 250, nor weighted by their samples, 220."""
    few, many = np.array([100.0, 100.0, 400.0]), np.array([400.0, 400.0])
    both = united(throughput_of(5, [few]), throughput_of(5, [many]))
    assert both.median_per_second == np.median([100, 100, 400, 400, 400]) == 400
    assert both.mean_per_second == pytest.approx(280)
    assert both.stddev_per_second == pytest.approx(np.std([100, 100, 400, 400, 400], ddof=1))
    assert both.samples == 5


@given(
    one=st.lists(st.floats(1, 1e6), min_size=1, max_size=30),
    other=st.lists(st.floats(1, 1e6), min_size=1, max_size=30),
)
def test_the_interval_of_two_trials_holds_all_three_medians(
    one: list[float], other: list[float]
) -> None:
    both = united(throughput_of(5, [np.array(one)]), throughput_of(5, [np.array(other)]))
    assert both.median_per_second == pytest.approx(np.median([*one, *other]))
    for median in (np.median(one), np.median(other), np.median([*one, *other])):
        assert both.low_per_second <= median * (1 + 1e-12)
        assert both.high_per_second >= median * (1 - 1e-12)


def test_pairs_are_united_one_by_one_and_then_added_up() -> None:
    first = throughput_of(5, [np.array([10.0, 20.0, 30.0]), np.array([1.0, 2.0, 3.0])])
    again = throughput_of(5, [np.array([40.0, 50.0]), np.array([9.0, 9.0])])
    both = united(first, again)
    assert both.median_per_second == 30 + 3
    assert both.samples == 10


def test_agreeing_trials_are_surer_together() -> None:
    once = spread(5, 100.0, 10.0)
    both = united(once, once)
    assert both.samples == 2 * once.samples
    assert both.median_per_second == 100.0
    assert both.uncertainty < 0.8 * once.uncertainty


def test_trials_that_disagree_are_as_unsure_as_their_distance() -> None:
    both = united(spread(5, 100.0, 1.0), spread(5, 200.0, 1.0, samples=10))
    assert both.low_per_second <= 100 <= both.median_per_second < 110
    assert both.high_per_second >= 200


# -- limits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "steps"),
    [
        (WindowLimits(highest=1000), [1, 10, 100, 1000]),
        (WindowLimits(highest=500), [1, 10, 100, 500]),
        (WindowLimits(lowest=25, highest=5000), [100, 1000, 5000]),
        (WindowLimits(lowest=100, highest=100), [100]),
        (WindowLimits(base=2, highest=9), [1, 2, 4, 8, 9]),
        (WindowLimits(base=1.5, highest=6), [1, 2, 3, 4, 6]),
    ],
)
def test_steps_are_the_powers_between_the_limits(limits: WindowLimits, steps: list[int]) -> None:
    assert list(limits.steps()) == steps
    assert limits.first == steps[0]


@pytest.mark.parametrize(
    "keys",
    [
        {"lowest": 0},
        {"base": 1.0},
        {"most_trials": 0},
        {"highest": 0},
        {"lowest": 20, "highest": 50},
    ],
)
def test_limits_without_a_window_are_refused(keys: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="window"):
        WindowLimits(**keys)  # type: ignore[arg-type]


# -- the estimate ----------------------------------------------------------------------------------


PHASES = Phases(warmup_seconds=5, measure_seconds=10, drain_seconds=3)
NO_SAMPLES = Sampling()


@pytest.mark.parametrize("seed", range(5))
def test_the_estimate_is_within_a_factor_of_two_of_what_searches_take(seed: int) -> None:
    """Of curves that rise at first: one that is flat or falls from the start is settled sooner."""
    told = search_time(PHASES, NO_SAMPLES).trials
    curves = [*(UNIMODAL[name] for name in UNIMODAL if "pipeline" in name), knee(37), rising]
    taken = [len(find_window(noisy(curve, seed), WindowLimits()).trials) for curve in curves]
    assert all(told / 2 <= trials <= told * 2 for trials in taken)


def test_the_estimate_counts_all_that_a_trial_consists_of() -> None:
    told = search_time(PHASES, NO_SAMPLES)
    assert (told.trials, told.seconds) == (10, STARTUP_SECONDS + 160)
    assert (told.most_trials, told.most_seconds) == (20, STARTUP_SECONDS + 380)


@pytest.mark.parametrize(("sampled_seconds", "measured"), [(1, 1.5), (100, 10), (None, 10)])
def test_samples_end_a_trial_early(sampled_seconds: int | None, measured: float) -> None:
    samples = Sampling(samples=sampled_seconds or 0, threshold_seconds=1.0)
    told = search_time(PHASES, samples)
    assert told.seconds == STARTUP_SECONDS + told.trials * (5 + measured + 1)
    assert told.most_seconds == STARTUP_SECONDS + told.most_trials * (5 + 10 + 3 + 1)


def test_a_search_of_few_trials_is_estimated_by_them() -> None:
    told = search_time(PHASES, NO_SAMPLES, most_trials=4)
    assert (told.trials, told.seconds) == (4, STARTUP_SECONDS + 64)
