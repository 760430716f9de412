"""Result of training, and how a model answers from it: plain numbers, so that nothing but JSON is stored and answering
needs no library.

A model is linear in its features: the inputs and the time of the day. Features and the predicted value are scaled by
their means and deviations in training.
"""

from collections.abc import Mapping, Sequence
from math import cos, isfinite, pi, sin
from typing import Final

import msgspec

DAY_MS: Final = 86_400_000
_STRICTEST, _WIDEST = 1.0, 6.0  # deviations that make an anomaly, at sensitivities 100 and 0


class TrainingJob(msgspec.Struct):
    """Training data of a model: by the name of each input, times in ms and values, oldest first.

    `ahead_ms` is how far ahead the target is predicted; 0: it is estimated at the same moment, from the other inputs.
    """

    target: str
    inputs: list[str]
    ahead_ms: int
    series: dict[str, list[tuple[int, float]]]


class Learned(msgspec.Struct):
    """`mean`, `scale` and `weights` are those of the features: each of `inputs`, then the time of the day.

    `deviation` is that of the values from what was predicted; `confidence` is the part of the variance that the model
    explains, from 0 to 1.
    """

    inputs: list[str]
    mean: list[float]
    scale: list[float]
    weights: list[float]
    intercept: float
    target_mean: float
    target_scale: float
    deviation: float
    confidence: float

    @property
    def is_finite(self) -> bool:
        numbers = (
            *self.mean,
            *self.scale,
            *self.weights,
            *(self.intercept, self.target_mean, self.target_scale, self.deviation, self.confidence),
        )
        return all(map(isfinite, numbers))

    def estimate(self, values: Mapping[str, float], at_ms: int) -> float:
        """The target's value. An input that is missing counts as its mean in training."""
        features: list[float | None] = [values.get(name) for name in self.inputs]
        features += time_features(at_ms)
        scaled = self.intercept
        for feature, mean, scale, weight in zip(features, self.mean, self.scale, self.weights, strict=True):
            if feature is not None and scale:
                scaled += weight * (feature - mean) / scale
        return scaled * self.target_scale + self.target_mean

    def is_anomaly(self, values: Mapping[str, float], actual: float, at_ms: int, sensitivity: float) -> bool:
        """Whether the target's value is further from the estimate than values usually are."""
        allowed = (_WIDEST - (_WIDEST - _STRICTEST) * sensitivity / 100) * self.deviation
        rounding = 1e-6 * max(1.0, abs(self.target_mean))
        return abs(actual - self.estimate(values, at_ms)) > max(allowed, rounding)


def time_features(at_ms: int) -> Sequence[float]:
    angle = 2 * pi * (at_ms % DAY_MS) / DAY_MS
    return sin(angle), cos(angle)
