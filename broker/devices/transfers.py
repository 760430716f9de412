"""Handing a device over to another user for good (reference 6.5): offered, then accepted, declined or withdrawn.

The device's properties and messages stay with it. Access that its former owner gave to others ends: shares, trials.
"""

from typing import Final

from msgspec.structs import replace

from broker.clock import Clock
from broker.cluster.alarm_news import tell_of_alarm
from broker.cluster.kinds import ALARM_ENDED, DEVICE, WANTED, AlarmEnded, publish
from broker.devices.inventory import device_fact
from broker.devices.registry import Device
from broker.devices.shares import invited, verified_address
from broker.errors import Conflict, DeviceNotFound, NotFound, PermissionDenied, UserNotFound
from broker.facts import DeviceHandedOver, DeviceTakenOver, SharesChanged, TokenRevoked
from broker.ids import new_id
from broker.mail import DeviceTransferAnswered, DeviceTransferOffer, Mails
from broker.trace.audit import AuditEvent, note
from config.limits import TRANSFER_DAYS, TRANSFERS_OF_ONE_USER, TRANSFERS_SHOWN
from storage.database import Database
from storage.keys import Milliseconds, UserKey
from storage.records import DeviceRecord, UserRecord
from storage.transaction import Transaction
from storage.transfers import OfferedDevice, TransferRecord

STILL_LINKED: Final = "Device is linked with its third party: remove its provider authorization first"
SAME_ID: Final = "External device id already in use by a device of the new owner"
_KEPT_MS: Final = TRANSFER_DAYS * 86_400_000


class DeviceTransfers:
    """The caller checks who may offer and withdraw; `answer` checks that the offer is for the user."""

    def __init__(self, database: Database, clock: Clock, mails: Mails) -> None:
        self._database = database
        self._clock = clock
        self._mails = mails

    async def offer(self, device: Device, *, email: str | None = None, uid: str | None = None) -> TransferRecord:
        """Offer a device to another user, in the place of an earlier offer of it.

        Args:
            device: of the caller.
            email: the address; it need not belong to an account yet.
            uid: instead of `email`: the id of a user, or an address.

        Raises:
            ValidationFailed: neither `email` nor `uid`, or an invalid address.
            UserNotFound: no user has the id.
            Conflict: the address is the owner's own, the device is linked with a third party, or there are too many.
        """
        owner, receiver, address = await invited(self._database, device, email, uid)
        now_ms = self._clock.now_ms()
        mail = DeviceTransferOffer(device=device.record.name, owner=owner.full_name, expires_on=now_ms + _KEPT_MS)
        letter = self._mails.compose(address, mail, cause=owner.id)
        transfer = TransferRecord(
            device=device.key,
            id=new_id(),
            email=address,
            user=None if receiver is None else receiver.key,
            uid=receiver.id if receiver is not None and uid is not None and "@" not in uid else None,
            offered_on=now_ms,
            expires_on=Milliseconds(now_ms + _KEPT_MS),
        )

        def work(tx: Transaction) -> TransferRecord:
            _transferable(tx, device)
            if tx.transfers.count_of_owner(owner.key, now_ms=now_ms) >= TRANSFERS_OF_ONE_USER:
                raise Conflict(f"At most {TRANSFERS_OF_ONE_USER} devices are offered at a time")
            tx.transfers.put(transfer, now_ms=now_ms)
            self._mails.add(tx, letter)
            note(tx, AuditEvent.TRANSFER_OFFERED, f"device {device.id}", now_ms=now_ms, transfer=transfer.id)
            return transfer

        return await self._database.write(work)

    async def of_device(self, device: Device) -> TransferRecord:
        """The open offer of a device. Raises NotFound."""
        now_ms = self._clock.now_ms()
        found = await self._database.read(lambda tx: tx.transfers.of_device(device.key, now_ms=now_ms))
        if found is None:
            raise NotFound
        return found

    async def offered_to(self, user: UserRecord) -> list[OfferedDevice]:
        """The open offers for a user, at most `TRANSFERS_SHOWN`: many of one owner hide none of another. One that was
        made to an address is for the account that has proved it."""
        now_ms, address = self._clock.now_ms(), verified_address(user)
        return await self._database.read(
            lambda tx: tx.transfers.offered_to(user.key, address, now_ms=now_ms, limit=TRANSFERS_SHOWN)
        )

    async def made_by(self, user: UserRecord) -> list[TransferRecord]:
        """The open offers of a user's devices."""
        now_ms = self._clock.now_ms()
        return await self._database.read(lambda tx: tx.transfers.made_by(user.key, now_ms=now_ms))

    async def is_for(self, user: UserKey | None, transfer: TransferRecord) -> bool:
        return user is not None and await self._database.read(lambda tx: _receiver(tx, transfer, user) is not None)

    async def withdraw(self, device: Device) -> TransferRecord:
        """Raises NotFound: there is no open offer."""
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> TransferRecord:
            found = tx.transfers.of_device(device.key, now_ms=now_ms)
            if found is None:
                raise NotFound
            tx.transfers.remove(device.key)
            note(tx, AuditEvent.TRANSFER_WITHDRAWN, f"device {device.id}", now_ms=now_ms, transfer=found.id)
            return found

        return await self._database.write(work)

    async def answer(self, device: Device, transfer: TransferRecord, user: UserKey, *, accept: bool) -> None:
        """Accept or decline an offer. With the answer, the device is the user's. The former owner gets a mail.

        Raises:
            NotFound: the offer was withdrawn, replaced or answered.
            PermissionDenied: it was made to another user.
            Conflict: the device was linked since the offer, or the user has one with the same `eid`.
        """
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> None:
            found = tx.transfers.of_device(device.key, now_ms=now_ms)
            known = tx.devices.device(device.key)
            if found is None or known is None or found.id != transfer.id:
                raise NotFound
            receiver, owner = _receiver(tx, found, user), tx.accounts.user(known.owner)
            if receiver is None:
                raise PermissionDenied(f"the offer of device {known.id}")
            if owner is not None:
                mail = DeviceTransferAnswered(
                    device=known.name, user=receiver.full_name, answer="accepted" if accept else "declined"
                )
                self._mails.add(tx, self._mails.compose(owner.email, mail, cause=receiver.id))
            event = AuditEvent.TRANSFER_ACCEPTED if accept else AuditEvent.TRANSFER_DECLINED
            details = {"transfer": found.id, "owner": known.owner_id}
            note(tx, event, f"device {known.id}", now_ms=now_ms, **details)
            if not accept:
                tx.transfers.remove(known.key)
                return
            _transferable(tx, device)
            if known.eid is not None and tx.devices.by_eid(receiver.key, known.device_type, known.eid) is not None:
                raise Conflict(SAME_ID)
            hand_over(tx, known, receiver.key, now_ms)

        await self._database.write(work)


def hand_over(tx: Transaction, known: DeviceRecord, receiver: UserKey, now_ms: Milliseconds) -> None:
    """Give a device another owner in the caller's transaction."""
    for alarm in tx.alarms.open_of_device(known.key):  # all alarms about it go: whoever follows them is told
        tx.tell(ALARM_ENDED, AlarmEnded(alarm.rule, alarm.device, alarm.is_storm))
        cleared = replace(alarm, cleared_on=max(now_ms, alarm.raised_on), cleared_by="device")
        tell_of_alarm(tx, "cleared", cleared, now_ms)
    ended = tx.transfers.hand_over(known.key, receiver)
    publish(tx, *map(TokenRevoked, ended))  # its token, if a trial's application made it
    tx.tell(DEVICE, known.key)
    tx.tell(WANTED, known.key)
    tx.lwm2m.forget_actions(known.key, tx.messages.head())
    tx.lwm2m_actions.end_of_device(known.key)
    type_ = tx.device_types.device_type(known.device_type)
    assert type_ is not None  # noqa: S101 - a type with devices stays
    about = (type_, None, now_ms)
    publish(tx, device_fact(DeviceHandedOver, known, *about), SharesChanged(known.key))
    if (now := tx.devices.device(known.key)) is not None:
        publish(tx, device_fact(DeviceTakenOver, now, *about))


def _transferable(tx: Transaction, device: Device) -> None:
    known = tx.devices.device(device.key)
    if known is None:
        raise DeviceNotFound(device.id)
    if known.cloud_authorization == "AUTHORIZED":  # with the former owner's account at the third party
        raise Conflict(STILL_LINKED)


def _receiver(tx: Transaction, transfer: TransferRecord, user: UserKey) -> UserRecord | None:
    """The user, if the offer is for them: by the account, or else by the address, which must be proved."""
    found = tx.accounts.user(user)
    if found is None:
        raise UserNotFound
    if transfer.user is not None:
        return found if transfer.user == user else None
    holder = tx.accounts.user_by_email(transfer.email)
    is_proved = holder is not None and holder.key == user and holder.email_verified_on is not None
    return found if is_proved else None
