"""Progress of a third party's readings, so that each of them is stored once (reference 23.4).

The progress of a device is kept for each account at the third party, and outlives the link. It is written in the
transaction of the readings that it is about.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import msgspec

from broker.connectors.hooks import Record
from broker.connectors.links import Contents
from storage.records import ConnectorLinkRecord
from storage.transaction import Transaction

_ACCOUNTS: Final = 10  # of one device
_SERIES: Final = 100
_DEVICES: Final = 200  # of one series: the linked device and its sub-devices
_KNOWN: Final = 1_000  # readings of one series that are told apart
_KNOWN_LEAST: Final = 10  # of each device, when many share a series
_FAILED: Final = 1_000  # of one series
_FORMER: Final = "since."  # begins the names of the texts that earlier versions kept with the link


class _Stored(msgspec.Struct, array_like=True):
    """The readings of one device: all up to `floor`, a `ts`, and beyond it those with these tags."""

    floor: int = -1
    tags: dict[str, int] = {}

    def trimmed(self, most: int) -> "_Stored":
        """The progress with the newest tags only. Readings that are not newer than a dropped tag count as stored."""
        by_time = sorted(self.tags.items(), key=lambda tag: tag[1])
        left_out = by_time[: max(0, len(by_time) - most)]
        floor = max((self.floor, *(ts for _, ts in left_out)))
        return _Stored(floor, {tag: ts for tag, ts in by_time if ts > floor})

    @property
    def newest(self) -> int:
        return max(self.tags.values(), default=self.floor)


class _Series(msgspec.Struct):
    """`devices` is by external id; the linked device itself has the empty one. `failed` has tags."""

    since: int = 0
    devices: dict[str, _Stored] = {}
    failed: list[str] = []

    def asked_since(self, now_ms: int) -> int:
        if self.since <= now_ms:
            return self.since
        # Our clock was ahead when readings with such times were stored: what was stored before counts.
        times = (ts for stored in self.devices.values() for ts in stored.tags.values())
        return max((ts for ts in times if ts <= now_ms), default=0)

    def trimmed(self) -> "_Series":
        latest = sorted(self.devices.items(), key=lambda device: device[1].newest)[-_DEVICES:]
        most = max(_KNOWN_LEAST, _KNOWN // max(1, len(latest)))
        return _Series(self.since, {eid: stored.trimmed(most) for eid, stored in latest}, self.failed[-_FAILED:])


@dataclass(slots=True)
class SeriesProgress:
    series: dict[str, _Series]

    def since(self, now_ms: int) -> dict[str, int]:
        """The `ts` after which readings are to be fetched, by series."""
        return {name: one.asked_since(now_ms) for name, one in self.series.items()}

    def is_known(self, record: Record) -> bool:
        """Whether the record is a reading that was stored."""
        if (ts := reading_time(record)) is None:
            return False
        stored = self._of(record.series).devices.get(record.sub_device or "")
        return stored is not None and (ts <= stored.floor or record_tag(record) in stored.tags)

    def note_stored(self, record: Record) -> None:
        if (ts := reading_time(record)) is not None:
            stored = self._of(record.series).devices.setdefault(record.sub_device or "", _Stored())
            stored.tags[record_tag(record)] = ts

    def note_complete(self, series: str, ts: int) -> None:
        """All readings of an answer up to `ts` were stored, or refused for good."""
        one = self._of(series)
        one.since = max(one.since, ts)

    def note_failed(self, series: str, failed: Iterable[Record], *, is_whole: bool) -> list[Record]:
        """Note the items of an answer that cannot be stored. Return the ones that did not fail in the last answer.

        `is_whole`: all items of the answer were tried. Without a series, items come once: nothing is noted.
        """
        if not series:
            return list(failed)
        by_tag = {record_tag(record): record for record in failed}
        before = self._of(series).failed
        self._of(series).failed = list(by_tag) if is_whole else list(dict.fromkeys([*by_tag, *before]))
        return [record for tag, record in by_tag.items() if tag not in before]

    def _of(self, series: str) -> _Series:
        return self.series.setdefault(series, _Series())

    def text(self) -> str:
        """The text for the store, within the bounds."""
        latest = list(self.series.items())[-_SERIES:]
        return msgspec.json.encode({name: one.trimmed() for name, one in latest}).decode()


def reading_time(record: Record) -> int | None:
    """The time of a reading of a series; None: the record is stored whenever it comes."""
    return record.ts if record.series and type(record.ts) is int else None


def record_tag(record: Record) -> str:
    """Tells a record from others of its series."""
    about = repr((record.sub_device, record.ts, record.is_action))
    return blake2b(about.encode() + record.data, digest_size=9).hexdigest()


def read_progress(tx: Transaction, link: ConnectorLinkRecord, contents: Contents) -> SeriesProgress:
    """The progress with the account of the link. Where one of two accounts is not known, they are taken for the same.

    Earlier versions kept the newest times with the link.
    """
    found = dict(tx.connectors.progress(link.device))
    account = _account(link)
    text = found.get(account)
    if text is None and found:
        text = found.get("") if account else next(iter(found.values()))
    if text is not None:
        return SeriesProgress(msgspec.json.decode(text, type=dict[str, _Series]))
    return SeriesProgress({} if found else _former(contents))


def write_progress(tx: Transaction, link: ConnectorLinkRecord, text: str, *, now_ms: int) -> None:
    tx.connectors.put_progress(link.device, _account(link), text, now_ms=now_ms, at_most=_ACCOUNTS)


def _account(link: ConnectorLinkRecord) -> str:
    return "" if link.account is None else link.account.hex()


def _former(contents: Contents) -> dict[str, _Series]:
    series = {}
    for name, text in contents.remembered.items():
        if name.startswith(_FORMER):
            with suppress(msgspec.MsgspecError):  # another plug-in may have texts with such a name
                times = msgspec.json.decode(text, type=dict[str, int])
                devices = {eid: _Stored(ts) for eid, ts in times.items()}
                series[name.removeprefix(_FORMER)] = _Series(max(times.values(), default=0), devices)
    return series
