"""Finders of device management: who may manage a device, configure a type, or work with all devices of a type."""

from typing import Final

from broker.accounts.permissions import ADMINISTRATORS, Permissions, Role
from broker.accounts.tokens import Caller
from broker.device_types.catalog import DeviceType, DeviceTypes
from broker.devices.registry import Device
from protocols.http.calls import SharedFinder
from protocols.http.reading import Query
from protocols.http.rest.named import Named, require_role

CONFIGURERS: Final = frozenset({Role.ADMINISTRATOR, Role.DEVELOPER})


async def _managed(named: Named, caller: Caller, did: str) -> Device:
    """The device itself, its owner, an administrator of its type's organization, or one of its applications."""
    return await named.managed_device(caller, did)


async def _configured(named: Named, caller: Caller, dtid: str) -> DeviceType:
    """A type, for administrators and developers of its organization and for the organization's applications."""
    return await named.type_for(caller, dtid, CONFIGURERS)


MANAGED_DEVICE: Final = SharedFinder(_managed)
CONFIGURED_TYPE: Final = SharedFinder(_configured)


async def type_in_query(types: DeviceTypes, permissions: Permissions, caller: Caller, query: Query) -> DeviceType:
    """The type that `dtid` names, for administrators. Raises ValidationFailed, DeviceTypeNotFound, PermissionDenied."""
    dtid = query.text("dtid", required=True)
    query.check()
    type_ = await types.find(dtid or "")
    await require_role(permissions, caller, type_.record, ADMINISTRATORS)
    return type_
