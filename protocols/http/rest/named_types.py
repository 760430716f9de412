"""The device type that a path names, for those who administrate it."""

from broker.accounts.permissions import ADMINISTRATORS
from broker.device_types.catalog import DeviceType
from broker.services import Services
from protocols.http.guard import APPLICATION, USER, Guard


async def administered_type(services: Services, guard: Guard, dtid: str) -> DeviceType:
    """For administrators of the type's organization, and for its applications (the path table's O).

    Raises Unauthorized, DeviceTypeNotFound, PermissionDenied.
    """
    caller = await guard.caller(USER, APPLICATION)
    type_ = await services.device_types.find(dtid)
    await services.permissions.require_organization(caller, type_.record.organization, ADMINISTRATORS)
    return type_
