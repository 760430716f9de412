"""Actions that are operations of LWM2M and have not ended (reference 18.7). The caller holds the transaction."""

from collections.abc import Collection

import msgspec

from storage.keys import DeviceKey, Position, UserKey
from storage.sql import Store


class UnendedActionRecord(msgspec.Struct, frozen=True):
    """A row of `lwm2m_action`: an Action of the log, the owner of its device when it came, and how far it is."""

    position: Position
    device: DeviceKey
    owner: UserKey
    step: int


_COLUMNS = UnendedActionRecord.__struct_fields__


class Lwm2mActionStore(Store):
    def all(self) -> list[UnendedActionRecord]:
        """In the order of the log. Their number is bounded (reference 18.7)."""
        found = self._db.execute(f"SELECT {', '.join(_COLUMNS)} FROM lwm2m_action ORDER BY position")  # noqa: S608 - constants
        return [UnendedActionRecord(*row) for row in found.tuples()]

    def of_device(self, device: DeviceKey) -> list[UnendedActionRecord]:
        """In the order of the log."""
        found = self._db.execute(
            f"SELECT {', '.join(_COLUMNS)} FROM lwm2m_action WHERE device = :device ORDER BY position",  # noqa: S608 - constants
            {"device": device},
        )
        return [UnendedActionRecord(*row) for row in found.tuples()]

    def put(self, record: UnendedActionRecord) -> None:
        self._db.put_many("lwm2m_action", _COLUMNS, ("position",), [[getattr(record, name) for name in _COLUMNS]])

    def set_step(self, position: Position, step: int) -> None:
        self._db.execute(
            "UPDATE lwm2m_action SET step = :step WHERE position = :position", {"position": position, "step": step}
        )

    def end(self, positions: Collection[Position]) -> None:
        for position in positions:
            self._db.execute("DELETE FROM lwm2m_action WHERE position = :position", {"position": position})

    def end_of_device(self, device: DeviceKey) -> None:
        self._db.execute("DELETE FROM lwm2m_action WHERE device = :device", {"device": device})
