"""Actions of an upstream: each is stored here, and goes to its device."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from broker.clock import Clock
from broker.devices.registry import Device, Devices
from broker.errors import BadRequest, DeviceNotFound, DomainError
from broker.forwarding.log_reader import LogReader
from broker.forwarding.port import UpstreamError
from broker.forwarding.report import ForwardReport
from broker.forwarding.trunkline import TrunklineUpstream
from broker.forwarding.wire import ACTIONS_PATH, ActionsAnswer, ActionsAsked, SentAction
from broker.ids import is_id
from broker.messages.ingest import Ingest
from broker.nesting import check_nesting
from config.limits import FORWARD_POLL_SECONDS
from config.settings import Forward
from storage.database import Database
from storage.facts import StoreOvertakenError
from storage.leases import Holder
from storage.sql import StoreError
from storage.transaction import Transaction

_DEVICE: Final = "{did}"
_decode = msgspec.json.Decoder(dict[str, Any]).decode


@dataclass(eq=False)
class UpstreamActions:
    _entry: Forward
    _database: Database
    _lease: Holder
    _clock: Clock
    _devices: Devices
    _ingest: Ingest
    _reader: LogReader
    _report: ForwardReport

    async def take_forever(self, upstream: TrunklineUpstream) -> None:
        """Each Action of a Trunkline is stored here once: in the commit of the position up to which they are.

        Raises UpstreamError, StoreError.
        """
        name, target = self._entry.name, self._entry.to

        def read(tx: Transaction) -> int | None:
            known = tx.forwarding.forward(name)
            return None if known is None or known.target != target else known.actions_after

        after = await self._database.read(read)
        while True:
            asked = ActionsAsked(self._reader.store, after, 0 if after is None else FORWARD_POLL_SECONDS)
            answer = await upstream.ask(ACTIONS_PATH, asked, ActionsAnswer)
            if after is not None and answer.upto < after:
                raise UpstreamError(
                    "The upstream has a shorter log than before: a backup of it was restored. trunkline edge accept,"
                    f" there, and trunkline forward rewind {name}, here, begin again."
                )
            if answer.upto != after:
                await self._take(answer.actions, after, answer.upto)
                after = answer.upto

    async def _take(self, actions: Sequence[SentAction], after: int | None, upto: int) -> None:
        """Raises StoreError, UpstreamError."""
        if not self._ingest.has_room:
            await self._ingest.wait_room()
        devices = {one.did: await self._found(one.did) for one in actions}
        if any(one is not None and self._devices.get_nowait(one.key) is not one for one in devices.values()):
            raise UpstreamError("A device was changed while Actions came for it: they are asked for again.")
        now_ms = self._clock.now_ms()
        taken, refusals = 0, list[tuple[str, DomainError]]()
        for one in actions:
            device = devices[one.did]
            try:
                if device is None:
                    raise BadRequest
                self._ingest.submit_action(device, device, one.data.encode(), min(one.ts, now_ms))
                taken += 1
            except DomainError as refusal:
                refusals.append((one.mid, refusal))
        name, target = self._entry.name, self._entry.to

        def work(tx: Transaction) -> None:
            known = tx.forwarding.forward(name)
            if known is None or (known.target, known.actions_after) != (target, after):
                raise StoreOvertakenError("another node has taken Actions of this upstream")
            tx.forwarding.set_actions_after(name, upto)

        self._database.write_nowait(work, holder=self._lease, is_of_rows=True)
        try:
            await self._ingest.wait_committed()
        except DomainError as error:
            raise UpstreamError(f"Actions of the upstream could not be stored: {error}.") from error
        self._report.actions += taken
        for mid, why in refusals:
            self._report.refused_action(mid=mid, reason=str(why))

    async def command(self, topic: str, payload: bytes) -> None:
        """A command of a broker. It is acknowledged when this returns: it is stored, or refused for good.

        Raises UpstreamError: it could not be stored; the broker sends it again on the next connection.
        """
        device_id = _did_of(self._entry.commands, topic)
        try:
            device = None if device_id is None else await self._found(device_id)
            if device is None:
                raise BadRequest
            if not self._ingest.has_room:
                await self._ingest.wait_room()
            self._ingest.submit_action(device, device, _command_data(payload))
        except DomainError as refusal:
            self._report.refused_action(topic=topic[:200], reason=str(refusal))
            return
        except StoreError as error:
            raise UpstreamError(f"A command of the broker could not be stored: {error}.") from error
        try:
            await self._ingest.wait_committed()
        except DomainError as error:
            raise UpstreamError(f"A command of the broker could not be stored: {error}.") from error
        self._report.actions += 1

    async def _found(self, device_id: str) -> Device | None:
        """A device that the upstream may send Actions to."""
        try:
            device = await self._devices.find(device_id)
        except DeviceNotFound:
            return None
        return device if self._reader.covers(device) else None


def command_filter(commands: str) -> str:
    """The topic filter for the commands of all devices."""
    return "/".join("+" if "{" in level else level for level in commands.split("/")) if commands else ""


def _did_of(form: str, topic: str) -> str | None:
    for level, found in zip(form.split("/"), topic.split("/"), strict=False):
        if level == _DEVICE:
            return found if is_id(found) else None
    return None


def _command_data(payload: bytes) -> bytes:
    """The `data` of an Action: what a command of a broker has, or `{"name": …, "parameters": …}` alone."""
    check_nesting(payload)
    try:
        value = _decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest from error
    return msgspec.json.encode({"actions": [value]}) if "name" in value and "actions" not in value else payload
