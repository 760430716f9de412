"""The live feed as Server-Sent Events, and both kinds of feeds that go on from a position (reference 19.6)."""

import json
from collections.abc import Sequence
from typing import Any
from unittest.mock import ANY

import pytest
import trio
import trio.testing

from broker.devices.transfers import hand_over
from broker.messages import log_feeds
from broker.services import Services
from config.limits import LOG_FEEDS_OF_ONE_USER, PING_SECONDS
from storage.commit_group import CommitGroup
from storage.data_readers import ITSELF
from storage.keys import Milliseconds, Position
from storage.sql import StoreError
from storage.transaction import Transaction
from tests.factories import (
    ADA,
    ADA_TOKEN,
    APPLICATION_TOKEN,
    BOB_TOKEN,
    BOBS,
    HALL,
    KITCHEN,
    KITCHEN_TOKEN,
    NOW_MS,
    World,
)
from tests.protocols.websocket.peers import Peers, said
from tests.rows import each_row
from tests.tickets import at

ACTION = b'{"actions":[{"name":"setOn"}]}'


class Events:
    """A client that reads the events of an answer, one after the other."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.text = ""
        self.head = ""

    async def open(self, query: str = "", token: str | None = ADA_TOKEN, headers: Sequence[str] = ()) -> "Events":
        lines = [f"GET /v1.1/live?{query} HTTP/1.1", "Host: localhost", "Accept: text/event-stream", *headers]
        if token is not None:
            lines.append(f"Authorization: Bearer {token}")
        await self.stream.send_all("\r\n".join([*lines, "", ""]).encode())
        while "\r\n\r\n" not in self.text:
            await self._read()
        self.head, _, self.text = self.text.partition("\r\n\r\n")
        return self

    @property
    def status(self) -> int:
        return int(self.head.split(" ")[1])

    async def refusal(self) -> Any:
        while more := await self.stream.receive_some():
            self.text += more.decode()
        return json.loads(self.text)["error"]

    async def _read(self) -> None:
        more = await self.stream.receive_some()
        assert more, "the server has ended the stream"
        self.text += more.decode()

    async def next(self) -> tuple[str, str, Any]:
        """Type, id and data of the next event of any type."""
        while "\n\n" not in self.text:
            await self._read()
        block, _, self.text = self.text.partition("\n\n")
        fields = dict(line.split(": ", 1) for line in block.split("\n") if not line.startswith(":"))
        return fields.get("event", "message"), fields.get("id", ""), json.loads(fields["data"])

    async def messages(self, number: int) -> list[str]:
        """The ids of the next messages; other events are skipped."""
        found: list[str] = []
        while len(found) < number:
            kind, mid, data = await self.next()
            if kind == "message":
                assert data["mid"] == mid
                found.append(mid)
        return found


async def stored(services: Services, *sdids: str) -> list[str]:
    """One message from each, all durable; gives their mids."""
    devices = [await services.devices.registry.find(sdid) for sdid in sdids]
    tickets = [services.messages.ingest.submit(device, b'{"state":true}') for device in devices]
    await services.messages.ingest.wait_committed()
    return [services.messages.ingest.mid(at(ticket)) for ticket in tickets]


async def events(peers: Peers, query: str = "", token: str | None = ADA_TOKEN, headers: Sequence[str] = ()) -> Events:
    return await Events(peers.open_stream()).open(query, token, headers)


async def test_the_owner_sees_who_has_read_stored_messages(peers: Peers, services: Services, world: World) -> None:
    mids = await stored(services, KITCHEN, HALL, BOBS)
    for token in (APPLICATION_TOKEN, KITCHEN_TOKEN):
        client = await events(peers, f"since=0&sdids={KITCHEN}", token)
        assert await client.messages(1) == mids[:1]
    (reader,) = await services.devices.readers.of_owner(world.ada)
    assert (reader.record.count, reader.record.reader, reader.application is not None) == (1, ITSELF, True)


async def test_events_are_messages_with_their_mids(peers: Peers, services: Services) -> None:
    client = await events(peers)
    assert client.status == 200
    assert "text/event-stream" in client.head
    kind, begun, _ = await client.next()
    assert kind == "position"
    mids = await stored(services, KITCHEN, BOBS, HALL)
    assert await client.messages(2) == [mids[0], mids[2]]
    again = await events(peers, headers=[f"Last-Event-ID: {begun}"])
    assert await again.messages(2) == [mids[0], mids[2]]


@each_row(
    ("token", "query", "expected"),
    [
        (KITCHEN_TOKEN, "", [0]),
        (ADA_TOKEN, "", [0, 2]),
        (BOB_TOKEN, "", [1]),
        (APPLICATION_TOKEN, "", [0, 2]),
        (ADA_TOKEN, f"sdids={HALL}", [2]),
        (ADA_TOKEN, "uid=self&includeSharedDevices=true", [0, 2]),
    ],
)
async def test_what_was_stored_after_a_mid(
    peers: Peers, services: Services, token: str, query: str, expected: list[int]
) -> None:
    (first,) = await stored(services, HALL)
    mids = await stored(services, KITCHEN, BOBS, HALL)
    client = await events(peers, f"{query}&after={first}", token)
    assert await client.messages(len(expected)) == [mids[index] for index in expected]
    assert await client.next() == ("position", mids[2], {"mid": mids[2]})
    live = await stored(services, KITCHEN, BOBS, HALL)
    assert await client.messages(len(expected)) == [live[index] for index in expected]


async def test_who_reads_a_feed_is_counted_by_page_and_by_batch(peers: Peers, services: Services) -> None:
    (first,) = await stored(services, HALL)
    await stored(services, KITCHEN, HALL)
    client, device = await events(peers, f"after={first}"), await events(peers, f"after={first}", KITCHEN_TOKEN)
    assert len(await client.messages(2)) == 2
    assert len(await device.messages(1)) == 1
    assert (await client.next())[0] == "position"
    await stored(services, KITCHEN)
    assert len(await client.messages(1)) == 1
    owner = (await services.devices.registry.find(KITCHEN)).owner
    assert [one.record.count for one in await services.devices.readers.of_owner(owner)] == [2]


async def test_a_long_past_comes_in_pages_and_nothing_twice(
    peers: Peers, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_feeds, "_PAGE", 7)
    (first,) = await stored(services, HALL)
    past = await stored(services, *[KITCHEN, HALL] * 40)
    client = await events(peers, f"after={first}")
    got = await client.messages(10)
    live: list[str] = []
    for _ in range(20):
        live += await stored(services, KITCHEN)
    got += await client.messages(90)
    assert got == past + live


async def test_actions_come_in_the_order_of_the_log(peers: Peers, services: Services) -> None:
    client = await events(peers)
    await client.next()
    kitchen, hall = await services.devices.registry.find(KITCHEN), await services.devices.registry.find(HALL)
    ingest = services.messages.ingest
    tickets = [
        ingest.submit(kitchen, b'{"state":true}'),
        ingest.submit_action(hall, kitchen, ACTION),
        ingest.submit(kitchen, b'{"state":false}'),
    ]
    await ingest.wait_committed()
    assert await client.messages(3) == [ingest.mid(at(ticket)) for ticket in tickets]
    (last,) = await stored(services, HALL)
    assert await client.messages(1) == [last]


async def test_what_was_stored_since_a_time(peers: Peers, services: Services, world: World) -> None:
    mids = await stored(services, KITCHEN, HALL)
    client = await events(peers, f"since={NOW_MS}")
    assert await client.messages(2) == mids
    for since, reason in (
        (NOW_MS + 3_600_000, "is in the future"),
        ("now", "must be a time in milliseconds"),
        (f"{NOW_MS}&after={mids[0]}", "give `after` or `since`, not both"),
    ):
        refused = await events(peers, f"since={since}")
        assert refused.status == 400
        assert (await refused.refusal())["errors"] == [[{"field": "since", "messages": [f"Invalid value: {reason}"]}]]


async def test_unknown_mids_are_refused(peers: Peers, services: Services) -> None:
    (mid,) = await stored(services, KITCHEN)
    forged = mid[:-1] + ("0" if mid[-1] != "0" else "1")
    for query, headers, field in (
        (f"after={forged}", [], "after"),
        ("after=x", [], "after"),
        (f"after={services.messages.ingest.mid(Position(10**9))}", [], "after"),
        ("", [f"Last-Event-ID: {forged}"], "Last-Event-ID"),
    ):
        refused = await events(peers, query, headers=headers)
        assert refused.status == 400
        assert (await refused.refusal())["errors"][0][0]["field"] == field


async def test_the_token_is_in_the_header(peers: Peers) -> None:
    assert (await events(peers, token=None)).status == 401
    assert (await events(peers, f"authorization=bearer+{ADA_TOKEN}", token=None)).status == 401
    assert (await events(peers, f"sdids={BOBS}")).status == 403


async def test_the_end_of_the_token_is_told(peers: Peers, services: Services) -> None:
    client = await events(peers)
    await client.next()
    await services.accounts.tokens.revoke(ADA_TOKEN)
    assert await client.next() == ("end", "", {"reason": "token revoked or expired"})
    assert await client.stream.receive_some() == b""
    assert services.log_feeds.statistics().feeds == 0


async def test_a_user_has_twenty_at_most(peers: Peers, services: Services) -> None:
    clients = [await events(peers) for _ in range(LOG_FEEDS_OF_ONE_USER)]
    refused = await events(peers)
    assert refused.status == 429
    assert "Retry-After" in refused.head
    assert (await events(peers, token=BOB_TOKEN)).status == 200
    await clients[0].stream.aclose()
    await trio.testing.wait_all_tasks_blocked()
    assert (await events(peers)).status == 200


async def test_a_client_that_does_not_read_goes_on_from_the_log(
    peers: Peers, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_feeds, "_COLLECTED_BYTES", 2_000)
    client = await Events(peers.open_stream(lockstep=True)).open()
    mids: list[str] = []
    for _ in range(30):
        mids += await stored(services, *[KITCHEN] * 20)
    assert await client.messages(len(mids)) == mids
    mids = await stored(services, KITCHEN)
    assert await client.messages(1) == mids


async def test_keep_alive_is_a_line(peers: Peers, services: Services, autojump_clock: trio.testing.MockClock) -> None:
    client = await events(peers)
    await client.next()
    await trio.sleep(PING_SECONDS + 1)
    (mid,) = await stored(services, KITCHEN)
    while "\n\n" not in client.text:
        await client._read()
    assert client.text.startswith(": keep-alive\n")
    assert await client.messages(1) == [mid]


async def test_a_websocket_goes_on_too(peers: Peers, services: Services) -> None:
    (first,) = await stored(services, HALL)
    past = await stored(services, KITCHEN, BOBS, HALL)
    socket = await peers.connect(f"/v1.1/live?authorization=bearer+{ADA_TOKEN}&after={first}")
    assert [(await said(socket))["mid"] for _ in range(2)] == [past[0], past[2]]
    assert await said(socket) == {"type": "position", "mid": past[2]}
    live = await stored(services, BOBS, KITCHEN)
    assert (await said(socket))["mid"] == live[1]
    status, _, body = await peers.refusal(f"/v1.1/live?authorization=bearer+{ADA_TOKEN}&after={first}&since=1")
    assert (status, body["error"]["errors"][0][0]["field"]) == (400, "since")


@pytest.mark.both_engines
async def test_a_gap_is_told_where_retention_has_deleted(peers: Peers, services: Services) -> None:
    mids = await stored(services, *[KITCHEN] * 6)
    positions = [services.messages.mids.position(mid) for mid in mids]
    upto = positions[3]
    assert upto is not None

    def delete(tx: Transaction) -> None:
        tx.retention.delete("message", behind=0, upto=upto, types=None)
        tx.retention.set_cursor("message/7/not ", upto)

    await services.core.database.write(delete)
    client = await events(peers, f"after={mids[1]}")
    assert await client.next() == ("gap", "", {"from": mids[1], "to": mids[3], "reason": "retention"})
    assert await client.messages(2) == mids[4:]
    whole = await events(peers, f"after={mids[4]}")
    assert (await whole.next())[:2] == ("message", mids[5])
    # What is a week old was deleted, and nothing that was stored since this time.
    recent = await events(peers, f"since={NOW_MS - 1}")
    assert await recent.next() == ("message", mids[4], ANY)
    old = await events(peers, f"since={NOW_MS - 30 * 86_400_000}")
    assert (await old.next())[0] == "gap"
    socket = await peers.connect(f"/v1.1/live?authorization=bearer+{ADA_TOKEN}&after={mids[1]}")
    assert await said(socket) == {"type": "gap", "from": mids[1], "to": mids[3], "reason": "retention"}
    assert services.log_feeds.statistics().gaps == 3


async def test_a_type_that_keeps_longer_has_no_gap(peers: Peers, services: Services) -> None:
    mids = await stored(services, *[KITCHEN] * 3)
    kitchen = await services.devices.registry.find(KITCHEN)
    cursor = f"message/7/not {kitchen.type_key}"
    await services.core.database.write(lambda tx: tx.retention.set_cursor(cursor, Position(10_000)))
    client = await events(peers, f"sdids={KITCHEN}&after={mids[0]}")
    assert await client.messages(2) == mids[1:]
    assert services.log_feeds.statistics().gaps == 0


async def test_a_commit_that_was_in_doubt_is_read_from_the_log(peers: Peers, services: Services) -> None:
    client = await events(peers)
    await client.next()
    late = CommitGroup(error=StoreError("its outcome was not known"))
    services.log_feeds._committed(late)
    mids = await stored(services, KITCHEN)
    assert await client.messages(1) == mids
    assert services.log_feeds.statistics().pages == 2


async def test_a_device_that_is_no_longer_shared_ends_the_stream(peers: Peers, services: Services) -> None:
    client = await events(peers, f"sdids={HALL}")
    await client.next()
    hall = await services.devices.registry.find(HALL)
    await services.devices.inventory.delete(hall)
    assert await client.next() == ("end", "", {"reason": "device deleted"})


async def test_a_page_of_the_log_goes_to_nobody_whose_share_has_ended_on_another_node(
    peers: Peers, services: Services, world: World
) -> None:
    class OtherNodes:
        """One of them hands the kitchen's light over, which this node hears when it asks."""

        async def catch_up(self) -> None:
            kitchen = await services.devices.registry.find(KITCHEN)
            if kitchen.owner == world.ada:
                known = kitchen.record
                await services.core.database.write(lambda tx: hand_over(tx, known, world.bob, Milliseconds(NOW_MS)))

    (first,) = await stored(services, HALL)
    mids = await stored(services, KITCHEN, HALL)
    services.log_feeds._peers = OtherNodes()  # type: ignore[assignment]
    client = await events(peers, f"after={first}")
    assert await client.next() == ("message", mids[1], ANY)


async def test_a_page_of_this_origin_has_the_sessions_cookie(peers: Peers, services: Services) -> None:
    session = await services.accounts.sessions.begin(await services.accounts.users.find(ADA))
    cookie = f"Cookie: other=1; trunkline_session={session.id}"
    client = await events(peers, token=None, headers=[cookie])
    assert client.status == 200
    assert "Access-Control" not in client.head
    assert (await events(peers, token=None, headers=["Cookie: trunkline_session=" + "0" * 32])).status == 401
    for header in ("Sec-Fetch-Site: cross-site", "Origin: https://elsewhere.example"):
        assert (await events(peers, token=None, headers=[cookie, header])).status == 403
    await client.next()
    await services.accounts.sessions.end(session.id)
    assert (await client.next())[0] == "end"


async def test_draining_and_stopping_end_the_stream_without_an_event(peers: Peers, services: Services) -> None:
    client = await events(peers)
    await client.next()
    services.core.life.move(0)
    assert await client.stream.receive_some() == b""
