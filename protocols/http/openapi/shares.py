"""Sharing devices (reference 6.3)."""

from typing import Final

from protocols.http.openapi.operation import PAGING, USER, Answer, Noun, Operation, Parameter, json_body
from protocols.http.openapi.samples import DID, SHARE, TS, UID
from protocols.http.openapi.samples import page as sample_page
from protocols.http.openapi.shapes import array, id_, milliseconds, one_of, page, record, ref, text

_SHARE: Final = {
    "id": id_(),
    "email": text("Whom it is offered to", format="email"),
    "status": one_of(("PENDING", "ACCEPTED", "REJECTED")),
    "sharedOn": milliseconds(),
}
_EXAMPLE: Final = {"id": SHARE, "email": "bob@example.net", "status": "PENDING", "sharedOn": TS}
_ONE: Final = Answer(record({"data": ref("Share"), **_SHARE}), {"data": _EXAMPLE, **_EXAMPLE})
_PATH: Final = "/devices/{did}/shares/{shareId}"

SHARES: Final = Noun(
    "Shares",
    "An owner offers a device to somebody by e-mail. An accepted share gives READ and WRITE on its messages, Actions, "
    "status, snapshots and events; the device stays its owner's.",
    (
        Operation(
            method="POST",
            path="/devices/{did}/shares",
            summary="Offer a device to somebody",
            about="Only the owner shares. The address need not belong to a user yet; it gets a mail with a link.",
            tokens=USER,
            body=json_body(
                {
                    "anyOf": [
                        record({"email": text("Whom it is offered to", format="email", longest=254)}),
                        record({"uid": text("A user id or an e-mail address", longest=254)}),
                    ]
                },
                {"email": "bob@example.net"},
            ),
            answer=Answer(
                record({"data": record({"id": id_(), "shareId": id_()}), "id": id_(), "shareId": id_()}),
                {"data": {"id": SHARE, "shareId": SHARE}, "id": SHARE, "shareId": SHARE},
            ),
            refusals={409: "Device already shared with this address", 429: "Too many mails to this address."},
        ),
        Operation(
            method="GET",
            path="/devices/{did}/shares",
            summary="To whom a device is offered",
            tokens=USER,
            query=PAGING,
            answer=Answer(page(record({"shares": array(ref("Share"))})), sample_page(shares=[_EXAMPLE])),
        ),
        Operation(
            method="GET",
            path=_PATH,
            summary="One share",
            about="For the owner, and for the one it is offered to.",
            tokens=USER,
            answer=_ONE,
        ),
        Operation(
            method="PUT",
            path=_PATH,
            summary="Accept or refuse a share",
            about="For the one it is offered to.",
            tokens=USER,
            body=json_body(record({"status": one_of(("ACCEPTED", "REJECTED"), "Any case")}), {"status": "ACCEPTED"}),
            answer=_ONE,
            refusals={409: "Share is ACCEPTED"},
        ),
        Operation(
            method="DELETE",
            path=_PATH,
            summary="Revoke or leave a share",
            about="The owner revokes, the other one leaves.",
            tokens=USER,
            answer=_ONE,
        ),
        Operation(
            method="GET",
            path="/users/{uid}/shares",
            summary="Devices that are offered to a user",
            tokens=USER,
            query=(
                Parameter("filter", one_of(("ALL", "WAITING", "ACCEPTED", "REJECTED"), "Any case", default="ALL")),
                *PAGING,
            ),
            answer=Answer(
                page(record({"shares": array(ref("OfferedShare"))})),
                sample_page(shares=[{**_EXAMPLE, "did": DID, "deviceName": "Kitchen light", "ownerId": UID}]),
            ),
        ),
    ),
    {
        "Share": record(_SHARE),
        "OfferedShare": record({**_SHARE, "did": id_(), "deviceName": text(), "ownerId": id_()}),
    },
)
