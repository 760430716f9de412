"""Training itself: what is learned from a history, and its process (reference 12.6)."""

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.models.learner import LearningFailed, ProcessLearner
from broker.models.state import DAY_MS, Learned, TrainingJob
from tests.broker.models.worlds import MINUTE_MS, learned
from tests.factories import NOW_MS
from tests.properties import examples, in_ci

pytestmark = pytest.mark.slow


if TYPE_CHECKING:
    from broker.models.learning import Sample

START = NOW_MS // DAY_MS * DAY_MS


def learn(job: TrainingJob) -> Learned:
    from broker.models import learning  # imports river, which takes seconds in each process that collects tests

    return learning.learn(job)


def samples_of(job: TrainingJob) -> "list[Sample]":
    from broker.models import learning

    return learning.samples_of(job)


def wave(count: int, *, shift: float = 0.0) -> list[tuple[int, float]]:
    return [(START + number * MINUTE_MS, 20 + 5 * math.sin(number / 10 + shift)) for number in range(count)]


def test_a_prediction_comes_close_to_what_followed() -> None:
    """A sine ten minutes later is a sum of the sine and its cosine now."""
    series = {"a.t": wave(600), "a.u": wave(600, shift=math.pi / 2)}
    found = learn(TrainingJob("a.t", ["a.t", "a.u"], 10 * MINUTE_MS, series))
    assert found.confidence > 0.99
    for number in (35, 300, 571):
        at_ms, now = series["a.t"][number]
        estimate = found.estimate({"a.t": now, "a.u": series["a.u"][number][1]}, at_ms)
        assert abs(estimate - series["a.t"][number + 10][1]) < 0.5


def test_an_anomaly_is_what_does_not_follow_from_the_other_values() -> None:
    series = {"a.t": wave(600), "a.u": [(ts, 2 * value) for ts, value in wave(600)]}
    found = learn(TrainingJob("a.t", ["a.u"], 0, series))
    at_ms, usual = series["a.t"][300]
    for actual, is_anomaly in ((usual, False), (usual + 5, True), (usual - 5, True)):
        assert found.is_anomaly({"a.u": 2 * usual}, actual, at_ms, 50) is is_anomaly


def test_a_value_that_never_changes_is_predicted_for_sure_and_any_other_is_an_anomaly() -> None:
    series = {"a.t": [(START + number * MINUTE_MS, 7.0) for number in range(60)]}
    found = learn(TrainingJob("a.t", [], 0, series))
    assert (round(found.estimate({}, START), 6), found.confidence) == (7.0, 1.0)
    assert not found.is_anomaly({}, 7.0, START, 100)
    assert found.is_anomaly({}, 7.1, START, 0)


def test_sources_that_never_have_values_together_teach_nothing() -> None:
    with pytest.raises(ValueError, match="never have values together"):
        learn(TrainingJob("a.t", ["a.u"], MINUTE_MS, {"a.t": wave(60), "a.u": []}))


@pytest.mark.parametrize(
    ("ahead", "target", "expected"),
    [
        (0, {1: 1.0, 2: 2.0, 5: 3.0}, [(10, 1), (10, 2), (30, 3)]),
        # Two minutes behind the last sample, the target has no known value.
        (2, {1: 1.0, 2: 2.0, 3: 3.0, 5: 5.0}, [(10, 2), (10, 3), (10, 3), (10, 5), (30, 5)]),
        # A short history: the last value is taken to stay.
        (99, {1: 1.0, 2: 2.0, 5: 3.0}, [(10, 3), (10, 3), (10, 3), (30, 3), (30, 3)]),
    ],
)
def test_a_sample_has_the_last_value_of_each_input_and_the_target_as_it_is_then(
    ahead: int, target: dict[int, float], expected: list[tuple[float, float]]
) -> None:
    series = {
        "a.t": [(START + minute * MINUTE_MS, value) for minute, value in target.items()],
        "a.u": [(START, 10.0), (START + 3 * MINUTE_MS, 30.0)],
    }
    found = samples_of(TrainingJob("a.t", ["a.u"], ahead * MINUTE_MS, series))
    assert [(features[0], value) for features, value in found] == expected


def test_a_long_history_is_thinned_out_evenly() -> None:
    series = {"a.t": [(START + number, float(number)) for number in range(50_000)]}
    found = samples_of(TrainingJob("a.t", [], 0, series))
    assert len(found) <= 20_000
    assert {after[1] - before[1] for before, after in pairwise(found)} == {3.0}


@settings(max_examples=examples(50))
@given(sensitivity=st.floats(0, 99), actual=st.floats(-1e6, 1e6))
def test_a_higher_sensitivity_finds_no_fewer_anomalies(sensitivity: float, actual: float) -> None:
    model: Learned = learned(["a.t"])
    if model.is_anomaly({"a.t": 0.0}, actual, 0, sensitivity):
        assert model.is_anomaly({"a.t": 0.0}, actual, 0, sensitivity + 1)


@in_ci
@pytest.mark.processes
async def test_the_process_learns_what_the_function_does_and_refuses_what_is_no_number() -> None:
    job = TrainingJob("a.t", ["a.t"], MINUTE_MS, {"a.t": wave(60)})
    learner = ProcessLearner()
    assert learner.is_installed
    assert await learner(job) == learn(job)
    with pytest.raises(LearningFailed, match="cannot be learned"):
        await learner(TrainingJob("a.t", ["a.u"], MINUTE_MS, {"a.t": wave(60), "a.u": []}))


@pytest.mark.processes
async def test_a_process_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.models.learner.MODEL_TRAINING_WAIT_SECONDS", 0.01)
    with pytest.raises(LearningFailed, match="more than"):
        await ProcessLearner()(TrainingJob("a.t", ["a.t"], MINUTE_MS, {"a.t": wave(60)}))
