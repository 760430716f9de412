"""/devices/…/tokens: one token a device, and the end of the former one (reference 6.2)."""

import httpx
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker.accounts.tokens import CONSOLE_ID
from broker.facts import TokenRevoked
from broker.ids import is_id
from broker.routing.connections import CloseReason
from broker.secrets import token_hash
from broker.services import Services
from tests.factories import ADA, ADA_TOKEN, DASHBOARD, KITCHEN, KITCHEN_TOKEN, LIGHT_TYPE, World
from tests.protocols.http.conftest import bearer

pytestmark = pytest.mark.slow


PATH = f"/devices/{KITCHEN}/tokens"


def record(token: str) -> dict[str, dict[str, str]]:
    return {"data": {"accessToken": token, "uid": ADA, "did": KITCHEN, "cid": DASHBOARD}}


async def works(api: httpx.AsyncClient, token: str) -> bool:
    return (await api.get(f"/devices/{KITCHEN}", headers=bearer(token))).status_code == 200


async def test_the_life_of_a_token(api: httpx.AsyncClient) -> None:
    headers = bearer(ADA_TOKEN)
    answer = await api.get(PATH, headers=headers)
    assert (answer.json(), answer.headers["cache-control"]) == (record(KITCHEN_TOKEN), "no-store")
    assert "access-control-allow-origin" not in answer.headers

    renewed = (await api.put(PATH, headers=headers, content=b"anything")).json()
    token = renewed["data"]["accessToken"]
    assert is_id(token)
    assert renewed == record(token)
    assert (await api.get(PATH, headers=headers)).json() == record(token)
    assert [await works(api, one) for one in (KITCHEN_TOKEN, token)] == [False, True]

    assert (await api.delete(PATH, headers=headers)).json() == record(token)
    assert not await works(api, token)
    assert [(await api.request(verb, PATH, headers=headers)).status_code for verb in ("GET", "DELETE")] == [404, 404]
    assert (await api.put(PATH, headers=headers)).json()["data"]["accessToken"] != token


async def test_a_token_that_an_operator_gave_is_of_the_console(
    services: Services, world: World, api: httpx.AsyncClient
) -> None:
    await services.core.database.write(lambda tx: tx.connection.execute("UPDATE device_token SET application = NULL"))
    assert (await api.get(PATH, headers=bearer(ADA_TOKEN))).json()["data"]["cid"] == CONSOLE_ID
    await services.provisioning.apply(
        {"devices": [{"id": KITCHEN, "owner": ADA, "type": LIGHT_TYPE, "token": "5c" * 16, "name": "Kitchen light"}]}
    )
    given = (await api.get(PATH, headers=bearer(ADA_TOKEN))).json()["data"]
    assert given == {"accessToken": "5c" * 16, "uid": ADA, "did": KITCHEN, "cid": CONSOLE_ID}


async def test_two_new_tokens_at_once_leave_one_and_tell_of_every_former_one(
    services: Services, api: httpx.AsyncClient
) -> None:
    ended: list[bytes] = []
    services.core.router.subscribe(TokenRevoked, lambda fact: ended.append(fact.hash))
    tokens: list[str] = []

    async def renew() -> None:
        answer = await api.put(PATH, headers=bearer(ADA_TOKEN))
        tokens.append(answer.json()["data"]["accessToken"])

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(renew)
    (left,) = [token for token in tokens if await works(api, token)]
    assert (await api.get(PATH, headers=bearer(ADA_TOKEN))).json() == record(left)
    former = {token_hash(token) for token in (KITCHEN_TOKEN, *tokens) if token != left}
    assert (set(ended), len(ended)) == (former, len(former))


async def test_the_end_of_a_token_ends_its_connection_at_once(services: Services, api: httpx.AsyncClient) -> None:
    for verb in ("PUT", "DELETE"):
        token = (await api.get(PATH, headers=bearer(ADA_TOKEN))).json()["data"]["accessToken"]
        device, caller = await services.devices.registry.by_token(token)
        closed: list[CloseReason] = []
        with services.routing.connections.connect(
            device,
            protocol="MQTT",
            token=caller.token,
            exclusive=True,
            deliver=lambda _action: True,
            close=closed.append,
        ):
            await api.request(verb, PATH, headers=bearer(ADA_TOKEN))
            await wait_all_tasks_blocked()
            assert closed == [CloseReason.TOKEN_REVOKED]
