"""R6: what needs a permission that another node has ended is not stored behind its end: messages, Actions and works."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pytest
from msgspec import convert

from broker.accounts.tokens import CONSOLE_ID, Caller, TokenKind
from broker.cluster.facts import FactLog
from broker.cluster.kinds import CONNECTION_REPLACED, ConnectionReplaced, publish
from broker.facts import (
    ApplicationGrantsChanged,
    DeviceDeleted,
    DeviceDisabled,
    DeviceHandedOver,
    Fact,
    GrantsChanged,
    SessionsEnded,
    SharesChanged,
    TokenRevoked,
)
from broker.routing.permission_fence import PermissionFence
from broker.trace.origin import Origin, enter, set_actor
from storage.keys import (
    ApplicationKey,
    DeviceKey,
    Milliseconds,
    Position,
    UserKey,
)
from storage.sql import StoreError
from storage.transaction import Transaction
from tests.cluster.history import Part, parts_of_a_cluster

pytestmark = pytest.mark.slow


DEVICE, OTHER = DeviceKey(1), DeviceKey(2)
USER, APPLICATION = UserKey(7), ApplicationKey(3)
TOKEN: Final = b"t" * 32

of_user = Caller(TokenKind.USER, TOKEN, None, USER, "u", APPLICATION, "a")
of_application = Caller(TokenKind.APPLICATION, TOKEN, None, None, None, APPLICATION, "a")
of_console = Caller(TokenKind.USER, TOKEN, None, USER, "u", APPLICATION, CONSOLE_ID)
of_device = Caller(TokenKind.DEVICE, TOKEN, None, device=DEVICE, device_id="d")


def fact_of_device(kind: type[Fact]) -> Fact:
    return convert(
        {
            "device": DEVICE,
            "device_id": "d",
            "device_type": 1,
            "device_type_id": "t",
            "type_organization": 1,
            "type_protected": False,
            "owner": USER,
            "owner_id": "u",
            "application_id": None,
            "at_ms": 1,
        },
        kind,
    )


#: What has ended, and who sends with it.
ENDED: Final[dict[str, tuple[Fact, Caller]]] = {
    "token of a device": (TokenRevoked(TOKEN), of_device),
    "token of a user": (TokenRevoked(TOKEN), of_user),
    "grants of a user": (GrantsChanged(USER, APPLICATION, ()), of_user),
    "grants for an application": (GrantsChanged(USER, APPLICATION, ()), of_application),
    "grants of many users": (ApplicationGrantsChanged(APPLICATION, {USER: ()}), of_user),
    "session of the console": (SessionsEnded(USER), of_console),
    "share": (SharesChanged(DEVICE), of_user),
    "disabled device": (fact_of_device(DeviceDisabled), of_device),
    "deleted device": (fact_of_device(DeviceDeleted), of_device),
    "device of a new owner": (fact_of_device(DeviceHandedOver), of_device),
}


@dataclass
class Link:
    key: DeviceKey
    token: bytes
    is_allowed: Callable[[], bool] = lambda: True


class Sender:
    """A node that has not heard yet of what the other one has ended."""

    def __init__(self, part: Part, links: list[Link]) -> None:
        self.part = part
        fence = PermissionFence(lambda: links)
        part.facts.refuse_with(fence.refusal)
        part.facts.refuse_works_with(fence.ends)

    async def message(self, holder: Caller | None, device: DeviceKey = DEVICE) -> bool:
        """Whether it is stored."""
        if holder is not None:
            self.part.database.open_group.holders[id(holder)] = holder
        self.part.journal.append_message(device, Milliseconds(1), Milliseconds(1), 1, json.dumps([0, 0]))
        return await _succeeds(self.part.journal.wait_committed)

    async def work(self, holder: Caller) -> bool:
        enter(Origin())
        set_actor("", holder=holder)
        try:
            return await _succeeds(lambda: self.part.database.write(_noted))
        finally:
            enter(Origin())


async def _succeeds(write: Callable[[], Any]) -> bool:
    try:
        await write()
    except StoreError:
        return False
    return True


def _noted(tx: Transaction) -> None:
    tx.messages.set_counter("noted", 1)


async def noted(part: Part) -> int:
    return await part.database.read(lambda tx: tx.messages.counter("noted"))


async def stored(part: Part) -> int:
    return len(await part.database.read(lambda tx: tx.messages.after(Position(0))))


async def stored_though_ended() -> list[str]:
    """What a node stores that has not heard of the end; and that whoever has another permission goes on."""
    found = list[str]()
    async with parts_of_a_cluster(2, follow=False) as (ender, part):
        sender = Sender(part, [])
        for kind, (fact, holder) in ENDED.items():
            assert await sender.message(holder)
            assert await sender.work(holder)
            before = await stored(ender)
            await ender.database.write(partial(_ended, fact))
            if await sender.message(holder):
                found.append(f"message: {kind}")
            assert await stored(ender) == before + (f"message: {kind}" in found)
            await ender.database.write(partial(_ended, fact))
            if await sender.work(holder):
                found.append(f"work: {kind}")
            assert await noted(ender) == (f"work: {kind}" in found)
            await ender.database.write(partial(_ended, fact))
            assert await sender.message(other_than(holder), OTHER)
    return found


def _ended(fact: Fact, tx: Transaction) -> None:
    tx.messages.set_counter("noted", 0)
    publish(tx, fact)


def other_than(holder: Caller) -> Caller:
    other = {"token": b"o" * 32, "user": UserKey(8), "application": ApplicationKey(9), "device": OTHER}
    return Caller(**{**{name: getattr(holder, name) for name in holder.__struct_fields__}, **other})


async def test_nothing_is_stored_with_what_has_ended() -> None:
    assert await stored_though_ended() == []


async def test_a_node_that_hears_of_an_end_and_lets_pass_what_waits_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant that the test above finds, by each kind."""
    monkeypatch.setattr(FactLog, "refusal", lambda *_: None)
    monkeypatch.setattr(PermissionFence, "ends", lambda *_: False)
    assert await stored_though_ended() == [f"{what}: {kind}" for kind in ENDED for what in ("message", "work")]


async def test_a_connection_whose_token_is_revoked_stores_nothing_more() -> None:
    async with parts_of_a_cluster(2, follow=False) as (ender, part):
        sender = Sender(part, [Link(DEVICE, TOKEN), Link(OTHER, b"o" * 32)])
        await ender.database.write(lambda tx: publish(tx, TokenRevoked(TOKEN)))
        assert not await sender.message(None)
        await ender.database.write(lambda tx: publish(tx, TokenRevoked(TOKEN)))
        assert await sender.message(None, OTHER)


async def test_a_connection_that_a_share_allowed_stores_nothing_more() -> None:
    async with parts_of_a_cluster(2, follow=False) as (ender, part):
        sender = Sender(part, [Link(DEVICE, TOKEN, is_allowed=lambda: False), Link(OTHER, TOKEN)])
        await ender.database.write(lambda tx: publish(tx, SharesChanged(DEVICE)))
        assert not await sender.message(None)
        await ender.database.write(lambda tx: publish(tx, SharesChanged(DEVICE)))
        assert await sender.message(None, OTHER)


async def test_what_was_accepted_before_the_end_is_heard_between_two_commits_is_not_stored() -> None:
    async with parts_of_a_cluster(2, follow=False) as (ender, part):
        sender = Sender(part, [])
        await ender.database.write(lambda tx: publish(tx, TokenRevoked(TOKEN)))
        found = await part.database.look_up(lambda tx: tx.facts.after(0))
        part.database.open_group.holders[0] = of_user
        part.journal.append_message(DEVICE, Milliseconds(1), Milliseconds(1), 1, "[0, 0]")
        part.facts.heard(found.facts)  # as the follower does, before the writer has begun
        assert not await _succeeds(part.journal.wait_committed)
        assert await sender.message(None)


async def test_a_take_over_of_another_device_refuses_nobody() -> None:
    async with parts_of_a_cluster(2, follow=False) as (ender, part):
        sender = Sender(part, [])
        replaced = ConnectionReplaced(OTHER, (("n1", 1),))
        await ender.database.write(lambda tx: tx.tell(CONNECTION_REPLACED, replaced))
        assert await sender.message(of_user)
