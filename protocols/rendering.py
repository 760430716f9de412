"""The JSON forms that REST and WebSocket share (reference 6.4, 9.2, 19.2 and 19.3).

Stored `data` is compact JSON, so it is inserted as it is, not decoded and encoded again. The other texts are ids, whose
alphabets (reference 1.1) need no escaping. Frames have `boid`, entries of searches do not.

The `…_object` functions return the same members as a mapping, for MessagePack.
"""

from typing import Any

import msgspec

from broker.alarm_views import AlarmView, state_of
from broker.devices.registry import Device
from broker.envelope import Action, Message
from broker.messages.folds import Fields
from storage.records import MessageRow

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


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


def alarm_members(view: AlarmView) -> dict[str, Any]:
    """An alarm as REST and notifications show it (reference 12.12), without members that it does not have."""
    record = view.record
    members: dict[str, Any] = {
        "id": record.id,
        "uid": record.owner_id,
        "aid": record.application_id,
        "rid": record.rule_id,
        "ruleName": record.rule_name,
        "did": record.device_id or None,
        "severity": record.severity,
        "text": record.text if view.is_readable else None,
        "state": state_of(record),
        "raisedOn": record.raised_on,
        "lastOn": record.last_on,
        "count": record.count,
        "acknowledgedOn": record.acknowledged_on,
        "acknowledgedBy": record.acknowledged_by or None,
        "clearedOn": record.cleared_on,
        "clearedBy": record.cleared_by or None,
        "durationMs": None if record.cleared_on is None else record.cleared_on - record.raised_on,
        "isStorm": record.is_storm or None,
        "mid": view.mid,
    }
    if view.is_readable:
        # Others only say of which devices the text tells.
        conditions = [
            {
                "field": one.field,
                "text": one.text,
                "seen": [_seen(did, field, value, at_ms) for did, field, value, at_ms in one.seen],
            }
            for one in view.cause
            if one.text
        ]
        members["conditions"] = conditions or None
    return {name: value for name, value in members.items() if value is not None}


def _seen(did: str, field: str, value: Any, at_ms: int | None) -> dict[str, Any]:
    members = {"sdid": did, "field": field, "value": value, "cts": at_ms}
    return {name: one for name, one in members.items() if one is not None}


def shown_entry(one: Message | Action | AlarmView) -> bytes:
    """An entry of a notification."""
    if isinstance(one, AlarmView):
        return _encode(alarm_members(one))
    return action_entry(one) if isinstance(one, Action) else message_entry(one)


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
