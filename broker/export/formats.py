"""The contents of an archive entry: JSON as in the answers of searches, or CSV (RFC 4180) of two kinds.

The text is built from the rows without objects, because there are millions of rows; stored `data` is compact JSON.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from broker.devices.registry import Device
from storage.keys import DeviceKey, Position
from storage.records import MessageRow

CSV_HEADER = "mid,sdid,sdtid,uid,ts,cts,mv,data\n"

Mid = Callable[[Position], str]


def json_entry(rows: Sequence[MessageRow], devices: Mapping[DeviceKey, Device], mid: Mid) -> bytes:
    """`{"size":n,"data":[message,…]}`."""
    # The part that is the same in every message of a device.
    before = {key: f',"sdtid":"{device.type.id}","cts":' for key, device in devices.items()}
    uid = {key: f',"uid":"{device.owner_id}","mv":' for key, device in devices.items()}
    after = {key: f',"sdid":"{device.id}"}}' for key, device in devices.items()}
    messages = ",".join(
        [
            f'{{"mid":"{mid(row.position)}","data":{row.data},"ts":{row.ts}{before[row.device]}{row.cts}'
            f"{uid[row.device]}{row.mv}{after[row.device]}"
            for row in rows
        ]
    )
    return f'{{"size":{len(rows)},"data":[{messages}]}}'.encode()


def csv_entry(rows: Sequence[MessageRow], devices: Mapping[DeviceKey, Device], mid: Mid, *, headers: bool) -> bytes:
    about = {key: f"{device.id},{device.type.id},{device.owner_id}" for key, device in devices.items()}
    lines = "".join(
        [f"{mid(row.position)},{about[row.device]},{row.ts},{row.cts},{row.mv},{_quoted(row.data)}\n" for row in rows]
    )
    return f"{CSV_HEADER if headers else ''}{lines}".encode()


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


#: Beginnings of a text that a spreadsheet would take for a formula.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
_IN_QUOTES: Final = re.compile(r'[",\r\n]')
_DASHES: Final = re.compile("-{2,}")
_NAME_BYTES: Final = 120  # a file's name has at most 255 bytes, with times and an id in it
_SHORT_ID: Final = 8
_LAST_MS: Final = 253_402_300_799_000  # the end of the year 9999, the last one that has such a form
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class FieldColumns:
    """CSV with a column for each field of the devices' Manifests, in their order; what else a message has, as it may
    under an earlier Manifest, is in the last column as JSON."""

    def __init__(self, devices: Iterable[Device]) -> None:
        paths: dict[str, None] = {}
        for device in devices:
            paths |= dict.fromkeys(device.manifest.manifest.leaves)
        self._places = {path: place for place, path in enumerate(paths)}

    @property
    def header(self) -> str:
        names = ("time", "ts", "cts", "sdid", "device", *self._places, "more")
        return f"{','.join(map(_cell, names))}\n"

    def entry(self, rows: Sequence[MessageRow], devices: Mapping[DeviceKey, Device], *, headers: bool) -> bytes:
        about = {key: f"{device.id},{_cell(device.record.name)}" for key, device in devices.items()}
        lines = [self._line(row, about[row.device]) for row in rows]
        return f"{self.header if headers else ''}{''.join(lines)}".encode()

    def _line(self, row: MessageRow, about: str) -> str:
        cells, more = [""] * len(self._places), {}
        for path, value in leaves_of(_decode(row.data)):
            place = self._places.get(path)
            if place is None:
                more[path] = value
            else:
                cells[place] = _cell(value)
        at = datetime.fromtimestamp(row.ts / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        rest = _cell(_encode(more).decode()) if more else ""
        return f"{at},{row.ts},{row.cts},{about},{','.join((*cells, rest))}\n"


def leaves_of(data: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(data, dict):
        yield prefix, data
        return
    for name, value in data.items():
        yield from leaves_of(value, f"{prefix}.{name}" if prefix else name)


def _cell(value: object) -> str:
    """A text that looks like a formula gets an apostrophe before it."""
    text = value if isinstance(value, str) else _encode(value).decode()
    if text is value and text.startswith(_FORMULA):
        text = f"'{text}"
    return _quoted(text) if _IN_QUOTES.search(text) else text


def plain_file_name(name: str) -> str:
    """A name of a device as a part of a file's name: letters with their marks, and digits, of every script."""
    composed = unicodedata.normalize("NFC", name)
    plain = "".join(one if one in "._-" or unicodedata.category(one)[0] in "LMN" else "-" for one in composed)
    short = _DASHES.sub("-", plain).strip("-.").encode()[:_NAME_BYTES].decode(errors="ignore")
    return short.strip("-.") or "device"


def device_labels(devices: Iterable[Device]) -> dict[str, str]:
    """Labels of devices in names of files, by id: the name, and as much of the id as makes it unique.

    Names that differ in upper and lower case only are the same in some file systems.
    """
    return labels({device.id: device.record.name for device in devices})


def labels(named: Mapping[str, str]) -> dict[str, str]:
    """As `device_labels`, for anything with an id and a name."""
    names = {id_: plain_file_name(name) for id_, name in named.items()}
    times = Counter(f"{name.casefold()}-{id_[:_SHORT_ID]}" for id_, name in names.items())
    return {
        id_: f"{name}-{id_ if times[f'{name.casefold()}-{id_[:_SHORT_ID]}'] > 1 else id_[:_SHORT_ID]}"
        for id_, name in names.items()
    }


def file_time(ts: int) -> str:
    """A time as a part of a file's name, in UTC."""
    return datetime.fromtimestamp(min(ts, _LAST_MS) / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
