"""Secure registration (reference 7.1)."""

from typing import Final

from config.limits import VENDOR_ID_MAX_CHARACTERS
from protocols.http.openapi import samples
from protocols.http.openapi.operation import USER_OR_APPLICATION, Answer, Noun, Operation, json_body
from protocols.http.openapi.shapes import data, id_, milliseconds, name, one_of, record, ref, text, type_id

_STATUSES: Final = ("PENDING_USER_CONFIRMATION", "PENDING_DEVICE_COMPLETION", "REGISTERED", "REVOKED", "EXPIRED")
_PROGRESS: Final = Answer(data(ref("RegistrationProgress")), {"data": {"status": "REGISTERED", "did": samples.DID}})
#: reference 1.1: upper-case letters and digits without 0 O 1 I L; matched without regard to case.
_PIN: Final = text("Eight characters, any case; what the device shows", pattern="^[A-HJKMNP-Za-hjkmnp-z2-9]{8}$")

REGISTRATIONS: Final = Noun(
    "Registrations",
    "Devices of types with `rsp` true register with the certificate that their factory gave them. The device begins on "
    "the secure listener and shows a PIN, a person enters it here, and the device comes back for its token.",
    (
        Operation(
            method="POST",
            path="/cert/devices/registrations",
            summary="Begin a registration",
            about="By the device. Its certificate must chain to an authority of the device type.",
            needs_certificate=True,
            counted=None,
            body=json_body(
                record(
                    {
                        "deviceTypeId": type_id("Id or unique name"),
                        "vendorDeviceId": text(
                            "What its vendor calls it", minLength=1, longest=VENDOR_ID_MAX_CHARACTERS
                        ),
                    }
                ),
                {"deviceTypeId": samples.DTID, "vendorDeviceId": samples.VDID},
            ),
            answer=Answer(
                data(
                    record(
                        {
                            "rid": id_("The registration"),
                            "pin": text("For the person who owns the device", longest=8),
                            "nonce": id_("For the device's last call"),
                            "expiresOn": milliseconds("When the PIN is over"),
                        }
                    )
                ),
                {
                    "data": {
                        "rid": samples.RID,
                        "pin": "K7QW3MXA",
                        "nonce": samples.NONCE,
                        "expiresOn": samples.TS,
                    }
                },
            ),
            refusals={
                403: "The certificate is not one of the device type's authorities.",
                404: "The device type does not exist.",
                409: "Vendor device id already registered for this device type",
            },
        ),
        Operation(
            method="GET",
            path="/cert/devices/registrations/{rid}/status",
            summary="How far a registration is, for the device",
            needs_certificate=True,
            counted=None,
            answer=_PROGRESS,
            refusals={403: "Another certificate began it."},
        ),
        Operation(
            method="PUT",
            path="/cert/devices/registrations/{rid}",
            summary="Complete a registration",
            about="By the device, after a person has entered the PIN. From now on it uses the secure listener only.",
            needs_certificate=True,
            counted=None,
            body=json_body(record({"nonce": id_("From the first step")}), {"nonce": samples.NONCE}),
            answer=Answer(
                data(record({"accessToken": id_("The device token"), "uid": id_("The owner"), "did": id_()})),
                {"data": {"accessToken": samples.TOKEN, "uid": samples.UID, "did": samples.DID}},
            ),
            refusals={
                403: "Another certificate began it, or the nonce is wrong.",
                409: "Registration does not await its completion",
            },
        ),
        Operation(
            method="PUT",
            path="/devices/registrations/pin",
            summary="Enter the PIN of a device",
            about="Creates the device under `deviceName`, or attaches the registration to an existing one of the same "
            "type. A PIN is good for one hour and one use; five wrong ones in ten minutes are enough.",
            tokens=USER_OR_APPLICATION,
            body=json_body(
                {
                    "oneOf": [
                        record({"pin": _PIN, "deviceName": name("For a new device")}, {"uid": id_("Its owner")}),
                        record({"pin": _PIN, "deviceId": id_("An existing device")}),
                    ]
                },
                {"pin": "K7QW3MXA", "deviceName": "Front door"},
            ),
            answer=Answer(data(record({"rid": id_("The registration")})), {"data": {"rid": samples.RID}}),
            refusals={
                404: "No registration waits for this PIN.",
                409: "Device is of another device type",
            },
        ),
        Operation(
            method="GET",
            path="/devices/registrations/{rid}/status",
            summary="How far a registration is",
            about="For whoever entered the PIN.",
            tokens=USER_OR_APPLICATION,
            answer=_PROGRESS,
        ),
        Operation(
            method="DELETE",
            path="/devices/{did}/registrations",
            summary="End the registration of a device",
            about="Revokes its token and its certificate.",
            tokens=USER_OR_APPLICATION,
            answer=Answer(data(ref("Device")), {"data": samples.DEVICE}),
        ),
    ),
    {
        "RegistrationProgress": record({"status": one_of(_STATUSES)}, {"did": id_("As soon as there is a device")}),
    },
)
