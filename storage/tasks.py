"""Tasks, their entries for devices, and the history of those. The caller holds the transaction."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from storage.keys import DeviceKey, DeviceTypeKey, Milliseconds, OrganizationKey
from storage.sql import ALL_ROWS, Store, record_values, sure


class TaskRecord(msgspec.Struct, frozen=True):
    """A task. `request` is JSON of broker/device_management: what its creator asked for."""

    key: int
    id: str
    device_type: DeviceTypeKey
    request: str
    status: str
    created_on: Milliseconds
    modified_on: Milliseconds
    scheduled_on: Milliseconds | None
    expires_on: Milliseconds
    image: str | None  # the firmware image of an update
    phase: str  # of a staged roll-out


class DeviceTaskRecord(msgspec.Struct, frozen=True):
    """A task on one device. `step` and what follows `error_message` are of an update."""

    key: int
    task: int
    device: DeviceKey
    status: str
    ts: Milliseconds
    attempts: int
    acceptance: str
    started_on: Milliseconds | None
    ended_on: Milliseconds | None
    error_code: str | None
    error_message: str | None
    step: str
    step_on: Milliseconds | None
    tries: int
    restarts: int
    download: str | None  # the id in the address of its image
    fetched: int  # bytes of the image that were sent so far
    fetched_from: str | None  # the IP address that the device has proved since
    holder: str = ""  # the process that carries it out, of several nodes
    reported: str = ""  # what the device said of its firmware in this step


class TaskHistoryRecord(msgspec.Struct, frozen=True):
    task: int
    device: DeviceKey
    ts: Milliseconds
    status: str
    error_code: str | None
    error_message: str | None
    attempts: int


_TASK = TaskRecord.__struct_fields__
_ENTRY = DeviceTaskRecord.__struct_fields__
_HISTORY = TaskHistoryRecord.__struct_fields__


class TaskStore(Store):
    # Tasks

    def add(self, task: TaskRecord) -> TaskRecord:
        """Add a task. The store gives its key."""
        return _task(sure(self._insert("task", record_values(task, _TASK[1:]), "RETURNING *").one()))

    def put(self, task: TaskRecord) -> None:
        self._db.put_many("task", _TASK, ("key",), [[getattr(task, name) for name in _TASK]])

    def by_id(self, id_: str) -> TaskRecord | None:
        row = self._db.execute("SELECT * FROM task WHERE id = :id", {"id": id_}).one()
        return _task(row) if row else None

    def task(self, key: int) -> TaskRecord | None:
        row = self._db.execute("SELECT * FROM task WHERE key = :key", {"key": key}).one()
        return _task(row) if row else None

    def tasks(self, keys: Iterable[int]) -> list[TaskRecord]:
        """The tasks with these keys, oldest first."""
        rows = self._db.execute(
            f"SELECT * FROM task WHERE key IN ({self._db.numbers_in('keys')}) ORDER BY key",  # noqa: S608 - constants
            {"keys": json.dumps(list(keys))},
        )
        return [_task(row) for row in rows]

    def with_status(self, statuses: Sequence[str]) -> list[TaskRecord]:
        """The tasks with one of these statuses, oldest first."""
        rows = self._db.execute(f"SELECT * FROM task WHERE status IN {_texts(statuses)} ORDER BY key")  # noqa: S608 - of an enum
        return [_task(row) for row in rows]

    def first_with_status(self, statuses: Sequence[str]) -> TaskRecord | None:
        """The oldest task with one of these statuses."""
        row = self._db.execute(
            f"SELECT * FROM task WHERE status IN {_texts(statuses)} ORDER BY key LIMIT 1"  # noqa: S608 - of an enum
        ).one()
        return _task(row) if row else None

    def count_with_status(self, device_type: DeviceTypeKey, statuses: Sequence[str]) -> int:
        """How many tasks of a type have one of these statuses."""
        row = self._db.execute(
            f"SELECT count(*) AS n FROM task WHERE device_type = :type AND status IN {_texts(statuses)}",  # noqa: S608 - of an enum
            {"type": device_type},
        ).one()
        return int(row["n"]) if row else 0

    def page(
        self, device_type: DeviceTypeKey, status: str | None, *, sort: str, descending: bool, offset: int, limit: int
    ) -> tuple[list[TaskRecord], int]:
        """A page of the type's tasks, and the number of all. `sort`: a column."""
        given = {"type": device_type, "status": status, "offset": offset, "limit": limit}
        where = " FROM task WHERE device_type = :type" + ("" if status is None else " AND status = :status")
        way = "DESC" if descending else "ASC"
        rows = self._db.execute(
            f"SELECT *{where} ORDER BY {sort} {way}, key {way} LIMIT :limit OFFSET :offset",
            given,
        )
        found = [_task(row) for row in rows]
        return found, self._number_of(where, given)

    def failing(
        self, organization: OrganizationKey, unfinished: Sequence[str], since_ms: int, *, offset: int, limit: int
    ) -> tuple[list[TaskRecord], int]:
        """A page of the organization's tasks that failed on a device, and the number of all; the latest first.

        Only tasks that are unfinished, or were changed since `since_ms`.
        """
        given = {"organization": organization, "since": since_ms, "offset": offset, "limit": limit}
        where = (
            " FROM task AS t JOIN device_type AS d ON d.key = t.device_type"  # noqa: S608 - of an enum
            " WHERE d.organization = :organization"
            f" AND (t.status IN {_texts(unfinished)} OR t.modified_on >= :since)"
            " AND EXISTS (SELECT 1 FROM device_task AS e WHERE e.task = t.key AND e.status = 'FAILED')"
        )
        rows = self._db.execute(
            f"SELECT t.*{where} ORDER BY t.modified_on DESC, t.key DESC LIMIT :limit OFFSET :offset", given
        )
        found = [_task(row) for row in rows]
        return found, self._number_of(where, given)

    def counts_of_type(self, device_type: DeviceTypeKey) -> dict[str, int]:
        """How many tasks of a type have each status."""
        rows = self._db.execute(
            "SELECT status, count(*) AS n FROM task WHERE device_type = :type GROUP BY status", {"type": device_type}
        )
        return {row["status"]: row["n"] for row in rows}

    # Entries

    def add_entries(self, task: int, devices: Iterable[DeviceKey], *, acceptance: str, now_ms: int) -> None:
        self._db.execute(
            "INSERT INTO device_task (task, device, status, ts, attempts, acceptance, step, tries, restarts, fetched)"  # noqa: S608 - constants
            " SELECT :task, value, 'REQUESTED', :now, 0, :acceptance, '', 0, 0, 0"
            f" FROM ({self._db.numbers_in('devices')}) AS given",
            {"task": task, "devices": json.dumps(list(devices)), "now": now_ms, "acceptance": acceptance},
        )

    def put_entry(self, entry: DeviceTaskRecord) -> None:
        self._db.put_many("device_task", _ENTRY, ("key",), [[getattr(entry, name) for name in _ENTRY]])

    def entry(self, key: int) -> DeviceTaskRecord | None:
        row = self._db.execute("SELECT * FROM device_task WHERE key = :key", {"key": key}).one()
        return _entry(row) if row else None

    def entry_of(self, task: int, device: DeviceKey) -> DeviceTaskRecord | None:
        row = self._db.execute(
            "SELECT * FROM device_task WHERE task = :task AND device = :device", {"task": task, "device": device}
        ).one()
        return _entry(row) if row else None

    def entry_of_download(self, download: str) -> DeviceTaskRecord | None:
        row = self._db.execute("SELECT * FROM device_task WHERE download = :id", {"id": download}).one()
        return _entry(row) if row else None

    def set_fetched(self, fetched: Mapping[int, int]) -> None:
        """Note how many bytes of its image were sent to each entry, by its key, unless it is fewer than before."""
        self._set("fetched", fetched, " AND device_task.fetched < given.fetched")

    def set_fetched_from(self, addresses: Mapping[int, str]) -> None:
        """Note the address from which each entry, by its key, has fetched its image."""
        self._set("fetched_from", addresses)

    def _set(self, column: str, values: Mapping[int, Any], condition: str = "") -> None:
        if values:
            given, parameters = self._db.given("device_task", ("key", column), list(values.items()))
            self._db.execute(
                f"UPDATE device_task SET {column} = given.{column} FROM ({given}) AS given"  # noqa: S608 - constants
                f" WHERE device_task.key = given.key{condition}",
                parameters,
            )

    def entries_with(self, task: int, statuses: Sequence[str], *, limit: int) -> list[DeviceTaskRecord]:
        """Entries of a task with one of these statuses, oldest first."""
        rows = self._db.execute(
            f"SELECT * FROM device_task WHERE task = :task AND status IN {_texts(statuses)} ORDER BY key LIMIT :limit",  # noqa: S608 - of an enum
            {"task": task, "limit": limit},
        )
        return [_entry(row) for row in rows]

    def entries_of_device(
        self, device: DeviceKey, statuses: Sequence[str], *, limit: int = ALL_ROWS
    ) -> list[DeviceTaskRecord]:
        """Entries of a device with one of these statuses, oldest first."""
        rows = self._db.execute(
            f"SELECT * FROM device_task WHERE device = :device AND status IN {_texts(statuses)} ORDER BY key"  # noqa: S608 - of an enum
            " LIMIT :limit",
            {"device": device, "limit": limit},
        )
        return [_entry(row) for row in rows]

    def has_any(self, task: int, statuses: Sequence[str]) -> bool:
        row = self._db.execute(
            f"SELECT 1 FROM device_task WHERE task = :task AND status IN {_texts(statuses)} LIMIT 1",  # noqa: S608 - of an enum
            {"task": task},
        ).one()
        return row is not None

    def deleted_devices(self, statuses: Sequence[str]) -> list[DeviceKey]:
        """The deleted devices that have an entry with one of these statuses."""
        rows = self._db.execute(
            "SELECT DISTINCT e.device AS device FROM device_task AS e JOIN device AS d ON d.key = e.device"  # noqa: S608 - of an enum
            f" WHERE d.deleted_on IS NOT NULL AND e.status IN {_texts(statuses)}"
        )
        return [row["device"] for row in rows]

    def tasks_with_entries(self, statuses: Sequence[str]) -> set[int]:
        """The keys of tasks that have an entry with one of these statuses."""
        rows = self._db.execute(f"SELECT DISTINCT task FROM device_task WHERE status IN {_texts(statuses)}")  # noqa: S608 - of an enum
        return {row["task"] for row in rows}

    def counts(self, task: int) -> dict[str, int]:
        """How many entries of a task have each status."""
        rows = self._db.execute(
            "SELECT status, count(*) AS n FROM device_task WHERE task = :task GROUP BY status", {"task": task}
        )
        return {row["status"]: row["n"] for row in rows}

    def begun_counts(self, task: int) -> dict[str, int]:
        """How many entries of a task that have begun have each status."""
        rows = self._db.execute(
            "SELECT status, count(*) AS n FROM device_task WHERE task = :task AND started_on IS NOT NULL"
            " GROUP BY status",
            {"task": task},
        )
        return {row["status"]: row["n"] for row in rows}

    def begun_since(self, task: int, since_ms: int) -> list[int]:
        """The times at which entries of a task began, in order, after this one."""
        rows = self._db.execute(
            "SELECT started_on FROM device_task WHERE task = :task AND started_on > :since ORDER BY started_on",
            {"task": task, "since": since_ms},
        )
        return [row["started_on"] for row in rows]

    def page_of_entries(
        self,
        task: int,
        *,
        status: str | None,
        devices: Collection[str] | None,
        offset: int,
        limit: int,
    ) -> tuple[list[tuple[str, DeviceTaskRecord]], int]:
        """A page of a task's entries, each with the id of its device; and the number of all."""
        given: dict[str, object] = {"task": task, "status": status, "offset": offset, "limit": limit}
        where = " FROM device_task AS e JOIN device AS d ON d.key = e.device WHERE e.task = :task"
        if status is not None:
            where += " AND e.status = :status"
        if devices is not None:
            names = [f"did{index}" for index in range(len(devices))]
            given |= dict(zip(names, devices, strict=True))
            where += f" AND d.id IN ({', '.join(f':{name}' for name in names)})"
        rows = self._db.execute(f"SELECT e.*, d.id AS did{where} ORDER BY e.key LIMIT :limit OFFSET :offset", given)
        found = [(row["did"], _entry(row)) for row in rows]
        return found, self._number_of(where, given)

    def page_of_device(
        self, device: DeviceKey, status: str | None, *, sort: str, descending: bool, offset: int, limit: int
    ) -> tuple[list[tuple[TaskRecord, DeviceTaskRecord]], int]:
        """A page of a device's tasks, and the number of all. `sort`: a column of the task."""
        given = {"device": device, "status": status, "offset": offset, "limit": limit}
        where = " FROM device_task AS e JOIN task AS t ON t.key = e.task WHERE e.device = :device"
        where += "" if status is None else " AND e.status = :status"
        way = "DESC" if descending else "ASC"
        rows = self._db.execute(
            f"SELECT e.*{where} ORDER BY t.{sort} {way}, t.key {way} LIMIT :limit OFFSET :offset",
            given,
        )
        entries = list(map(_entry, rows))
        tasks = {task.key: task for task in self.tasks(entry.task for entry in entries)}
        return [(tasks[entry.task], entry) for entry in entries], self._number_of(where, given)

    def waiting_for_acceptance(self, device: DeviceKey, statuses: Sequence[str]) -> list[str]:
        """The ids of tasks that wait for the device's owner, oldest first."""
        rows = self._db.execute(
            f"SELECT t.id FROM device_task AS e JOIN task AS t ON t.key = e.task WHERE e.status IN {_texts(statuses)}"  # noqa: S608 - of an enum
            " AND e.device = :device AND e.acceptance = 'WAITING' ORDER BY e.key",
            {"device": device},
        )
        return [row["id"] for row in rows]

    # History

    def add_history(self, entry: TaskHistoryRecord) -> None:
        self._insert("task_history", record_values(entry, _HISTORY))

    def begin_history(self, task: int) -> None:
        """Add a row for each entry of a task, as the entry is now."""
        self._db.execute(
            f"INSERT INTO task_history ({', '.join(_HISTORY)}) SELECT {', '.join(_HISTORY)} FROM device_task"  # noqa: S608 - constants
            " WHERE task = :task ORDER BY key",
            {"task": task},
        )

    def renew_history(self, entry: TaskHistoryRecord) -> None:
        """Repeat the newest row with this status and error: it gets the new time and number."""
        self._db.execute(
            "UPDATE task_history SET ts = :ts, attempts = :attempts, error_message = :error_message WHERE key ="
            " (SELECT max(key) FROM task_history WHERE task = :task AND device = :device AND status = :status"
            " AND coalesce(error_code, '') = coalesce(:error_code, ''))",
            {name: getattr(entry, name) for name in _HISTORY},
        )

    def history(self, task: int, device: DeviceKey | None, *, limit: int) -> list[tuple[str, TaskHistoryRecord]]:
        """The newest history rows of a task, oldest first, each with the id of its device."""
        rows = self._db.execute(
            "SELECT * FROM (SELECT h.*, d.id AS did FROM task_history AS h JOIN device AS d ON d.key = h.device"
            " WHERE h.task = :task AND (CAST(:device AS BIGINT) IS NULL OR h.device = :device)"
            " ORDER BY h.key DESC LIMIT :limit)"
            " AS newest ORDER BY newest.key",
            {"task": task, "device": device, "limit": limit},
        )
        return [(row["did"], TaskHistoryRecord(**{name: row[name] for name in _HISTORY})) for row in rows]


def _texts(statuses: Sequence[str]) -> str:
    """A list of SQL. The texts are those of an enum."""
    quoted = [f"'{status!s}'" for status in statuses]
    return f"({', '.join(quoted)})"


def _task(row: Mapping[str, Any]) -> TaskRecord:
    return TaskRecord(**{name: row[name] for name in _TASK})


def _entry(row: Mapping[str, Any]) -> DeviceTaskRecord:
    return DeviceTaskRecord(**{name: row[name] for name in _ENTRY})
