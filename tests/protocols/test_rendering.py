import json

import msgspec
import pytest

from broker.device_types.catalog import DeviceType
from broker.devices.registry import Device
from broker.envelope import Action, Message
from broker.messages.folds import Fields
from protocols.rendering import (
    action_entry,
    action_frame,
    action_object,
    message_entry,
    message_object,
    message_text,
    snapshot_object,
)
from storage.keys import DeviceKey, DeviceTypeKey, Milliseconds, OrganizationKey, Position, UserKey
from storage.records import DeviceRecord, DeviceTypeRecord, MessageRow

DEVICE = Device(
    DeviceRecord(DeviceKey(1), "d1", UserKey(1), "u1", DeviceTypeKey(1), "Kitchen", 1, "LATEST", True, 1),
    DeviceType(
        DeviceTypeRecord(
            DeviceTypeKey(1), "dt1", "a.b", "A", OrganizationKey(1), "o1", True, False, False, None, (), 1
        ),
        [],
    ),
)
ROW = MessageRow(Position(7), DeviceKey(1), Milliseconds(10), Milliseconds(11), 2, '{"text":"a\\"b\\u00e4"}')
MESSAGE = Message(Position(7), "m7", "d1", "dt1", "u1", "o1", Milliseconds(10), Milliseconds(11), 2, ROW.data)
ACTION = Action(
    Position(8),
    "m8",
    "d2",
    "d1",
    "dt1",
    "u1",
    "o1",
    Milliseconds(10),
    Milliseconds(11),
    2,
    '{"actions":[{"name":"setOn"}]}',
)


def test_a_search_entry_has_the_documented_members() -> None:
    assert json.loads(message_entry(MESSAGE)) == {
        "mid": "m7",
        "data": {"text": 'a"bä'},
        "ts": 10,
        "sdtid": "dt1",
        "cts": 11,
        "uid": "u1",
        "mv": 2,
        "sdid": "d1",
    }


def test_a_live_frame_has_the_same_members_and_the_billing_organization() -> None:
    assert json.loads(message_text(ROW, DEVICE, "m7")) == json.loads(message_entry(MESSAGE)) | {"boid": "o1"}


def test_an_action_entry_has_the_documented_members() -> None:
    assert json.loads(action_entry(ACTION)) == {
        "type": "action",
        "cts": 11,
        "ts": 10,
        "mid": "m8",
        "sdid": "d2",
        "ddid": "d1",
        "data": {"actions": [{"name": "setOn"}]},
        "ddtid": "dt1",
        "uid": "u1",
        "mv": 2,
    }


def test_an_action_frame_has_the_same_members_and_the_billing_organization() -> None:
    assert json.loads(action_frame(ACTION)) == json.loads(action_entry(ACTION)) | {"boid": "o1"}


@pytest.mark.parametrize(
    "encoded",
    [message_entry(MESSAGE), message_text(ROW, DEVICE, "m7").encode(), action_entry(ACTION), action_frame(ACTION)],
)
def test_everything_is_compact_and_keeps_data_as_it_was_stored(encoded: bytes) -> None:
    assert encoded == msgspec.json.format(encoded, indent=-1)
    assert ROW.data.encode() in encoded or ACTION.data.encode() in encoded


def test_objects_have_the_members_of_frames() -> None:
    assert message_object(ROW, DEVICE, "m7") == json.loads(message_text(ROW, DEVICE, "m7"))
    assert action_object(ACTION) == json.loads(action_frame(ACTION))


def test_a_snapshot_nests_groups() -> None:
    fields: Fields = {
        "state": (Milliseconds(5), Position(1), True),
        "colorRGB.r": (Milliseconds(6), Position(2), 255),
        "samples": (Milliseconds(7), Position(3), [1, 2]),
    }
    assert snapshot_object(fields) == {
        "state": {"value": True, "ts": 5},
        "colorRGB": {"r": {"value": 255, "ts": 6}},
        "samples": {"value": [1, 2], "ts": 7},
    }


def test_a_snapshot_without_times_keeps_objects_as_leaves() -> None:
    assert snapshot_object({"a.b": (Milliseconds(5), Position(1), None)}, with_ts=False) == {
        "a": {"b": {"value": None}}
    }


@pytest.mark.parametrize("paths", [("color", "color.r"), ("color.r", "color")])
def test_a_field_that_became_a_group_stands_beside_its_members(paths: tuple[str, str]) -> None:
    assert snapshot_object(dict.fromkeys(paths, (Milliseconds(5), Position(1), 9))) == {
        "color": {"value": 9, "ts": 5, "r": {"value": 9, "ts": 5}}
    }
