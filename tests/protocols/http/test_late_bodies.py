"""A client sends a body as slowly as it likes: what was checked before is checked once more after it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest
from trio.testing import wait_all_tasks_blocked

from broker.devices.shares import invited
from broker.services import Services
from storage.records import GrantRecord
from tests.builders import ServicesOpener
from tests.callbacks import FakeCallbacks
from tests.factories import ADA_TOKEN, BOB_TOKEN, KITCHEN, World, allow
from tests.leaving_world import Life
from tests.protocols.http.conftest import bearer
from tests.protocols.http.test_conventions import error_of
from tests.rows import each_row

pytestmark = pytest.mark.slow


DEVICE = f"/devices/{KITCHEN}"
#: Calls of an owner on a device; of a user on nothing that the path names.
CALLS = [
    ("POST", f"{DEVICE}/shares", b'{"email":"friend@example.org"}'),
    ("POST", f"{DEVICE}/transfer", b'{"email":"friend@example.org"}'),
    ("PUT", DEVICE, b'{"name":"Mine"}'),
]
ON_NOTHING = ("POST", "/messages", b'{"sdid":"%s","data":{"intensity":7}}' % KITCHEN.encode())


@pytest.fixture
async def services(opener: ServicesOpener) -> AsyncIterator[Services]:
    async with opener(callbacks=FakeCallbacks()) as opened:
        yield opened


@pytest.fixture
def life(services: Services, api: httpx.AsyncClient) -> Life:
    return Life(services, api)


async def late(api: httpx.AsyncClient, call: tuple[str, str, bytes], meanwhile: Callable[[], Awaitable[Any]]) -> Any:
    """The answer to a call whose body comes after something has happened."""
    method, path, body = call
    await api.get(DEVICE, headers=bearer(ADA_TOKEN))  # so that the call waits for nothing but its body

    async def chunks() -> AsyncIterator[bytes]:
        yield body[:1]
        await wait_all_tasks_blocked()
        await meanwhile()
        yield body[1:]

    headers = bearer(ADA_TOKEN) | {"Content-Type": "application/json"}
    return await api.request(method, path, content=chunks(), headers=headers)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call[0] + call[1][-9:])
async def test_the_former_owner_of_a_device_does_nothing_with_it(
    api: httpx.AsyncClient, services: Services, world: World, life: Life, call: tuple[str, str, bytes]
) -> None:
    """Else whoever gave a device away takes it back with a call from before."""
    panel = (await services.accounts.tokens.caller(BOB_TOKEN)).application
    assert panel is not None
    await allow(services, GrantRecord(world.bob, panel, world.light_type, read=True, write=True))
    await life.call("POST", f"{DEVICE}/transfer", token=ADA_TOKEN, json={"email": "bob@example.org"})

    async def accept() -> None:
        await life.call("PUT", f"{DEVICE}/transfer", token=BOB_TOKEN, json={"status": "ACCEPTED"})

    error_of(await late(api, call, accept), 403)
    assert (await life.call("GET", f"{DEVICE}/shares", token=BOB_TOKEN))["data"]["shares"] == []
    await life.call("GET", f"{DEVICE}/transfer", token=BOB_TOKEN, status=404)


@pytest.mark.parametrize("call", [*CALLS, ON_NOTHING], ids=lambda call: call[0] + call[1][-9:])
async def test_a_token_that_has_ended_does_nothing(
    api: httpx.AsyncClient, services: Services, world: World, call: tuple[str, str, bytes]
) -> None:
    """Else whoever knew a password makes shares and rules after the new one has ended all tokens."""

    async def end() -> None:
        await services.accounts.tokens.revoke(ADA_TOKEN)

    error_of(await late(api, call, end), 401)


@each_row(
    ("module", "path"), [("shares", f"{DEVICE}/shares"), ("transfers", f"{DEVICE}/transfer")], ids=["share", "transfer"]
)
async def test_nor_with_a_call_that_waits_for_its_own_reads(
    services: Services, world: World, life: Life, monkeypatch: pytest.MonkeyPatch, module: str, path: str
) -> None:
    """Between the check and the write there are reads, which wait for the others of the caller."""

    async def slow(*arguments: Any) -> Any:
        found = await invited(*arguments)
        await services.core.database.write(lambda tx: tx.transfers.hand_over(world.kitchen, world.bob))
        return found

    monkeypatch.setattr(f"broker.devices.{module}.invited", slow)
    await life.call("POST", path, token=ADA_TOKEN, status=403, json={"email": "friend@example.org"})
    of_device = services.core.database.read(lambda tx: tx.shares.page_of(world.kitchen, offset=0, limit=9))
    assert await of_device == ([], 0)
    assert await services.core.database.read(lambda tx: tx.transfers.of_device(world.kitchen, now_ms=0)) is None
