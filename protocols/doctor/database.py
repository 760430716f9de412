"""The store in PostgreSQL, and the disk of this machine beside it."""

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from config.shown_command import shown_command
from protocols.doctor.patient import CheckResult, Patient
from protocols.doctor.sizes import forecast_of, size_finding
from storage.engines import engine_of
from storage.migrations import unknown_names
from storage.sql import StoreError

if TYPE_CHECKING:
    from storage.engines.postgresql_health import ServerHealth
    from storage.engines.postgresql_rights import Neighbours

_LONG_SECONDS: Final = 3_600
_YEAR_DAYS: Final = 365
_MIB: Final = 1024**2
#: The objects of others that are named at most.
_NAMED: Final = 5


def look_at_database(patient: Patient) -> Iterator[CheckResult]:
    """Whether the daemon can use it. The server's own tools look for damage."""
    from storage.engines.postgresql import PostgresqlSnapshot  # noqa: PLC0415 - not needed with SQLite
    from storage.engines.postgresql_health import health  # noqa: PLC0415 - as above

    try:
        engine = engine_of(patient.settings)
        with engine.snapshot() as snapshot:
            steps = snapshot.steps()
            assert isinstance(snapshot, PostgresqlSnapshot)  # noqa: S101 - of this engine
            found = health(snapshot.rows)
    except StoreError as error:
        yield CheckResult("store", False, str(error))
        return
    about = f"{engine}, PostgreSQL {found.version}"
    if not steps:
        yield CheckResult("store", True, f"{about}: there is none yet: the first start makes it")
    elif unknown_names(steps):
        yield CheckResult("store", False, f"{about}: a newer version has made it: install that one")
    elif problems := list(_problems(found)):
        for problem in problems:
            yield CheckResult("store", False, f"{about}: {problem}")
    else:
        yield CheckResult("store", True, f"{about}; pg_amcheck looks for damage{_hints(found.neighbours)}")


def _problems(found: "ServerHealth") -> Iterator[str]:
    others = found.neighbours
    if found.longest_transaction_seconds > _LONG_SECONDS:
        yield (
            f"a transaction has been open for {found.longest_transaction_seconds / 3600:.1f} h, so deleted rows keep"
            " their room: end it (pg_stat_activity has its process)"
        )
    if found.prepared_transaction_seconds > _LONG_SECONDS:
        yield (
            f"a prepared transaction has been open for {found.prepared_transaction_seconds / 3600:.1f} h, so deleted"
            " rows keep their room: COMMIT PREPARED or ROLLBACK PREPARED (pg_prepared_xacts has its name)"
        )
    if found.idle_slot:
        yield (
            f"the server keeps its log for the replication slot {found.idle_slot}, which nobody reads, until its disk"
            " is full: have its standby follow again, or SELECT pg_drop_replication_slot"
        )
    if found.asynchronous_standbys and not found.synchronous_standbys:
        yield (
            "its standby is asynchronous, so a failover loses messages that were acknowledged: set"
            " synchronous_standby_names"
        )
    if others.makers:
        yield (
            f"{', '.join(others.makers)} may make objects in the schema public, which could take the place of"
            f" PostgreSQL's own functions: REVOKE CREATE ON SCHEMA public FROM {', '.join(others.makers)}"
        )
    if others.strangers:
        more = f" and {len(others.strangers) - _NAMED} more" if len(others.strangers) > _NAMED else ""
        yield (
            f"{', '.join(others.strangers[:_NAMED])}{more} in the schema public is not Trunkline's, and in no backup:"
            " move it into another schema, or better into another database"
        )


def _hints(others: "Neighbours") -> str:
    hints = ""
    if others.is_superuser:
        hints += "; its role is a superuser: one that owns the database is enough"
    if others.hidden:
        hints += (
            f"; transactions of {', '.join(others.hidden)} cannot be seen: GRANT pg_read_all_stats would let the doctor"
            " find one that is open for long"
        )
    return hints


def look_at_its_room(patient: Patient) -> Iterator[CheckResult]:
    folder = patient.settings.state_dir
    while not folder.exists():
        folder = folder.parent
    free = f"{shutil.disk_usage(folder).free / _MIB:,.0f} MiB are free here"
    try:
        with engine_of(patient.settings).snapshot() as snapshot:
            is_old = bool(snapshot.steps()) and not snapshot.is_current()
        found = forecast_of(patient.settings)
    except StoreError:  # the check of the store tells
        yield CheckResult("disk", True, free)
        return
    if found is None:
        brings = f"; {shown_command('migrate')} brings the store to this version" if is_old else ""
        yield CheckResult("disk", True, free + brings)
        return
    size = found.measured.store_bytes
    text = f"{free}; the store has {size / _MIB:,.0f} MiB on the server"
    if (coming := found.bytes_a_day) is not None:
        later = found.sizes[_YEAR_DAYS - 1]
        on = found.date_after(_YEAR_DAYS)
        text += f", {coming / _MIB:,.1f} MiB come in a day, and it will have {later / _MIB:,.0f} MiB on {on:%Y-%m-%d}"
    yield CheckResult("disk", True, f"{text}: look at its disk there")
    yield size_finding(found, is_postgresql=True)
