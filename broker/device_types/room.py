"""Builds the device types and their Manifests."""

import msgspec

from broker.core import Core
from broker.device_types.catalog import DeviceTypes
from broker.device_types.documents import DeviceTypeDocuments
from broker.device_types.elsewhere import TypesElsewhere
from broker.device_types.lists import DeviceTypeLists
from broker.device_types.making import TypeMaking
from broker.device_types.manifests import Manifests


class DeviceTypesRoom(msgspec.Struct, frozen=True):
    catalog: DeviceTypes
    lists: DeviceTypeLists
    manifests: Manifests
    making: TypeMaking
    documents: DeviceTypeDocuments


async def open_device_types(core: Core) -> DeviceTypesRoom:
    catalog, documents = DeviceTypes(core.database), DeviceTypeDocuments()
    if core.peers is not None:
        core.life.worker("types of others", TypesElsewhere(catalog, core.news, core.router).read_forever)
    return DeviceTypesRoom(
        catalog=catalog,
        lists=DeviceTypeLists(core.database),
        manifests=Manifests(core.database, core.clock, catalog, core.router, documents),
        making=TypeMaking(core.database, core.clock, catalog, core.router, documents),
        documents=documents,
    )
