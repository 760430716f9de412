"""Checks of a new subscription (reference 11.2)."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from broker.accounts.permissions import Permission, Permissions
from broker.accounts.tokens import Caller
from broker.accounts.users import Users
from broker.device_types.catalog import DeviceTypes
from broker.devices.registry import Devices
from broker.errors import REQUIRED, DomainError, Finding, PermissionDenied, ValidationFailed, invalid
from broker.subscriptions.addresses import callback_problem, is_allowed_callback
from broker.subscriptions.port import Callbacks
from storage.database import Database
from storage.keys import ApplicationKey, DeviceKey, DeviceTypeKey, UserKey


@dataclass(eq=False)
class StreamsNotInstalled(DomainError):
    """The library that writes to cloud streams is an optional part of the installation."""

    status = 501
    template = "This server cannot write to cloud streams: its operator can install the extra streams"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSubscription:
    """A requested subscription. The caller leaves out members of the other subscription type."""

    spelling: str
    message_type: str
    uid: str
    sdtid: str | None = None
    sdid: str | None = None
    ddid: str | None = None
    description: str | None = None
    include_shared: bool = False
    payload: str | None = None
    callback_url: str | None = None
    stream_key: str | None = None
    stream_secret: str | None = field(default=None, repr=False)
    stream_region: str | None = None
    stream_name: str | None = None

    @property
    def is_stream(self) -> bool:
        return self.spelling != "httpCallback"


class SubscribedObjects(msgspec.Struct, frozen=True):
    """The objects that a new subscription is about."""

    application: ApplicationKey
    user: UserKey
    device_type: DeviceTypeKey | None
    source: DeviceKey | None
    destination: DeviceKey | None


@dataclass(eq=False)
class Creation:
    """`has_streams`: what writes to cloud streams is installed."""

    _database: Database
    _permissions: Permissions
    _users: Users
    _types: DeviceTypes
    _devices: Devices
    _callbacks: Callbacks | None
    has_streams: bool
    allow_private: bool

    async def check(self, caller: Caller, wanted: NewSubscription) -> SubscribedObjects:
        """Raises ValidationFailed, PermissionDenied, UserNotFound, DeviceNotFound, DeviceTypeNotFound,
        StreamsNotInstalled.
        """
        if caller.application is None:
            raise PermissionDenied("a token of an application")
        if findings := tuple(combination(wanted)):
            raise ValidationFailed(findings)
        user = await self._users.find(wanted.uid, caller)
        await self._permissions.require_user(caller, user.key)
        type_key = None
        if wanted.sdtid is not None:
            type_ = await self._types.find(wanted.sdtid)
            await self._permissions.require_granted(caller, user.key, type_.record, Permission.READ)
            type_key = type_.record.key
        source = await self._device(caller, user.key, wanted.sdid, "sdid")
        destination = await self._device(caller, user.key, wanted.ddid, "ddid")
        if wanted.callback_url is not None:
            await self._check_callback(caller.application, wanted.callback_url)
        if wanted.is_stream and not self.has_streams:
            raise StreamsNotInstalled
        return SubscribedObjects(caller.application, user.key, type_key, source, destination)

    async def _device(self, caller: Caller, user: UserKey, id_: str | None, member: str) -> DeviceKey | None:
        if id_ is None:
            return None
        device = await self._devices.find(id_)
        await self._permissions.require(caller, device, Permission.READ)
        if device.owner != user and user not in device.shared_with:
            raise ValidationFailed.of(member, invalid("is no device of the user, nor shared with the user"))
        return device.key

    async def _check_callback(self, application: ApplicationKey, url: str) -> None:
        record = await self._database.read(lambda tx: tx.accounts.application(application))
        main = record.redirect_uris[0] if record is not None and record.redirect_uris else None
        if not is_allowed_callback(url, main, allow_private=self.allow_private):
            raise ValidationFailed.of("callbackUrl", invalid(callback_problem(url, main)))
        if self._callbacks is not None and await self._callbacks.check(url) is not None:
            raise ValidationFailed.of("callbackUrl", invalid("leads to no address that callbacks may reach"))


def combination(wanted: NewSubscription) -> Iterator[Finding]:
    """The findings about the combination of members."""
    if wanted.message_type == "alarm":
        for name, value in (("sdid", wanted.sdid), ("sdtid", wanted.sdtid), ("ddid", wanted.ddid)):
            if value is not None:
                yield Finding(name, (invalid("alarms are those of all rules of the user"),))
        if wanted.is_stream:
            yield Finding("subscriptionType", (invalid("alarms go to callbacks"),))
    elif wanted.message_type == "action":
        if wanted.ddid is None:
            yield Finding("ddid", (REQUIRED,))
        for name, value in (("sdid", wanted.sdid), ("sdtid", wanted.sdtid)):
            if value is not None:
                yield Finding(name, (invalid("an Action has no source to choose: name ddid"),))
    else:
        if wanted.ddid is not None:
            yield Finding("ddid", (invalid("is for Actions: name sdid or sdtid"),))
        if wanted.sdid is not None and wanted.sdtid is not None:
            yield Finding("sdtid", (invalid("must not be given together with sdid"),))
    if not wanted.is_stream and wanted.callback_url is None:
        yield Finding("callbackUrl", (REQUIRED,))
