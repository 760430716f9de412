"""Models are trained in turns of their users: nobody waits for all models of somebody else."""

from typing import Any

import pytest
import trio

from broker.cluster.leases import LeaseName
from broker.facts import Router
from broker.models.shelf import Shelf
from broker.models.training import Training
from broker.services import Services
from storage.keys import Milliseconds, UserKey
from storage.models import ModelRecord
from storage.transaction import Transaction
from tests.factories import NOW_MS, World


async def test_models_are_trained_in_turns_of_their_users(
    services: Services, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    unused: Any = None
    core = services.core
    training = Training(
        core.database,
        core.leases.of(LeaseName.MODELS),
        core.clock,
        Router(),
        core.news,
        services.devices.registry,
        unused,
        Shelf(),
    )
    trained: list[UserKey] = []

    async def train(record: ModelRecord, _now_ms: Milliseconds) -> None:
        trained.append(record.user)
        later = NOW_MS + 1
        await core.database.write(
            lambda tx: tx.models.set_training(
                record.key, status="ready", reason="", next_training_on=later, trained_on=None, state=None
            )
        )

    monkeypatch.setattr(training, "_train", train)

    def add(tx: Transaction) -> None:
        for number, user in enumerate((world.ada, world.ada, world.ada, world.bob, world.bob)):
            record = ModelRecord(
                key=0, id=f"{number:032x}", user=user, application=world.application, type="prediction",
                definition="{}", inputs="[]", outputs="[]", rule=None, condition=None, rule_device=None,
                status="training", reason="", created_on=NOW_MS, next_training_on=NOW_MS,
            )  # fmt: skip
            tx.models.add(record, [])

    await core.database.write(add)
    await trio.testing.wait_all_tasks_blocked()
    while await training.train():
        pass
    assert trained == [world.ada, world.bob, world.ada, world.bob, world.ada]
