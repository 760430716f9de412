"""Removes all that the service has of a user who is deleted, in steps that can be repeated (reference 5.7)."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

import msgspec
import structlog
import trio

from broker.accounts.claims import Claims
from broker.accounts.issuance import Issuance
from broker.accounts.tokens import Tokens
from broker.core import Core
from broker.devices.room import DevicesRoom
from broker.errors import DeviceNotFound
from broker.export.exports import Exports
from broker.leaving.archives import Archives
from broker.mail import Mails, MailServerUnavailable
from broker.messages.projections import Projector
from broker.trials.roles import TrialRole
from config.mail import caseless, folded_address
from storage.keys import DeviceKey
from storage.leaving import LeavingRecord
from storage.records import UserRecord
from storage.transaction import Transaction

_AT_ONCE: Final = 100
_STEP_ROWS: Final = 1_000
_PAUSE_SECONDS: Final = 0.01  # lets other writes go first
_RETRY_SECONDS: Final = 5.0
_log = structlog.get_logger(__name__)


class Holders(msgspec.Struct, frozen=True):
    """The capabilities that hold what users have."""

    tokens: Tokens
    claims: Claims
    devices: DevicesRoom
    projector: Projector
    exports: Exports
    archives: Archives
    mails: Mails


class Erasing:
    def __init__(self, core: Core, holders: Holders) -> None:
        self._database = core.database
        self._audit = core.audit
        self._of = holders

    # Objects that others see

    async def hide(self, one: LeavingRecord) -> None:
        """End everything that works for the user or is shown to others. Raises StoreError."""
        await self._delete_devices(one)

        def end_the_rest(issuance: Issuance) -> None:
            _hand_over_trials(issuance.tx, one)
            self._of.claims.end_all(issuance, UserRecord(one.user, one.id, "", "", "", "", None, 0, 0))

        await self._of.tokens.change(end_the_rest)
        devices = await self._database.read(
            lambda tx: frozenset(map(DeviceKey, tx.leaving.keys_of("device", one.user, column="owner", limit=2**31)))
        )
        await self._of.exports.forget(one.user, devices)
        await self._of.archives.forget(one.user)

    async def _delete_devices(self, one: LeavingRecord) -> None:
        """One by one, because a user may have very many."""
        while keys := await self._database.read(lambda tx: tx.leaving.devices_to_delete(one.user, limit=_AT_ONCE)):
            for key in keys:
                with suppress(DeviceNotFound):
                    await self._of.devices.inventory.delete(await self._of.devices.registry.get(key))

    # Stored rows

    async def remove(self, one: LeavingRecord) -> None:
        """Remove the rows and files that nobody sees any more. Raises StoreError."""
        removed: list[DeviceKey] = []
        while devices := await self._database.read(lambda tx: tx.leaving.keys_of("device", one.user, column="owner")):
            keys = [DeviceKey(key) for key in devices]
            await self._of.projector.forget(keys)
            for device in keys:
                await self._of.devices.removal.remove_at_once(device)
            removed += keys
        for key in await self._database.read(lambda tx: tx.leaving.keys_of("subscription", one.user, limit=_STEP_ROWS)):
            is_done = False
            while not is_done:
                is_done = await self._database.write(partial(_forget_subscription, key))
                await trio.sleep(_PAUSE_SECONDS)
        await self._forget_in_audit(one)
        await self._database.write(lambda tx: tx.leaving.forget_marks(one))
        for device in removed:
            await self._database.write(partial(_forget_leftovers, device))
        while True:
            try:
                await self._of.mails.forget(one.email, one.full_name)
            except MailServerUnavailable as error:
                _log.warning("mails_of_user_not_removed", user=one.id, reason=str(error))
                await trio.sleep(_RETRY_SECONDS)
            else:
                return

    async def _forget_in_audit(self, one: LeavingRecord) -> None:
        """The audit log keeps ids: no addresses, no names, and not where the user's acts came from."""
        await self._audit.flush()
        scrub, after = _Scrubber(one), 0
        while entries := await self._database.read(partial(_audit_after, after)):
            after = entries[-1]["key"]
            if changed := list(scrub.changed(entries)):
                await self._database.write(partial(_put_audit, changed))
            await trio.sleep(_PAUSE_SECONDS)


class _Scrubber:
    def __init__(self, one: LeavingRecord) -> None:
        self._id = f"user {one.id}"  # as actors and objects have it
        names = {caseless(text) for text in (one.email, folded_address(one.email), one.full_name) if text}
        texts = map(re.escape, names)
        self._named = re.compile(rf"(?<!\w)(?:{'|'.join(texts)})(?!\w)")

    def changed(self, entries: list[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        for entry in entries:
            is_own = entry["actor"] == self._id and bool(entry["address"])
            if is_own or self._names(entry["details"]) or self._names(entry["object"]):
                yield {
                    "key": entry["key"],
                    "address": "" if is_own else entry["address"],
                    "object": self._id if self._names(entry["object"]) else entry["object"],
                    "details": json.dumps(self._without(json.loads(entry["details"])), ensure_ascii=False),
                }

    def _names(self, text: str) -> bool:
        return self._named.search(caseless(text)) is not None

    def _without(self, details: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: value for name, value in details.items() if not self._names(json.dumps(value, ensure_ascii=False))
        }


def _hand_over_trials(tx: Transaction, one: LeavingRecord) -> None:
    """A trial goes on with its next administrator. One that has no other is the user's, and ends with the rest."""
    for trial in tx.trials.administered_by(one.user):
        administrators = tx.trials.members(trial.key, TrialRole.ADMINISTRATOR)
        heir = next((user for user in administrators if user != one.user), one.user)
        if one.user in {trial.owner, heir}:
            tx.leaving.hand_over_trial(trial.key, heir)


def _forget_subscription(key: int, tx: Transaction) -> bool:
    return tx.leaving.forget_subscription(key, limit=_STEP_ROWS)


def _audit_after(key: int, tx: Transaction) -> list[Mapping[str, Any]]:
    return tx.leaving.audit_after(key, limit=_STEP_ROWS)


def _put_audit(entries: list[Mapping[str, Any]], tx: Transaction) -> None:
    tx.leaving.put_audit(entries)


def _forget_leftovers(device: DeviceKey, tx: Transaction) -> None:
    tx.removal.forget_leftovers(device)
