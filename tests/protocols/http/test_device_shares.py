"""Sharing over REST: invitations, answers, and what an accepted share gives and does not (reference 6.3)."""

import json
from typing import Any

import httpx
import pytest

from broker.accounts.permissions import Permission
from broker.facts import DeviceChanged, SharesChanged
from broker.services import Services
from config.limits import DEVICE_SHARES_MAX
from config.mail import folded_address
from storage.records import ShareRecord
from tests.factories import (
    ADA,
    ADA_TOKEN,
    APPLICATION_TOKEN,
    BOB,
    BOB_TOKEN,
    HALL,
    KITCHEN,
    KITCHEN_TOKEN,
    NOW_MS,
    World,
)
from tests.mail_queue import waiting_mails
from tests.protocols.http.conftest import bearer
from tests.protocols.http.test_devices import RECORD
from tests.rows import each_row
from tests.wording import INVALID

SHARES = f"/devices/{KITCHEN}/shares"
CAROL = "carol@example.org"


async def call(api: httpx.AsyncClient, method: str, path: str, token: str, body: object = None) -> tuple[int, Any]:
    answer = await api.request(method, path, headers=bearer(token), content=None if body is None else json.dumps(body))
    return answer.status_code, answer.json()


async def offer(api: httpx.AsyncClient, email: str = "bob@example.org") -> str:
    status, answer = await call(api, "POST", SHARES, ADA_TOKEN, {"email": email})
    assert status == 200
    return str(answer["shareId"])


async def accept(api: httpx.AsyncClient) -> str:
    share = await offer(api)
    assert (await call(api, "PUT", f"{SHARES}/{share}", BOB_TOKEN, {"status": "ACCEPTED"}))[0] == 200
    return share


async def queued(services: Services) -> list[str]:
    rows = await services.core.database.read(
        lambda tx: list(tx.connection.execute("SELECT kind, recipient FROM mail ORDER BY key"))
    )
    return [f"{row['kind']} {row['recipient']}" for row in rows]


# Offering


@pytest.mark.parametrize(
    ("body", "email"),
    [
        ({"email": "bob@example.org"}, "bob@example.org"),
        ({"email": "Bob@EXAMPLE.org"}, "Bob@example.org"),
        ({"uid": BOB}, "bob@example.org"),
        ({"uid": CAROL}, CAROL),
        ({"email": CAROL}, CAROL),
    ],
)
async def test_an_invitation(services: Services, api: httpx.AsyncClient, body: dict[str, str], email: str) -> None:
    status, answer = await call(api, "POST", SHARES, ADA_TOKEN, body)
    share = answer["data"]["id"]
    assert (status, answer) == (200, {"data": {"id": share, "shareId": share}, "id": share, "shareId": share})
    whom = {"uid": BOB} if body == {"uid": BOB} else {"email": email}
    record = {"id": share, **whom, "status": "PENDING", "sharedOn": NOW_MS}
    assert await call(api, "GET", f"{SHARES}/{share}", ADA_TOKEN) == (200, {"data": record, **record})
    assert await queued(services) == [f"device_share_invitation {folded_address(email)}"]
    assert (await call(api, "GET", f"/devices/{KITCHEN}", ADA_TOKEN))[1]["data"] == RECORD


async def test_sharing_by_a_user_id_tells_nobody_the_address(services: Services, api: httpx.AsyncClient) -> None:
    """Neither while it is open nor after the answer, in no answer to the owner, and not in the owner's audit log."""
    share = (await call(api, "POST", SHARES, ADA_TOKEN, {"uid": BOB}))[1]["id"]
    one = f"{SHARES}/{share}"
    seen = [await call(api, "GET", SHARES, ADA_TOKEN), await call(api, "GET", one, ADA_TOKEN)]
    mine = (await call(api, "GET", f"/users/{BOB}/shares", BOB_TOKEN))[1]["data"]["shares"]
    assert [(offered["id"], offered["uid"]) for offered in mine] == [(share, BOB)]
    assert (await call(api, "PUT", one, BOB_TOKEN, {"status": "ACCEPTED"}))[0] == 200
    seen += [await call(api, "GET", SHARES, ADA_TOKEN), await call(api, "DELETE", one, ADA_TOKEN)]
    assert all(status == 200 and "bob@example.org" not in json.dumps(answer) for status, answer in seen)
    noted = await services.core.database.read(
        lambda tx: list(tx.connection.execute("SELECT details FROM audit_entry WHERE event LIKE 'share%'"))
    )
    assert len(noted) == 3
    assert all(BOB in row["details"] and "bob@example.org" not in row["details"] for row in noted)


@each_row(
    ("body", "status", "code", "text"),
    [
        ({}, 400, 4001, "Required parameter"),
        ({"email": "nobody"}, 400, 4001, "Invalid email"),
        ({"email": "a b@example.org"}, 400, 4001, "Invalid email"),
        ({"email": "x" * 250 + "@example.org"}, 400, 4001, "Invalid email"),
        ({"email": "bob@example.org\r\nBcc: x@y.z"}, 400, 4001, "Invalid email"),
        ({"uid": "a b@example.org"}, 400, 4001, "Invalid email"),
        ({"email": 7}, 400, 4001, "Text field only"),
        ({"uid": "ff" * 16}, 404, 1201, "User does not exist."),
        ({"email": "ada@example.org"}, 409, 409, "Device cannot be shared with its owner"),
        ({"email": "ADA@example.org"}, 409, 409, "Device cannot be shared with its owner"),
        ({"uid": ADA}, 409, 409, "Device cannot be shared with its owner"),
    ],
)
async def test_an_invitation_that_is_refused(
    services: Services, api: httpx.AsyncClient, body: dict[str, Any], status: int, code: int, text: str
) -> None:
    given, answer = await call(api, "POST", SHARES, ADA_TOKEN, body)
    error = answer["error"]
    assert (given, error["code"]) == (status, code)
    assert text == (error["errors"][0][0]["messages"][0] if code == 4001 else error["message"])
    assert (await call(api, "GET", SHARES, ADA_TOKEN))[1]["total"] == 0
    assert await queued(services) == []


@pytest.mark.parametrize("answered", [None, "ACCEPTED", "REJECTED"])
async def test_a_second_share_to_one_address_is_refused_while_the_first_stands(
    api: httpx.AsyncClient, answered: str | None
) -> None:
    share = await offer(api)
    if answered is not None:
        await call(api, "PUT", f"{SHARES}/{share}", BOB_TOKEN, {"status": answered})
    for body in ({"email": "BOB@example.org"}, {"uid": BOB}):
        status, _ = await call(api, "POST", SHARES, ADA_TOKEN, body)
        assert status == (200 if answered == "REJECTED" and "email" in body else 409)


async def test_the_shares_of_a_device_are_bounded(services: Services, world: World, api: httpx.AsyncClient) -> None:
    for number in range(DEVICE_SHARES_MAX):
        record = ShareRecord(f"{number:032x}", world.kitchen, f"u{number}@example.org", None, "PENDING", 1)
        await services.core.database.write(lambda tx, one=record: tx.shares.put(one))  # type: ignore[misc]
    status, answer = await call(api, "POST", SHARES, ADA_TOKEN, {"email": CAROL})
    assert (status, answer["error"]["message"]) == (409, f"Device already shared {DEVICE_SHARES_MAX} times")


async def test_no_share_is_refused_because_of_its_mail(services: Services, api: httpx.AsyncClient) -> None:
    """One cause sends 20 mails in a minute; the others are sent later (reference 22)."""
    for number in range(25):
        status, _ = await call(api, "POST", SHARES, ADA_TOKEN, {"email": f"u{number}@example.org"})
        assert status == 200
    assert (await call(api, "GET", SHARES, ADA_TOKEN))[1]["total"] == 25
    waiting = await services.core.database.read(waiting_mails)
    assert len(waiting) == 25
    assert len([one for one in waiting if one.next_on and one.next_on > services.core.clock.now_ms() + 30_000]) == 5


async def test_pages_of_shares(api: httpx.AsyncClient) -> None:
    ids = [await offer(api, f"u{number}@example.org") for number in range(3)]
    _, answer = await call(api, "GET", f"{SHARES}?count=2&offset=1", ADA_TOKEN)
    assert [one["id"] for one in answer["data"]["shares"]] == ids[1:]
    assert (answer["total"], answer["offset"], answer["count"]) == (3, 1, 2)
    assert (await call(api, "GET", f"{SHARES}?count=101", ADA_TOKEN))[0] == 400


# Permissions


@each_row(
    ("method", "one", "token", "status"),
    [
        ("POST", False, APPLICATION_TOKEN, 403),
        ("POST", False, BOB_TOKEN, 403),
        ("GET", False, BOB_TOKEN, 403),
        ("GET", True, BOB_TOKEN, 200),
        ("GET", True, ADA_TOKEN, 200),
        ("GET", True, KITCHEN_TOKEN, 403),
        ("PUT", True, ADA_TOKEN, 403),
        ("DELETE", True, ADA_TOKEN, 200),
        ("DELETE", True, BOB_TOKEN, 200),
        ("DELETE", True, APPLICATION_TOKEN, 403),
    ],
)
async def test_who_may_do_what_with_a_share(
    api: httpx.AsyncClient, method: str, one: bool, token: str, status: int
) -> None:
    share = await offer(api)
    path = f"{SHARES}/{share}" if one else SHARES
    assert (await call(api, method, path, token, {"status": "ACCEPTED"}))[0] == status
    ended = 404 if (method, status) == ("DELETE", 200) else 200
    assert (await call(api, "DELETE", f"{SHARES}/{share}", ADA_TOKEN))[0] == ended


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_strangers_see_no_share_and_unknown_ones_are_not_found(api: httpx.AsyncClient, method: str) -> None:
    share = await offer(api, CAROL)
    assert (await call(api, method, f"{SHARES}/{share}", BOB_TOKEN))[0] == 403
    assert (await call(api, method, f"{SHARES}/{'ff' * 16}", ADA_TOKEN))[0] == 404
    assert (await call(api, method, f"/devices/{HALL}/shares/{share}", ADA_TOKEN))[0] == 404


# Answering


@pytest.mark.parametrize(
    ("first", "second", "status"),
    [
        ("ACCEPTED", "accepted", 200),
        ("ACCEPTED", "REJECTED", 409),
        ("REJECTED", "REJECTED", 200),
        ("REJECTED", "ACCEPTED", 409),
    ],
)
async def test_an_answer_stands(api: httpx.AsyncClient, first: str, second: str, status: int) -> None:
    path = f"{SHARES}/{await offer(api)}"
    _, answered = await call(api, "PUT", path, BOB_TOKEN, {"status": first})
    assert answered["data"]["status"] == answered["status"] == first
    assert (await call(api, "PUT", path, BOB_TOKEN, {"status": second}))[0] == status
    assert (await call(api, "GET", path, ADA_TOKEN))[1]["status"] == first


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({}, "Required parameter"),
        ({"status": "PENDING"}, INVALID),
        ({"status": "yes"}, INVALID),
        ({"status": 1}, "Text field only"),
    ],
)
async def test_an_answer_that_is_none(api: httpx.AsyncClient, body: dict[str, Any], text: str) -> None:
    status, answer = await call(api, "PUT", f"{SHARES}/{await offer(api)}", BOB_TOKEN, body)
    assert (status, answer["error"]["errors"]) == (400, [[{"field": "status", "messages": [text]}]])


async def test_who_has_the_address_later_may_answer(services: Services, world: World, api: httpx.AsyncClient) -> None:
    share = await offer(api, CAROL)
    assert (await call(api, "GET", "/users/self/shares", BOB_TOKEN))[1]["total"] == 0
    await services.provisioning.apply({"users": [{"id": BOB, "email": CAROL}]})
    assert (await call(api, "PUT", f"{SHARES}/{share}", BOB_TOKEN, {"status": "ACCEPTED"}))[0] == 200
    # From then on the share belongs to the user, and no longer depends on the address.
    await services.provisioning.apply({"users": [{"id": BOB, "email": "bob@example.org"}]})
    assert (await call(api, "GET", f"/devices/{KITCHEN}", BOB_TOKEN))[0] == 200
    assert (await call(api, "DELETE", f"{SHARES}/{share}", BOB_TOKEN))[0] == 200


# Rights of an accepted share


GIVEN = [
    ("GET", f"/devices/{KITCHEN}", None),
    ("GET", f"/devices/{KITCHEN}/status", None),
    ("PUT", f"/devices/{KITCHEN}/status", {"availability": "online"}),
    ("GET", f"/devices/{KITCHEN}/presence", None),
    ("POST", "/messages", {"sdid": KITCHEN, "data": {"state": True}}),
    ("POST", "/actions", {"ddid": KITCHEN, "data": {"actions": [{"name": "setOn"}]}}),
    ("GET", f"/messages?sdid={KITCHEN}&startDate=0&endDate=1", None),
    ("GET", f"/actions?ddid={KITCHEN}&startDate=0&endDate=1", None),
    ("GET", f"/messages/last?sdids={KITCHEN}", None),
    ("GET", f"/messages/snapshots?sdids={KITCHEN}", None),
]
NOT_GIVEN = [
    ("PUT", f"/devices/{KITCHEN}", {"name": "Mine"}),
    ("PUT", f"/devices/{KITCHEN}", {"connected": False}),
    ("DELETE", f"/devices/{KITCHEN}", None),
    ("GET", f"/devices/{KITCHEN}/tokens", None),
    ("PUT", f"/devices/{KITCHEN}/tokens", None),
    ("DELETE", f"/devices/{KITCHEN}/tokens", None),
    ("POST", SHARES, {"email": CAROL}),
    ("GET", SHARES, None),
]


@each_row(("method", "path", "body"), GIVEN)
async def test_what_an_accepted_share_gives_and_only_while_it_lasts(
    api: httpx.AsyncClient, method: str, path: str, body: object
) -> None:
    share = await offer(api)
    assert (await call(api, method, path, BOB_TOKEN, body))[0] == 403
    await call(api, "PUT", f"{SHARES}/{share}", BOB_TOKEN, {"status": "ACCEPTED"})
    assert (await call(api, method, path, BOB_TOKEN, body))[0] == 200
    await call(api, "DELETE", f"{SHARES}/{share}", ADA_TOKEN)
    assert (await call(api, method, path, BOB_TOKEN, body))[0] == 403


@each_row(("method", "path", "body"), NOT_GIVEN)
async def test_what_a_share_does_not_give(api: httpx.AsyncClient, method: str, path: str, body: object) -> None:
    share = await accept(api)
    assert (await call(api, method, path, BOB_TOKEN, body))[0] == 403
    assert (await call(api, "DELETE", f"{SHARES}/{share}", ADA_TOKEN))[0] == 200


async def test_the_records_say_who_shares(api: httpx.AsyncClient) -> None:
    share = await accept(api)
    record = RECORD | {"sharedWithOthers": True}
    assert (await call(api, "GET", f"/devices/{KITCHEN}", ADA_TOKEN))[1]["data"] == record
    assert (await call(api, "GET", f"/devices/{KITCHEN}", BOB_TOKEN))[1]["data"] == record | {"sharedWithMe": share}
    await call(api, "DELETE", f"{SHARES}/{share}", BOB_TOKEN)
    assert (await call(api, "GET", f"/devices/{KITCHEN}", ADA_TOKEN))[1]["data"] == RECORD


@each_row("token", [ADA_TOKEN, BOB_TOKEN])
async def test_changes_are_told_when_they_take_effect(services: Services, api: httpx.AsyncClient, token: str) -> None:
    seen: list[tuple[type, bool]] = []
    device = await services.devices.registry.find(KITCHEN)
    reach = await services.accounts.permissions.reach(await services.accounts.tokens.caller(BOB_TOKEN))
    for kind in (DeviceChanged, SharesChanged):
        services.core.router.subscribe(
            kind, lambda fact: seen.append((type(fact), reach.allows(device, Permission.WRITE)))
        )
    share = await offer(api)
    assert seen == []
    await call(api, "PUT", f"{SHARES}/{share}", BOB_TOKEN, {"status": "ACCEPTED"})
    assert seen == [(DeviceChanged, True), (SharesChanged, True)]
    await call(api, "DELETE", f"{SHARES}/{share}", token)
    assert seen[2:] == [(DeviceChanged, False), (SharesChanged, False)]
