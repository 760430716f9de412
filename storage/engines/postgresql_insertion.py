"""The statements that insert rows: arrays, one for each column; and into the log, with their positions.

A row of the log gets its position behind the lock of the log, which lasts until the commit.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from storage.engines.postgresql_schema import LOG_LOCK
from storage.engines.postgresql_sql import quote_reserved_words
from storage.engines.postgresql_types import ARRAYS

#: Each of several nodes hears of this channel when another one has stored rows or facts.
CHANNEL: Final = "trunkline"
#: The same for commits that have messages and nothing else.
MESSAGES_CHANNEL: Final = "trunkline_messages"
#: Takes the lock of the log, and behind it as many positions as there are rows.
_GIVEN: Final = (
    f"locked AS MATERIALIZED (SELECT {{fence}}pg_advisory_xact_lock({LOG_LOCK})::text AS done),"  # noqa: S608 - constants
    " given AS MATERIALIZED (SELECT setval('log',"
    " (SELECT last_value FROM log WHERE locked.done IS NOT NULL) + %s) AS head FROM locked)"
)
#: As `_GIVEN`, of several nodes: nothing is given when somebody has moved the fence. The others are told.
_GIVEN_BEHIND_THE_FENCE: Final = (
    f"locked AS MATERIALIZED (SELECT {{fence}}pg_advisory_xact_lock({LOG_LOCK})::text AS done),"  # noqa: S608 - constants
    " given AS MATERIALIZED (SELECT CASE WHEN (SELECT last_value FROM fence WHERE locked.done IS NOT NULL) = %s"
    " THEN setval('log', (SELECT last_value FROM log WHERE locked.done IS NOT NULL) + %s) END AS head,"
    " pg_notify('{channel}', '{instance}')::text AS told FROM locked)"
)
_NUMBERED: Final = ", numbered AS (INSERT INTO batch (node, number, head) SELECT %s, %s, head FROM given{only})"
_HEAD: Final = "SELECT head FROM given"


def insertion(table: str, columns: Sequence[str], types: Mapping[str, str], *, shifted: bool = False) -> str:
    """The insertion of arrays, one for each column. `shifted`: of the log, at the positions that are given."""
    names = ", ".join(map(quote_reserved_words, columns))
    # One after the other: as a table, `unnest` would first write a store of each array.
    arrays = ", ".join(f"unnest(%s::{ARRAYS[types[name]][0]}) AS {quote_reserved_words(name)}" for name in columns)
    values = [
        f"{quote_reserved_words(name)}::json" if types[name] == "json" else quote_reserved_words(name)
        for name in columns
    ]
    if shifted:
        values[0] = f"{values[0]} + given.head - %s"
    rows = f"(SELECT {arrays}) AS rows{', given' if shifted else ''}"
    return f"INSERT INTO {quote_reserved_words(table)} ({names}) SELECT {', '.join(values)} FROM {rows}"  # noqa: S608 - constants


def log_insertion(
    tables: Sequence[tuple[str, Sequence[str], Mapping[str, str]]],
    instance: str,
    *,
    leases: Sequence[str],
    is_alone: bool,
    is_fenced: bool,
) -> str:
    """The insertion into tables of the log, which are given with their columns and the types of these.

    Args:
        tables: of the log.
        instance: of the node, for others that hear of the commit.
        leases: queries that fail without a lease of this node.
        is_alone: a transaction of its own, which takes the number of the commit with it.
        is_fenced: nothing is given when somebody has moved the fence.
    """
    fence = "".join(f"({check})::text || " for check in leases)
    given = _GIVEN_BEHIND_THE_FENCE if is_fenced else _GIVEN
    only = " WHERE given.head IS NOT NULL" if is_fenced else ""
    numbered = _NUMBERED.format(only=only) if is_alone else ""
    channel = MESSAGES_CHANNEL if [table for table, *_ in tables] == ["message"] else CHANNEL
    sql = f"WITH {given.format(fence=fence, channel=channel, instance=instance)}{numbered}"
    for table, columns, types in tables:
        sql += f", of_{table} AS ({insertion(table, columns, types, shifted=True)}{only})"
    return f"{sql} {_HEAD}{only}"
