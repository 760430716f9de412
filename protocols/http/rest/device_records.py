"""JSON of a device (reference 6.1)."""

from typing import Annotated, Any, Final

from msgspec import UNSET, UnsetType, convert, field

from broker.devices.registry import Device
from broker.registration.certificates import certificate_info, certificate_signature
from config.limits import NAME_MAX_CHARACTERS
from protocols.http.openapi import samples
from protocols.http.schema import Amount, Id, Shape, Timestamp, TypeId, about, absent_if_none, one_of, text
from storage.records import DeviceRecord

_NOT_IN_LISTS: Final = frozenset({"uid", "eid", "certificateSignature", "certificateInfo"})

SharedWithOthers = Annotated[bool, about("Whether a share of it was accepted")]
SharedWithMe = Annotated[Id, about("The caller's share in it, when it is somebody else's")]
Properties = Annotated[dict[str, Any], about("Only when asked for")]


class _Inventory(Shape, kw_only=True):
    # The members that records and list entries share: behind the ids, and before the members that each of them adds.
    dtid: TypeId
    name: Annotated[str, text(longest=NAME_MAX_CHARACTERS)]
    manifest_version: Annotated[Amount, about("Version of the Manifest in use; 0 while the type has none")]
    manifest_version_policy: Annotated[str, one_of(("LATEST", "DEVICE"))]
    need_provider_auth: Annotated[bool, about("True exactly while `cloudAuthorization` is UNAUTHORIZED")]
    cloud_authorization: Annotated[str, one_of(("NO_AUTHORIZATION", "AUTHORIZED", "UNAUTHORIZED"))]
    created_on: Timestamp
    connected: Annotated[bool, about("Whether the device is enabled; it says nothing about being online")]


class _CertificateInfo(Shape):
    """Of a securely registered device"""

    issuer: str = field(name="Issuer-DN")
    uid: str = field(name="Cert-UID")
    cn: str = field(name="Cert-CN")
    sn: str = field(name="Cert-SN")
    fp: str = field(name="Cert-FP")


class _Record(_Inventory):
    id: Id
    uid: Annotated[Id, about("The owner")]


class DeviceObject(_Record, kw_only=True):
    shape = "Device"
    example = samples.DEVICE

    eid: Annotated[str, about("Id at the third party, of a connector's device")] | None
    certificate_signature: Annotated[str, about("Of the registered certificate, in hexadecimal")] | None
    certificate_info: _CertificateInfo | None
    shared_with_others: SharedWithOthers
    shared_with_me: SharedWithMe | UnsetType = UNSET
    properties: Properties | UnsetType = UNSET


class _Entry(_Inventory):
    id: Id


class DeviceEntryObject(_Entry, kw_only=True):
    shape = "DeviceEntry"
    example = {member: value for member, value in samples.DEVICE.items() if member not in _NOT_IN_LISTS}

    shared_with_others: SharedWithOthers | UnsetType = UNSET
    shared_with_me: SharedWithMe | UnsetType = UNSET
    properties: Properties | UnsetType = UNSET


def device_record(device: Device, *, shared_with_me: str | None = None, with_properties: bool = False) -> DeviceObject:
    """The record of a device. `shared_with_me` is the id of the caller's share in it, if there is one."""
    return record_of(device.record, device, shared_with_me=shared_with_me, with_properties=with_properties)


def record_of(
    record: DeviceRecord, device: Device, *, shared_with_me: str | None = None, with_properties: bool = False
) -> DeviceObject:
    """A record of a device, which may be older than the current one."""
    certificate = record.certificate
    return DeviceObject(
        record.id,
        record.owner_id,
        **_inventory_members(record, device),
        eid=record.eid,
        certificate_signature=None if certificate is None else certificate_signature(certificate),
        certificate_info=None if certificate is None else convert(certificate_info(certificate), _CertificateInfo),
        shared_with_others=record.shared,
        shared_with_me=absent_if_none(shared_with_me),
        properties={} if with_properties else UNSET,
    )


def device_entry(
    device: Device, *, share: str | None, with_share_info: bool, with_properties: bool
) -> DeviceEntryObject:
    """A device in a list. `share` is the id of the share by which it is there; None for the user's own devices."""
    is_told = share is None and with_share_info
    return DeviceEntryObject(
        device.id,
        **_inventory_members(device.record, device),
        shared_with_others=device.record.shared if is_told else UNSET,
        shared_with_me=absent_if_none(share),
        properties={} if with_properties else UNSET,
    )


def _inventory_members(record: DeviceRecord, device: Device) -> dict[str, Any]:
    return {
        "dtid": device.type.id,
        "name": record.name,
        "manifest_version": device.manifest.version,
        "manifest_version_policy": record.manifest_version_policy,
        "need_provider_auth": record.cloud_authorization == "UNAUTHORIZED",
        "cloud_authorization": record.cloud_authorization,
        "created_on": record.created_on,
        "connected": record.enabled,
    }
