"""The persistent connections of devices to several nodes (reference 16.1). The caller holds the transaction."""

from collections.abc import Collection, Sequence
from enum import IntEnum

from storage.keys import DeviceKey
from storage.sql import Store


class Sort(IntEnum):
    """How many connections of a sort a device has, as `is_exclusive`: any number; one with its own token; one
    registration of LWM2M."""

    SHARED = 0
    EXCLUSIVE = 1
    REGISTRATION = 2


class DeviceConnectionStore(Store):
    def begin(self, node: str, number: int, device: DeviceKey, sort: Sort) -> list[tuple[str, int]]:
        """Add a connection. One that is not shared takes the place of the others of its sort: returns their nodes and
        numbers."""
        replaced: list[tuple[str, int]] = []
        if sort is not Sort.SHARED:
            rows = self._db.execute(
                "DELETE FROM device_connection WHERE device = :device AND is_exclusive = :sort RETURNING node, number",
                {"device": device, "sort": sort},
            )
            replaced = [(row["node"], int(row["number"])) for row in rows]
        self._insert(
            "device_connection",
            {"node": node, "number": number, "device": device, "is_exclusive": int(sort)},
        )
        return replaced

    def end(self, node: str, number: int) -> bool:
        """Whether it was there: a newer one may have replaced it."""
        row = self._db.execute(
            "DELETE FROM device_connection WHERE node = :node AND number = :number RETURNING device",
            {"node": node, "number": number},
        ).one()
        return row is not None

    def end_all(self, node: str) -> list[DeviceKey]:
        """Remove the connections of a node that is gone. Returns the devices that have no other one."""
        rows = self._db.execute("DELETE FROM device_connection WHERE node = :node RETURNING device", {"node": node})
        devices = {DeviceKey(row["device"]) for row in rows}
        return sorted(devices - self.connected(devices))

    def forget_all(self) -> None:
        """This daemon is the only one on the store from now on."""
        self._db.execute("DELETE FROM device_connection")

    def connected(self, devices: Collection[DeviceKey], *, but_for: str = "") -> set[DeviceKey]:
        """The ones of these devices that have a connection, but for connections to this node."""
        rows = self._db.execute(
            "SELECT DISTINCT device FROM device_connection WHERE node <> :node"  # noqa: S608 - of the engine
            f" AND device IN ({self._db.numbers_in('devices')})",
            {"node": but_for, "devices": _numbers(list(devices))},
        )
        return {DeviceKey(row["device"]) for row in rows}


def _numbers(keys: Sequence[int]) -> str:
    return f"[{','.join(map(str, keys))}]"
