"""Sharing a device by invitation (reference 6.3): a share is offered, accepted or rejected, and later left or revoked.

accounts/permissions.py decides what a share permits. `Device.shared_with` has the users who accepted.
"""

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import Final

import msgspec
from msgspec.structs import replace

from broker.accounts.issuance import Issuance
from broker.clock import Clock
from broker.cluster.kinds import DEVICE, WANTED, publish
from broker.devices.registry import Device
from broker.errors import (
    REQUIRED,
    Conflict,
    DeviceNotFound,
    Gone,
    NotFound,
    PermissionDenied,
    UserNotFound,
    ValidationFailed,
)
from broker.facts import SharesChanged
from broker.ids import new_id
from broker.mail import DeviceShareInvitation, Mails
from broker.secrets import token_hash
from broker.trace.audit import AuditEvent, note
from config.limits import DEVICE_SHARES_MAX, EMAIL_MAX_CHARACTERS
from config.mail import mail_address
from storage.database import Database
from storage.keys import DeviceKey, DeviceTypeKey, UserKey
from storage.records import ShareRecord, UserRecord
from storage.shares import OfferRow
from storage.transaction import Transaction

THE_OWNER: Final = "Device cannot be shared with its owner"
ALREADY_SHARED: Final = "Device already shared with this address"


class ShareStatus(StrEnum):
    PENDING = "PENDING"
    ACCEPTED = "ACCEPTED"
    REJECTED = "REJECTED"


#: The answers that the invited user may give, by the status of the share. Repeating an answer changes nothing.
ANSWERS: Final[Mapping[ShareStatus, frozenset[ShareStatus]]] = {
    ShareStatus.PENDING: frozenset({ShareStatus.ACCEPTED, ShareStatus.REJECTED}),
    ShareStatus.ACCEPTED: frozenset({ShareStatus.ACCEPTED}),
    ShareStatus.REJECTED: frozenset({ShareStatus.REJECTED}),
}


class ShareInvitation(msgspec.Struct, frozen=True):
    """Contents of an invitation's page before the user answers."""

    share: ShareRecord
    device_id: str
    device_name: str
    owner_name: str


class Shares:
    """The caller checks who may offer, list and remove shares; `answer` checks that the share is for the user."""

    def __init__(self, database: Database, clock: Clock, mails: Mails) -> None:
        self._database = database
        self._clock = clock
        self._mails = mails

    async def offer(self, device: Device, *, email: str | None = None, uid: str | None = None) -> ShareRecord:
        """Invite a user by mail. Share and mail are stored in one transaction.

        Args:
            device: to be shared.
            email: the address; it need not belong to an account yet.
            uid: instead of `email`: the id of a user, or an address. The address behind an id stays the user's own.

        Raises:
            ValidationFailed: neither `email` nor `uid`, or an invalid address.
            UserNotFound: no user has the id.
            Conflict: the address is the owner's own, or has the share already, or there are too many shares.
        """
        owner, invitee, address = await invited(self._database, device, email, uid)
        code = new_id()
        mail = DeviceShareInvitation(device=device.record.name, owner=owner.full_name, code=code)
        letter = self._mails.compose(address, mail, cause=owner.id)
        invitee_key = None if invitee is None else invitee.key
        share = ShareRecord(
            id=new_id(),
            device=device.key,
            email=address,
            user=invitee_key,
            status=ShareStatus.PENDING,
            shared_on=self._clock.now_ms(),
            code_hash=token_hash(code),
            uid=invitee.id if invitee is not None and email is None and "@" not in (uid or "") else None,
        )

        def work(tx: Transaction) -> ShareRecord:
            if tx.devices.device(device.key) is None:
                raise DeviceNotFound(device.id)
            if tx.shares.standing(device.key, address, invitee_key) is not None:
                raise Conflict(ALREADY_SHARED)
            if tx.shares.count_standing(device.key) >= DEVICE_SHARES_MAX:
                raise Conflict(f"Device already shared {DEVICE_SHARES_MAX} times")
            self._mails.add(tx, letter)
            tx.shares.put(share)
            self._note(tx, AuditEvent.SHARE_OFFERED, share, device.id)
            return share

        return await self._database.write(work)

    async def of_device(self, device: Device, *, offset: int, count: int) -> tuple[list[ShareRecord], int]:
        """A page of the device's shares, and their total number."""
        return await self._database.read(lambda tx: tx.shares.page_of(device.key, offset=offset, limit=count))

    async def types_offered_to(self, user: UserRecord) -> set[DeviceTypeKey]:
        """The types of the devices that were offered to the user."""
        return await self._database.read(lambda tx: tx.shares.types_offered_to(user.key, verified_address(user)))

    async def offered_to(
        self,
        user: UserRecord,
        statuses: Collection[ShareStatus],
        types: Collection[DeviceTypeKey],
        *,
        offset: int,
        count: int,
    ) -> tuple[list[OfferRow], int]:
        """A page of the shares of devices of these types that were offered to the user, and their total number."""
        return await self._database.read(
            lambda tx: tx.shares.offered_to(
                user.key, verified_address(user), statuses=statuses, types=types, offset=offset, limit=count
            )
        )

    async def accepted_by(self, user: UserKey, device: Device) -> ShareRecord | None:
        """The share by which a device is shared with this user, if it is."""
        if user not in device.shared_with:
            return None
        return await self._database.read(lambda tx: tx.shares.accepted_by(user, device.key))

    async def find(self, device: Device, share_id: str) -> ShareRecord:
        """A share of the device, by id. Raises NotFound."""
        return await self._database.read(lambda tx: _of_device(tx, device.key, share_id))

    async def is_for(self, user: UserKey | None, share: ShareRecord, *, code: str = "") -> bool:
        """Whether the share was offered to the user. The `code` of the mail proves that the address is the user's."""
        return user is not None and await self._database.read(lambda tx: _is_for(tx, share, user, code))

    async def invitation(self, code: str) -> ShareInvitation:
        """The invitation with this code. Raises Gone: it was answered or revoked, or never existed."""
        return await self._database.read(lambda tx: _invitation(tx, code))

    async def answer(self, share_id: str, user: UserKey, status: ShareStatus, *, code: str = "") -> ShareRecord:
        """Accept or reject a share. From then on the share is bound to the user's account, not to the address.

        Raises:
            NotFound: the share was removed.
            PermissionDenied: it was offered to another user.
            Conflict: it has another answer.
        """

        def work(tx: Transaction) -> ShareRecord:
            share = tx.shares.by_id(share_id)
            if share is None:
                raise NotFound
            if not _is_for(tx, share, user, code):
                raise PermissionDenied(f"the invitation of share {share.id}")
            if status not in ANSWERS[ShareStatus(share.status)]:
                raise Conflict(f"Share is {share.status}")
            if status == share.status:
                return share
            if _is_code_of(share, code):
                tx.accounts.verify_email(user, now_ms=self._clock.now_ms())
            answered = replace(share, user=user, status=status, code_hash=None)
            tx.shares.put(answered)
            accepted, device = status is ShareStatus.ACCEPTED, tx.devices.device(share.device)
            event = AuditEvent.SHARE_ACCEPTED if accepted else AuditEvent.SHARE_REJECTED
            self._note(tx, event, answered, device.id if device is not None else "")
            if accepted and device is not None:
                _tell_changed(tx, device.key)
            return answered

        return await self._database.write(work)

    async def remove(self, share_id: str) -> ShareRecord:
        """Remove a share: the owner revokes it, or the invited user leaves it. Returns it. Raises NotFound."""

        def work(tx: Transaction) -> ShareRecord:
            share = tx.shares.by_id(share_id)
            if share is None:
                raise NotFound
            tx.shares.remove(share_id)
            ended, device = share.status == ShareStatus.ACCEPTED, tx.devices.device(share.device)
            self._note(tx, AuditEvent.SHARE_REMOVED, share, device.id if device is not None else "")
            if ended and device is not None:
                _tell_changed(tx, device.key)
            return share

        return await self._database.write(work)

    def end_all_of(self, issuance: Issuance, user: UserRecord) -> Sequence[str]:
        """Remove the shares of a user's devices and with the user (`broker/accounts/claims.py: Ender`)."""
        tx = issuance.tx
        found = (tx.devices.device(key) for key in tx.shares.remove_all_of(user.key))
        shared = [record for record in found if record is not None]
        for record in shared:
            _tell_changed(tx, record.key)
        return [record.name for record in shared]

    def _note(self, tx: Transaction, event: AuditEvent, share: ShareRecord, device_id: str) -> None:
        whom = {"email": share.email} if share.uid is None else {"user": share.uid}
        note(tx, event, f"device {device_id}", now_ms=self._clock.now_ms(), share=share.id, **whom)


def _tell_changed(tx: Transaction, device: DeviceKey) -> None:
    tx.tell(DEVICE, device)
    if tx.wanted.withdraw_of_former(device):
        tx.tell(WANTED, device)
    publish(tx, SharesChanged(device))


async def invited(
    database: Database, device: Device, email: str | None, uid: str | None
) -> tuple[UserRecord, UserRecord | None, str]:
    """The owner, the invited user if the address has an account, and the address.

    Raises ValidationFailed, UserNotFound; Conflict: the owner is invited.
    """
    member, text = ("email", email) if email is not None else ("uid", uid)
    if text is None:
        raise ValidationFailed.of("email", REQUIRED)
    address = invited_address(member, text) if member == "email" or "@" in text else None

    def work(tx: Transaction) -> tuple[UserRecord | None, UserRecord | None]:
        found = tx.accounts.user_by_id(text) if address is None else tx.accounts.user_by_email(address)
        return tx.accounts.user(device.owner), found

    owner, invitee = await database.read(work)
    if address is None:
        address = None if invitee is None else invitee.email
    elif invitee is not None and invitee.email_verified_on is None and invitee.key != device.owner:
        invitee = None  # the account has not proved that the address is its own
    if owner is None or address is None:
        raise UserNotFound
    if invitee is not None and invitee.key == owner.key:
        raise Conflict(THE_OWNER)
    return owner, invitee, address


def verified_address(user: UserRecord) -> str:
    """A user with an unverified address does not see what was offered to that address."""
    return user.email if user.email_verified_on is not None else ""


def invited_address(member: str, text: str) -> str:
    """The address of an invitation, as it is kept. Raises ValidationFailed, with `member` as the field."""
    try:
        if len(text) <= EMAIL_MAX_CHARACTERS:
            return mail_address(text)
    except ValueError:
        pass
    raise ValidationFailed.of(member, "Invalid email")


def _of_device(tx: Transaction, device: DeviceKey, share_id: str) -> ShareRecord:
    share = tx.shares.by_id(share_id)
    if share is None or share.device != device:
        raise NotFound
    return share


def _is_for(tx: Transaction, share: ShareRecord, user: UserKey, code: str) -> bool:
    """Whether a share is for the user: by its account if it has one, else by the user's proved address."""
    if share.user is not None:
        return share.user == user
    holder = tx.accounts.user_by_email(share.email)
    if holder is None or holder.key != user:
        return False
    return holder.email_verified_on is not None or _is_code_of(share, code)


def _is_code_of(share: ShareRecord, code: str) -> bool:
    return share.code_hash is not None and token_hash(code) == share.code_hash


def _invitation(tx: Transaction, code: str) -> ShareInvitation:
    share = tx.shares.by_code(token_hash(code))
    device = None if share is None else tx.devices.device(share.device)
    owner = None if device is None else tx.accounts.user(device.owner)
    if share is None or device is None or owner is None:
        raise Gone
    return ShareInvitation(share, device.id, device.name, owner.full_name)
