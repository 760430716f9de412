"""What a device looks like on the wire (reference 6.1)."""

from typing import Any

from broker.devices.registry import Device
from broker.registration.certificates import certificate_info, certificate_signature
from storage.records import DeviceRecord


def device_record(device: Device, *, shared_with_me: str | None = None) -> dict[str, Any]:
    """The record of a device. `shared_with_me` is the id of the caller's share in it, if there is one."""
    return record_of(device.record, device) | ({} if shared_with_me is None else {"sharedWithMe": shared_with_me})


def record_of(record: DeviceRecord, device: Device) -> dict[str, Any]:
    """The same of a record that the device had a moment ago."""
    certificate = record.certificate
    return {
        "id": record.id,
        "uid": record.owner_id,
        **_inventory_members(record, device),
        "eid": record.eid,
        "certificateSignature": None if certificate is None else certificate_signature(certificate),
        "certificateInfo": None if certificate is None else certificate_info(certificate),
        "sharedWithOthers": record.shared,
    }


def device_entry(device: Device, *, share: str | None, with_share_info: bool) -> dict[str, Any]:
    """A device in a list. `share` is the id of the share that it is there by; None for the user's own."""
    shared: dict[str, Any] = {}
    if share is not None:
        shared = {"sharedWithMe": share}
    elif with_share_info:
        shared = {"sharedWithOthers": device.record.shared}
    return {"id": device.id, **_inventory_members(device.record, device), **shared}


def _inventory_members(record: DeviceRecord, device: Device) -> dict[str, Any]:
    """What records and list entries have in common."""
    return {
        "dtid": device.type.id,
        "name": record.name,
        "manifestVersion": device.manifest.version,
        "manifestVersionPolicy": record.manifest_version_policy,
        "needProviderAuth": record.cloud_authorization == "UNAUTHORIZED",
        "cloudAuthorization": record.cloud_authorization,
        "createdOn": record.created_on,
        "connected": record.enabled,
    }
