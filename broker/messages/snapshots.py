"""Snapshots: the last value of every field of a device (reference 9.4), as the folds have them.

A read adds the rows that came since, so it sees every acknowledged message.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from broker.messages.decoding import Decoded, decoded
from broker.messages.folds import Fields, merge_fields, open_buckets, saved_fields, saved_fields_of
from broker.messages.intervals import Interval
from broker.messages.projections import Projector, saved_position
from storage.database import Database
from storage.keys import DeviceKey, Milliseconds, Position
from storage.transaction import Transaction


class Snapshots:
    def __init__(self, database: Database, projector: Projector) -> None:
        self._database = database
        self._projector = projector

    async def of(self, device: DeviceKey) -> Fields:
        """Each field's dotted path with ts, log position and value of its newest message."""
        return (await self.of_all([device]))[device]

    async def of_all(self, devices: Sequence[DeviceKey]) -> dict[DeviceKey, Fields]:
        """The snapshots of many devices, all at the same moment."""
        position, known = self._projector.fields_of(devices)
        return await self._database.read(partial(_current, devices, known, position))


def saved_with_rows(tx: Transaction, device: DeviceKey, until: Position) -> tuple[Fields, Decoded]:
    """The snapshot in the store, and the device's rows up to `until` that may be missing in it; some may be in it."""
    fields, position = saved_fields(tx, device)
    position = max(position, saved_position(tx))
    return fields, decoded(tx.message_searches.after_of([device], position)) if until > position else []


def newest_bucket_end(tx: Transaction, device: DeviceKey, field: str, upto_ms: Milliseconds) -> Milliseconds | None:
    """The last `ts` of the newest minute, by `upto_ms`, that has a message with the field at this dotted path, as the
    snapshot in the store has it; of the newest hour or day where finer rollups are gone. None without one."""
    open_ = open_buckets(tx.snapshots.of(device))
    for level in (Interval.MINUTE, Interval.HOUR, Interval.DAY):
        found = tx.rollups.newest(device, field, level, upto_ms)
        for (of_level, start), cells in open_.items():
            if of_level is level and start <= upto_ms and field in cells and (found is None or start > found):
                found = Milliseconds(start)
        if found is not None:
            return Milliseconds(level.end_of(found) - 1)
    return None


def _current(
    devices: Sequence[DeviceKey],
    known: Mapping[DeviceKey, tuple[Position, Fields]],
    position: Position,
    tx: Transaction,
) -> dict[DeviceKey, Fields]:
    """The snapshots: those in `known` up to positions of their own, the others up to `position`, as the store has them,
    and then all with the rows since."""
    saved = saved_fields_of(tx, [device for device in devices if device not in known])
    upto = {device: known.get(device) or (position, saved.get(device, {})) for device in devices}
    rows = tx.message_searches.after_of(upto, position)
    for row, data in decoded([row for row in rows if row.position > upto[row.device][0]]):
        merge_fields(upto[row.device][1], data, row)
    return {device: fields for device, (_, fields) in upto.items()}
