"""Histories and learners for tests of models."""

import math
from collections.abc import Sequence

import trio

from broker.models.learner import LearningFailed
from broker.models.state import Learned, TrainingJob
from broker.services import Services
from storage.keys import Milliseconds
from tests.factories import NOW_MS

MINUTE_MS = 60_000


def learned(inputs: Sequence[str], *, weight: float = 1.0, deviation: float = 2.0) -> Learned:
    """A model that says the sum of the inputs times the weight, whatever the time of the day is."""
    features = len(inputs) + 2
    return Learned(
        inputs=list(inputs),
        mean=[0.0] * features,
        scale=[1.0] * features,
        weights=[weight] * len(inputs) + [0.0, 0.0],
        intercept=0.0,
        target_mean=0.0,
        target_scale=1.0,
        deviation=deviation,
        confidence=0.75,
    )


class TaughtLearner:
    """Stands for the process that trains: answers at once, and keeps the jobs. `failure`: what goes wrong instead."""

    def __init__(self) -> None:
        self.jobs: list[TrainingJob] = []
        self.failure = ""
        self.is_installed = True
        self.may_end = trio.Event()
        self.may_end.set()

    async def __call__(self, job: TrainingJob) -> Learned:
        self.jobs.append(job)
        await self.may_end.wait()
        if self.failure:
            raise LearningFailed(self.failure)
        return learned(job.inputs)


async def send_wave(
    services: Services, did: str, *, count: int, field: str = "temperature", end_ms: Milliseconds = NOW_MS
) -> None:
    """One value of a sine each minute, the last one a minute ago."""
    device = await services.devices.registry.find(did)
    for number in range(count):
        value = 20 + 5 * math.sin(number / 10)
        payload = f'{{"{field}":{value}}}'.encode()
        services.messages.ingest.submit(device, payload, end_ms - (count - number) * MINUTE_MS)
    await services.messages.ingest.wait_committed()
