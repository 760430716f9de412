"""POST /hooks/<name>/<secret> (reference 16.8)."""

import json
from hashlib import sha256
from typing import Any, Final

import httpx
import pytest

from broker.services import Services
from config.settings import Limits, Settings, TopicDevice
from tests.broker.topic_devices import payloads
from tests.factories import ADA, KITCHEN
from tests.protocols.http.conftest import Raw
from tests.tickets import at

pytestmark = pytest.mark.slow


SECRET: Final = "0123456789abcdef0123456789abcdef"
ADDED: Final = "wrong-" + SECRET


def hash_of(secret: str) -> str:
    return "sha256:" + sha256(secret.encode()).hexdigest()


ENTRIES: Final = (
    TopicDevice(
        name="garden",
        owner="ada@example.org",
        type="example.smart_light",
        mapping="things-stack",
        hook=hash_of(SECRET),
        data="uplink_message && {intensity: uplink_message.f_cnt}",
        make=True,
    ),
    TopicDevice(
        name="known",
        owner="ada@example.org",
        type="example.smart_light",
        hook=hash_of(SECRET),
        key="payload:who",
        data="{intensity: level}",
        devices={"me": KITCHEN},
    ),
    TopicDevice(
        name="nobody",
        owner="nobody@example.org",
        type="example.smart_light",
        mapping="chirpstack",
        hook=hash_of(SECRET),
    ),
)


@pytest.fixture
def settings(settings: Settings) -> Settings:
    limits = Limits(messages_user="3/100", calls_per_address=5, quotas="off")
    return Settings(state_dir=settings.state_dir, limits=limits, topic_devices=ENTRIES)


@pytest.fixture
async def call(api: httpx.AsyncClient, services: Services) -> Any:
    await services.topic_devices.intake.look_up()

    async def post(name: str, body: Any, secret: str = SECRET) -> httpx.Response:
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await api.post(str(api.base_url.copy_with(path=f"/hooks/{name}/{secret}")), content=sent)

    return post


async def test_an_uplink_is_a_message_with_its_time(call: Any, services: Services) -> None:
    answer = await call("garden", payloads.TTS)
    assert (answer.status_code, answer.json()["data"]["stored"]) == (200, 1)
    owner = await services.accounts.users.find(ADA)
    type_ = await services.device_types.catalog.find("example.smart_light")
    device = await services.devices.registry.by_eid(owner.key, type_.key, "garden-1")
    assert device is not None
    (row,) = await services.core.database.read(lambda tx: tx.messages.after(at(0)))  # type: ignore[arg-type]
    assert (row.device, json.loads(row.data)) == (device.key, {"intensity": 7})
    assert services.messages.ingest.mid(row.position) == answer.json()["data"]["mid"]
    # The test's clock is before this time: the sender's is wrong, so it is that of the arrival.
    assert row.ts == row.cts
    assert (await call("garden", payloads.TTS_JOIN)).json() == {"data": {"stored": 0}}
    entry = services.topic_devices.intake.statistics().entries[0]
    assert (entry.source, entry.stored, entry.made) == ("hook", 1, 1)


async def test_what_is_refused(call: Any) -> None:
    for body, field in ((b"\xff", "body"), ({"who": "you", "level": 1}, "key"), ({"level": 1}, "body")):
        answer = await call("known", body)
        assert answer.status_code == 400
        assert answer.json()["error"]["errors"][0][0]["field"] == field
    assert (await call("nobody", payloads.CHIRPSTACK)).status_code == 503


async def test_a_long_body_is_refused(call: Any) -> None:
    assert (await call("known", b" " * 70_000)).status_code == 413
    assert (await call("known", b" " * 60_000 + b'{"who":"me","level":1}')).status_code == 200


async def test_a_wrong_secret_is_no_path_and_counts_against_the_address(
    call: Any, capfd: pytest.CaptureFixture[str], services: Services
) -> None:
    statuses = [(await call(name, {}, secret)).status_code for name, secret in (("known", ADDED), ("none", SECRET)) * 4]
    assert statuses == [404] * 5 + [429] * 3
    # The right one goes on: it is counted against its owner.
    assert (await call("known", {"who": "me", "level": 1})).status_code == 200
    shown = "".join(capfd.readouterr()) + repr(services.core.refusals.tally.latest())
    assert SECRET not in shown


async def test_the_owners_rate_counts(call: Any) -> None:
    statuses = [(await call("known", {"who": "me", "level": number})).status_code for number in range(5)]
    assert statuses == [200, 200, 200, 429, 429]


async def test_other_methods_and_paths(api: httpx.AsyncClient, call: Any, raw: Raw) -> None:
    root = str(api.base_url.copy_with(path=f"/hooks/known/{SECRET}"))
    assert (await api.get(root)).status_code in {404, 405}
    assert (await api.post(f"{root}/more", content=b"{}")).status_code == 404
    answer = await raw(
        b"POST /hooks/known/%FF%00 HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    )
    assert b" 404 " in answer.partition(b"\r\n")[0]
