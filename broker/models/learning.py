"""Trains one model with river. A program of its own: it reads a `TrainingJob` as JSON and writes a `Learned` as JSON.

In a process of its own, training takes neither the event loop's time nor the daemon's memory, and an error in it
ends with it. It sets its own bounds before it reads the job. The daemon never imports this module, as river may be
missing.
"""

import os
import resource
import sys
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from heapq import merge
from math import sqrt
from pathlib import Path
from random import Random
from typing import Final

import msgspec
from river import linear_model, optim, preprocessing, stats

from broker.models.state import Learned, TrainingJob, time_features
from config.limits import MODEL_TRAINING_BYTES, MODEL_TRAINING_SECONDS

_SAMPLES_MAX: Final = 20_000
_UPDATES: Final = 60_000  # in all passes over the samples
_PASSES_MAX: Final = 200
_RATE: Final = 0.003

Sample = tuple[list[float], float]


def samples_of(job: TrainingJob) -> list[Sample]:
    """Features and the target's value for each moment, oldest first, at most `_SAMPLES_MAX` evenly chosen ones."""
    found = list(_ahead(job) if job.ahead_ms else _at_once(job))
    step = -(-len(found) // _SAMPLES_MAX) or 1
    return found[::step]


def _moments(job: TrainingJob) -> Iterator[tuple[int, str, dict[str, float]]]:
    """Each time at which an input or the target had a value, which one, and the last values of all until then."""
    last: dict[str, float] = {}
    events = merge(*([(ts, name, value) for ts, value in series] for name, series in job.series.items()))
    for ts, name, value in events:
        last[name] = value
        yield ts, name, last


def _features(job: TrainingJob, last: dict[str, float], ts: int) -> list[float] | None:
    if any(name not in last for name in job.inputs):
        return None
    return [last[name] for name in job.inputs] + list(time_features(ts))


def _ahead(job: TrainingJob) -> Iterator[Sample]:
    """Rows with the target's value `ahead_ms` later. Its last value is taken to stay when history is short."""
    target = job.series[job.target]
    times = [ts for ts, _ in target]
    long_enough = bisect_right(times, times[-1] - job.ahead_ms) >= len(times) // 2
    for ts, _, last in _moments(job):
        then = ts + job.ahead_ms
        index = bisect_right(times, then) - 1
        if index < 0 or (long_enough and then > times[-1]):
            continue
        if (features := _features(job, last, ts)) is not None:
            yield features, target[index][1]


def _at_once(job: TrainingJob) -> Iterator[Sample]:
    for ts, name, last in _moments(job):
        if name == job.target and (features := _features(job, last, ts)) is not None:
            yield features, last[job.target]


def learn(job: TrainingJob) -> Learned:
    """Raises ValueError when there is nothing to learn from."""
    samples = samples_of(job)
    if not samples:
        raise ValueError("the sources never have values together")
    scaler, spread = preprocessing.StandardScaler(), stats.Var(ddof=0)
    middle = stats.Mean()
    for features, target in samples:
        scaler.learn_one(dict(enumerate(features)))
        spread.update(target)
        middle.update(target)
    mean, scale = middle.get(), sqrt(spread.get()) or 1.0
    model = linear_model.LinearRegression(optimizer=optim.Adam(_RATE), intercept_lr=_RATE)
    passes = max(1, min(_PASSES_MAX, _UPDATES // len(samples)))
    scaled = [(scaler.transform_one(dict(enumerate(one))), (target - mean) / scale) for one, target in samples]
    order = Random(0)  # noqa: S311 - it chooses nothing but an order
    for _ in range(passes):
        order.shuffle(scaled)  # in the order of time, the model would follow the newest values only
        for one, target in scaled:
            model.learn_one(one, target)
    errors = [target - model.predict_one(one) for one, target in scaled]
    squared = sum(error * error for error in errors) / len(errors)
    names = range(len(samples[0][0]))
    return Learned(
        inputs=job.inputs,
        mean=[scaler.means[name] for name in names],
        scale=[sqrt(scaler.vars[name]) for name in names],
        weights=[model.weights.get(name, 0.0) for name in names],
        intercept=model.intercept,
        target_mean=mean,
        target_scale=scale,
        deviation=sqrt(squared) * scale,
        confidence=1.0 if not spread.get() else max(0.0, min(1.0, 1.0 - squared)),
    )


def main() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MODEL_TRAINING_BYTES, MODEL_TRAINING_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (MODEL_TRAINING_SECONDS, MODEL_TRAINING_SECONDS))
    os.nice(10)
    with suppress(OSError):  # when memory ends, the kernel ends this process first
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=TrainingJob)
    sys.stdout.buffer.write(msgspec.json.encode(learn(job)))


if __name__ == "__main__":
    main()
