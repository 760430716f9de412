"""Each refusal of MQTT leaves a line in the log, with the device if one has that id, and never with a secret."""

import json
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs

from broker.ids import new_id
from broker.services import Services
from broker.trace.refusals import LINES_OF_ONE
from config.limits import WRONG_TOKEN_TRIES
from config.settings import Limits, Settings
from tests.factories import ADA_TOKEN, KITCHEN, KITCHEN_TOKEN
from tests.protocols.mqtt.peers import (
    ACTIONS,
    ERRORS,
    MESSAGES,
    Peer,
    Server,
    connect,
    puback,
    publish,
    refused,
    suback,
    subscribe,
)
from tests.rows import each_row

_OF_ANOTHER = ACTIONS.replace(KITCHEN.encode(), b"9" * 32)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state_dir=tmp_path, limits=Limits(rate_limits="on", quotas="off", mqtt_device="20/20"))


@each_row(
    ("name", "password", "event", "account"),
    [
        (KITCHEN, "0" * 32, "mqtt_credentials_refused", KITCHEN),
        ("9" * 32, KITCHEN_TOKEN, "mqtt_credentials_refused", None),
        (KITCHEN_TOKEN, KITCHEN, "mqtt_credentials_refused", None),  # in the wrong fields
        (ADA_TOKEN, ADA_TOKEN, "mqtt_refused", None),
        (KITCHEN, ADA_TOKEN, "mqtt_refused", KITCHEN),
    ],
)
async def test_a_refused_connect_has_a_line(
    server: Server, name: str, password: str, event: str, account: str | None
) -> None:
    with capture_logs() as logs:
        peer = await server.dial()
        await peer.send(connect(name, password))
        await peer.expect(refused(4 if event == "mqtt_credentials_refused" else 5))
        await peer.expect_end()
    (line,) = logs
    assert (line["event"], line.get("account")) == (event, account)
    assert KITCHEN_TOKEN not in str(line)
    assert ADA_TOKEN not in str(line)


async def test_what_is_not_mqtt_has_a_line(server: Server) -> None:
    with capture_logs() as logs:
        peer = await server.dial()
        await peer.send(b"\xf0\x00")
        await peer.expect_end()
    assert [line["event"] for line in logs] == ["mqtt_protocol_error"]


async def test_a_token_that_is_wrong_again_and_again_gets_the_same_answer(server: Server) -> None:
    token = new_id()
    for _ in range(WRONG_TOKEN_TRIES + 1):
        peer = await server.dial()
        await peer.send(connect(KITCHEN, token))
        await peer.expect(refused(4))
    await server.connected()


async def told(peer: Peer) -> tuple[str, int]:
    """Id and code of the error that comes next on the errors topic."""
    topic, payload = await peer.expect_delivery()
    error = json.loads(payload)["error"]
    assert topic == ERRORS
    return error["id"], error["code"]


@each_row(
    ("topic", "payload", "event", "reason"),
    [
        (MESSAGES, b"secret", "mqtt_refused", "Bad Request"),
        (MESSAGES + b"/secret", b"{}", "mqtt_refused", "You do not have publish permission to topic"),
        (MESSAGES, b'{"secret":1}', "mqtt_nothing_remained", "nothing of the message was kept"),
    ],
)
async def test_the_error_that_a_device_is_told_is_found_in_the_log_by_its_id(
    server: Server, topic: bytes, payload: bytes, event: str, reason: str
) -> None:
    peer = await server.connected(topics=[ERRORS])
    with capture_logs() as logs:
        await peer.send(publish(payload=payload, topic=topic))
        error_id, code = await told(peer)
        await peer.expect(puback())
    (line,) = logs
    assert (line["event"], line["reason"], line["caller"]) == (event, reason, f"device {KITCHEN}")
    assert (line["error_id"], line["status"]) == (error_id, code)
    assert "secret" not in str(line)


async def test_a_refused_subscription_is_found_in_the_log(server: Server) -> None:
    peer = await server.connected(topics=[ERRORS])
    with capture_logs() as logs:
        await peer.send(subscribe(_OF_ANOTHER))
        await peer.expect(suback(0x80))
        error_id, code = await told(peer)
    assert [(line["event"], line["error_id"], line["status"]) for line in logs] == [("mqtt_refused", error_id, code)]


async def test_a_device_that_hears_no_errors_is_in_the_log_as_well(server: Server) -> None:
    peer = await server.connected()
    with capture_logs() as logs:
        await peer.send(publish(payload=b"[]"))
        await peer.expect(puback())
    assert [line["event"] for line in logs] == ["mqtt_refused"]


async def test_the_line_of_a_used_up_rate_limit_has_the_id_of_the_error(server: Server) -> None:
    peer = await server.connected(topics=[ERRORS])
    for number in range(1, 21):
        await peer.send(publish(number))
        await peer.expect(puback(number))
    with capture_logs() as logs:
        await peer.send(publish(21))
        error_id, code = await told(peer)
        await peer.expect(puback(21))
    (line,) = logs
    assert (line["event"], line["error_id"], code) == ("mqtt_rate_refused", error_id, 429)


async def test_a_device_that_sends_nonsense_without_end_fills_no_log(server: Server) -> None:
    peer = await server.connected()
    with capture_logs() as logs:
        for number in range(1, 17):
            await peer.send(publish(number, b"[]"))
            await peer.expect(puback(number))
    assert len(logs) == LINES_OF_ONE


async def test_a_wrong_token_is_on_the_page_of_the_devices_owner(server: Server, services: Services) -> None:
    """The page has at most one a minute; the client does not learn from its answer whether the device exists."""
    kitchen = await services.devices.registry.find(KITCHEN)
    for name in (KITCHEN, "9" * 32, KITCHEN):
        peer = await server.dial()
        await peer.send(connect(name, "0" * 32))
        await peer.expect(refused(4))
        await peer.expect_end()
    with trio.fail_after(20):
        while not (found := services.messages.ingest.refused.of(kitchen)):
            await trio.lowlevel.checkpoint()
    assert [(one.status, one.text, one.actor) for one in found] == [
        (401, "MQTT: wrong credentials for this device", "")
    ]
