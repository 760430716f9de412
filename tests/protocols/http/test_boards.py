"""/boards: pinned tiles, their bounds, and read-only links (reference 12.14)."""

from datetime import datetime
from typing import Any, Final
from zoneinfo import ZoneInfo

import httpx
import pytest

from broker.boards import kiosk
from broker.boards.kiosk import Kiosk, ShownBoard
from broker.errors import NotFound, TooManyAttempts
from broker.services import Services
from config.limits import BOARD_LINK_MISSES, BOARD_LINK_WINDOW_SECONDS, BOARD_TILES_MAX, BOARDS_OF_USER
from storage.records import GrantRecord
from tests.factories import ADA, ADA_TOKEN, BOB_TOKEN, HALL, KITCHEN, KITCHEN_TOKEN, NOW_MS, World, allow
from tests.fakes import FakeClock
from tests.protocols.http.conftest import bearer
from tests.protocols.http.test_conventions import error_of
from tests.rows import each_row

VALUE: Final = {"kind": "value", "title": "Kitchen", "did": KITCHEN, "field": "temperature"}
CHART: Final = {"kind": "chart", "did": KITCHEN, "field": "temperature", "range": "hour", "wide": True}
ACTION: Final = {"kind": "action", "did": KITCHEN, "action": "setOn", "parameters": {"level": 3}}
TILES: Final = [VALUE, CHART, ACTION, {"kind": "scene", "sceneId": HALL}]
HOUR_MS: Final = 3_600_000


@pytest.fixture
async def api(api: httpx.AsyncClient, services: Services, world: World) -> httpx.AsyncClient:
    """The Dashboard, through which her token came, may change her profile."""
    await allow(services, GrantRecord(world.ada, world.application, None, read=False, write=False, profile=True))
    return api


async def made(api: httpx.AsyncClient, tiles: Any = TILES, name: str = "Home") -> dict[str, Any]:
    answer = await api.post("/users/self/boards", json={"name": name, "tiles": tiles}, headers=bearer(ADA_TOKEN))
    assert answer.status_code == 200, answer.text
    data: dict[str, Any] = answer.json()["data"]
    return data


async def test_a_board_is_made_read_changed_and_deleted(api: httpx.AsyncClient) -> None:
    board = await made(api)
    assert board["tiles"] == TILES
    path, headers = f"/boards/{board['id']}", bearer(ADA_TOKEN)
    read = await api.get(path, headers=headers)
    assert read.json()["data"] == board
    changed = await api.put(path, json={"tiles": [CHART, VALUE]}, headers=headers | {"If-Match": read.headers["etag"]})
    assert changed.json()["data"]["tiles"] == [CHART, VALUE]
    assert changed.json()["data"]["name"] == "Home"
    late = await api.put(path, json={"name": "Late"}, headers=headers | {"If-Match": read.headers["etag"]})
    assert (late.status_code, late.json()["data"]["tiles"]) == (412, [CHART, VALUE])
    assert [one["id"] for one in (await api.get(f"/users/{ADA}/boards", headers=headers)).json()["data"]["boards"]] == [
        board["id"]
    ]
    assert (await api.delete(path, headers=headers)).status_code == 200
    error_of(await api.get(path, headers=headers), 404)


@each_row(
    ("tile", "field"),
    [
        ("x", "tiles.0"),
        ({}, "tiles.0.kind"),
        ({"kind": "clock"}, "tiles.0.kind"),
        ({"kind": "value", "did": KITCHEN}, "tiles.0.field"),
        ({"kind": "value", "did": "kitchen", "field": "a"}, "tiles.0.did"),
        ({**VALUE, "title": "x" * 65}, "tiles.0.title"),
        ({**VALUE, "title": 1}, "tiles.0.title"),
        ({**VALUE, "field": "x" * 257}, "tiles.0.field"),
        ({**VALUE, "sceneId": HALL}, "tiles.0.sceneId"),
        ({**CHART, "range": "week"}, "tiles.0.range"),
        ({**CHART, "wide": "yes"}, "tiles.0.wide"),
        ({**ACTION, "parameters": []}, "tiles.0.parameters"),
        ({**ACTION, "parameters": {"text": "x" * 1100}}, "tiles.0.parameters"),
        ({"kind": "scene"}, "tiles.0.sceneId"),
    ],
)
async def test_what_is_no_tile_is_named(api: httpx.AsyncClient, tile: Any, field: str) -> None:
    body = {"name": "Home", "tiles": [tile]}
    error = error_of(await api.post("/users/self/boards", json=body, headers=bearer(ADA_TOKEN)), 400)
    assert [one["field"] for one in error["errors"][0]] == [field]  # type: ignore[index]


async def test_boards_and_tiles_are_bounded(api: httpx.AsyncClient) -> None:
    await made(api, [VALUE] * BOARD_TILES_MAX)
    body = {"name": "", "tiles": [VALUE] * (BOARD_TILES_MAX + 1)}
    error = error_of(await api.post("/users/self/boards", json=body, headers=bearer(ADA_TOKEN)), 400)
    assert {one["field"] for one in error["errors"][0]} == {"name", "tiles"}  # type: ignore[index]
    for _ in range(BOARDS_OF_USER - 1):
        await made(api, [])
    error_of(await api.post("/users/self/boards", json={"name": "More"}, headers=bearer(ADA_TOKEN)), 409)


async def test_nobody_else_sees_a_board_and_only_the_console_makes_links(api: httpx.AsyncClient) -> None:
    path = f"/boards/{(await made(api))['id']}"
    for token in (BOB_TOKEN, KITCHEN_TOKEN):
        error_of(await api.get(path, headers=bearer(token)), 403)
    error_of(await api.put(f"{path}/link", json={}, headers=bearer(ADA_TOKEN)), 403)
    error_of(await api.delete(f"{path}/link", headers=bearer(ADA_TOKEN)), 403)


async def linked(services: Services, api: httpx.AsyncClient, expires_on: int | None = None) -> tuple[Any, str]:
    id_ = (await made(api))["id"]
    board = await services.core.database.read(lambda tx: tx.boards.by_id(id_))
    assert board is not None
    link = await services.boards.boards.link(board, expires_on)
    return link.board, link.secret


async def look(kiosk: Kiosk, secret: str, address: str = "192.0.2.7") -> ShownBoard:
    return await kiosk.look(secret, address=address, with_charts=True)


async def test_days_of_a_link_begin_by_the_clock_of_its_screen(
    api: httpx.AsyncClient, services: Services, fake_clock: FakeClock
) -> None:
    body = {"sdid": KITCHEN, "data": {"temperature": 21.5}}
    assert (await api.post("/messages", json=body, headers=bearer(KITCHEN_TOKEN))).status_code == 200
    chart = {"kind": "chart", "did": KITCHEN, "field": "temperature", "range": "month"}
    id_ = (await made(api, [chart]))["id"]
    board = await services.core.database.read(lambda tx: tx.boards.by_id(id_))
    assert board is not None
    secret = (await services.boards.boards.link(board, None)).secret
    fake_clock.advance(120_000)
    for zone in ("Pacific/Kiritimati", "America/Anchorage", "Asia/Kathmandu", "No/Where"):
        shown = await services.boards.kiosk.look(secret, address="192.0.2.7", with_charts=True, zone=zone)
        (point,) = shown.tiles[0].points
        of_screen = ZoneInfo("UTC" if zone == "No/Where" else zone)
        day = datetime.fromtimestamp(NOW_MS / 1000, of_screen).replace(hour=0, minute=0, second=0, microsecond=0)
        assert point.t == day.timestamp() * 1000, zone


async def test_a_link_shows_values_and_charts_and_no_actions(
    api: httpx.AsyncClient, services: Services, fake_clock: FakeClock
) -> None:
    body = {"sdid": KITCHEN, "data": {"temperature": 21.5}}
    assert (await api.post("/messages", json=body, headers=bearer(KITCHEN_TOKEN))).status_code == 200
    fake_clock.advance(120_000)
    _, secret = await linked(services, api)
    shown = await look(services.boards.kiosk, secret)
    assert [(one.kind, one.title, one.value) for one in shown.tiles] == [
        ("value", "Kitchen", 21.5),
        ("chart", "", 21.5),
    ]
    assert [point.v for point in shown.tiles[1].points] == [21.5]


async def test_a_link_ends(api: httpx.AsyncClient, services: Services, fake_clock: FakeClock) -> None:
    kiosk, boards = services.boards.kiosk, services.boards.boards
    board, first = await linked(services, api)
    second = (await boards.link(board, fake_clock() + HOUR_MS)).secret
    with pytest.raises(NotFound):
        await look(kiosk, first)
    assert (await look(kiosk, second)).name == "Home"
    fake_clock.advance(HOUR_MS + 1)
    with pytest.raises(NotFound):  # it has expired
        await look(kiosk, second)
    third = (await boards.link(board, None)).secret
    assert (await look(kiosk, third)).name == "Home"
    await boards.revoke(board)
    with pytest.raises(NotFound):
        await look(kiosk, third)


async def test_a_device_that_is_gone_is_empty(api: httpx.AsyncClient, services: Services) -> None:
    _, secret = await linked(services, api)
    assert (await look(services.boards.kiosk, secret)).tiles[0].device
    device = await services.devices.registry.find(KITCHEN)
    await services.devices.inventory.delete(device)
    shown = await look(services.boards.kiosk, secret)
    assert [(one.device, one.value) for one in shown.tiles] == [("", None), ("", None)]


async def test_looks_through_a_link_are_bounded(
    api: httpx.AsyncClient, services: Services, fake_clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kiosk, "BOARD_LOOKS", 3)
    _, secret = await linked(services, api)
    for _ in range(3):
        await look(services.boards.kiosk, secret)
    with pytest.raises(TooManyAttempts):
        await look(services.boards.kiosk, secret, "192.0.2.8")
    fake_clock.advance(60_001)
    assert (await look(services.boards.kiosk, secret)).name == "Home"


async def test_guesses_are_throttled(api: httpx.AsyncClient, services: Services, fake_clock: FakeClock) -> None:
    _, secret = await linked(services, api)
    for _ in range(BOARD_LINK_MISSES):
        with pytest.raises(NotFound):
            await look(services.boards.kiosk, "ab" * 32)
    with pytest.raises(TooManyAttempts):
        await look(services.boards.kiosk, secret)
    assert (await look(services.boards.kiosk, secret, "192.0.2.8")).name == "Home"
    fake_clock.advance(BOARD_LINK_WINDOW_SECONDS * 1000 + 1)
    assert (await look(services.boards.kiosk, secret)).name == "Home"
