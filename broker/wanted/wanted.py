"""Sets, shows and withdraws the wanted values of devices (reference 9.10)."""

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from broker.accounts.permissions import Permission, Reach
from broker.clock import Clock
from broker.cluster.kinds import WANTED
from broker.device_types.manifest import Field
from broker.devices.registry import Device, Devices
from broker.errors import (
    DestinationDeviceDisabled,
    DeviceNotFound,
    PermissionDenied,
    ValidationFailed,
    invalid,
    too_long,
)
from broker.limits.quotas import Quotas
from broker.messages.folds import Fields
from broker.messages.snapshots import Snapshots
from broker.trace.audit import AuditEvent, note
from broker.trace.origin import current_origin
from broker.wanted.following import Following, OpenValue, end_in, tell
from broker.wanted.values import (
    Given,
    WantedState,
    document_of,
    is_reached,
    json_of,
    read_wanted,
    shortly,
)
from config.limits import MAX_DATA_BYTES, WANTED_FIELDS_MAX, WANTED_OF_USER
from storage.database import Database
from storage.keys import DeviceKey, DeviceTypeKey, Milliseconds, Position, UserKey
from storage.transaction import Transaction
from storage.wanted import WantedEnd, WantedRecord

#: A rule that wants a value again is written when its end is later by more than this part of its time.
_PARTS_OF_A_TIME: Final = 10
_ENDS_AT_ONCE: Final = 500
_decode: Final = msgspec.json.Decoder().decode
TOO_MANY_OF_USER: Final = invalid(f"at most {WANTED_OF_USER} values wait for the devices of a user")


class Before(msgspec.Struct, frozen=True):
    """The values that a device had reported, with the rows up to `position`."""

    position: Position
    fields: Fields


class Wish(msgspec.Struct, frozen=True):
    """Values that are to be wanted of a device. `author` is an actor, such as `user …`, or a rule or scene."""

    device: Device
    values: Given
    expires_after: int
    author: str
    before: Before
    #: The audit log has an entry.
    is_noted: bool = True


class WantedField(msgspec.Struct, frozen=True):
    """A field as it is shown. `reported` is the last value that the device has reported, None without one; `text` a
    sentence."""

    field: str
    wanted: Any
    since: Milliseconds
    by: str
    expires_on: Milliseconds
    reported: Any
    reported_ts: Milliseconds | None
    state: WantedState
    text: str


class WantedView(msgspec.Struct, frozen=True):
    """`document`: what the device gets."""

    document: bytes
    fields: Sequence[WantedField]


class Wanted:
    """The caller checks permissions."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        devices: Devices,
        snapshots: Snapshots,
        following: Following,
        quotas: Quotas | None,
    ) -> None:
        """`quotas` charges what is wanted, and what devices are given; None: nothing is charged."""
        self._quotas = quotas
        self._devices = devices
        self._database = database
        self._clock = clock
        self._snapshots = snapshots
        self._following = following

    async def put(
        self, device: Device, data: bytes, *, expires_after: int, application_id: str | None, reach: Reach | None = None
    ) -> WantedView:
        """Want these values of a device; null withdraws what is wanted of the field. Other fields stay as they are.

        Args:
            device: the caller has checked the permission to write.
            data: an object with the values.
            expires_after: in seconds.
            application_id: of the caller.
            reach: that of the caller. Without READ, the answer has only the named fields, without reports. WRITE is
                asked for once more when the values are put; None asks for nothing.

        Raises:
            DestinationDeviceDisabled: the device is disabled.
            ValidationFailed: the Manifest refuses a value, or there are too many.
            DeviceNotFound: it was deleted.
            PermissionDenied: the caller may not write the device any more.
            MonthlyQuotaExceeded, PlanLimitsNotSet: the organization of its type has no quota left.
        """
        values = read_wanted(data, device.manifest.manifest)
        before = await self.before(device.key)
        wish = Wish(device, values, expires_after, current_origin().actor, before)
        if reach is not None and not reach.allows(device, Permission.WRITE):  # it may have ended during the reads
            raise PermissionDenied(f"{Permission.WRITE.value} on device {device.id}")
        # A wish that withdraws, only, costs nothing.
        charged = self._quotas if any(one is not None for one in values.values()) else None
        if charged is not None:
            charged.require_wish(device, len(data))
        await self._database.write(lambda tx: self.put_in(tx, wish, application_id=application_id))
        if charged is not None:
            charged.wished(device, len(data))
        if reach is not None and not reach.allows(device, Permission.READ):
            return await self._show_named(device, values)
        return await self.show(device)

    async def before(self, device: DeviceKey) -> Before:
        """To be asked for before a wish is put."""
        position = await self._database.read(lambda tx: tx.messages.last_position())
        return Before(position, await self._snapshots.of(device))

    def put_in(self, tx: Transaction, wish: Wish, *, application_id: str | None = None) -> None:
        """Put a wish in the caller's transaction. Raises as `put`."""
        device, now_ms = wish.device.key, self._clock.now_ms()
        known = tx.devices.device(device)
        if known is None or known.owner != wish.device.owner:
            raise DeviceNotFound(wish.device.id)
        if not known.enabled:
            raise DestinationDeviceDisabled
        before = {one.field: one for one in tx.wanted.of_device(device)}
        revision = 1 + max((one.revision for one in before.values()), default=0)
        after, changed, reached = dict(before), list[str](), list[WantedEnd]()
        rewritten = list[WantedRecord]()
        for path, one in wish.values.items():
            if one is None:
                if after.pop(path, None) is not None:
                    tx.wanted.withdraw(device, path)
                    changed.append(path)
                continue
            field, value = one
            record = WantedRecord(
                device,
                path,
                json_of(value),
                field.tolerance,
                revision,
                now_ms,
                wish.author,
                Milliseconds(now_ms + wish.expires_after * 1000),
                WantedState.WAITING,
                None,
                None,
                None,
                "",
                wish.before.position,
            )
            same = before.get(path)
            if same is not None and not wish.is_noted and self._says_nothing_new(same, record, wish.before.fields):
                continue
            if same is not None and same.ended_on is None and same.value == record.value:
                # It goes on waiting, from when it was first wanted.
                record = msgspec.structs.replace(same, expires_on=record.expires_on, author=record.author)
            else:
                changed.append(path)
                reported = wish.before.fields.get(path)
                if reported is not None and is_reached(reported[2], value, field.tolerance):
                    reached.append(WantedEnd(device, path, revision, now_ms, WantedState.REACHED, json_of(reported[2])))
            after[path] = record
            rewritten.append(record)
        if not changed and not rewritten:
            return
        _check_room(tx, known.owner, before, after)
        tx.wanted.put(rewritten)
        tx.tell(WANTED, device)
        if changed:
            if wish.is_noted:
                note(tx, AuditEvent.WANTED_SET, f"device {known.id}", now_ms=now_ms, fields=",".join(sorted(changed)))
            tell(tx, device, "changed", changed, application_id, now_ms)
        end_in(tx, reached, now_ms)

    @staticmethod
    def _says_nothing_new(same: WantedRecord, record: WantedRecord, fields: Fields) -> bool:
        """Whether a rule or scene wants again what it wants already, until much the same time, or what the device has
        reported since and still reports: a rule may trigger with each message."""
        if same.value != record.value or same.author != record.author:
            return False
        if same.ended_on is None:
            later = record.expires_on - same.expires_on
            return 0 <= later <= (record.expires_on - record.since) // _PARTS_OF_A_TIME
        reported = fields.get(record.field)
        is_still = reported is not None and is_reached(reported[2], _decode(same.value), record.tolerance)
        return same.state == WantedState.REACHED and is_still

    async def check_type(self, device_type: DeviceTypeKey) -> None:
        """End the values of fields that a new Manifest has not, or no longer as settable ones. Raises StoreError."""
        records = await self._database.read(lambda tx: tx.wanted.open_of_type(device_type))
        devices = {one.key: one for one in await self._devices.get_all({one.device for one in records})}
        ends, now_ms = list[WantedEnd](), self._clock.now_ms()
        for one in records:
            if (device := devices.get(one.device)) is None:
                continue
            field = device.manifest.manifest.field_at(one.field)
            if field is None or not field.settable:
                reason = _changed_text(field)
                ends.append(
                    WantedEnd(one.device, one.field, one.revision, one.since, WantedState.REFUSED, reason=reason)
                )
        for first in range(0, len(ends), _ENDS_AT_ONCE):
            some = ends[first : first + _ENDS_AT_ONCE]
            await self._database.write(partial(_end, some, now_ms))

    async def withdraw(self, device: Device, *, application_id: str | None) -> None:
        """Nothing is wanted of the device any more."""
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> None:
            open_ = [one.field for one in tx.wanted.open_of(device.key)]
            if not tx.wanted.drop(device.key):
                return
            tx.tell(WANTED, device.key)
            note(tx, AuditEvent.WANTED_WITHDRAWN, f"device {device.id}", now_ms=now_ms, fields=",".join(open_))
            if open_:
                tell(tx, device.key, "changed", open_, application_id, now_ms)

        await self._database.write(work)

    async def written(self, device: DeviceKey, one: OpenValue) -> None:
        """The device has taken the value."""
        record, now_ms = one.record, self._clock.now_ms()

        def work(tx: Transaction) -> None:
            if tx.wanted.sent(device, record.revision, now_ms=now_ms, field=record.field):
                tx.tell(WANTED, device)

        await self._database.write(work)
        self._delivered(device, len(record.value))

    async def refuse(self, device: DeviceKey, one: OpenValue, reason: str) -> None:
        """The device does not take the value. `reason` is a sentence."""
        record, now_ms = one.record, self._clock.now_ms()
        end = WantedEnd(device, record.field, record.revision, record.since, WantedState.REFUSED, reason=reason)
        await self._database.write(lambda tx: end_in(tx, [end], now_ms))

    async def show(self, device: Device) -> WantedView:
        """The values of the last days, open and ended. It includes what every acknowledged message has reported."""
        records = await self._database.read(lambda tx: tx.wanted.of_device(device.key))
        fields = await self._snapshots.of(device.key) if records else {}
        open_ = self._following.open_of(device.key)
        shown = [_shown(one, open_.get(one.field), fields, device) for one in records]
        document = self._following.document(device.key) or document_of(())
        return WantedView(document, shown)

    async def _show_named(self, device: Device, names: Collection[str]) -> WantedView:
        """As `show`, for these fields, without the values that the device has reported."""
        records = await self._database.read(lambda tx: tx.wanted.of_device(device.key))
        open_ = self._following.open_of(device.key)
        named = [one for one in records if one.field in names]
        shown = [_shown(one, open_.get(one.field), None, device) for one in named]
        still = {one.field for one in shown if one.state in {WantedState.WAITING, WantedState.SENT}}
        return WantedView(document_of(one for one in named if one.field in still), shown)

    def document(self, device: DeviceKey) -> bytes | None:
        """The open values for the device; None without one."""
        return self._following.document(device)

    def given(self, device: DeviceKey) -> None:
        """The device was given its document."""
        if self._following.given(device):
            self._delivered(device, len(self._following.document(device) or b""))

    def _delivered(self, key: DeviceKey, size: int) -> None:
        """A device that was given something is in memory."""
        if self._quotas is not None and (device := self._devices.get_nowait(key)) is not None:
            self._quotas.wish_delivered(device, size)

    async def step(self) -> None:
        """Store the ends that are due."""
        while await self._following.step():
            pass

    def open_of(self, device: DeviceKey) -> Mapping[str, OpenValue]:
        return self._following.open_of(device)


def _check_room(
    tx: Transaction, owner: UserKey, before: Mapping[str, WantedRecord], after: Mapping[str, WantedRecord]
) -> None:
    """Raises ValidationFailed: there are too many values for a device or a user."""
    if len(after) > WANTED_FIELDS_MAX:
        raise ValidationFailed.of("data", too_long(WANTED_FIELDS_MAX))
    open_ = [one for one in after.values() if one.ended_on is None]
    if len(document_of(open_)) > MAX_DATA_BYTES:
        raise ValidationFailed.of("data", too_long(MAX_DATA_BYTES))
    more = len(open_) - sum(one.ended_on is None for one in before.values())
    if more > 0 and tx.wanted.number_of_owner(owner) + more > WANTED_OF_USER:
        raise ValidationFailed.of("data", TOO_MANY_OF_USER)


def _end(ends: Sequence[WantedEnd], now_ms: Milliseconds, tx: Transaction) -> None:
    end_in(tx, ends, now_ms)


def _shown(record: WantedRecord, open_: OpenValue | None, fields: Fields | None, device: Device) -> WantedField:
    """`fields`: what the device has reported; None for a caller who may not read that."""
    state, ts, reported = WantedState(record.state), None, None
    if fields is not None and (last := fields.get(record.field)) is not None:
        ts, _, reported = last
    has_reached = None if record.reported is None else _decode(record.reported)
    if record.ended_on is None and open_ is not None and open_.reached is not None:
        state, has_reached = WantedState.REACHED, open_.reported
    return WantedField(
        field=record.field,
        wanted=_decode(record.value),
        since=record.since,
        by=record.author,
        expires_on=record.expires_on,
        reported=reported,
        reported_ts=ts,
        state=state,
        text=_sentence(record, state, "" if fields is None else _report(reported), has_reached, device),
    )


def _changed_text(field: Field | None) -> str:
    problem = "it has no such field" if field is None else "the field is not settable any more"
    return f"The device's Manifest has changed: {problem}."


def _report(reported: Any) -> str:
    if reported is None:
        return " The device has reported no value of the field."
    return f" It reports {shortly(reported)}."


def _sentence(record: WantedRecord, state: WantedState, now: str, reached: Any, device: Device) -> str:
    """`now`: a sentence about the last report, or nothing."""
    match state:
        case WantedState.REACHED:
            return f"The device has reported {shortly(reached)}." if now else "The device has reported it."
        case WantedState.EXPIRED:
            return f"The device did not report it by {_when(record.expires_on)}.{now}"
        case WantedState.REFUSED:
            return record.reason
    field = device.manifest.manifest.field_at(record.field)
    if field is None or not field.settable:
        return _changed_text(field)
    until = f"{now} It is wanted until {_when(record.expires_on)}."
    if record.sent_on is not None:
        return f"The device was given it at {_when(record.sent_on)}, and has not reported it yet.{until}"
    return f"The device has not been given it yet.{until}"


def _when(at_ms: Milliseconds) -> str:
    return dt.datetime.fromtimestamp(at_ms / 1000, dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
