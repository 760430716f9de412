"""Works that only the holder of a lease writes: a node that has lost it writes none of them, and all else."""

import pytest
import trio

from broker.cluster.leases import LeaseName
from broker.messages.projections import saved_position
from broker.services import Services
from storage.sql import StaleLeaseError
from tests.factories import World


async def test_folds_of_a_former_holder_are_not_stored(services: Services, world: World) -> None:
    kitchen = await services.devices.registry.get(world.kitchen)
    services.core.leases.of(LeaseName.FOLDS).lose()
    ingest, projector = services.messages.ingest, services.messages.projector
    ingest.submit(kitchen, b'{"intensity":5}')
    await ingest.wait_committed()
    with pytest.raises(StaleLeaseError, match="does not have the lease folds"):
        await projector.flush()
    assert await services.core.database.read(saved_position) < ingest.head
    services.core.leases.of(LeaseName.FOLDS).gain(None)
    await trio.testing.wait_all_tasks_blocked()
    await projector.flush()
    assert await services.core.database.read(saved_position) == ingest.head


async def test_old_messages_are_deleted_by_the_holder(services: Services) -> None:
    services.core.leases.of(LeaseName.UPKEEP).lose()
    with pytest.raises(StaleLeaseError, match="does not have the lease upkeep"):
        await services.messages.retention.sweep()
