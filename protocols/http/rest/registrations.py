"""Secure registration: the device's calls under /cert, and the user's under /devices (reference 7.1)."""

from collections.abc import Iterator
from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from broker.accounts.permissions import Permission
from broker.accounts.room import AccountsRoom
from broker.accounts.tokens import Caller
from broker.devices.inventory import VENDOR_ID_TAKEN, name_findings
from broker.devices.registry import Device
from broker.devices.room import DevicesRoom
from broker.errors import REQUIRED, Finding, PermissionDenied, ValidationFailed, invalid
from broker.registration.certificates import ClientCertificate
from broker.registration.progress import RegistrationResult
from broker.registration.registrations import NOT_AWAITED, OTHER_TYPE_OF_DEVICE
from broker.registration.room import RegistrationRoom
from config.limits import VENDOR_ID_MAX_CHARACTERS
from protocols.http.calls import NO_TOKEN, NOTHING, USER_OR_APPLICATION, Chapter, Counted, RestCall, RestCalls
from protocols.http.openapi import samples
from protocols.http.reading import Given, Rule, Valid
from protocols.http.rest.device_records import DeviceObject, device_record
from protocols.http.rest.named import named_device
from protocols.http.schema import (
    BodyForm,
    Data,
    Id,
    Shape,
    TypeId,
    about,
    absent_if_none,
    name,
    one_of,
    text,
    time_ms,
)
from storage.keys import UserKey

_STATUSES = ("PENDING_USER_CONFIRMATION", "PENDING_DEVICE_COMPLETION", "REGISTERED", "REVOKED", "EXPIRED")


class RegistrationProgress(Shape):
    shape = "RegistrationProgress"
    example = {"status": "REGISTERED", "did": samples.DID}

    status: Annotated[str, one_of(_STATUSES)]
    did: Annotated[Id, about("As soon as there is a device")] | UnsetType = UNSET


class _Beginning(Shape):
    example = {"deviceTypeId": samples.DTID, "vendorDeviceId": samples.VDID}

    device_type_id: Annotated[TypeId, Meta(min_length=1, description="Id or unique name")]
    vendor_device_id: Annotated[
        str,
        Meta(min_length=1, max_length=VENDOR_ID_MAX_CHARACTERS, description="What its vendor calls it"),
        Valid(
            lambda given: len(given) > VENDOR_ID_MAX_CHARACTERS or given.isprintable(), "must be printable characters"
        ),
    ]


class _Begun(Shape):
    example = {"rid": samples.RID, "pin": "K7QW3MXA", "nonce": samples.NONCE, "expiresOn": samples.TS}

    rid: Annotated[Id, about("The registration")]
    pin: Annotated[str, text("For the person who owns the device", longest=8)]
    nonce: Annotated[Id, about("For the device's last call")]
    expires_on: Annotated[int, time_ms("When the PIN is over")]


class _Completion(Shape):
    example = {"nonce": samples.NONCE}

    nonce: Annotated[Id, Meta(min_length=1, description="From the first step")]


class _Registered(Shape):
    example = {"accessToken": samples.TOKEN, "uid": samples.UID, "did": samples.DID}

    access_token: Annotated[Id, about("The device token")]
    uid: Annotated[Id, about("The owner")]
    did: Id


def _new_or_existing(given: Given) -> Iterator[Finding]:
    """A new device needs a name; an existing device keeps its name."""
    device_name, device_id = given.values["device_name"], given.values["device_id"]
    if device_name is not None:
        for finding in name_findings(device_name):
            yield Finding("deviceName", finding.messages)
        if device_id is not None:
            yield Finding("deviceId", (invalid("must not be given together with deviceName"),))
    elif device_id is None:
        yield Finding("deviceName", (REQUIRED,))


class _Pin(Shape):
    example = {"pin": "K7QW3MXA", "deviceName": "Front door"}
    exactly_one_of = (BodyForm(("pin", "deviceName"), ("uid",)), BodyForm(("pin", "deviceId")))

    # reference 1.1: upper-case letters and digits without 0 O 1 I L; matched without regard to case.
    pin: Annotated[
        str,
        Meta(min_length=1),
        text("Eight characters, any case; what the device shows", pattern="^[A-HJKMNP-Za-hjkmnp-z2-9]{8}$"),
    ]
    device_name: Annotated[str, name("For a new device")] | None = None
    device_id: Annotated[Id, about("An existing device"), Rule(_new_or_existing)] | None = None
    uid: Annotated[Id, about("Its owner")] | None = None


class _Confirmed(Shape):
    example = {"rid": samples.RID}

    rid: Annotated[Id, about("The registration")]


class RegistrationCalls(RestCalls):
    chapter = Chapter(
        "Registrations",
        "Devices of types with `rsp` true register with the certificate that their factory gave them. The device "
        "begins on the secure listener and shows a PIN, a person enters it here, and the device comes back for its "
        "token.",
    )

    path_names = {"rid": (Annotated[Id, about("A registration")], samples.RID)}

    def __init__(self, accounts: AccountsRoom, devices: DevicesRoom, registration: RegistrationRoom) -> None:
        self._users = accounts.users
        self._permissions = accounts.permissions
        self._devices = devices.registry
        self._registrations = registration.registrations

    @RestCall(
        "POST",
        "/cert/devices/registrations",
        tokens=NO_TOKEN,
        needs_certificate=True,
        on=NOTHING,
        summary="Begin a registration",
        about="By the device. Its certificate must chain to an authority of the device type.",
        counted=Counted.ADDRESS,
        is_secret=True,
        refusals={
            403: "The certificate is not one of the device type's authorities.",
            404: "The device type does not exist.",
            409: VENDOR_ID_TAKEN,
        },
    )
    async def begin(self, shown: ClientCertificate, body: _Beginning) -> Data[_Begun]:
        begun = await self._registrations.begin(shown, body.device_type_id, body.vendor_device_id)
        return Data(_Begun(begun.id, begun.pin, begun.nonce, begun.expires_on))

    async def _of_device(self, shown: ClientCertificate, rid: str) -> RegistrationResult:
        """The progress, for the device that began the registration. Raises NotFound, PermissionDenied."""
        return await self._registrations.progress(shown, rid)

    @RestCall(
        "GET",
        "/cert/devices/registrations/{rid}/status",
        tokens=NO_TOKEN,
        needs_certificate=True,
        on=_of_device,
        summary="How far a registration is, for the device",
        counted=Counted.ADDRESS,
        refusals={403: "Another certificate began it."},
    )
    async def status_for_device(self, progress: RegistrationResult) -> Data[RegistrationProgress]:
        return _progress(progress)

    @RestCall(
        "PUT",
        "/cert/devices/registrations/{rid}",
        tokens=NO_TOKEN,
        needs_certificate=True,
        on=_of_device,
        summary="Complete a registration",
        about="By the device, after a person has entered the PIN. From now on it uses the secure listener only.",
        counted=Counted.ADDRESS,
        is_secret=True,
        refusals={
            403: "Another certificate began it, or the nonce is wrong.",
            409: NOT_AWAITED,
        },
    )
    async def complete(self, shown: ClientCertificate, rid: str, body: _Completion) -> Data[_Registered]:
        done = await self._registrations.complete(shown, rid, body.nonce)
        return Data(_Registered(done.token, done.owner_id, done.device_id))

    @RestCall(
        "PUT",
        "/devices/registrations/pin",
        tokens=USER_OR_APPLICATION,
        on=NOTHING,
        summary="Enter the PIN of a device",
        about="Creates the device under `deviceName`, or attaches the registration to an existing one of the same "
        "type. A PIN is good for one hour and one use; five wrong ones in ten minutes are enough.",
        refusals={404: "No registration waits for this PIN.", 409: OTHER_TYPE_OF_DEVICE},
    )
    async def confirm(self, caller: Caller, body: _Pin) -> Data[_Confirmed]:
        if body.device_id is not None:
            device = await self._devices.find(body.device_id)
            await self._permissions.require(caller, device, Permission.MANAGE)
            return Data(_Confirmed(await self._registrations.confirm_existing(caller, body.pin, device)))
        owner = await self._owner(caller, body.uid)
        rid = await self._registrations.confirm_new(caller, body.pin, owner=owner, name=body.device_name or "")
        return Data(_Confirmed(rid))

    async def _of_user(self, caller: Caller, rid: str) -> RegistrationResult:
        """The progress, for the caller who entered the PIN. Raises NotFound, PermissionDenied."""
        return await self._registrations.progress_for(caller, rid)

    @RestCall(
        "GET",
        "/devices/registrations/{rid}/status",
        tokens=USER_OR_APPLICATION,
        on=_of_user,
        summary="How far a registration is",
        about="For whoever entered the PIN.",
    )
    async def status(self, progress: RegistrationResult) -> Data[RegistrationProgress]:
        return _progress(progress)

    @RestCall(
        "DELETE",
        "/devices/{did}/registrations",
        tokens=USER_OR_APPLICATION,
        on=named_device(Permission.MANAGE),
        summary="End the registration of a device",
        about="Revokes its token and its certificate.",
    )
    async def revoke(self, device: Device) -> Data[DeviceObject]:
        await self._registrations.revoke(device)
        return Data(device_record(device))

    async def _owner(self, caller: Caller, uid: str | None) -> UserKey:
        """The owner of the new device. An application must name one. Raises ValidationFailed, PermissionDenied."""
        if uid is None:
            if caller.user is None:
                raise ValidationFailed.of("uid", REQUIRED)
            return caller.user
        user = (await self._users.find(uid, caller)).key
        if caller.user not in {None, user}:
            raise PermissionDenied("devices of this user")
        return user


def _progress(progress: RegistrationResult) -> Data[RegistrationProgress]:
    return Data(RegistrationProgress(progress.status, absent_if_none(progress.device_id)))
