"""Actions for the devices of edges: each edge asks for the next ones (reference 30.3)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import trio
from msgspec.structs import replace

from broker.clock import Clock
from broker.errors import StorageUnavailable
from broker.facts import ActionStored, DeviceCreated, FactPhase, Router
from broker.forwarding.edge_refusals import EdgeBusy
from broker.forwarding.edges import Edges
from broker.forwarding.wire import ActionsAnswer, ActionsAsked, SentAction
from broker.messages.mids import Mids
from config.limits import FORWARD_ACTIONS
from storage.database import Database
from storage.forwarding import EdgeRecord
from storage.keys import BY_CLOUD, DeviceKey, Position, UserKey
from storage.records import ActionRow
from storage.sql import StoreError
from storage.transaction import Transaction

_ROWS: Final = 1_000  # that one reading looks at
_READINGS: Final = 5  # of one request
_WAITERS_OF_ONE: Final = 3  # requests for Actions: one that has lost its connection may still wait


@dataclass(eq=False)
class _Waiter:
    edge: int
    owner: UserKey
    event: trio.Event


@dataclass(eq=False)
class EdgeActions:
    _database: Database
    _clock: Clock
    _router: Router
    _mids: Mids
    _edges: Edges

    def __post_init__(self) -> None:
        self._waiters: set[_Waiter] = set()
        self._edge_of: dict[DeviceKey, int] = {}
        self._devices_of: dict[int, int] = {}  # how many of an edge are in `_edge_of`
        self._router.subscribe(ActionStored, self._action_stored, FactPhase.EFFECT)
        self._router.subscribe(DeviceCreated, self._device_created, FactPhase.EFFECT)

    async def next(self, edge: EdgeRecord, asked: ActionsAsked) -> ActionsAnswer:
        """The next Actions to devices of the edge, after a while if there are none now.

        Raises Conflict, StorageUnavailable.
        """
        self._edges.refuse_others(edge, asked.store)
        if sum(one.edge == edge.key for one in self._waiters) >= _WAITERS_OF_ONE:
            raise EdgeBusy(int(asked.wait) + 1)
        waiter = _Waiter(edge.key, edge.owner, trio.Event())
        self._waiters.add(waiter)
        self._edges.counts.waiting += 1
        try:
            await self._know_devices(edge.key)
            asked = _behind_known(edge, asked)
            answer = await self._next(edge, asked)
            if not answer.actions and asked.wait:
                with trio.move_on_after(asked.wait):
                    await waiter.event.wait()
                answer = await self._next(edge, replace(asked, after=answer.upto))
            if asked.after is not None and asked.after != edge.actions_upto:
                now_ms = self._clock.now_ms()
                await self._database.write(
                    lambda tx: tx.forwarding.note_seen(edge.key, actions_upto=asked.after, now_ms=now_ms)
                )
        except StoreError as error:
            raise StorageUnavailable.of(error) from error
        finally:
            self._waiters.discard(waiter)
            self._edges.counts.waiting -= 1
        self._edges.counts.actions += len(answer.actions)
        return answer

    async def _know_devices(self, edge: int) -> None:
        """Read which devices are the edge's, when there are others than before: another node makes some, too."""
        number = await self._database.read(lambda tx: tx.forwarding.count_edge_devices(edge))
        if number == self._devices_of.get(edge):
            return
        for one in await self._database.read(lambda tx: tx.forwarding.all_edge_devices(edge)):
            if one.device is not None:
                self._edge_of[one.device] = edge
        self._devices_of[edge] = number

    async def _next(self, edge: EdgeRecord, asked: ActionsAsked) -> ActionsAnswer:
        upto = asked.after
        for _ in range(_READINGS):
            found, reached, is_last = await self._database.read(lambda tx, after=upto: _actions(tx, edge.key, after))  # type: ignore[misc]
            if found or is_last:
                sent = [
                    SentAction(row.position, self._mids.mid(Position(row.position)), remote, row.ts, row.data)
                    for row, remote in found[:FORWARD_ACTIONS]
                ]
                is_cut = len(found) > FORWARD_ACTIONS
                return ActionsAnswer(sent[-1].position if is_cut else reached, tuple(sent))
            upto = reached
        return ActionsAnswer(upto or 0)

    def _action_stored(self, fact: ActionStored) -> None:
        if self._waiters and (edge := self._edge_of.get(fact.destination)) is not None:
            for waiter in self._waiters:
                if waiter.edge == edge:
                    waiter.event.set()

    def _device_created(self, fact: DeviceCreated) -> None:
        """It may be an edge's, also when another node made it: the edge asks again, and then the device is known."""
        for waiter in self._waiters:
            if waiter.owner == fact.owner:
                waiter.event.set()


def _behind_known(edge: EdgeRecord, asked: ActionsAsked) -> ActionsAsked:
    """A sender that was restored asks for Actions again that its devices have had."""
    if asked.after is None or edge.actions_upto is None:
        return asked
    return replace(asked, after=max(asked.after, edge.actions_upto))


def _actions(tx: Transaction, edge: int, after: int | None) -> tuple[Sequence[tuple[ActionRow, str]], int, bool]:
    """Actions to devices of the edge, up to which position these are all, and whether that is the end of the log."""
    head = tx.messages.head()
    if after is None or after >= head:
        return (), head if after is None else after, True
    rows = tx.messages.actions_after(Position(after), limit=_ROWS)
    remotes = tx.forwarding.remotes_of(edge, {row.device for row in rows})
    is_last = len(rows) < _ROWS
    reached = head if is_last else rows[-1].position
    found = [(row, remotes[row.device]) for row in rows if row.device in remotes and row.source != BY_CLOUD]
    return found, reached, is_last
