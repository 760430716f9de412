"""Labels of devices: made with an import, and claimed by whoever has one (reference 6.6).

A label has a code of 80 random bits; the store has its hash. An imported device is the importer's until it is claimed.
"""

import csv
import datetime as dt
import io
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from broker.accounts.device_codes import ALPHABET
from broker.accounts.throttle import Throttle
from broker.clock import Clock
from broker.device_types.catalog import DeviceType, DeviceTypes
from broker.devices.device_tokens import DeviceTokens
from broker.devices.inventory import NewDevice, add_in, name_findings
from broker.devices.registry import Device
from broker.devices.transfers import SAME_ID, STILL_LINKED, hand_over
from broker.errors import (
    Conflict,
    DeviceTypeNotFound,
    DomainError,
    Finding,
    Gone,
    NotFound,
    ValidationFailed,
    invalid,
    too_long,
)
from broker.ids import is_id, new_id
from broker.secrets import token_hash
from broker.trace.audit import AuditEvent, note
from broker.trace.origin import current_origin
from config.limits import IMPORT_DEVICES_MAX, LABEL_MISSES, LABEL_WINDOW_SECONDS, VENDOR_ID_MAX_CHARACTERS
from storage.database import Database
from storage.keys import Milliseconds, UserKey
from storage.labels import LabelRecord
from storage.records import DeviceRecord, UserRecord
from storage.transaction import Transaction

COLUMNS: Final = ("name", "type", "id", "vdid", "token")
_REQUIRED: Final = ("name", "type")
_CODE_CHARACTERS: Final = 16
_FINDINGS_MAX: Final = 50
NO_LABEL: Final = "There is no such label. Check the code for mistakes."
_DELETED: Final = "The device of this label was deleted. Ask whoever gave it to you."
_CLAIMED: Final = "This label was used on {day}: its device has an owner. Only its owner can hand it over."
_REPLACED: Final = "A new label was made for its device on {day}: this one is of no use any more."
NOT_CLAIMABLE: Final = "device {id} has no label that can be claimed: it was not imported, or has another owner already"
_GIVEN: Final = "The device of this label has been given to somebody in another way."


class ImportedDevice(msgspec.Struct, frozen=True):
    """A device of an import, with its secrets. `code` is that of its label. `token`: empty where only that is new."""

    id: str
    name: str
    type: str
    token: str
    code: str


class LabelledDevice(msgspec.Struct, frozen=True):
    """A device as its label shows it. `is_own`: the user has claimed it already."""

    id: str
    name: str
    type: str
    is_own: bool


class _Line(msgspec.Struct, frozen=True):
    number: int
    name: str
    type: DeviceType
    id: str
    vdid: str | None
    token: str


class Labels:
    """The caller checks that an importer is one of the operators."""

    def __init__(self, database: Database, clock: Clock, types: DeviceTypes, tokens: DeviceTokens) -> None:
        self._database = database
        self._clock = clock
        self._types = types
        self._tokens = tokens
        self._guesses = Throttle(clock, misses=LABEL_MISSES, window_seconds=LABEL_WINDOW_SECONDS)

    # Import

    async def import_devices(self, text: str, owner: UserRecord) -> list[ImportedDevice]:
        """Make the devices of a CSV file, each with a token and a label, all or none.

        Raises ValidationFailed with the lines that are wrong, by their numbers.
        """
        findings: list[Finding] = []
        lines = [one for row in _rows(text) if (one := await self._line(*row, findings)) is not None]
        _check_unique(lines, findings)
        _refuse(findings)
        now_ms = self._clock.now_ms()
        codes = [_new_code() for _ in lines]

        def work(tx: Transaction) -> list[DeviceRecord]:
            records = [record for line in lines if (record := _add(tx, line, owner, now_ms, findings)) is not None]
            _refuse(findings)
            for line, record, code in zip(lines, records, codes, strict=True):
                self._tokens.put(tx, record.key, line.token, application=None)
                tx.labels.add([LabelRecord(code_hash(code), record.key, now_ms, is_open=True, claimed_on=None)])
            event = AuditEvent.DEVICES_IMPORTED
            note(tx, event, f"user {owner.id}", now_ms=now_ms, devices=len(records))
            return records

        records = await self._database.write(work)
        return [
            ImportedDevice(record.id, record.name, line.type.record.unique_name, line.token, code)
            for line, record, code in zip(lines, records, codes, strict=True)
        ]

    async def _line(self, number: int, row: Mapping[str, str], findings: list[Finding]) -> _Line | None:
        before, at = len(findings), f"line {number}"
        values = {column: row.get(column, "") for column in COLUMNS}
        findings += [Finding(at, (f"{column}: required",)) for column in _REQUIRED if not values[column]]
        if values["name"]:
            findings += [
                Finding(at, (f"name: {text}",)) for one in name_findings(values["name"]) for text in one.messages
            ]
        for column in ("id", "token"):
            if values[column] and not is_id(values[column]):
                findings.append(Finding(at, (f"{column}: {invalid('must be 32 lower-case hexadecimal characters')}",)))
        if len(values["vdid"]) > VENDOR_ID_MAX_CHARACTERS:
            findings.append(Finding(at, (f"vdid: {too_long(VENDOR_ID_MAX_CHARACTERS)}",)))
        if not values["type"]:
            return None
        try:
            type_ = await self._types.find(values["type"])
        except DeviceTypeNotFound:
            findings.append(Finding(at, (f"type: there is no device type {values['type'][:64]!r}",)))
            return None
        if type_.record.rsp:
            text = "type: its devices register with certificates: upload an approved list instead"
            findings.append(Finding(at, (text,)))
        if len(findings) > before:
            return None
        return _Line(number, values["name"], type_, values["id"], values["vdid"] or None, values["token"] or new_id())

    async def renew(self, devices: Sequence[Device]) -> list[ImportedDevice]:
        """Make new labels for devices that nobody has claimed yet, all or none; the former ones are of no use any more.

        Raises Conflict: a device has no label that can be claimed.
        """
        now_ms = self._clock.now_ms()
        codes = {one.key: _new_code() for one in devices}

        def work(tx: Transaction) -> list[ImportedDevice]:
            made = list[ImportedDevice]()
            for device in devices:
                known = tx.devices.device(device.key)
                if known is None or not tx.labels.replace(device.key, now_ms=now_ms):
                    raise Conflict(NOT_CLAIMABLE.format(id=device.id))
                code, unique_name = codes[device.key], device.type.record.unique_name
                tx.labels.add([LabelRecord(code_hash(code), device.key, now_ms, is_open=True, claimed_on=None)])
                note(tx, AuditEvent.LABEL_RENEWED, f"device {known.id}", now_ms=now_ms)
                made.append(ImportedDevice(known.id, known.name, unique_name, "", code))
            return made

        return await self._database.write(work)

    # Claiming

    async def find(self, code: str, user: UserRecord) -> LabelledDevice:
        """The device of a label, for a user who may claim it or has done so.

        Raises NotFound, Gone: there is no such label, or it is of no use any more; TooManyAttempts.
        """
        keys = _guesser(user)
        self._guesses.check(*keys)
        try:
            found = await self._database.read(lambda tx: _claimable(tx, code, user.key))
        except NotFound:
            self._guesses.missed(*keys)
            raise
        return found[2]

    async def claim(self, code: str, user: UserRecord) -> LabelledDevice:
        """The device is the user's from now on. Raises as `find`, and Conflict."""
        self._guesses.check(*_guesser(user))
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> LabelledDevice:
            label, known, shown = _claimable(tx, code, user.key)
            if shown.is_own:
                return shown
            if known.cloud_authorization == "AUTHORIZED":
                raise Conflict(STILL_LINKED)
            if known.eid is not None and tx.devices.by_eid(user.key, known.device_type, known.eid) is not None:
                raise Conflict(SAME_ID)
            tx.transfers.remove(known.key)
            hand_over(tx, known, user.key, now_ms)
            tx.labels.claimed(label.hash, now_ms=now_ms)
            note(tx, AuditEvent.DEVICE_CLAIMED, f"device {known.id}", now_ms=now_ms, owner=known.owner_id)
            return shown

        return await self._database.write(work)


def _claimable(tx: Transaction, code: str, user: UserKey) -> tuple[LabelRecord, DeviceRecord, LabelledDevice]:
    label = tx.labels.by_hash(code_hash(code))
    if label is None:
        raise NoSuchLabel
    known = tx.devices.device(label.device)
    type_ = None if known is None else tx.device_types.device_type(known.device_type)
    if known is None or type_ is None:
        raise LabelOver(_DELETED)
    is_own = known.owner == user and label.claimed_on is not None
    if not label.is_open and not is_own:
        if label.replaced_on is not None:
            raise LabelOver(_REPLACED.format(day=_day(label.replaced_on)))
        raise LabelOver(_GIVEN if label.claimed_on is None else _CLAIMED.format(day=_day(label.claimed_on)))
    return label, known, LabelledDevice(known.id, known.name, type_.name, is_own)


@dataclass(eq=False)
class NoSuchLabel(NotFound):
    template = NO_LABEL


@dataclass(eq=False)
class LabelOver(Gone):
    """A label whose device cannot be claimed any more."""

    template = "{reason}"
    reason: str


def _guesser(user: UserRecord) -> tuple[str, ...]:
    address = current_origin().address
    return (f"user {user.id}", *((f"address {address}",) if address else ()))


def _day(at_ms: Milliseconds) -> str:
    return dt.datetime.fromtimestamp(at_ms / 1000, dt.UTC).strftime("%Y-%m-%d")


def _new_code() -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(_CODE_CHARACTERS))


def code_hash(code: str) -> bytes:
    """Of a code as it was typed: in any case, with hyphens and blanks."""
    return token_hash("".join(code.upper().split()).replace("-", ""))


def _rows(text: str) -> Sequence[tuple[int, Mapping[str, str]]]:
    """The lines of a CSV file with their numbers. Raises ValidationFailed."""
    reader = csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline=""), strict=True)
    rows: list[tuple[int, Mapping[str, str]]] = []
    try:
        header = [name.strip().lower() for name in next(reader, [])]
        unknown = [name for name in header if name not in COLUMNS]
        missing = [name for name in _REQUIRED if name not in header]
        if unknown or missing or len(set(header)) < len(header):
            raise ValidationFailed.of("line 1", f"the columns are {', '.join(COLUMNS)}; name and type are required")
        for row in reader:
            if not row:
                continue
            if len(row) != len(header):
                raise ValidationFailed.of(f"line {reader.line_num}", f"{len(row)} values for {len(header)} columns")
            if len(rows) == IMPORT_DEVICES_MAX:
                raise ValidationFailed.of(f"line {reader.line_num}", f"at most {IMPORT_DEVICES_MAX} devices at once")
            values = dict(zip(header, (value.strip() for value in row), strict=True))
            rows.append((reader.line_num, values))
    except csv.Error as error:
        raise ValidationFailed.of(f"line {max(1, reader.line_num)}", f"is no CSV: {error}") from error
    if not rows:
        raise ValidationFailed.of("line 2", "there is no device")
    return rows


def _check_unique(lines: Sequence[_Line], findings: list[Finding]) -> None:
    for column, key in _KEYS.items():
        seen: dict[object, int] = {}
        for line in lines:
            if (value := key(line)) is None:
                continue
            if (first := seen.setdefault(value, line.number)) != line.number:
                findings.append(Finding(f"line {line.number}", (f"{column}: the same as in line {first}",)))


_KEYS: Final[Mapping[str, Callable[[_Line], object]]] = {
    "id": lambda line: line.id or None,
    "token": lambda line: line.token,
    "vdid": lambda line: None if line.vdid is None else (line.type.record.key, line.vdid),
}


def _add(
    tx: Transaction, line: _Line, owner: UserRecord, now_ms: Milliseconds, findings: list[Finding]
) -> DeviceRecord | None:
    at = f"line {line.number}"
    if tx.approved_lists.is_enabled(line.type.record.key):
        findings.append(Finding(at, ("type: its devices are those of its approved list",)))
        return None
    if line.id and (tx.devices.by_id(line.id) is not None or tx.devices.deleted(line.id) is not None):
        findings.append(Finding(at, ("id: another device has it",)))
        return None
    if tx.accounts.token(token_hash(line.token)) is not None or tx.devices.by_token(token_hash(line.token)) is not None:
        findings.append(Finding(at, ("token: it is in use",)))
        return None
    new = NewDevice(owner=owner.key, type=line.type, name=line.name, vdid=line.vdid, id=line.id or None)
    try:
        return add_in(tx, new, None, now_ms)
    except DomainError as error:
        findings.append(Finding(at, (str(error),)))
        return None


def _refuse(findings: Sequence[Finding]) -> None:
    if findings:
        raise ValidationFailed(tuple(findings[:_FINDINGS_MAX]))
