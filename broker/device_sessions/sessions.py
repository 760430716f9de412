"""MQTT sessions: deliveries that wait for a device and its other state between two connections (reference 16.5).

A device has at most one session. While it is connected, its connection holds the session, and every change is written
with the commit that makes it durable. Actions are not queued for a device that is away: the session has the position of
the last Action that it has seen, and the message log has the others. So an Action is neither lost nor queued twice when
the daemon is killed, and a session that is away costs nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Final
from weakref import WeakValueDictionary

import msgspec

from broker.clock import Clock
from broker.cluster.facts import FactLog
from broker.cluster.kinds import SESSION_BEGAN, SESSION_EXPIRED, SessionBegin
from broker.cluster.news import News
from broker.device_sessions import steps
from broker.device_sessions.session import DeviceSession, Written
from broker.envelope import Action
from broker.loops import Loop
from storage.commit_group import StoreWork
from storage.database import Database
from storage.keys import DeviceKey, Milliseconds, Position
from storage.mqtt_sessions import DeliveryRecord, TopicSubscriptionRecord
from storage.transaction import Transaction

_SWEEP_SECONDS: Final = 60.0
_TRIMMED_EVERY: Final = 64
#: Cost of a separate write, as a number of bytes of the log, whose rows are written together.
WRITE_BYTES: Final = 2_048


class SessionStatistics(msgspec.Struct, frozen=True):
    connected: int
    resumed: int
    expired: int
    deliveries_dropped: int


class DeviceSessions:
    def __init__(
        self, database: Database, clock: Clock, news: News, *, longest_seconds: int, peers: FactLog | None = None
    ) -> None:
        """`peers`: other nodes have connections, too; None: there are none."""
        self._peers = peers
        self._database = database
        self._clock = clock
        self._longest_seconds = longest_seconds
        self._current: dict[DeviceKey, DeviceSession] = {}  # of connections
        self._known: dict[DeviceKey, DeviceSession] = {}  # receivers of messages: also of devices that are offline
        #: Sessions whose connection waited for their commit when a newer one of the device came, by their number.
        self._replaced: WeakValueDictionary[int, DeviceSession] = WeakValueDictionary()
        self._numbers = count(1)
        self._on_end: list[Callable[[DeviceKey], None]] = []
        self._on_begin: list[Callable[[DeviceKey, bool], None]] = []
        self._resumed = self._expired = self._dropped = 0
        news.listen(SESSION_BEGAN, self._session_began)
        news.listen(SESSION_EXPIRED, self._session_expired)
        self.sweep_forever = Loop(
            self.sweep, every=_SWEEP_SECONDS, at_once=True, failure="mqtt_sessions_not_swept", deletes=True
        ).run

    async def resume(self) -> None:
        """After the start of the daemon: no device is connected."""
        now_ms, peers = self._clock.now_ms(), self._peers
        if peers is not None:  # sessions are read when their devices connect, wherever they were before
            await self._database.write(lambda tx: tx.mqtt_sessions.end_all(now_ms, node=peers.node))
            return
        await self._database.write(lambda tx: tx.mqtt_sessions.end_all(now_ms))
        for session in await self._database.read(steps.every_session):
            self._known[session.device] = session

    def on_end(self, handler: Callable[[DeviceKey], None]) -> None:
        """Call `handler` when the session of a device has ended."""
        self._on_end.append(handler)

    def on_begin(self, handler: Callable[[DeviceKey, bool], None]) -> None:
        """Call `handler` when a connection of a device has begun, with whether the device's session goes on."""
        self._on_begin.append(handler)

    def away(self) -> Sequence[DeviceSession]:
        """The sessions of all devices, after `resume`."""
        return tuple(self._known.values())

    def is_connected(self, device: DeviceKey) -> bool:
        session = self._known.get(device)
        return session is not None and session.outlet is not None

    def is_stored(self, device: DeviceKey) -> bool:
        session = self._known.get(device)
        return session is not None and session.is_stored

    async def begin(
        self,
        session: DeviceSession,
        *,
        is_clean: bool,
        is_actions: Callable[[bytes], bool],
        written: Written,
        begun: Callable[[DeviceSession, bool], None],
    ) -> None:
        """Begin the session of a new connection, which the older one, if any, has left.

        Args:
            session: a new one; it is filled from the store when the device's session goes on.
            is_clean: the device's former session ends.
            is_actions: whether a filter is one of the device's Actions.
            written: see `Written`.
            begun: called with the session, and whether it goes on, on the loop and before any Action that the session
                has not seen. It is called also when the calling task was cancelled.

        Raises:
            StoreError: the session cannot be read.
        """
        session.expiry_seconds = min(session.expiry_seconds, self._longest_seconds)
        if (former := self._current.get(session.device)) is not None and former.begun is not None:
            self._replaced[former.number] = former
        session.number, session.begun = next(self._numbers), begun
        if self._peers is not None:
            session.holder = f"{self._peers.node} {self._peers.instance}.{session.number}"
        self._current[session.device] = session
        if (away := self._known.get(session.device)) is not None:
            away.outlet, away.late = None, []
        await self._database.write(
            partial(steps.begin_session, session, is_clean, is_actions, written, self._clock.now_ms())
        )

    def _session_began(self, began: SessionBegin, _content: None) -> None:
        session, is_present = self._current.get(began.device), began.is_present
        if session is None or session.number != began.number:
            session = self._replaced.pop(began.number, None)
        if session is None or (begun := session.begun) is None:  # its task was cancelled, and nobody has it any more
            return
        session.number, session.begun = 0, None
        self._resumed += is_present
        away = self._known.get(session.device)
        if away is not None and is_present:
            session.next_number = max(session.next_number, away.next_number)
            known = {one.number for one in session.deliveries}
            session.deliveries += [one for one in away.late if one.number not in known]
        elif away is not None:
            for delivery in away.late:
                self._write(away, steps.settle, delivery.number)
            self._tell_end(session.device)
        self._known[session.device] = session
        for handler in self._on_begin:
            handler(session.device, is_present)
        begun(session, is_present)

    def subscribe(
        self,
        session: DeviceSession,
        subscriptions: Mapping[bytes, TopicSubscriptionRecord],
        *,
        actions_from: Position | None,
    ) -> None:
        """Remember subscriptions, by filter. `actions_from`: Actions after this position wait for the device, unless
        those after an earlier one do so already; None: Actions do not wait for it."""
        session.subscriptions |= subscriptions
        if actions_from is None or session.actions_after is None:
            session.actions_after = actions_from
        size = sum(map(len, subscriptions))
        self._write(session, steps.subscribe, subscriptions, session.actions_after, size=size)

    def unsubscribe(self, session: DeviceSession, filters: Sequence[bytes], *, wants_actions: bool) -> None:
        for filter_ in filters:
            session.subscriptions.pop(filter_, None)
        session.actions_after = session.actions_after if wants_actions else None
        self._write(session, steps.unsubscribe, filters, session.actions_after)

    def deliver(
        self, session: DeviceSession, action: Action, topic: bytes, payload: bytes, qos: int
    ) -> DeliveryRecord | None:
        """Keep an Action for a connected device until it has acknowledged it; None when the session has it already."""
        if session.actions_after is not None and action.position <= session.actions_after:
            return None
        delivery = DeliveryRecord(session.next_number, topic, payload, qos)
        session.next_number += 1
        session.actions_after = action.position
        self._write(session, steps.deliver, delivery, action.position, size=delivery.size)
        return delivery

    def send(
        self,
        device: DeviceKey,
        *,
        topic: bytes,
        payload: bytes,
        qos: int,
        retain: bool,
        properties: bytes,
        subscription_ids: Sequence[int],
        expires_on: Milliseconds | None,
    ) -> bool:
        """Send a message to a device, or keep it when the device is away and its session lasts; False: neither."""
        session = self._known.get(device)
        if session is None or (session.outlet is None and not (qos and session.is_stored)):
            return False
        delivery = DeliveryRecord(
            session.next_number if qos else 0,
            topic,
            payload,
            qos,
            retain=retain,
            properties=properties,
            expires_on=expires_on,
            subscription_ids=tuple(subscription_ids),
        )
        if not qos:
            return session.outlet is not None and session.outlet.offer(delivery)
        session.next_number += 1
        self._write(session, steps.queue, delivery, size=delivery.size)
        if session.outlet is not None:
            session.outlet.send(delivery)
        else:
            if device in self._current:
                session.late.append(delivery)
            if delivery.number % _TRIMMED_EVERY == 0:
                self._write(session, steps.trim)
        return True

    def settle(self, session: DeviceSession, number: int) -> None:
        """A delivery has ended: acknowledged, or dropped."""
        self._write(session, steps.settle, number)

    def drop(self, session: DeviceSession, number: int) -> None:
        self._dropped += 1
        self.settle(session, number)

    def release(self, session: DeviceSession, number: int) -> Callable[[], bool]:
        """The device has a delivery of QoS 2; it must not be sent again. The result says, after the commit, whether
        that is stored: not when a newer connection has the session."""
        work = self._write(session, steps.release, number)
        return lambda: work is None or (work.error is None and work.result is not False)

    def receive(self, session: DeviceSession, packet_id: int) -> None:
        """A message of QoS 2 was submitted in this turn: remember its packet id in the same commit."""
        self._write(session, steps.note_packet_id, packet_id)

    def forget_received(self, session: DeviceSession, packet_id: int) -> None:
        self._write(session, steps.forget, packet_id)

    def end(self, session: DeviceSession) -> None:
        """The connection has ended. Nothing happens when a newer one has the session."""
        if self._current.get(session.device) is not session:
            return
        del self._current[session.device]
        session.outlet = None
        if self._peers is not None:
            self._known.pop(session.device, None)
        if not session.is_stored or not session.expiry_seconds:
            self._known.pop(session.device, None)
            self._tell_end(session.device)
        if not session.is_stored:
            return
        if session.expiry_seconds:
            expires_on = Milliseconds(self._clock.now_ms() + session.expiry_seconds * 1000)
            self._write(session, steps.end, expires_on, session.sent_until)
        else:
            self._write(session, steps.remove_session)

    def _tell_end(self, device: DeviceKey) -> None:
        for handler in self._on_end:
            handler(device)

    def _write(
        self, session: DeviceSession, work: Callable[..., None], *arguments: object, size: int = 0
    ) -> StoreWork | None:
        if not session.is_stored:
            return None
        step: Callable[[Transaction], object] = partial(work, session.device, *arguments)
        if session.holder:
            step = partial(steps.if_held, session.device, session.holder, partial(work, session.device, *arguments))
        return self._database.write_nowait(step, size=size + WRITE_BYTES)

    # --- Expiry ---

    async def sweep(self) -> None:
        """Remove sessions whose time has passed."""
        while self._clock.may_delete():
            now_ms = self._clock.now_ms()
            removed = await self._database.write(partial(steps.sweep, now_ms))
            self._expired += len(removed)
            if len(removed) < steps.SWEPT_AT_ONCE:
                return

    def _session_expired(self, device: DeviceKey, _content: None) -> None:
        if device not in self._current:
            self._known.pop(device, None)
            self._tell_end(device)

    def statistics(self) -> SessionStatistics:
        return SessionStatistics(len(self._current), self._resumed, self._expired, self._dropped)
