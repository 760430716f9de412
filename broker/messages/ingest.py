"""Ingest accepts the messages of every protocol: checks limits, size and time, normalises, and assigns a log position.

`submit` and `submit_all` are synchronous, so that a front end can submit everything it has read without a task switch,
one by one or together: the same is accepted, refused and told. The sender is answered after the commit: pass the answer
to `after_commit`, or await `wait_committed`.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import InitVar, dataclass
from itertools import repeat
from typing import Final, Protocol

import msgspec

from broker.clock import Clock
from broker.device_types.catalog import ManifestVersion
from broker.device_types.dropped import DroppedField
from broker.device_types.transform import TransformFailedError
from broker.devices.registry import Device
from broker.envelope import Action
from broker.errors import (
    REQUIRED,
    TEXT_ONLY,
    BadRequest,
    DestinationDeviceDisabled,
    DomainError,
    Finding,
    InvalidTimestamp,
    PayloadTooLarge,
    SourceDeviceDisabled,
    StorageUnavailable,
    TimestampInFuture,
    ValidationFailed,
    invalid,
    too_long,
)
from broker.facts import ActionStored, MessagesStored, Router
from broker.limits.quotas import Quotas
from broker.messages.losses import Losses, LostFields, NothingRemained
from broker.messages.mids import Mids
from broker.messages.refused import RefusedMessages
from broker.nesting import check_nesting
from broker.trace.origin import current_origin
from config.limits import CLOCK_STEP_MS, MAX_ACTIONS_PER_MESSAGE, MAX_DATA_BYTES
from storage.commit_group import CommitGroup
from storage.journal import Journal
from storage.keys import BY_CLOUD, DeviceKey, Milliseconds, Position, Ticket
from storage.sql import StoreError

#: When fewer were accepted together, what is left of a batch is submitted one by one: the message behind them was
#: looked at twice.
_TOGETHER_MIN: Final = 8
_TIME_TEXT: Final = re.compile(r"\s*([+-]?[0-9]{1,40})(?:\.[0-9]*)?\s*", re.ASCII)
_YEAR_2001_MS: Final = 978_307_200_000
#: Notice about a time that is plainly in seconds: as milliseconds it is before 2001, as seconds it is not.
IN_SECONDS: Final = DroppedField("ts", "is in seconds; it was taken as milliseconds, as the reference has it")
_MISSING = re.compile(r"missing required field `(\w+)`")
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class Normalized(msgspec.Struct, frozen=True, gc=False):
    """A payload that was normalised before its submission.

    `data` is None for one of which nothing remained; `failure` says why the transform of the Manifest failed. It holds
    for as long as the device uses this version.
    """

    version: ManifestVersion
    data: bytes | None
    dropped: tuple[DroppedField, ...] = ()
    failure: str = ""


class IngestStatistics(msgspec.Struct, frozen=True):
    messages: int
    failed_messages: int
    actions: int


class Commit(Protocol):
    """The commit in which rows become durable. Once it has succeeded, it gives their positions."""

    def position(self, ticket: Ticket) -> Position: ...
    def positions(self, tickets: Sequence[Ticket]) -> Sequence[Position]: ...


@dataclass(eq=False)
class Ingest:
    """Checks, normalises and appends messages, and publishes them when they are durable.

    Publish every later commit of the journal through the router.

    Args:
        quotas: charges what is accepted; None charges nothing.
        last_cts: the `cts` of the newest stored row. A clock that is set back a little makes `cts` stand still.
    """

    _journal: Journal
    _mids: Mids
    _router: Router
    clock: InitVar[Clock]
    future_grace_ms: int
    _quotas: Quotas | None
    _last_cts: Milliseconds

    def __post_init__(self, clock: Clock) -> None:
        self._now_ms = clock.now_ms
        #: Whether each commit knows who has sent its rows.
        self.notes_holders = False
        self.refused = RefusedMessages(clock, self._router)
        self._messages = self._failed = self._actions = 0
        self._losses = Losses(clock)
        self.lost_fields = LostFields()
        #: Of the latest failed message; its reason is `_failure`.
        self.failed_ticket: Ticket | None = None
        self._failure = ""
        # Senders of rows in the open or the committing group: their devices are needed when the rows are durable. Rows
        # appended before one commit are durable with the next one at the latest.
        self._senders: dict[DeviceKey, Device] = {}
        self._earlier_senders: dict[DeviceKey, Device] = {}
        self._journal.on_commit(self._committed)

    def sender(self, device: DeviceKey) -> Device | None:
        """The device of a row that was just stored."""
        return self._senders.get(device) or self._earlier_senders.get(device)

    def submit(
        self,
        device: Device,
        payload: bytes,
        ts: object = None,
        dropped: list[DroppedField] | None = None,
        ahead: Normalized | None = None,
    ) -> Ticket:
        """Accept one data message; return its ticket, which is `failed_ticket` for a failed message.

        Args:
            device: the authenticated source; the caller has checked the permission to write.
            payload: the JSON text of `data`; any bytes if the Manifest `takes_any_payload`.
            ts: the sender's time in ms, a number or a text with one, not checked yet; None is now.
            dropped: gets the fields that the Manifest does not keep; None if the caller does not need them.
            ahead: what `normalized` made of the payload before.

        Raises:
            SourceDeviceDisabled, PayloadTooLarge, InvalidTimestamp, TimestampInFuture, BadRequest,
            DailyQuotaExceeded, MonthlyQuotaExceeded, PlanLimitsNotSet.
        """
        try:
            if not device.enabled:
                raise SourceDeviceDisabled
            size = len(payload)
            if size > MAX_DATA_BYTES:
                size = self._checked_compact_size(device, payload)
            now_ms = self._now_ms()
            cts = now_ms if now_ms >= self._last_cts else self._cts_after_set_back(now_ms)
            self._last_cts = cts
            source_ts = now_ms if ts is None else self._checked_ts(ts, now_ms)
            version = device.manifest
            key = device.record.key
            failure = ""
            try:
                noting = dropped
                if ahead is not None and ahead.version is version:
                    data, failure = ahead.data, ahead.failure
                    if noting is not None:
                        noting += ahead.dropped
                else:
                    if noting is None and self.lost_fields.is_due(key, now_ms):
                        self.lost_fields.look(key, now_ms)
                        noting = []
                    data = version.normalize(payload) if noting is None else version.normalize_noting(payload, noting)
            except TransformFailedError as error:
                data, failure = None, str(error)
            if self._quotas is not None:
                self._quotas.charge_message(device, size, now_ms)
            if data is None:
                reason = "no Manifest" if version.version == 0 else "nothing remained after normalization"
                if dropped is not None:
                    dropped.insert(0, DroppedField("data", failure or reason))
                return self._append_failed(key, cts, failure or reason, payload, source_ts)
            self._messages += 1
            if source_ts < _YEAR_2001_MS and self._is_in_seconds(source_ts, now_ms):
                noting = [] if noting is None else noting
                noting.append(IN_SECONDS)
            if noting:
                self.lost_fields.note(key, noting, cts)
            self._senders[key] = device
            if self.notes_holders:
                self._note_holder()
            return self._journal.append_message(key, source_ts, cts, version.version, data.decode())
        except DomainError as refusal:
            self.refused.note(device, refusal)
            raise

    def submit_all(
        self,
        device: Device,
        payloads: Sequence[bytes],
        stamps: Sequence[object] | None = None,
        *,
        is_told: bool = False,
    ) -> Iterator[tuple[int, Sequence[Ticket]]]:
        """Accept messages of one device that came together, in their order.

        Usual messages that follow each other are accepted at once: an item is the index of the first one and their
        tickets. An item without tickets is the index of a message of which something is to be said: it is refused,
        fails, or loses fields. The caller gives that message to `submit` before it asks for the next item.

        20 usual messages take 0.6 of the time that they take one by one.

        Args:
            device, payloads, stamps: as for `submit`; without stamps all are of now.
            is_told: the sender wants to know which fields are not kept. Otherwise samples are looked at.
        """
        done, is_together = 0, len(payloads) > 1
        while done < len(payloads):
            if is_together:
                times = repeat(None) if stamps is None else stamps[done:]
                if tickets := self._submit_usual(device, payloads[done:], times, is_told=is_told):
                    yield done, tickets
                    done += len(tickets)
                is_together = len(tickets) >= _TOGETHER_MIN
            if done < len(payloads):
                yield done, ()
                done += 1

    def _submit_usual(
        self, device: Device, payloads: Sequence[bytes], stamps: Iterable[object], *, is_told: bool
    ) -> Sequence[Ticket]:
        """Accept messages from the first one on, as long as `submit` would accept them and have nothing to say."""
        now_ms, key, version = self._now_ms(), device.record.key, device.manifest
        is_looked_at = not is_told and self.lost_fields.is_due(key, now_ms)
        if is_looked_at or now_ms < self._last_cts or not device.enabled:
            return ()
        normalize = version.normalize_fitting if is_told else version.normalize
        quotas, times, texts = self._quotas, list[Milliseconds](), list[str]()
        for payload, ts in zip(payloads, stamps, strict=False):
            if len(payload) > MAX_DATA_BYTES:
                break
            try:
                source_ts = now_ms if ts is None else self._checked_ts(ts, now_ms)
                if source_ts < _YEAR_2001_MS and self._is_in_seconds(source_ts, now_ms):
                    break
                if (data := normalize(payload)) is None:
                    break
                if quotas is not None and not quotas.try_charge_message(device, len(payload), now_ms):
                    break
            except Exception:  # noqa: BLE001 # `submit` meets it, too, and those before this message are appended
                break
            times.append(source_ts)
            texts.append(data.decode())
        if not texts:
            return ()
        self._last_cts = now_ms
        self._messages += len(texts)
        self._senders[key] = device
        if self.notes_holders:
            self._note_holder()
        return self._journal.append_messages(key, times, now_ms, version.version, texts)

    def _note_holder(self) -> None:
        """Others may end the permissions of whoever sends, before the commit (broker/routing/permission_fence.py)."""
        if (holder := current_origin().holder) is not None:
            self._journal.group.holders[id(holder)] = holder

    @staticmethod
    def normalized(device: Device, payload: bytes) -> Normalized | None:
        """The payload, normalised for a later `submit`; None where that refuses it. Nothing is submitted or noted."""
        version, dropped = device.manifest, list[DroppedField]()
        if len(payload) > MAX_DATA_BYTES:
            return None
        try:
            data = version.normalize_noting(payload, dropped)
        except TransformFailedError as error:
            return Normalized(version, None, failure=str(error))
        except DomainError:
            return None
        return Normalized(version, data, tuple(dropped))

    def _append_failed(
        self, device: DeviceKey, cts: Milliseconds, reason: str, payload: bytes, ts: Milliseconds | None
    ) -> Ticket:
        self._failed += 1
        try:
            text = payload.decode()
        except UnicodeDecodeError:  # only a Manifest with a transform takes bytes that are not text
            text = f"hex:{payload.hex()}"
        self.failed_ticket = ticket = self._journal.append_failed(device, cts, reason, text, ts)
        self._failure = reason
        return ticket

    def submit_again(self, device: Device, ts: Milliseconds, ahead: Normalized) -> Ticket:
        """Accept a message that had failed, with its own time. It was counted and charged when it came. The caller
        removes the failed one in the same commit."""
        if ahead.data is None:
            raise AssertionError("a message that fails again is no message")
        now_ms = self._now_ms()
        cts = self._last_cts = now_ms if now_ms >= self._last_cts else self._cts_after_set_back(now_ms)
        self._messages += 1
        if ahead.dropped:
            self.lost_fields.note(device.key, ahead.dropped, cts)
        self._senders[device.key] = device
        return self._journal.append_message(device.key, ts, cts, ahead.version.version, ahead.data.decode())

    def nothing_remained(self, device: Device) -> NothingRemained | None:
        """The notice for the device about its failed message, `failed_ticket`; None if it got one lately."""
        return self._losses.notice(device, self._failure)

    def keep_failed(self, device: Device, payload: bytes, reason: str) -> None:
        """Keep what came for a device and is no message among its failed messages; it is not charged."""
        now_ms = self._now_ms()
        cts = self._last_cts = now_ms if now_ms >= self._last_cts else self._cts_after_set_back(now_ms)
        self._append_failed(device.key, cts, reason, payload, None)

    def submit_action(
        self,
        source: Device,
        destination: Device,
        data: bytes,
        ts: object = None,
        dropped: list[DroppedField] | None = None,
        *,
        is_sent: bool = True,
    ) -> Ticket:
        """Accept one Action message; return its ticket. The Action is routed as soon as it is durable.

        Args:
            source: the sending device; the destination itself when the sender is not a device.
            destination: the receiving device; the caller has checked the permission to write.
            data: the JSON text of `data`: `{"actions":[{"name":…,"parameters":{…}}]}`.
            ts: as for `submit`.
            dropped: gets what is to be said of `ts`.
            is_sent: False for an Action that the destination's external cloud reports, and that is not sent to it.

        Raises:
            SourceDeviceDisabled, DestinationDeviceDisabled, PayloadTooLarge, InvalidTimestamp, TimestampInFuture,
            BadRequest, ValidationFailed, DailyQuotaExceeded, MonthlyQuotaExceeded, PlanLimitsNotSet.
        """
        try:
            if not source.enabled and source is not destination:
                raise SourceDeviceDisabled
            if not destination.enabled:
                raise DestinationDeviceDisabled
            if len(data) > MAX_DATA_BYTES:
                self._checked_compact_size(destination, data)
            now_ms = self._now_ms()
            cts = self._last_cts = now_ms if now_ms >= self._last_cts else self._cts_after_set_back(now_ms)
            source_ts = now_ms if ts is None else self._checked_ts(ts, now_ms)
            if source_ts < _YEAR_2001_MS and self._is_in_seconds(source_ts, now_ms):
                self.lost_fields.note(source.key, [IN_SECONDS], cts)
                if dropped is not None:
                    dropped.append(IN_SECONDS)
            text = _checked_actions(data)
            if self._quotas is not None:
                self._quotas.charge_action(source, destination, len(text), now_ms, is_sent=is_sent)
        except DomainError as refusal:
            self.refused.note(destination, refusal)
            raise
        # As they are now: until the commit, the destination may get another owner.
        mv, owner_id = destination.manifest.version, destination.owner_id
        ticket = self._journal.append_action(
            device=destination.key, source=source.key if is_sent else BY_CLOUD, ts=source_ts, cts=cts, mv=mv, data=text
        )
        self._actions += 1
        self._senders[source.key] = source
        if self.notes_holders:
            self._note_holder()
        group = self._journal.group

        def ended(error: StoreError | None) -> None:
            if error is not None:
                if self._quotas is not None:
                    self._quotas.release_request(destination.key)
                return
            # If another commit came before that of this Action, the sender is no longer held: hold it again.
            self._earlier_senders[source.key] = source
            position = group.position(ticket)
            action = Action(
                position=position,
                mid=self._mids.mid(position),
                sdid=source.id,
                ddid=destination.id,
                ddtid=destination.type.id,
                uid=owner_id,
                boid=destination.type.record.organization_id,
                ts=source_ts,
                cts=cts,
                mv=mv,
                data=text,
            )
            fact = ActionStored(action=action, source=source.key, destination=destination.key, is_sent=is_sent)
            self._router.publish(fact)

        self._journal.after_commit(ended)
        return ticket

    def _cts_after_set_back(self, now_ms: Milliseconds) -> Milliseconds:
        """The `cts` of a row while the clock is behind that of the row before (reference 27.7)."""
        return self._last_cts if self._last_cts - now_ms <= CLOCK_STEP_MS else now_ms

    @property
    def head(self) -> Position:
        """The highest position of the log."""
        return self._journal.head

    @property
    def group(self) -> Commit:
        """The commit of everything submitted since the last `await`."""
        return self._journal.group

    def mid(self, position: Position) -> str:
        return self._mids.mid(position)

    def after_commit(self, callback: Callable[[StoreError | None], None]) -> None:
        """Call back on the loop when everything submitted since the last `await` is durable or has failed."""
        self._journal.after_commit(callback)

    async def wait_committed(self) -> None:
        """Return when everything submitted since the last `await` is durable. Raises StorageUnavailable."""
        try:
            await self._journal.wait_committed()
        except StoreError as error:
            raise StorageUnavailable.of(error) from error

    @property
    def has_room(self) -> bool:
        return self._journal.has_room

    async def wait_room(self) -> None:
        """Return when messages may be submitted again. Waiting front ends stop reading: back-pressure on TCP."""
        await self._journal.wait_room()

    def _committed(self, group: CommitGroup) -> None:
        """Publish the rows of a group that is durable now."""
        try:
            if group.messages:
                self._router.publish(MessagesStored(group.messages))
        finally:
            self._earlier_senders, self._senders = self._senders, {}

    def _is_in_seconds(self, ts: Milliseconds, now_ms: Milliseconds) -> bool:
        return _YEAR_2001_MS <= ts * 1000 <= now_ms + self.future_grace_ms

    def _checked_ts(self, ts: object, now_ms: Milliseconds) -> Milliseconds:
        if isinstance(ts, str) and (number := _TIME_TEXT.fullmatch(ts)) is not None:
            ts = int(number[1])
        if isinstance(ts, bool) or not isinstance(ts, int | float) or ts < 0:
            raise InvalidTimestamp
        if isinstance(ts, float) and not math.isfinite(ts):
            raise InvalidTimestamp
        value: Milliseconds = int(ts)  # type: ignore[assignment] # each message pays for a call of `Milliseconds`
        if value > now_ms + self.future_grace_ms:
            raise TimestampInFuture
        return value

    def _checked_compact_size(self, device: Device, payload: bytes) -> int:
        if device.manifest.takes_any_payload:
            raise PayloadTooLarge(organization_id=device.type.record.organization_id, device_id=device.id)
        # The limit applies to `data` as compact JSON: the sender's blanks and escapes do not count.
        try:
            check_nesting(payload)
            compact = _encode(_decode(payload))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadRequest from error
        if len(compact) > MAX_DATA_BYTES:
            raise PayloadTooLarge(organization_id=device.type.record.organization_id, device_id=device.id)
        return len(compact)

    def statistics(self) -> IngestStatistics:
        return IngestStatistics(self._messages, self._failed, self._actions)


class _ActionCall(msgspec.Struct, omit_defaults=True):
    """One entry of `data.actions`. Actions are routed unchanged, so parameters are not checked."""

    name: str
    parameters: dict[str, msgspec.Raw] | None = None


class _ActionData(msgspec.Struct):
    actions: list[_ActionCall]


_decode_actions = msgspec.json.Decoder(_ActionData).decode


def _checked_actions(data: bytes) -> str:
    """The Actions as stored: known members only, compact. The Manifest does not limit the names (reference 9.1)."""
    try:
        data.decode()  # msgspec does not check the encoding of texts that it skips
        check_nesting(data)
        parsed = _decode_actions(data)
    except msgspec.ValidationError as error:
        raise ValidationFailed((_finding(str(error)),)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest from error
    if not parsed.actions:
        raise ValidationFailed.of("data.actions", REQUIRED)
    if len(parsed.actions) > MAX_ACTIONS_PER_MESSAGE:
        raise ValidationFailed.of("data.actions", too_long(MAX_ACTIONS_PER_MESSAGE))
    return msgspec.json.format(_encode(parsed), indent=-1).decode()


def _plain(text: str) -> str:
    """msgspec's text without its backticks, as in `Expected `array`, got `int``."""
    return text[:1].lower() + text[1:].replace("`", "")


def _finding(problem: str) -> Finding:
    """A Finding from the text of msgspec's error (`… - at `$.actions[0]``)."""
    text, _, where = problem.partition(" - at `$")
    path = "data" + where.rstrip("`").replace("[", ".").replace("]", "")
    if (missing := _MISSING.search(text)) is not None:
        return Finding(f"{path}.{missing[1]}", (REQUIRED,))
    return Finding(path, (TEXT_ONLY if "Expected `str`" in text else invalid(_plain(text)),))
