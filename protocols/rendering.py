"""The JSON forms that REST and WebSocket share (reference 6.4, 9.2, 19.2 and 19.3).

Stored `data` is compact JSON, so it is inserted as it is, not decoded and encoded again. The other texts are ids, whose
alphabets (reference 1.1) need no escaping. Frames have `boid`, entries of searches do not.

The `…_object` functions return the same members as a mapping, for MessagePack.
"""

from typing import Any

import msgspec

from broker.devices.registry import Device
from broker.envelope import Action, Message
from broker.messages.folds import Fields
from storage.records import MessageRow

_decode = msgspec.json.Decoder().decode


def message_text(row: MessageRow, device: Device, mid: str) -> str:
    """A live frame as JSON. All subscribers of a message share one frame."""
    owned, typed = device.record, device.type.record
    return (
        f'{{"mid":"{mid}","data":{row.data},"ts":{row.ts},"sdtid":"{typed.id}","cts":{row.cts},'
        f'"uid":"{owned.owner_id}","mv":{row.mv},"sdid":"{owned.id}","boid":"{typed.organization_id}"}}'
    )


def message_entry(message: Message) -> bytes:
    """An entry of a search."""
    return (
        f'{{"mid":"{message.mid}","data":{message.data},"ts":{message.ts},"sdtid":"{message.sdtid}",'
        f'"cts":{message.cts},"uid":"{message.uid}","mv":{message.mv},"sdid":"{message.sdid}"}}'
    ).encode()


def action_frame(action: Action) -> bytes:
    """A frame as JSON, for the destination's channel and for subscribers that watch the source."""
    return (_action_members(action) + f',"boid":"{action.boid}"}}').encode()


def action_entry(action: Action) -> bytes:
    """An entry of a search."""
    return (_action_members(action) + "}").encode()


def _action_members(action: Action) -> str:
    return (
        f'{{"type":"action","cts":{action.cts},"ts":{action.ts},"mid":"{action.mid}","sdid":"{action.sdid}",'
        f'"ddid":"{action.ddid}","data":{action.data},"ddtid":"{action.ddtid}","uid":"{action.uid}","mv":{action.mv}'
    )


def message_object(row: MessageRow, device: Device, mid: str) -> dict[str, Any]:
    """The members of `message_text`."""
    return {
        "mid": mid,
        "data": _decode(row.data),
        "ts": row.ts,
        "sdtid": device.type.id,
        "cts": row.cts,
        "uid": device.owner_id,
        "mv": row.mv,
        "sdid": device.id,
        "boid": device.type.record.organization_id,
    }


def action_object(action: Action) -> dict[str, Any]:
    """The members of `action_frame`."""
    return {
        "type": "action",
        "cts": action.cts,
        "ts": action.ts,
        "mid": action.mid,
        "sdid": action.sdid,
        "ddid": action.ddid,
        "data": _decode(action.data),
        "ddtid": action.ddtid,
        "uid": action.uid,
        "mv": action.mv,
        "boid": action.boid,
    }


def snapshot_object(fields: Fields, *, with_ts: bool = True) -> dict[str, Any]:
    """Dotted paths as nested groups whose leaves are `{"value":…,"ts":…}`."""
    snapshot: dict[str, Any] = {}
    for path, (ts, _position, value) in fields.items():
        node = snapshot
        for name in path.split("."):
            node = node.setdefault(name, {})
        # A field that became a group in a later Manifest keeps its last value beside the members of the group.
        node["value"] = value
        if with_ts:
            node["ts"] = ts
    return snapshot
