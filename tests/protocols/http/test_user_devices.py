"""The lists of a user's devices and of what is offered to a user (reference 6)."""

from typing import Any

import httpx
import pytest

from broker.devices.inventory import NewDevice
from broker.devices.shares import ShareStatus
from broker.services import Services
from storage.records import GrantRecord
from tests.factories import (
    ADA,
    ADA_TOKEN,
    APPLICATION_TOKEN,
    BOB,
    BOB_TOKEN,
    BOBS,
    HALL,
    KITCHEN,
    KITCHEN_TOKEN,
    LIGHT_TYPE,
    PANEL,
    World,
    allow,
)
from tests.protocols.http.conftest import bearer
from tests.protocols.http.test_device_shares import accept, offer
from tests.protocols.http.test_devices import give_type_away
from tests.rows import each_row

ENTRY = {
    "id": KITCHEN,
    "dtid": LIGHT_TYPE,
    "name": "Kitchen light",
    "manifestVersion": 1,
    "manifestVersionPolicy": "LATEST",
    "needProviderAuth": False,
    "cloudAuthorization": "NO_AUTHORIZATION",
    "createdOn": 1,
    "connected": True,
}


async def listed(api: httpx.AsyncClient, token: str = BOB_TOKEN, query: str = "", user: str = "self") -> dict[str, Any]:
    answer = await api.get(f"/users/{user}/devices?{query}", headers=bearer(token))
    assert answer.status_code == 200
    body: dict[str, Any] = answer.json()
    return body


def ids(answer: dict[str, Any]) -> list[str]:
    return [one["id"] for one in answer["data"]["devices"]]


async def test_an_entry_of_the_list(api: httpx.AsyncClient) -> None:
    answer = await listed(api, ADA_TOKEN, "count=1")
    assert answer == {"data": {"devices": [ENTRY]}, "total": 2, "offset": 0, "count": 1}


async def test_entries_say_how_they_are_shared(api: httpx.AsyncClient) -> None:
    share = await accept(api)
    theirs = (await listed(api, query="owner=SHARED_WITH_ME"))["data"]["devices"]
    assert theirs == [ENTRY | {"sharedWithMe": share}]
    for query, extra in (
        ("", [{}, {}]),
        ("includeShareInfo=true", [{"sharedWithOthers": True}, {"sharedWithOthers": False}]),
    ):
        own = (await listed(api, ADA_TOKEN, query))["data"]["devices"]
        assert own == [ENTRY | extra[0], ENTRY | {"id": HALL, "name": "Hall light"} | extra[1]]
    both = (await listed(api, query="includeShareInfo=1&includeProperties=1"))["data"]["devices"]
    assert [set(one) - set(ENTRY) for one in both] == [
        {"sharedWithMe", "properties"},
        {"sharedWithOthers", "properties"},
    ]


async def test_whose_devices_are_listed(api: httpx.AsyncClient) -> None:
    await offer(api, "nobody@example.org")
    await accept(api)
    for owner, shown in (
        ("", [KITCHEN, BOBS]),
        ("ALL", [KITCHEN, BOBS]),
        ("me", [BOBS]),
        ("Shared_With_Me", [KITCHEN]),
    ):
        answer = await listed(api, query=f"owner={owner}")
        assert (ids(answer), answer["total"]) == (shown, len(shown)), owner


async def test_a_share_that_waits_is_not_in_the_list(api: httpx.AsyncClient) -> None:
    await offer(api)
    assert ids(await listed(api)) == [BOBS]


@each_row(
    ("query", "shown"),
    [
        (f"dtid={LIGHT_TYPE}", [KITCHEN, HALL]),
        ("dtid=example.smart_light", [KITCHEN, HALL]),
        ("dt_name=Smart%20Light", [KITCHEN, HALL]),
        ("dt_name=example.smart_light", [KITCHEN, HALL]),
        ("dt_name=smart%20light", []),
        ("dt_name=Smart", []),
        (f"dtid={LIGHT_TYPE}&dt_name=other", []),
        ("count=1", [KITCHEN]),
        ("count=1&offset=1", [HALL]),
        ("offset=2", []),
    ],
)
async def test_the_list_is_filtered_and_paged(api: httpx.AsyncClient, query: str, shown: list[str]) -> None:
    answer = await listed(api, ADA_TOKEN, query)
    assert (ids(answer), answer["count"]) == (shown, len(shown))


async def test_the_order_is_that_of_creation_and_then_of_ids(
    services: Services, world: World, api: httpx.AsyncClient
) -> None:
    light = await services.device_types.catalog.find(LIGHT_TYPE)
    new = [(await services.devices.inventory.create(NewDevice(owner=world.ada, type=light))).id for _ in range(5)]
    assert ids(await listed(api, ADA_TOKEN)) == [KITCHEN, HALL, *sorted(new)]


@each_row(
    ("query", "field"),
    [
        ("owner=you", "owner"),
        ("count=0", "count"),
        ("count=x", "count"),
        ("offset=-1", "offset"),
        ("includeShareInfo=x", "includeShareInfo"),
    ],
)
@each_row("path", ["devices", "shares"])
async def test_a_query_that_is_refused(api: httpx.AsyncClient, path: str, query: str, field: str) -> None:
    answer = await api.get(f"/users/self/{path}?{query}", headers=bearer(ADA_TOKEN))
    if path == "shares" and field in {"owner", "includeShareInfo"}:
        assert answer.status_code == 200  # it has none of these
        return
    assert [one["field"] for one in answer.json()["error"]["errors"][0]] == [field]


@each_row(
    ("user", "token", "status", "code"),
    [
        (ADA, "ff" * 16, 401, 401),
        ("ff" * 16, ADA_TOKEN, 404, 1201),
        (BOB, ADA_TOKEN, 403, 403),
        (BOB, APPLICATION_TOKEN, 403, 403),
        ("self", APPLICATION_TOKEN, 404, 1201),
        (ADA, KITCHEN_TOKEN, 403, 403),
    ],
)
async def test_who_may_not_list(api: httpx.AsyncClient, user: str, token: str, status: int, code: int) -> None:
    answer = await api.get(f"/users/{user}/devices?owner=you", headers=bearer(token))
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


async def test_an_unknown_type_is_not_found(api: httpx.AsyncClient) -> None:
    answer = await api.get("/users/self/devices?dtid=no.such", headers=bearer(ADA_TOKEN))
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, 1101)


async def test_an_application_sees_the_types_that_it_may_read(
    services: Services, world: World, api: httpx.AsyncClient
) -> None:
    await services.core.database.write(give_type_away)
    await services.device_types.catalog.reload()
    assert ids(await listed(api, APPLICATION_TOKEN, user=ADA)) == [KITCHEN, HALL]
    await allow(services, GrantRecord(world.ada, world.application, world.light_type, read=False, write=True))
    assert ids(await listed(api, APPLICATION_TOKEN, user=ADA)) == []


async def test_an_application_reaches_what_is_shared_with_its_user(
    services: Services, world: World, api: httpx.AsyncClient
) -> None:
    """Within what that user granted; the owner need not have granted it anything."""
    await services.core.database.write(give_type_away)
    await services.device_types.catalog.reload()
    await allow(services, GrantRecord(world.ada, world.application, world.light_type, read=False, write=False))
    await allow(services, GrantRecord(world.bob, world.application, world.light_type, read=True, write=False))
    device, headers = f"/devices/{KITCHEN}/status", bearer(APPLICATION_TOKEN)
    assert (await api.get(device, headers=headers)).status_code == 403
    shares = services.devices.shares
    offered = await shares.offer(await services.devices.registry.find(KITCHEN), uid=BOB)
    await shares.answer(offered.id, world.bob, ShareStatus.ACCEPTED)
    assert ids(await listed(api, APPLICATION_TOKEN, user=BOB)) == [KITCHEN, BOBS]
    assert (await api.get(device, headers=headers)).status_code == 200
    assert (await api.put(device, headers=headers, json={"availability": "online"})).status_code == 403


# Offers


async def test_an_offer_is_seen_and_answered_as_far_as_its_type_is_granted(
    services: Services, world: World, api: httpx.AsyncClient
) -> None:
    await services.core.database.write(give_type_away)
    await services.device_types.catalog.reload()
    offered = await services.devices.shares.offer(await services.devices.registry.find(KITCHEN), uid=BOB)
    path, headers = f"/devices/{KITCHEN}/shares/{offered.id}", bearer(BOB_TOKEN)
    for permissions, sees, answers in (([], False, False), (["READ"], True, False), (["READ", "WRITE"], True, True)):
        if permissions:
            entry = {"user": BOB, "application": PANEL, "device_type": LIGHT_TYPE, "permissions": permissions}
            await services.provisioning.apply({"grants": [entry]})
        page = (await api.get(f"/users/{BOB}/shares", headers=headers)).json()
        assert [one["id"] for one in page["data"]["shares"]] == ([offered.id] if sees else [])
        assert page["total"] == int(sees)
        assert (await api.get(path, headers=headers)).status_code == (200 if sees else 403)
        answer = await api.put(path, headers=headers, json={"status": "ACCEPTED"})
        assert answer.status_code == (200 if answers else 403)
    entry = {"user": BOB, "application": PANEL, "device_type": LIGHT_TYPE, "permissions": ["READ"]}
    await services.provisioning.apply({"grants": [entry]})
    assert (await api.delete(path, headers=headers)).status_code == 403


@pytest.fixture
async def three_offers(services: Services, world: World, api: httpx.AsyncClient) -> None:
    """Of Ada's to Bob, each of whom has another answer."""
    light = await services.device_types.catalog.find(LIGHT_TYPE)
    await accept(api)
    for answer in ("REJECTED", None):
        device = await services.devices.inventory.create(NewDevice(owner=world.ada, type=light, name="New"))
        share = await services.devices.shares.offer(device, email="bob@example.org")
        if answer is not None:
            path = f"/devices/{device.id}/shares/{share.id}"
            await api.put(path, headers=bearer(BOB_TOKEN), json={"status": answer})


@each_row(
    ("query", "shown"),
    [
        ("", ["ACCEPTED", "REJECTED", "PENDING"]),
        ("filter=all", ["ACCEPTED", "REJECTED", "PENDING"]),
        ("filter=WAITING", ["PENDING"]),
        ("filter=accepted", ["ACCEPTED"]),
        ("filter=REJECTED", ["REJECTED"]),
        ("count=1&offset=1", ["REJECTED"]),
    ],
)
async def test_what_is_offered_to_a_user(
    api: httpx.AsyncClient, three_offers: None, query: str, shown: list[str]
) -> None:
    found = (await api.get(f"/users/{BOB}/shares?{query}", headers=bearer(BOB_TOKEN))).json()
    assert [one["status"] for one in found["data"]["shares"]] == shown
    assert (found["count"], found["total"]) == (len(shown), 3 if query in {"", "filter=all"} or "count" in query else 1)


async def test_an_offer_says_what_and_whose(api: httpx.AsyncClient) -> None:
    share = await offer(api)
    found = (await api.get("/users/self/shares", headers=bearer(BOB_TOKEN))).json()["data"]["shares"]
    assert [{**one, "sharedOn": 0} for one in found] == [
        {
            "id": share,
            "email": "bob@example.org",
            "status": "PENDING",
            "sharedOn": 0,
            "did": KITCHEN,
            "deviceName": "Kitchen light",
            "ownerId": ADA,
            "ownerName": "Ada",
        }
    ]
    assert (await api.get("/users/self/shares", headers=bearer(ADA_TOKEN))).json()["total"] == 0
    assert (await api.get(f"/users/{BOB}/shares", headers=bearer(ADA_TOKEN))).status_code == 403
    assert (await api.get(f"/users/{ADA}/shares", headers=bearer(APPLICATION_TOKEN))).status_code == 403
    await api.delete(f"/devices/{KITCHEN}", headers=bearer(ADA_TOKEN))
    assert (await api.get("/users/self/shares", headers=bearer(BOB_TOKEN))).json()["total"] == 0


async def test_a_part_of_name_type_or_id_is_searched(api: httpx.AsyncClient) -> None:
    for text, found in (
        ("kitchen", [KITCHEN]),
        ("LIGHT", [KITCHEN, HALL]),
        (HALL[:8], [HALL]),
        (LIGHT_TYPE[:4], []),
        ("%25", []),
        ("k_tchen", []),
        ("!", []),
        ("nothing", []),
        ("", [KITCHEN, HALL]),
    ):
        answer = await listed(api, ADA_TOKEN, f"search={text}")
        assert (ids(answer), answer["total"]) == (found, len(found)), text


async def test_the_list_is_sorted_as_asked(api: httpx.AsyncClient) -> None:
    first, second = ids(await listed(api, ADA_TOKEN, "sort=name"))
    assert ids(await listed(api, ADA_TOKEN, "sort=name&order=desc")) == [second, first]
    assert ids(await listed(api, ADA_TOKEN, "sort=name&count=1&offset=1")) == [second]
    assert ids(await listed(api, ADA_TOKEN)) == ids(await listed(api, ADA_TOKEN, "sort=createdOn&order=asc"))
    for query in ("sort=age", "order=up", f"search={'x' * 65}"):
        answer = await api.get(f"/users/self/devices?{query}", headers=bearer(ADA_TOKEN))
        assert answer.json()["error"]["errors"][0][0]["field"] == query.partition("=")[0]
