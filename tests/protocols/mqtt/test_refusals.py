"""What MQTT refuses leaves a line in the log, with the device if there is one of that id, and never with a secret."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from broker.ids import new_id
from config.limits import WRONG_TOKEN_TRIES
from config.settings import Limits, Settings
from tests.factories import ADA_TOKEN, KITCHEN, KITCHEN_TOKEN
from tests.protocols.mqtt.peers import Server, connect, refused


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state_dir=tmp_path, limits=Limits(rate_limits="on", quotas="off"))


@pytest.mark.parametrize(
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
