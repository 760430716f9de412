"""Finders of device management: who may manage a device, configure a type, or work with all devices of a type."""

from typing import Final

from broker.accounts.permissions import ADMINISTRATORS, Role
from broker.accounts.room import AccountsRoom
from broker.accounts.tokens import Caller
from broker.device_management.room import DeviceManagementRoom
from broker.device_types.catalog import DeviceType
from broker.device_types.room import DeviceTypesRoom
from broker.devices.registry import Device
from broker.devices.room import DevicesRoom
from protocols.http.calls import Chapter, RestCalls, SharedFinder
from protocols.http.reading import Query
from protocols.http.rest.named import Named

DEVICE_MANAGEMENT: Final = Chapter(
    "Device management",
    "Properties of devices, and tasks that read, write or execute one on many devices. Server properties are kept "
    "here; device properties are what a device says of itself over LWM2M.",
)
CONFIGURERS: Final = frozenset({Role.ADMINISTRATOR, Role.DEVELOPER})


async def _managed(named: Named, caller: Caller, did: str) -> Device:
    """The device itself, its owner, an administrator of its type's organization, or one of its applications."""
    return await named.managed_device(caller, did)


async def _configured(named: Named, caller: Caller, dtid: str) -> DeviceType:
    """A type, for administrators and developers of its organization and for the organization's applications."""
    return await named.type_for(caller, dtid, CONFIGURERS)


MANAGED_DEVICE: Final = SharedFinder(_managed)
CONFIGURED_TYPE: Final = SharedFinder(_configured)


class ManagementCalls(RestCalls):
    """Common base of the nouns of device management."""

    chapter = DEVICE_MANAGEMENT

    def __init__(
        self,
        accounts: AccountsRoom,
        device_types: DeviceTypesRoom,
        devices: DevicesRoom,
        device_management: DeviceManagementRoom,
    ) -> None:
        self._permissions = accounts.permissions
        self._types = device_types.catalog
        self._lists = device_types.lists
        self._devices = devices.registry
        self._management = device_management

    async def chosen_type(self, caller: Caller, query: Query) -> DeviceType:
        """The type that `dtid` names, for administrators.

        Raises ValidationFailed, DeviceTypeNotFound, PermissionDenied.
        """
        dtid = query.text("dtid", required=True)
        query.check()
        type_ = await self._types.find(dtid or "")
        await self._permissions.require_role(caller, type_.record, ADMINISTRATORS)
        return type_
