"""The audit log: who changed what, when and from where, and who was refused (reference 28.2).

An entry about a change is written in the transaction of that change (`note`). What has no transaction waits in a
bounded queue for the worker. Entries end by age and by number; those that strangers cause have a quarter of the number,
and one actor has no more when there are too many, so that a flood of them cannot push out what others did.
"""

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Final

import trio

from broker.clock import Clock
from broker.loops import Wakeup, repeat
from broker.trace.origin import current_origin
from config.settings import Audit as AuditSettings
from storage.database import Database, Transaction
from storage.records import AuditFilter, AuditRecord
from storage.sql import StoreError

SWEEP_SECONDS: Final = 60.0
_DAY_MS: Final = 86_400_000
_WAITING: Final = 1_000
_STEP_ROWS: Final = 500
_RETRY_SECONDS: Final = 5.0


class AuditEvent(StrEnum):
    """What the audit log has entries about."""

    SIGN_IN = "sign_in"
    SIGN_OUT = "sign_out"
    LOCK_OUT = "lock_out"
    ACCOUNT_OPENED = "account_opened"
    ACCOUNT_CLAIMED = "account_claimed"
    ADDRESS_PROVED = "address_proved"
    ACCOUNT_DELETED = "account_deleted"
    PROFILE_CHANGED = "profile_changed"
    PASSWORD_CHANGED = "password_changed"  # noqa: S105 - a name
    SECOND_FACTOR_SET = "second_factor_set"
    SECOND_FACTOR_REMOVED = "second_factor_removed"
    CONSENT_GIVEN = "consent_given"
    CONSENT_DENIED = "consent_denied"
    CONSENT_REVOKED = "consent_revoked"
    TOKEN_ISSUED = "token_issued"  # noqa: S105 - a name
    TOKEN_REFUSED = "token_refused"  # noqa: S105 - a name
    TOKEN_REVOKED = "token_revoked"  # noqa: S105 - a name
    DEVICE_CREATED = "device_created"
    DEVICE_DELETED = "device_deleted"
    DEVICE_TOKEN_MADE = "device_token_made"  # noqa: S105 - a name
    DEVICE_TOKEN_REPLACED = "device_token_replaced"  # noqa: S105 - a name
    DEVICE_TOKEN_DELETED = "device_token_deleted"  # noqa: S105 - a name
    SHARE_OFFERED = "share_offered"
    SHARE_ACCEPTED = "share_accepted"
    SHARE_REJECTED = "share_rejected"
    SHARE_REMOVED = "share_removed"
    TRANSFER_OFFERED = "transfer_offered"
    TRANSFER_ACCEPTED = "transfer_accepted"
    TRANSFER_DECLINED = "transfer_declined"
    TRANSFER_WITHDRAWN = "transfer_withdrawn"
    LINK_BEGUN = "link_begun"
    LINK_ENDED = "link_ended"
    APPLICATION_CREATED = "application_created"
    APPLICATION_CHANGED = "application_changed"
    DEVICE_TYPE_CREATED = "device_type_created"
    DEVICE_TYPE_CHANGED = "device_type_changed"
    MANIFEST_UPLOADED = "manifest_uploaded"
    MANIFEST_APPROVED = "manifest_approved"
    SECRET_RENEWED = "secret_renewed"  # noqa: S105 - a name
    CERTIFICATE_REGISTERED = "certificate_registered"
    CERTIFICATE_REVOKED = "certificate_revoked"
    APPROVED_LIST_CHANGED = "approved_list_changed"
    MANAGEMENT_CONFIGURED = "management_configured"
    PROPERTIES_CHANGED = "properties_changed"
    PROPERTIES_REMOVED = "properties_removed"
    TASK_CREATED = "task_created"
    TASK_CANCELLED = "task_cancelled"
    ROLLOUT_CONTINUED = "rollout_continued"
    UPDATE_ACCEPTED = "update_accepted"
    UPDATE_REJECTED = "update_rejected"
    IMAGE_UPLOADED = "image_uploaded"
    IMAGE_DELETED = "image_deleted"
    SCENE_CREATED = "scene_created"
    SCENE_CHANGED = "scene_changed"
    SCENE_REMOVED = "scene_removed"
    MODEL_CREATED = "model_created"
    MODEL_REMOVED = "model_removed"
    TRIAL_CREATED = "trial_created"
    TRIAL_STOPPED = "trial_stopped"
    TRIAL_DELETED = "trial_deleted"
    TRIAL_TYPE_ADDED = "trial_type_added"
    TRIAL_TYPE_REMOVED = "trial_type_removed"
    TRIAL_INVITATION_SENT = "trial_invitation_sent"
    TRIAL_INVITATION_ACCEPTED = "trial_invitation_accepted"
    TRIAL_INVITATION_REVOKED = "trial_invitation_revoked"
    TRIAL_MEMBER_REMOVED = "trial_member_removed"
    TRIAL_DEVICE_CONNECTED = "trial_device_connected"
    TRIAL_DEVICE_DISCONNECTED = "trial_device_disconnected"
    SUBSCRIPTION_CREATED = "subscription_created"
    SUBSCRIPTION_CHANGED = "subscription_changed"
    SUBSCRIPTION_SUSPENDED = "subscription_suspended"
    SUBSCRIPTION_REMOVED = "subscription_removed"
    KEY_ROTATED = "key_rotated"
    RULE_CREATED = "rule_created"
    RULE_CHANGED = "rule_changed"
    RULE_REMOVED = "rule_removed"
    PROVISIONED = "provisioned"
    COMMAND = "command"


def entry_of(
    event: AuditEvent,
    object_: str = "",
    *,
    now_ms: int,
    actor: str = "",
    outcome: str = "done",
    of_stranger: bool = False,
    **details: Any,
) -> AuditRecord:
    """An entry by the origin of this task. Details that are None are left out.

    `actor` counts where the origin has none: who has proven in this very transaction who it is.
    """
    origin = current_origin()
    if origin.application:
        details.setdefault("application", origin.application)
    known = {name: value for name, value in details.items() if value is not None}
    return AuditRecord(
        now_ms, event, origin.actor or actor, origin.address, object_, outcome, known, of_stranger=of_stranger
    )


def note(
    tx: Transaction, event: AuditEvent, object_: str = "", *, now_ms: int, actor: str = "", **details: Any
) -> None:
    """Add an entry about a change to the transaction of the change, for `Database.write`."""
    tx.audit.add(entry_of(event, object_, now_ms=now_ms, actor=actor, **details))


@dataclass(frozen=True, slots=True)
class AuditStatistics:
    waiting: int
    lost: int  # entries that found the queue full
    removed: int


class AuditLog:
    """The worker that writes queued entries and removes old ones; and the reading side."""

    def __init__(self, database: Database, clock: Clock, settings: AuditSettings) -> None:
        self._database = database
        self._clock = clock
        self._settings = settings
        self._waiting: deque[AuditRecord] = deque()
        self._wakeup = Wakeup()
        self._lost = self._removed = 0

    def put(self, entry: AuditRecord) -> None:
        """Queue an entry about something that no transaction belongs to."""
        if len(self._waiting) >= _WAITING:
            self._lost += 1
            return
        self._waiting.append(entry)
        self._wakeup.set()

    async def write(self, entry: AuditRecord) -> None:
        """Add an entry, and return when it is durable. Raises StoreError."""
        await self._database.write(lambda tx: tx.audit.add(entry))

    async def find(self, wanted: AuditFilter) -> list[AuditRecord]:
        """The latest entries that match, oldest first."""
        await self.flush()
        return await self._database.read(lambda tx: tx.audit.find(wanted))

    async def write_forever(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                partial(
                    repeat,
                    self.flush,
                    wakeup=self._wakeup,
                    failure="audit_not_written",
                    retry_seconds=_RETRY_SECONDS,
                )
            )
            nursery.start_soon(
                partial(repeat, self.sweep, every=SWEEP_SECONDS, at_once=True, failure="audit_not_swept")
            )
            task_status.started()

    async def flush(self) -> None:
        """Write what waits. Raises StoreError; then it still waits."""
        if not self._waiting:
            return
        entries = tuple(self._waiting)
        self._waiting.clear()

        def work(tx: Transaction) -> None:
            for entry in entries:
                tx.audit.add(entry)

        try:
            await self._database.write(work)  # also when this task is cancelled meanwhile
        except StoreError:
            self._waiting.extendleft(reversed(entries))
            raise

    async def sweep(self) -> None:
        """Remove what is too old or too much, in small steps."""
        if not self._clock.may_delete():
            return
        keep = self._settings.keep_entries
        before_ms = self._clock.now_ms() - self._settings.keep_days * _DAY_MS
        while keys := await self._database.read(
            lambda tx: (
                tx.audit.older_than(before_ms, limit=_STEP_ROWS)
                or tx.audit.surplus(keep // 4, limit=_STEP_ROWS, of_stranger=True)
                or tx.audit.crowded_out(keep, share=keep // 4, limit=_STEP_ROWS)
            )
        ):
            await self._database.write(partial(_remove, keys))
            self._removed += len(keys)

    def statistics(self) -> AuditStatistics:
        return AuditStatistics(len(self._waiting), self._lost, self._removed)


def _remove(keys: list[int], tx: Transaction) -> None:
    tx.audit.remove(keys)
