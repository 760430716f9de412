"""The contents of an archive entry: JSON as in the answers of searches, or CSV (RFC 4180).

The text is built from the rows without objects, because there are millions of rows; stored `data` is compact JSON.
"""

from collections.abc import Callable, Mapping, Sequence

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
