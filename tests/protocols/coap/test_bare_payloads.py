"""Devices with an Advanced Manifest: the payload of a request is `data` itself."""

import json
import struct
from typing import Any

import cbor2
import pytest
from trio.testing import wait_all_tasks_blocked

from broker.services import Services
from protocols.coap.messages import CBOR, JSON, OCTETS, TEXT, CoapMessage, Code, Option, uint
from tests.factories import KITCHEN_TOKEN, LIGHT_TYPE
from tests.protocols.coap.peers import Peer, error
from tests.rows import each_row

FIELDS = [{"name": "temperature", "valueClass": "Double"}]
CSV = {"format": "csv", "columns": ["temperature"]}
BINARY = {"format": "binary", "layout": [{"name": "temperature", "type": "int16", "scale": 0.5}]}
JSON_LIST = {"format": "json", "expression": "{temperature: [0]}"}


async def posted(peer: Peer, payload: object, format_: int) -> CoapMessage:
    peer.post(KITCHEN_TOKEN, payload, [(Option.CONTENT_FORMAT, uint(format_))])
    await wait_all_tasks_blocked()
    return peer.take()


@each_row(
    ("transform", "payload", "format_", "data"),
    [
        (CSV, b"21.5", TEXT, '{"temperature":21.5}'),
        (CSV, b"21.5", OCTETS, '{"temperature":21.5}'),
        (CSV, {"data": "21.5", "ts": 5}, JSON, '{"temperature":21.5}'),
        (CSV, cbor2.dumps({"data": "21.5"}), CBOR, '{"temperature":21.5}'),
        (BINARY, struct.pack(">h", -3), OCTETS, '{"temperature":-1.5}'),
        (JSON_LIST, b"[4]", TEXT, '{"temperature":4}'),
        (JSON_LIST, {"data": [4]}, JSON, '{"temperature":4}'),
    ],
)
async def test_a_bare_payload_is_transformed(
    services: Services, peer: Peer, transform: dict[str, Any], payload: object, format_: int, data: str
) -> None:
    await services.device_types.manifests.upload(LIGHT_TYPE, {"fields": FIELDS, "transform": transform}, approve=True)
    answer = await posted(peer, payload, format_)
    assert answer.code == Code.CREATED
    found = await services.messages.history.by_mid(json.loads(_json(answer))["data"]["mid"])
    assert found is not None
    assert found[0].data == data


def _json(answer: CoapMessage) -> str:
    """The body of a response as JSON; its format is that of the request."""
    is_cbor = answer.payload[:1] != b"{"
    return json.dumps(cbor2.loads(answer.payload)) if is_cbor else answer.payload.decode()


async def test_a_row_of_csv_needs_no_content_format(services: Services, peer: Peer) -> None:
    await services.device_types.manifests.upload(LIGHT_TYPE, {"fields": FIELDS, "transform": CSV}, approve=True)
    for payload, data in ((b"21.5", '{"temperature":21.5}'), (b' {"data":"4"}', '{"temperature":4.0}')):
        peer.post(KITCHEN_TOKEN, payload)
        await wait_all_tasks_blocked()
        found = await services.messages.history.by_mid(json.loads(_json(peer.take()))["data"]["mid"])
        assert found is not None
        assert json.loads(found[0].data) == json.loads(data)


async def test_a_simple_manifest_takes_json_only_without_a_content_format(peer: Peer) -> None:
    peer.post(KITCHEN_TOKEN, b"21.5")
    await wait_all_tasks_blocked()
    assert error(peer.take()) == ("4.00", "Bad Request")


@pytest.mark.parametrize("format_", [JSON, CBOR])
async def test_when_nothing_remained_the_answer_says_so_once_a_second(peer: Peer, format_: int) -> None:
    """reference 9.7"""
    body = {"data": {"opne": True}}
    for warned in (True, False):
        answer = await posted(peer, cbor2.dumps(body) if format_ == CBOR else body, format_)
        assert answer.code == Code.CREATED
        said = json.loads(_json(answer))
        assert ("warnings" in said) == warned
        if warned:
            text = "Nothing of the message was kept: nothing remained after normalization"
            assert said["warnings"] == [{"field": "data", "message": text}]


@each_row("format_", [TEXT, OCTETS])
async def test_a_simple_manifest_takes_no_bare_payload(peer: Peer, format_: int) -> None:
    assert error(await posted(peer, b'{"data":{"state":true}}', format_)) == ("4.15", "Unsupported Content-Format")


async def test_data_given_as_a_string_is_parsed(services: Services, peer: Peer) -> None:
    answer = await posted(peer, {"data": '{"state":true}'}, JSON)
    found = await services.messages.history.by_mid(json.loads(answer.payload)["data"]["mid"])
    assert found is not None
    assert found[0].data == '{"state":true}'


@each_row("body", [b'{"data":"\\ud800"}', b'{"data":"text"}'])
async def test_a_string_that_is_not_valid_data_is_refused(peer: Peer, body: bytes) -> None:
    assert error(await posted(peer, body, JSON)) == ("4.00", "Bad Request")
