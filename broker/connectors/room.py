"""Builds the cloud connectors."""

from broker.cluster.leases import LeaseName
from broker.connectors.port import ThirdParty
from broker.connectors.service import Connectors
from broker.core import Core
from broker.device_types.room import DeviceTypesRoom
from broker.devices.room import DevicesRoom
from broker.limits.room import LimitsRoom
from broker.messages.room import MessagesRoom


async def open_connectors(
    core: Core,
    device_types: DeviceTypesRoom,
    devices: DevicesRoom,
    limits: LimitsRoom,
    messages: MessagesRoom,
    third_party: ThirdParty | None,
) -> Connectors:
    """Open cloud connectors. Without a `third_party`, nothing is fetched and no Action is sent."""
    connectors = Connectors(core, device_types.catalog, devices, limits, messages.ingest, third_party)
    await connectors.catalog.reload()
    await connectors.problems.load()
    if third_party is None:
        core.life.observe("connectors", connectors.statistics)
    else:
        core.life.worker(
            "connectors",
            connectors.run_forever,
            lease=core.leases.of(LeaseName.CONNECTORS),
            save=connectors.save,
            forget=connectors.forget,
            statistics=connectors.statistics,
        )
        core.life.worker("connectors here", connectors.run_here_forever, save=connectors.problems.save)
    return connectors
