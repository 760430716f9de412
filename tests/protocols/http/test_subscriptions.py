"""/subscriptions and /notifications over REST (reference 2.7 and 11)."""

from collections.abc import AsyncIterator
from typing import Any, Final

import httpx
import pytest
from msgspec.structs import replace

from broker.cluster.kinds import SUBSCRIPTION
from broker.services import Services
from broker.subscriptions.addresses import is_allowed_callback
from broker.subscriptions.port import AttemptOutcome
from storage.keys import Milliseconds, Position
from storage.records import GrantRecord
from storage.transaction import Transaction
from tests.builders import ServicesOpener
from tests.callbacks import URL, FakeCallbacks, ada_of, sent, settled, subscribed
from tests.factories import (
    ADA,
    ADA_TOKEN,
    APPLICATION_TOKEN,
    BOB,
    BOB_TOKEN,
    BOBS,
    DASHBOARD,
    HALL,
    KITCHEN,
    LIGHT_TYPE,
    NOW_MS,
    PANEL,
    World,
    allow,
)
from tests.fakes import FakeClock
from tests.protocols.http.conftest import bearer
from tests.protocols.http.test_conventions import error_of
from tests.rows import each_row

pytestmark = pytest.mark.slow


HOUR_MS: Final = 3_600_000

USER, APPLICATION = bearer(ADA_TOKEN), bearer(APPLICATION_TOKEN)
BASIC = {"messageType": "message", "uid": ADA, "callbackUrl": URL}
STREAM = {
    "cloudKey": "AKIA",
    "cloudSecret": "very-secret-1234",
    "cloudRegion": "eu-west-1",
    "cloudStreamName": "lights",
}
VENDOR = {
    "awsKey": "AKIA",
    "awsSecret": "very-secret-1234",
    "awsRegion": "eu-west-1",
    "awsKinesisStreamName": "lights",
}


@pytest.fixture
def callbacks() -> FakeCallbacks:
    return FakeCallbacks()


@pytest.fixture
async def services(opener: ServicesOpener, callbacks: FakeCallbacks) -> AsyncIterator[Services]:
    async with opener(callbacks=callbacks) as opened:
        yield opened


async def created(api: httpx.AsyncClient, **members: object) -> dict[str, Any]:
    answer = await api.post("/subscriptions", json=BASIC | members, headers=USER)
    assert answer.status_code == 200, answer.text
    data: dict[str, Any] = answer.json()["data"]
    return data


async def test_a_callback_is_validated_with_what_its_handshake_brought(
    api: httpx.AsyncClient, callbacks: FakeCallbacks, fake_clock: FakeClock
) -> None:
    data = await created(api, sdid=KITCHEN, description="Lights")
    assert data == {
        "id": data["id"],
        "aid": DASHBOARD,
        "messageType": "message",
        "uid": ADA,
        "sdid": KITCHEN,
        "description": "Lights",
        "subscriptionType": "httpCallback",
        "callbackUrl": URL,
        "payload": "messages",
        "includeSharedDevices": False,
        "status": "PENDING_CALLBACK_VALIDATION",
        "createdOn": fake_clock.now,
        "modifiedOn": fake_clock.now,
    }
    await callbacks.wait(lambda: len(callbacks.handshakes) == 1)
    ((url, aid, id_, nonce),) = callbacks.handshakes
    assert (url, aid, id_) == (URL, DASHBOARD, data["id"])
    path = f"/subscriptions/{id_}/validate"
    for wrong in ({"aid": aid, "nonce": "0" * 32}, {"aid": PANEL, "nonce": nonce}, {"aid": "", "nonce": "é"}):
        error_of(await api.post(path, json=wrong), 403)
    assert error_of(await api.post(path, json={"aid": aid}), 400)["code"] == 4001
    error_of(await api.post(f"/subscriptions/{'0' * 32}/validate", json={"aid": aid, "nonce": nonce}), 404)
    for _ in range(2):
        answer = await api.post(path, json={"aid": aid, "nonce": nonce})
        assert (answer.status_code, answer.json()["data"]["status"]) == (200, "ACTIVE")


async def test_without_an_answer_a_handshake_is_tried_again_and_after_a_day_the_subscription_is_gone(
    api: httpx.AsyncClient, services: Services, callbacks: FakeCallbacks, fake_clock: FakeClock
) -> None:
    callbacks.handshake_outcome = AttemptOutcome(error="ConnectError")
    data = await created(api)
    handshakes = services.subscriptions.deliveries._handshakes
    await settled(services, lambda: [on > fake_clock.now for on in handshakes._due.values()] == [True])
    fake_clock.advance(5_001)

    def tried_again() -> bool:
        handshakes.look_for_due()
        return len(callbacks.handshakes) == 2

    await settled(services, tried_again)
    assert len({nonce for *_, nonce in callbacks.handshakes}) == 1
    fake_clock.advance(86_400_000)
    await services.subscriptions.endings.sweep()
    error_of(await api.get(f"/subscriptions/{data['id']}", headers=USER), 404)


async def test_a_clock_that_is_set_back_does_not_hold_up_a_handshake(
    api: httpx.AsyncClient, services: Services, callbacks: FakeCallbacks, fake_clock: FakeClock
) -> None:
    fake_clock.now += 365 * 86_400_000
    callbacks.handshake_outcome = AttemptOutcome(error="ConnectError")
    await created(api)
    handshakes = services.subscriptions.deliveries._handshakes
    await settled(services, lambda: [on > fake_clock.now for on in handshakes._due.values()] == [True])
    fake_clock.now -= 365 * 86_400_000

    def tried_again() -> bool:
        handshakes.look_for_due()
        return len(callbacks.handshakes) == 2

    await settled(services, tried_again)


@each_row("type_", ["cloudStream", "awsKinesis"])
@each_row("given", [STREAM, VENDOR, dict([*list(STREAM.items())[:2], *list(VENDOR.items())[2:]])])
async def test_streams_are_answered_in_the_spelling_of_their_type_and_active_at_once(
    api: httpx.AsyncClient, type_: str, given: dict[str, str]
) -> None:
    data = await created(api, subscriptionType=type_, **given)
    spelled = STREAM if type_ == "cloudStream" else VENDOR
    masked = spelled | {"cloudSecret" if type_ == "cloudStream" else "awsSecret": "********1234"}
    assert {name: value for name, value in data.items() if name.startswith(("cloud", "aws"))} == masked
    assert data["subscriptionType"] == type_
    assert data["status"] == "PENDING_CALLBACK_VALIDATION"
    assert "callbackUrl" not in data
    shown = (await api.get(f"/subscriptions/{data['id']}", headers=USER)).json()["data"]
    assert shown["status"] == "ACTIVE"


#: Members beside or in place of those of BASIC, and the fields that are found wrong; none: 403.
WRONG: list[tuple[dict[str, object], set[str]]] = [
    ({"sdid": KITCHEN, "sdtid": LIGHT_TYPE}, {"sdtid"}),
    ({"messageType": "action"}, {"ddid"}),
    ({"messageType": "action", "ddid": KITCHEN, "sdid": HALL}, {"sdid"}),
    ({"ddid": KITCHEN}, {"ddid"}),
    ({"messageType": "alarm", "ddid": KITCHEN, "sdid": HALL}, {"ddid", "sdid"}),
    ({"messageType": "both"}, {"messageType"}),
    ({"messageType": None}, {"messageType"}),
    ({"uid": None}, {"uid"}),
    ({"callbackUrl": None}, {"callbackUrl"}),
    ({"callbackUrl": "http://app.example.org/"}, {"callbackUrl"}),
    ({"callbackUrl": "https://app.example.com/"}, {"callbackUrl"}),
    ({"callbackUrl": "https://127.0.0.1/"}, {"callbackUrl"}),
    ({"callbackUrl": "https://user@app.example.org/"}, {"callbackUrl"}),
    ({"callbackUrl": "https://app.example.org:99999/"}, {"callbackUrl"}),
    ({"callbackUrl": "https://app.example.org/" + "x" * 2_000}, {"callbackUrl"}),
    ({"description": "x" * 257}, {"description"}),
    ({"subscriptionType": "pigeon"}, {"subscriptionType"}),
    ({"subscriptionType": "cloudStream"}, set(STREAM)),
    ({"subscriptionType": "awsKinesis"}, set(VENDOR)),
    ({"subscriptionType": "cloudStream", **STREAM, "cloudRegion": "x.evil.example/"}, {"cloudRegion"}),
    ({"payload": "none"}, {"payload"}),
    ({"includeSharedDevices": "perhaps"}, {"includeSharedDevices"}),
    ({"uid": ADA, "sdid": BOBS}, set()),  # 403
]


async def test_wrong_members(api: httpx.AsyncClient) -> None:
    for members, fields in WRONG:
        answer = await api.post("/subscriptions", json=BASIC | members, headers=USER)
        error = error_of(answer, 400 if fields else 403)
        found = {finding["field"] for finding in answer.json()["error"].get("errors", [[]])[0]}
        assert (error["code"], found) == (4001 if fields else 403, fields), members


async def test_an_address_whose_name_is_private_is_refused(api: httpx.AsyncClient, callbacks: FakeCallbacks) -> None:
    callbacks.refused = "the address is private"
    assert error_of(await api.post("/subscriptions", json=BASIC, headers=USER), 400)["code"] == 4001
    assert callbacks.checked == [URL]


@each_row(
    ("url", "main", "private", "allowed"),
    [
        ("https://a.example.org:99/x?y=1", "https://b.c.example.org/cb", False, True),
        ("https://example.org/", "https://example.org/", False, True),
        ("https://EXAMPLE.org./", "https://example.org/", False, True),
        ("https://example.org.evil.com/", "https://example.org/", False, False),
        ("https://93.184.215.14/", "https://93.184.215.14/", False, True),
        ("https://93.184.215.15/", "https://93.184.215.14/", False, False),
        ("https://10.0.0.1/", "https://10.0.0.1/", False, False),
        ("https://10.0.0.1/", "https://10.0.0.1/", True, True),
        ("https://localhost/", "https://localhost/", False, False),
        ("http://localhost:9000/", "http://localhost/", True, True),
        ("http://localhost:9000/", "http://localhost/", False, False),
        ("http://app.example.org/", "http://app.example.org/", True, False),
        ("https://gateway/", "https://gateway/", False, True),
        ("https://gateway/", "https://other/", False, False),
        ("https://example.org/\\@evil.com", "https://example.org/", False, False),
        ("https://example.org/#x", "https://example.org/", False, False),
        ("https://a%00.example.org/", "https://example.org/", False, False),
        ("https://<.example.org/", "https://example.org/", False, False),
        ("https://ex%61mple.org/", "https://ex%61mple.org/", False, False),
        ("https:///x", "https:///x", False, False),
        ("https://[::1/", "https://example.org/", False, False),
        ("https://example.org/", None, False, False),
    ],
)
def test_which_callback_addresses_are_allowed(url: str, main: str | None, private: bool, allowed: bool) -> None:
    assert is_allowed_callback(url, main, allow_private=private) is allowed


async def test_who_sees_what(api: httpx.AsyncClient, services: Services, world: World) -> None:
    """Another application, and another user of the same one, get 403; only applications list."""
    mine = await created(api)
    path = f"/subscriptions/{mine['id']}"
    for headers in (USER, APPLICATION):
        assert (await api.get(path, headers=headers)).json()["data"]["id"] == mine["id"]
    token = "4e" * 16
    await services.provisioning.apply(
        {"tokens": [{"value": token, "application": PANEL, "user": "ada@example.org"}], "grants": []}
    )
    for headers in (bearer(BOB_TOKEN), bearer(token)):
        error_of(await api.get(path, headers=headers), 403)
        error_of(await api.delete(path, headers=headers), 403)
    error_of(await api.get("/subscriptions", headers=USER), 403)
    error_of(await api.get(f"/subscriptions?uid={BOB}", headers=APPLICATION), 403)
    second = await created(api)
    page = (await api.get("/subscriptions?count=1&offset=1", headers=APPLICATION)).json()
    assert ([one["id"] for one in page.pop("data")], page) == ([second["id"]], {"total": 2, "offset": 1, "count": 1})
    assert (await api.get(f"/subscriptions?uid={ADA}", headers=APPLICATION)).json()["total"] == 2
    removed = (await api.delete(path, headers=USER)).json()["data"]
    assert removed["id"] == mine["id"]
    error_of(await api.get(path, headers=USER), 404)


async def test_the_delivery_log_and_the_messages_of_a_notification(
    api: httpx.AsyncClient, services: Services, world: World, callbacks: FakeCallbacks
) -> None:
    subscription = await subscribed(services, payload="notification")
    positions = await sent(services, 3)
    await callbacks.wait_received(1)
    await settled(services, lambda: services.subscriptions.deliveries.statistics().pending == 0)
    ids = [one.notification.id for one in callbacks.received]
    assert all(one.notification.entries is None for one in callbacks.received)
    page = (await api.get(f"/subscriptions/{subscription.id}/deliveries", headers=USER)).json()
    assert [one["id"] for one in page["data"]] == ids[::-1]
    assert page["data"][0]["status"] == "DELIVERED"
    assert set(page["data"][0]["attempts"][0]) == {"ts", "durationMs", "httpStatus"}
    assert "nextAttemptOn" not in page["data"][0]
    none = await api.get(f"/subscriptions/{subscription.id}/deliveries?status=failed", headers=USER)
    assert none.json() == {"data": [], "total": 0, "offset": 0, "count": 0}
    mids = []
    for id_ in ids:
        found = (await api.get(f"/notifications/{id_}/messages", headers=APPLICATION)).json()
        assert list(found) == ["order", "total", "offset", "count", "data"]
        mids += [one["mid"] for one in found["data"]]
    assert mids == [services.messages.ingest.mid(Position(position)) for position in positions]
    last = (await api.get(f"/notifications/{ids[-1]}/messages?order=desc&count=1", headers=USER)).json()
    assert [one["mid"] for one in last["data"]] == mids[-1:]
    error_of(await api.get(f"/notifications/{ids[0]}/messages", headers=bearer(BOB_TOKEN)), 403)
    error_of(await api.get(f"/notifications/{'0' * 32}/messages", headers=USER), 404)


async def test_a_notification_shows_what_its_caller_may_read(
    api: httpx.AsyncClient, services: Services, world: World, callbacks: FakeCallbacks
) -> None:
    await services.provisioning.apply({"organizations": [{"name": "Beta"}]})
    await services.core.database.write(
        lambda tx: tx.connection.execute("UPDATE device_type SET organization = 2").one()
    )
    await services.device_types.catalog.reload()
    await services.devices.registry.reload()
    await subscribed(services)
    await sent(services)
    await callbacks.wait_received(1)
    path = f"/notifications/{callbacks.received[0].notification.id}/messages"
    assert (await api.get(path, headers=USER)).json()["total"] == 1
    await allow(services, GrantRecord(world.ada, world.application, world.light_type, read=False, write=True))
    assert (await api.get(path, headers=USER)).json()["total"] == 0


async def test_pause_replay_and_the_secret(
    api: httpx.AsyncClient, services: Services, world: World, callbacks: FakeCallbacks
) -> None:
    pending = await created(api)
    error_of(await api.put(f"/subscriptions/{pending['id']}", json={"status": "PAUSED"}, headers=USER), 409)
    subscription = await subscribed(services)
    path = f"/subscriptions/{subscription.id}"
    for status in ("PAUSED", "ACTIVE"):
        changed = await api.put(path, json={"status": status}, headers=USER)
        assert changed.json()["data"]["status"] == status
    secrets = []
    for _ in range(2):
        made = await api.post(f"{path}/secret", headers=USER)
        assert made.headers["Cache-Control"] == "no-store"
        secrets.append(made.json()["data"]["webhookSecret"])
    shown = (await api.get(path, headers=USER)).json()["data"]["webhookSecret"]
    assert shown == "********" + secrets[1][-4:]
    await sent(services)
    await callbacks.wait_received(1)
    assert callbacks.received[0].callback.webhook_secrets == (secrets[1], secrets[0])
    await settled(services, lambda: services.subscriptions.deliveries.statistics().pending == 0)
    id_ = callbacks.received[0].notification.id
    replayed = await api.post(f"{path}/deliveries/replay", json={"ids": [id_]}, headers=USER)
    assert replayed.json() == {"data": {"ids": [id_]}}
    await callbacks.wait_received(2)
    assert callbacks.received[1].notification.id == id_
    for body, field in (
        ({"ids": ["0" * 32]}, "ids.0"),
        ({"startDate": 1}, "endDate"),
        ({"startDate": 2, "endDate": 1}, "startDate"),
        ({"ids": []}, "ids"),
    ):
        wrong = await api.post(f"{path}/deliveries/replay", json=body, headers=USER)
        assert error_of(wrong, 400)["code"] == 4001
        assert wrong.json()["error"]["errors"][0][0]["field"] == field


async def test_an_application_has_a_bounded_number_of_subscriptions_for_a_user(
    api: httpx.AsyncClient, services: Services, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.subscriptions.storing.SUBSCRIPTIONS_MAX", 2)
    for _ in range(2):
        await created(api)
    error_of(await api.post("/subscriptions", json=BASIC, headers=USER), 409)
    assert (await ada_of(services)).application == world.application


async def test_three_secrets_sign_and_each_former_one_for_a_day(
    services: Services, world: World, callbacks: FakeCallbacks, fake_clock: FakeClock
) -> None:
    """Whoever renews the secret twice in a day has receivers that know the first one, the second one, or the third."""
    subscription = await subscribed(services)
    secrets: list[str] = []

    async def renew() -> None:
        current, secret = await services.subscriptions.subscriptions.renew_secret(subscription)
        assert secret not in repr(current)
        secrets.append(secret)

    async def signing() -> list[int]:
        """Which of the secrets sign the next notification, by the order in which they were made."""
        before = len(callbacks.received)
        await sent(services)
        await callbacks.wait_received(before + 1)
        return [secrets.index(one) for one in callbacks.received[before].callback.webhook_secrets]

    assert await signing() == []
    for expected in ([0], [1, 0], [2, 1, 0], [3, 2, 1]):
        await renew()
        assert await signing() == expected
        fake_clock.advance(HOUR_MS)
    fake_clock.advance(22 * HOUR_MS)  # the second secret was replaced 24 hours ago with this
    assert await signing() == [3, 2]
    fake_clock.advance(HOUR_MS)
    assert await signing() == [3]


async def test_a_former_secret_of_an_older_version_signs_until_its_time(
    services: Services, world: World, callbacks: FakeCallbacks, fake_clock: FakeClock
) -> None:
    """It was stored alone, without a time of its own."""
    subscription = await subscribed(services)
    (_, first) = await services.subscriptions.subscriptions.renew_secret(subscription)
    (renewed, second) = await services.subscriptions.subscriptions.renew_secret(subscription)
    until = Milliseconds(NOW_MS + HOUR_MS)
    older = replace(renewed.record, old_webhook_secret=services.core.vault.seal(first), old_secret_until=until)

    def put(tx: Transaction) -> None:
        tx.subscriptions.put(older)
        tx.tell(SUBSCRIPTION, older.key)

    await services.core.database.write(put)
    (_, third) = await services.subscriptions.subscriptions.renew_secret(subscription)
    for expected in ((third, second, first), (third, second)):
        before = len(callbacks.received)
        await sent(services)
        await callbacks.wait_received(before + 1)
        assert callbacks.received[before].callback.webhook_secrets == expected
        fake_clock.advance(HOUR_MS)
