"""The registrations of several nodes: each has a row, which says where the device is.

The node to which a device has registered last has its row. Another one that had it before changes nothing any more, and
begins no operation: it asks the row first. The Actions that wait are rows as well (storage/lwm2m_actions.py), so a
node that takes a device over goes on where the former one was, also when that one is gone. An Action whose row the
former one has not stored is in the log, behind the position in the row of the registration.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Final

import msgspec
from msgspec.structs import replace

from broker.clock import Clock
from broker.cluster.facts import FactLog
from broker.cluster.kinds import publish
from broker.device_management.sessions import ManagedSession, ResourcePath
from broker.facts import DeviceActionFact
from config.limits import LWM2M_ACTIONS_KEPT, LWM2M_AWAKE_SECONDS
from storage.commit_group import CommitGroup
from storage.database import Database
from storage.keys import DeviceKey, Milliseconds, OrganizationKey, Position
from storage.lwm2m import EndedActionRecord, Lwm2mRegistrationRecord
from storage.lwm2m_actions import UnendedActionRecord
from storage.message_searches import Range
from storage.records import ActionRow, PresenceRecord
from storage.sql import StoreError
from storage.transaction import Transaction

#: At most this many Actions of a device are looked at: not each is an operation.
_LOOKED_AT: Final = 1_000
#: A registration is asleep so long after its device was last seen, as other nodes know it (reference 6.4).
_AWAKE_MS: Final = int(LWM2M_AWAKE_SECONDS * 1000) + 31_000
_unobserved: Final = msgspec.json.Decoder(dict[str, str])
_offers: Final = msgspec.json.Decoder(list[ResourcePath])
_encode: Final = msgspec.json.Encoder().encode


class Unended(msgspec.Struct, frozen=True):
    """An Action that waits, with its row of the log."""

    record: UnendedActionRecord
    row: ActionRow


class Begun(msgspec.Struct, frozen=True):
    """A registration as its node takes it on.

    `is_known`: this node had the former one, and knows which Actions wait. Otherwise `unended` are these, and `later`
    are Actions that the former one may have taken, without a row. Actions up to `after` are not of this registration.
    `head`: the latest position, when the device had no registration before this one.
    """

    is_known: bool
    unended: Sequence[Unended]
    later: Sequence[ActionRow]
    after: Position
    head: Position | None


class ShownRegistration(msgspec.Struct, frozen=True):
    """A registration as each node sees it. `is_ready`: its properties were read, and it has answered since."""

    is_ready: bool
    is_asleep: bool
    unobserved: Mapping[ResourcePath, str]
    offers: frozenset[ResourcePath]


class ShownActions(msgspec.Struct, frozen=True):
    """The Actions of a device, in their order, and its registration; None: it has none."""

    unended: Sequence[Unended]
    ended: Sequence[EndedActionRecord]
    registration: ShownRegistration | None


class _Current(msgspec.Struct):
    session: ManagedSession | None  # None: it has ended
    number: int
    noted: dict[str, object]
    work: object = None
    group: CommitGroup | None = None


_Change = tuple[Callable[[Transaction], bool], Callable[[], bool]]


class SharedRegistrations:
    def __init__(self, database: Database, clock: Clock, peers: FactLog) -> None:
        self._database = database
        self._clock = clock
        self._node = peers.node
        #: The name of this process.
        self.instance = peers.instance
        self._numbers = count(1)
        self._current: dict[DeviceKey, _Current] = {}
        self._failed: list[_Change] = []

    # Registrations

    def begin(self, session: ManagedSession) -> None:
        """The device registers with this node: in the commit to come its row is this node's."""
        device = session.device.key
        former, noted = self._current.get(device), _noted(session, is_ready=False)
        current = self._current[device] = _Current(session, next(self._numbers), noted)
        row = Lwm2mRegistrationRecord(
            device,
            self._node,
            current.number,
            since=self._clock.now_ms(),
            ended_on=None,
            has_queue_mode=session.has_queue_mode,
            is_ready=False,
            unobserved=str(noted["unobserved"]),
            offers=str(noted["offers"]),
            actions_after=Position(0),
            actions_until=None,
        )
        current.group = self._database.open_group
        current.work = self._database.write_nowait(partial(_begin, row, None if former is None else former.number))

    async def begun(self, session: ManagedSession) -> Begun | None:
        """Wait for that commit. None: the device has registered once more since. Raises StoreError."""
        current = self._current.get(session.device.key)
        if current is None or current.session is not session or (group := current.group) is None:
            return None
        if group.error is None:  # else the store is closed
            await group.ended.wait()
        if group.error is not None:
            raise group.error
        if (error := current.work.error) is not None:  # type: ignore[attr-defined]
            raise error if isinstance(error, StoreError) else StoreError(str(error))
        found: Begun = current.work.result  # type: ignore[attr-defined]
        current.work = current.group = None
        return found if self._current.get(session.device.key) is current else None

    def is_latest(self, session: ManagedSession) -> bool:
        """Whether the device has not registered once more with this node."""
        current = self._current.get(session.device.key)
        return current is not None and current.session is session

    def end(self, session: ManagedSession) -> None:
        """The registration has ended. Its number stays, for what still waits for the device."""
        if (current := self._current.get(session.device.key)) is not None and current.session is session:
            current.session = None
            self._change(session.device.key, current.number, partial(_end, self._clock.now_ms()))

    def note(self, session: ManagedSession, *, is_ready: bool | None = None) -> None:
        """Store what other nodes show of it, where that has changed."""
        current = self._current.get(session.device.key)
        if current is None or current.session is not session:
            return
        noted = _noted(session, is_ready=bool(current.noted["is_ready"]) if is_ready is None else is_ready)
        if noted != current.noted:
            current.noted = noted
            self._change(session.device.key, current.number, lambda _tx: noted, lambda: current.noted is noted)

    def _change(
        self,
        device: DeviceKey,
        number: int,
        values: Callable[[Transaction], dict[str, object]],
        is_due: Callable[[], bool] = lambda: True,
    ) -> None:
        """`is_due`: whether it is still to be done, when it has failed."""
        node, group = self._node, self._database.open_group

        def change(tx: Transaction) -> bool:
            return tx.lwm2m.change(device, node, number, **values(tx))

        work = self._database.write_nowait(change)
        group.callbacks.append(lambda error: self._changed((change, is_due), error or work.error))

    def _changed(self, change: _Change, error: BaseException | None) -> None:
        if error is not None:  # such as other rows of the commit, of a device that has gone to another node
            self._failed.append(change)

    async def change_again(self) -> None:
        """Change what could not be changed. Raises StoreError."""
        failed = tuple(self._failed)
        if failed:
            await self._database.write(lambda tx: [change(tx) for change, is_due in failed if is_due()])
            del self._failed[: len(failed)]

    def is_here(self, device: DeviceKey) -> Callable[[Transaction], bool]:
        """Says, in a transaction, whether the device is registered with this node, and with no other one since."""
        node, number = self._node, self._number_of(device)
        return lambda tx: tx.lwm2m.is_held(device, node, number)

    async def is_elsewhere(self, device: DeviceKey) -> bool:
        """Whether the device has registered with another node since. Raises StoreError."""
        current, node = self._current.get(device), self._node
        if current is None or current.work is not None:  # it registers here now
            return False
        number = current.number
        is_of = await self._database.read(lambda tx: tx.lwm2m.is_of(device, node, number))
        return not is_of and self._current.get(device) is current

    def _number_of(self, device: DeviceKey) -> int:
        current = self._current.get(device)
        return 0 if current is None else current.number

    def forget(self, device: DeviceKey) -> None:
        """The device was deleted."""
        self._current.pop(device, None)

    async def shown(self, devices: Sequence[DeviceKey]) -> dict[DeviceKey, ShownRegistration]:
        """The registrations that these devices have now, whatever node they are on."""
        now_ms = self._clock.now_ms()
        return await self._database.read(lambda tx: _shown(tx, list(tx.lwm2m.registrations(devices).values()), now_ms))

    async def of_organization(self, organization: OrganizationKey) -> dict[DeviceKey, ShownRegistration]:
        """The last registrations of devices of its types."""
        now_ms = self._clock.now_ms()
        return await self._database.read(
            lambda tx: _shown(tx, tx.lwm2m.of_organization(organization, limit=_LOOKED_AT), now_ms)
        )

    # Actions: each method but the last ones returns False when another node has the device

    def take(self, record: UnendedActionRecord) -> None:
        """An Action waits, unless another node has the device: then it does there."""
        node, number = self._node, self._number_of(record.device)

        def work(tx: Transaction) -> None:
            if tx.lwm2m.took(record.device, node, number, record.position):
                tx.lwm2m_actions.put(record)

        self._database.write_nowait(work)

    def skip(self, device: DeviceKey, position: Position) -> None:
        """No Action up to here waits without a row."""
        node, number = self._node, self._number_of(device)
        self._database.write_nowait(lambda tx: tx.lwm2m.took(device, node, number, position))

    async def begin_operation(self, device: DeviceKey, position: Position, step: int) -> bool:
        """An operation is about to be sent. Raises StoreError."""
        node, number = self._node, self._number_of(device)

        def work(tx: Transaction) -> bool:
            if not tx.lwm2m.is_of(device, node, number):
                return False
            tx.lwm2m_actions.set_step(position, step)
            return True

        return await self._database.write(work)

    async def end_action(self, record: EndedActionRecord, fact: DeviceActionFact | None) -> bool:
        """An Action has ended. Raises StoreError."""
        node, number = self._node, self._number_of(record.device)

        def work(tx: Transaction) -> bool:
            if not tx.lwm2m.took(record.device, node, number, record.position):
                return False
            _end_action(tx, record, fact)
            return True

        return await self._database.write(work)

    async def end_lost(self, records: Sequence[tuple[EndedActionRecord, DeviceActionFact | None]]) -> None:
        """Actions have ended that no node has any more. Raises StoreError."""

        def work(tx: Transaction) -> None:
            for record, fact in records:
                _end_action(tx, record, fact)

        await self._database.write(work)

    async def actions(self, device: DeviceKey) -> ShownActions:
        now_ms = self._clock.now_ms()

        def read(tx: Transaction) -> ShownActions:
            registration = _shown(tx, list(tx.lwm2m.registrations([device]).values()), now_ms).get(device)
            return ShownActions(_unended(tx, tx.lwm2m_actions.of_device(device)), tx.lwm2m.ended(device), registration)

        return await self._database.read(read)

    async def unended(self) -> Sequence[Unended]:
        """The Actions of all devices that wait."""
        return await self._database.read(lambda tx: _unended(tx, tx.lwm2m_actions.all()))


def _begin(row: Lwm2mRegistrationRecord, known: int | None, tx: Transaction) -> Begun:
    former, head = tx.lwm2m.registration(row.device), Position(tx.connection.given_head())
    after = head if former is None else former.actions_after
    tx.lwm2m.put(replace(row, actions_after=after))
    gap = head if former is None or former.ended_on is not None else None
    if former is not None and (former.node, former.number) == (row.node, known):
        return Begun(True, (), (), gap or Position(0), gap)
    unended = _unended(tx, tx.lwm2m_actions.of_device(row.device))
    later: list[ActionRow] = []
    if former is not None:
        search = Range(
            None,
            None,
            limit=_LOOKED_AT,
            behind=after,
            until=former.actions_until,
            by_arrival=True,
            descending=True,
        )
        later = tx.message_searches.action_page([row.device], search)[::-1]
    return Begun(False, unended, later, gap or after, gap)


def _unended(tx: Transaction, records: Sequence[UnendedActionRecord]) -> list[Unended]:
    rows = tx.messages.actions_at([one.position for one in records]) if records else {}
    return [Unended(one, rows[one.position]) for one in records if one.position in rows]


def _end_action(tx: Transaction, record: EndedActionRecord, fact: DeviceActionFact | None) -> None:
    tx.lwm2m_actions.end([record.position])
    tx.lwm2m.put_ended(record, kept=LWM2M_ACTIONS_KEPT)
    if fact is not None:
        publish(tx, fact)


def _end(now_ms: Milliseconds, tx: Transaction) -> dict[str, object]:
    return {"ended_on": now_ms, "actions_until": tx.connection.given_head(), "is_ready": 0}


def _noted(session: ManagedSession, *, is_ready: bool) -> dict[str, object]:
    """The columns that other nodes read."""
    unobserved = {"/".join(map(str, path)): why for path, why in session.unobserved.items()}
    return {
        "is_ready": int(is_ready),
        "has_queue_mode": int(session.has_queue_mode),
        "unobserved": _encode(unobserved).decode(),
        "offers": _encode(sorted(session.offers)).decode(),
    }


def _shown(
    tx: Transaction, records: Sequence[Lwm2mRegistrationRecord], now_ms: Milliseconds
) -> dict[DeviceKey, ShownRegistration]:
    rows = {row.device: row for row in records if row.ended_on is None}
    seen = tx.devices.presences(list(rows))
    return {
        key: ShownRegistration(
            row.is_ready,
            _is_asleep(row, seen.get(key), now_ms),
            {tuple(map(int, path.split("/"))): why for path, why in _unobserved.decode(row.unobserved).items()},
            frozenset(_offers.decode(row.offers)),
        )
        for key, row in rows.items()
    }


def _is_asleep(row: Lwm2mRegistrationRecord, presence: PresenceRecord | None, now_ms: Milliseconds) -> bool:
    seen_on = None if presence is None else presence.last_seen_on
    return row.has_queue_mode and now_ms - max(seen_on or 0, row.since) > _AWAKE_MS
