"""Builds models."""

import msgspec

from broker.accounts.room import AccountsRoom
from broker.cluster.leases import LeaseName
from broker.core import Core
from broker.devices.room import DevicesRoom
from broker.models.learner import Learner, ProcessLearner
from broker.models.models import Models
from broker.models.shelf import Shelf
from broker.models.training import Training


class ModelsRoom(msgspec.Struct, frozen=True):
    models: Models
    training: Training


async def open_models(
    core: Core, accounts: AccountsRoom, devices: DevicesRoom, learner: Learner | None = None
) -> ModelsRoom:
    """`learner` trains the models; None: processes of this daemon do."""
    shelf, learner = Shelf(), learner or ProcessLearner()
    training = Training(
        core.database,
        core.leases.of(LeaseName.MODELS),
        core.clock,
        core.router,
        core.news,
        devices.registry,
        learner,
        shelf,
    )
    models = Models(
        core.database,
        core.clock,
        accounts.users,
        accounts.permissions,
        devices.registry,
        training,
        learner,
        shelf,
    )
    accounts.claims.ends("Models", models.end_all_of)
    accounts.application_ends.ends("model", models.end_all_of_application)
    core.life.worker("model checks", training.check_forever)
    core.life.worker(
        "models", training.train_forever, lease=core.leases.of(LeaseName.MODELS), statistics=training.statistics
    )
    return ModelsRoom(models, training)
