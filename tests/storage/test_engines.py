"""Both engines give the stores the same: values, conditions on JSON, batches and the schema."""

import math
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace

from storage import operating
from storage.accounts import AccountStore
from storage.audit import AuditStore
from storage.authorizations import AuthorizationStore
from storage.connectors import ConnectorStore
from storage.device_management import DeviceManagementStore
from storage.device_types import DeviceTypeStore
from storage.devices import DeviceStore
from storage.engines.port import EngineConnection, StoreEngine
from storage.engines.postgresql import PostgresqlEngine
from storage.engines.postgresql_connection import PostgresqlConnection
from storage.engines.sqlite import SqliteEngine
from storage.keys import ApplicationKey, DeviceKey, DeviceTypeKey, Milliseconds, Position, RuleKey, UserKey
from storage.log_index import Entry, LogIndex, Merged
from storage.messages import MessageStore
from storage.records import AuditFilter, AuditRecord, FailedMessageRow, GrantRecord, MessageRow, RollupRow
from storage.retention import RetentionStore
from storage.rollups import RollupStore
from storage.rules import RuleProblem, RuleState, RuleStore
from storage.snapshots import SnapshotStore
from storage.sql import StoreError
from storage.tables import TableShape
from storage.tasks import TaskStore
from storage.trials import TrialStore
from tests.postgresql import server
from tests.rows import each_row
from tests.stores import make_store

pytestmark = [pytest.mark.sqlite("in each run it has both engines"), pytest.mark.slow]


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EngineConnection]:
    """The writer's connection to an empty store of either engine."""
    if request.param == "sqlite":
        make_store(tmp_path / "both.sqlite")
        engine: StoreEngine = SqliteEngine(tmp_path / "both.sqlite", synchronous="off")
        with closing(engine.open(read_only=False)) as connection:
            yield connection
        return
    name = server().new_database()
    with closing(PostgresqlEngine(server().target(name)).open(read_only=False)) as connection:
        yield connection
    server().drop(name)


_TEXTS: Final = (
    "",
    "plain",
    "a\0b",
    "\0",
    "\x1a",
    "\x1a0",
    "\0\x1a\x1a0\0",
    "ü€𝄞",
    "100%",
    ":name",
    "'quoted' \"twice\"",
)


@pytest.mark.parametrize("name", ["behind", "page", "size", "offset", "limit"])
def test_a_long_result_comes_whole_whatever_its_parameters_are_named(store: EngineConnection, name: str) -> None:
    for number in range(200):
        store.execute("INSERT INTO field (key, path) VALUES (:key, :path)", {"key": number, "path": str(number)})
    rows = store.stream(f"SELECT key FROM field WHERE key > :{name} ORDER BY key", {name: 10})  # noqa: S608 - rows above
    assert [row[0] for row in rows] == list(range(11, 200))


@pytest.mark.parametrize("write", [False, True])
def test_a_stream_costs_its_rows_once_and_sees_one_moment(
    store: EngineConnection, monkeypatch: pytest.MonkeyPatch, write: bool
) -> None:
    """Of which others read between, and end it early."""
    store.insert_many("field", ("key", "path"), [(key, str(key)) for key in range(10_000)])
    sql = "SELECT key FROM field WHERE key >= :from ORDER BY key"
    store.begin(write=write)
    of_two = [store.stream(sql, {"from": 0}), store.stream(sql, {"from": 5_000})]
    found = [[row[0] for row in islice(one, 40)] for one in of_two]
    assert found == [list(range(40)), list(range(5_000, 5_040))]
    if write and isinstance(store, PostgresqlConnection):  # SQLite says nothing of what its readers see of that
        store.execute("DELETE FROM field WHERE key >= 6000")
    executed, run = list[str](), type(store)._run  # type: ignore[attr-defined]

    def noting(self: Any, text: str, *arguments: Any, **more: Any) -> Any:
        executed.append(text)
        return run(self, text, *arguments, **more)

    monkeypatch.setattr(type(store), "_run", noting)
    assert [row[0] for row in of_two[0]] == list(range(40, 10_000))
    assert all(text.startswith("FETCH") for text in executed)
    assert len(executed) < 12
    store.rollback()


def test_every_text_comes_back(store: EngineConnection) -> None:
    for number, text in enumerate(_TEXTS):
        store.execute("INSERT INTO field (key, path) VALUES (:key, :path)", {"key": number, "path": text})
        row = store.execute("SELECT path FROM field WHERE path = :path", {"path": text}).one()
        assert row is not None
        assert row["path"] == text
    assert [row[0] for row in store.execute("SELECT path FROM field ORDER BY key").tuples()] == list(_TEXTS)


def test_every_text_of_a_list_comes_back(store: EngineConnection) -> None:
    """A field whose name has NUL in it would get the key of another one, or none."""
    found = store.execute(f"{store.texts_in('texts')}", {"texts": store.texts(_TEXTS)})
    assert [row["value"] for row in found] == list(_TEXTS)
    keys = RollupStore(store).add_fields(_TEXTS)
    assert keys.keys() == set(_TEXTS)
    for text in _TEXTS:
        assert RollupStore(store).field_key(text) == keys[text]
    assert RollupStore(store).add_fields(_TEXTS) == keys


def test_every_payload_of_a_failed_message_comes_back(store: EngineConnection) -> None:
    """SQLite's parser of JSON ended it at NUL."""
    rows = [
        FailedMessageRow(Position(number), DeviceKey(1), Milliseconds(1), "no \\u0000 JSON", text)
        for number, text in enumerate(_TEXTS, 1)
    ]
    store.insert_many("failed_message", FailedMessageRow.__struct_fields__, rows)
    assert MessageStore(store).failed(DeviceKey(1), offset=0, limit=100) == (rows[::-1], len(rows))


def test_texts_are_in_the_order_of_their_bytes(store: EngineConnection) -> None:
    texts = ["a", "B", "Z", "ä", "_", "10", "9", "a b", "ab"]
    for text in texts:
        store.execute("INSERT INTO field (path) VALUES (:path)", {"path": text})
    found = [row["path"] for row in store.execute("SELECT path FROM field ORDER BY path")]
    assert found == sorted(texts, key=str.encode)


def test_an_integer_beyond_64_bits_is_refused_before_the_store(store: EngineConnection) -> None:
    with pytest.raises(OverflowError):
        store.execute("INSERT INTO counter (name, value) VALUES ('a', :value)", {"value": 2**63})
    store.execute("INSERT INTO counter (name, value) VALUES ('a', :value)", {"value": -(2**63)})
    assert (store.execute("SELECT value FROM counter").one() or {})["value"] == -(2**63)


@each_row(
    ("sql", "expected"),
    [
        # Whole numbers are divided to whole ones, towards zero.
        ("7 / 2", 3),
        ("-7 / 2", -3),
        ("-7 % 2", -1),
        ("7 / 2.0", 3.5),
        ("7 / nullif(:zero, 0)", None),
        # Patterns, as the stores have them: with an escape, and folded where case does not count.
        ("CASE WHEN 'a%b' LIKE 'a!%b' ESCAPE '!' THEN 1 ELSE 0 END", 1),
        ("CASE WHEN 'axb' LIKE 'a!%b' ESCAPE '!' THEN 1 ELSE 0 END", 0),
        ("CASE WHEN 'axb' LIKE 'a_b' ESCAPE '!' THEN 1 ELSE 0 END", 1),
        ("CASE WHEN 'axb' LIKE 'a!_b' ESCAPE '!' THEN 1 ELSE 0 END", 0),
        ("CASE WHEN 'a\\b' LIKE 'a\\b' ESCAPE '!' THEN 1 ELSE 0 END", 1),
        ("CASE WHEN 'a\\b' LIKE 'a\\\\b' ESCAPE '!' THEN 1 ELSE 0 END", 0),
        ("CASE WHEN 'a\\%' LIKE 'a\\!%' ESCAPE '!' THEN 1 ELSE 0 END", 1),
        ("CASE WHEN lower('AÄ') LIKE lower('aÄ') ESCAPE '!' THEN 1 ELSE 0 END", 1),
        ("CASE WHEN lower('ä') LIKE lower('Ä') ESCAPE '!' THEN 1 ELSE 0 END", 0),
        # Sums of whole numbers stay whole, and large doubles keep every bit.
        ("(SELECT sum(n) FROM (SELECT CAST(:large AS BIGINT) AS n UNION ALL SELECT -1) AS given)", 2**63 - 2),
        ("CAST(:huge AS DOUBLE PRECISION)", 1.7976931348623157e308),
        ("CAST(:huge AS DOUBLE PRECISION) - CAST(:huge AS DOUBLE PRECISION)", 0.0),
    ],
)
def test_expressions_have_the_same_value(store: EngineConnection, sql: str, expected: float | None) -> None:
    given = {"zero": 0, "large": 2**63 - 1, "huge": 1.7976931348623157e308}
    used = {name: value for name, value in given.items() if f":{name}" in sql}
    (row,) = store.execute(f"SELECT {sql} AS value", used).tuples()
    assert (type(row[0]), row[0]) == (type(expected), expected)


def test_more_than_65535_values_go_into_one_statement(store: EngineConnection) -> None:
    """A statement of PostgreSQL takes no more parameters, and one of SQLite fewer."""
    many = range(66_000)
    pairs = [(str(key), key) for key in many[::2]]
    store.insert_many("counter", ("name", "value"), pairs)
    store.put_many("consumer", ("name", "position"), ("name",), pairs)
    assert len(RollupStore(store).add_fields([f"a.{key}" for key in many])) == len(many)
    found = store.execute(
        f"SELECT count(*) AS n FROM consumer WHERE position IN ({store.numbers_in('them')})",  # noqa: S608
        {"them": str(list(many))},
    ).one()
    assert dict(found or {}) == {"n": len(pairs)}


def test_an_empty_list_has_nothing_in_it(store: EngineConnection) -> None:
    store.execute("INSERT INTO field (key, path) VALUES (1, 'a')")
    for condition, given in (
        (f"key IN ({store.numbers_in('them')})", "[]"),
        (f"path IN ({store.texts_in('them')})", store.texts([])),
    ):
        for negated, number in (("", 0), ("NOT ", 1)):
            found = store.execute(f"SELECT count(*) AS n FROM field WHERE {negated}{condition}", {"them": given}).one()  # noqa: S608
            assert dict(found or {}) == {"n": number}
    for condition, number in (("key IN ()", 0), ("key NOT IN ()", 1), ("NOT path IN ()", 1), ("path = 'IN ()'", 0)):
        found = store.execute(f"SELECT count(*) AS n FROM field WHERE {condition}").one()  # noqa: S608 - rows above
        assert dict(found or {}) == {"n": number}
    assert TaskStore(store).entries_with(1, [], limit=9) == []


def test_a_number_beyond_64_bits_is_never_stored_as_another_whole_one(store: EngineConnection) -> None:
    """PostgreSQL refuses it, SQLite keeps the nearest double. All columns of whole numbers have 64 bits."""
    store.execute("INSERT INTO counter (name, value) VALUES ('a', :value)", {"value": 2**63 - 1})
    with suppress(StoreError):
        store.execute("UPDATE counter SET value = value + 1 WHERE name = 'a'")
    assert (store.execute("SELECT value FROM counter WHERE name = 'a'").one() or {})["value"] in {2**63 - 1, 2.0**63}


def test_every_pattern_of_the_stores_has_its_escape() -> None:
    """Without it, a backslash is one for PostgreSQL alone; and SQLite folds where PostgreSQL does not."""
    for file in Path(operating.__file__).parent.glob("*.py"):
        for line in file.read_text(encoding="utf-8").splitlines():
            for pattern in re.findall(r"\S+ LIKE [:'l]\S*(?: \|\| \S+)*(?: ESCAPE '!')?", line):
                assert pattern.endswith("ESCAPE '!'"), f"{file.name}: {line}"


def test_a_boolean_is_a_number(store: EngineConnection) -> None:
    store.execute("INSERT INTO counter (name, value) VALUES ('a', :value)", {"value": True})
    assert (store.execute("SELECT value FROM counter WHERE value = :one", {"one": True}).one() or {})["value"] == 1


@each_row(
    "number",
    [0, -1, 2**62, 2**63 - 1, 0.1, 5e-324, 1.7976931348623157e308, 4611686018427387904.0, math.inf, -math.inf],
)
def test_numbers_of_rollups_keep_their_form_and_every_bit(store: EngineConnection, number: float) -> None:
    rollups = RollupStore(store)
    of_zero = RollupRow(DeviceKey(1), 1, "minute", 0, 1, 1, number, number, number, float(number), 0.0, None)
    rollups.put_all([of_zero])
    key = (DeviceKey(1), 1, "minute", 0)
    assert repr(rollups.at([key, (DeviceKey(1), 2, "minute", 0)])) == repr({key: of_zero})


@each_row("number", [0.5, 1.7976931348623157e308, 5e-324, math.inf, -math.inf, math.nan, None])
def test_every_double_comes_back_and_not_a_number_is_null(store: EngineConnection, number: float | None) -> None:
    """Whichever way it goes in: alone, with others, and with a copy; and whichever way it comes back."""
    columns = ("device", "field", "level", "bucket", "count", "numbers", "m2")
    store.execute("DELETE FROM rollup")
    store.execute(
        "INSERT INTO rollup (device, field, level, bucket, count, numbers, m2) VALUES (1, 1, 'minute', 0, 1, 1, :m2)",
        {"m2": number},
    )
    rows = [(1, 2, "minute", 0, 1, 1, number), (1, 3, "minute", 0, 1, 1, 0.25)]
    store.put_many("rollup", columns, columns[:4], rows)
    store.begin(write=True)
    tables = store.tables()  # type: ignore[attr-defined] # of both engines
    tables.load(TableShape("rollup", columns, (), (), frozenset()), [(1, 4, "minute", 0, 1, 1, number)])
    wanted = None if number is None or math.isnan(number) else number
    expected = [wanted, wanted, 0.25, wanted]
    sql = "SELECT m2 FROM rollup ORDER BY field"
    assert repr([row[0] for row in store.execute(sql).tuples()]) == repr(expected)
    assert repr([row[0] for row in tables.rows(sql, {})]) == repr(expected)
    store.rollback()


def test_what_no_number_is_calculated_from_is_null(store: EngineConnection) -> None:
    found = store.execute(
        "SELECT sum(value) AS total, avg(value) AS mean FROM (SELECT CAST(:one AS DOUBLE PRECISION) AS value"
        " UNION ALL SELECT CAST(:other AS DOUBLE PRECISION)) AS given",
        {"one": math.inf, "other": -math.inf},
    ).one()
    assert dict(found or {}) == {"total": None, "mean": None}


@each_row(
    ("one", "other", "are_same"),
    [
        ("Ada@example.org", "aDA@Example.ORG", True),
        ("Ä@example.org", "ä@example.org", False),
        ("İ@example.org", "i@example.org", False),
        ("ı@example.org", "I@example.org", False),
        ("ß@example.org", "ss@example.org", False),
        ("\u212a@example.org", "k@example.org", False),  # Kelvin
        ("\uff41da@example.org", "ada@example.org", False),  # as wide as a Chinese character
        ("ada\ufe0f@example.org", "ada@example.org", False),  # a sign that is not seen
        ("e\u0301@example.org", "\u00e9@example.org", False),
    ],
)
def test_addresses_as_written_differ_by_more_than_the_case_of_ascii(
    store: EngineConnection, one: str, other: str, are_same: bool
) -> None:
    """Accounts of older stores have no key by which their addresses are compared."""

    def put(key: int, email: str) -> None:
        store.execute(
            "INSERT INTO user (key, id, email, name, full_name, account_type, created_on, modified_on)"
            " VALUES (:key, :id, :email, :id, '', 'PERSONAL', 1, 1)",
            {"key": key, "id": str(key), "email": email},
        )

    store.execute("DELETE FROM user")
    put(1, one)
    found = AccountStore(store).user_by_email(other)
    assert (found is not None) == are_same
    if are_same:
        with pytest.raises(StoreError):
            put(2, other)
    else:
        put(2, other)
        assert [AccountStore(store).user_by_email(email).key for email in (one, other)] == [1, 2]  # type: ignore[union-attr]
        by_bytes = sorted(
            (one, other), key=lambda email: "".join(c.lower() if c.isascii() else c for c in email).encode()
        )
        assert [user.email for user in AccountStore(store).users(limit=9)] == by_bytes


def test_a_later_row_of_a_batch_replaces_the_earlier_one_with_its_key(store: EngineConnection) -> None:
    store.put_many("consumer", ("name", "position"), ("name",), [("a", 1), ("b", 2), ("a", 3)])
    store.put_many("consumer", ("name", "position"), ("name",), [("b", 4)])
    store.put_many("consumer", ("name", "position"), ("name",), [])
    found = store.execute("SELECT name, position FROM consumer ORDER BY name").tuples()
    assert [tuple(row) for row in found] == [("a", 3), ("b", 4)]


def test_rows_of_the_log_come_back_in_one_piece(store: EngineConnection) -> None:
    rows = [
        MessageRow(Position(n), DeviceKey(n % 2), Milliseconds(5), Milliseconds(6), 1, f'{{"n":{n},"t":"\\u0000ü"}}')
        for n in range(1, 50)
    ]
    columns = MessageRow.__struct_fields__
    store.insert_many("message", columns, rows[:20])
    encoded = store.encoded(rows[20:])
    assert encoded is not None  # because the columns are known now
    store.insert_many("message", columns, encoded)
    store.insert_many("message", columns, [])
    found = store.execute(f"SELECT {', '.join(columns)} FROM message ORDER BY position").tuples()  # noqa: S608
    assert [MessageRow(*row) for row in found] == rows


@each_row(
    ("document", "path", "text", "number", "has", "matches"),
    [
        ('{"a":{"b":1.5}}', "a.b", "1.5", "1.50", True, True),
        ('{"a":{"b":1.5}}', "a", "1.5", "1.5", True, False),
        ('{"a":{"b":1.5}}', "a.c", "x", None, False, False),
        ('{"a":{"b":1.5}}', "", "x", None, False, False),
        ('{"":1}', "", "1", "1", True, True),
        ('{"a":[1,2]}', "a.0", "1", "1", False, False),
        ('{"a":[1,2]}', "a", "[1,2]", None, True, True),
        ('{"a":"inside"}', "a", "side", None, True, True),
        ('{"a":"inside"}', "a", "SIDE", None, True, False),
        ('{"a":"50%_"}', "a", "%_", None, True, True),
        ('{"a":true}', "a", "true", None, True, True),
        ('{"a":false}', "a", "true", None, True, False),
        ('{"a":null}', "a", "null", None, True, False),
        ('{"a":9007199254740993}', "a", "x", "9007199254740993", True, True),
        ('{"a":9007199254740993}', "a", "x", "9007199254740992", True, False),
        ('{"a":1}', "a", "x", "1e999", True, False),
        ('{"a":1e2}', "a", "x", "100", True, True),
        ('{"a":"x\\u0000y"}', "a", "x", None, True, True),
        ('{"a":"x\\\\u0000y"}', "a", "x\0y", None, True, False),
        ('{"a":"x","b\\u0000":1}', "a", "x", None, True, True),
        ('{"a\\"b":1}', 'a"b', "1", "1", False, False),
        ('{"a[0]":1}', "a[0]", "1", "1", True, True),
    ],
)
def test_conditions_on_json(
    store: EngineConnection, document: str, path: str, text: str, number: str | None, has: bool, matches: bool
) -> None:
    values = {"document": document, "path": path, "text": text, "number": number}
    given = "(SELECT CAST(:document AS TEXT) AS data) AS given"
    found = store.execute(
        f"SELECT ({store.json_has('data', 'path')}) AS has,"  # noqa: S608 - constants
        f" ({store.json_matches('data', 'path', 'text', 'number')}) AS matches FROM {given}",
        values,
    ).one()
    assert found is not None
    assert (bool(found["has"]), bool(found["matches"])) == (has, matches)


#: Ids as entries have them and as people ask for them: letters of ASCII are folded, and no others.
_IDS: Final = ("u1", "U1", "Äb", "äB", "ÄB", "İx", "ix", "ẞ", "ß", "\u212a", "k", "a%", "a_", "a!", "b c", "c", "a\0b")


def _ascii_folded(text: str) -> str:
    return "".join(letter.lower() if letter.isascii() else letter for letter in text)


def test_actors_and_objects_of_the_audit_log_are_found_alike(store: EngineConnection) -> None:
    audit = AuditStore(store)
    for number, id_ in enumerate(_IDS):
        audit.add(AuditRecord(number, "event", f"user {id_}", "", f"device {id_}", "done"))
    for wanted in _IDS:
        if "\0" in wanted:
            continue  # no text has it: see the test of searches
        folded = f" {_ascii_folded(wanted)}"
        expected = [one for one in _IDS if _ascii_folded(f" {one}").endswith(folded)]
        for asked in ({"actor": wanted}, {"object": wanted}):
            found = audit.find(AuditFilter(0, 100, 100, **asked))
            assert [one.actor.partition(" ")[2] for one in found] == expected, wanted
        for asked in ({"actor": f"user {wanted}"}, {"object": f"device {wanted}"}):
            exact = audit.find(AuditFilter(0, 100, 100, **asked))
            assert [one.actor for one in exact] == [f"user {wanted}"], wanted


@pytest.mark.parametrize("name", ["Ärger", "İstanbul", "Straße", "ПРИВЕТ"])
def test_a_search_of_an_operator_finds_a_name_as_it_is_written(store: EngineConnection, name: str) -> None:
    store.execute(
        "INSERT INTO organization (id, name, monthly_messages) VALUES (:id, :name, -1)", {"id": "0" * 32, "name": name}
    )
    which = f" FROM organization WHERE {operating._like(('name',))}"
    for search in (name, name[:3], "x"):
        rows, total = operating.OperatingStore(store)._page("SELECT name", which, "name", search, 0, 10)
        assert (len(rows), total) == ((0, 0) if search == "x" else (1, 1))


def test_a_name_in_an_array_of_objects(store: EngineConnection) -> None:
    for document, wanted in (
        ('{"fields":[{"name":"a"},{"name":"b"}]}', True),
        ('{"fields":[{"name":"a"},1,null]}', False),
        ('{"fields":[]}', False),
        ("{}", False),
    ):
        condition = store.json_any_named("data", "fields", "name")
        found = store.execute(
            f"SELECT ({condition}) AS it FROM (SELECT CAST(:document AS TEXT) AS data) AS given",  # noqa: S608
            {"document": document, "name": "b"},
        ).one()
        assert found is not None
        assert bool(found["it"]) is wanted, document


def test_a_work_that_fails_is_undone_alone(store: EngineConnection) -> None:
    store.begin(write=True)
    store.savepoint("SAVEPOINT work")
    store.execute("INSERT INTO counter (name, value) VALUES ('a', 1)")
    store.savepoint("RELEASE work")
    store.savepoint("SAVEPOINT work")
    with pytest.raises(StoreError):
        store.execute("INSERT INTO counter (name, value) VALUES ('a', 2)")
    store.savepoint("ROLLBACK TO work")
    store.savepoint("RELEASE work")
    store.commit()
    assert (store.execute("SELECT value FROM counter WHERE name = 'a'").one() or {})["value"] == 1


def test_a_reader_cannot_write(store: EngineConnection) -> None:
    store.begin(write=False)
    try:
        if not isinstance(getattr(store, "driver", None), sqlite3.Connection):
            with pytest.raises(StoreError, match="read-only"):
                store.execute("INSERT INTO counter (name, value) VALUES ('a', 1)")
    finally:
        store.rollback()


_COLUMNS_OF_SQLITE: Final = (
    'SELECT t.name, c.name, c.type, c."notnull" OR c.pk > 0, c.pk FROM sqlite_schema AS t'
    " JOIN pragma_table_info(t.name) AS c"
    " WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite%' AND t.name NOT LIKE '_sqlite%'"
)
_COLUMNS_OF_POSTGRESQL: Final = """
SELECT c.relname, a.attname, format_type(a.atttypid, NULL), a.attnotnull,
  coalesce(array_position(i.indkey::int2[], a.attnum) + 1, 0)
FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_index AS i ON i.indrelid = c.oid AND i.indisprimary
WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
"""
_INDEXES_OF_SQLITE: Final = (
    "SELECT name, tbl_name FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL AND tbl_name NOT LIKE '_sqlite%'"
)
_INDEXES_OF_POSTGRESQL: Final = (
    "SELECT indexname, tablename FROM pg_indexes WHERE schemaname = 'public'"
    " AND indexname NOT IN (SELECT conname FROM pg_constraint)"
)
_TYPES: Final = {"INTEGER": "bigint", "BIGINT": "bigint", "TEXT": "text", "BLOB": "bytea", "REAL": "double precision"}
#: Tables of the engine itself; `begin_test_anew` is a function.
_OWN: Final = {"schema_step", "batch"}


def test_a_baseline_and_all_steps_of_sqlite_give_the_same_tables(tmp_path: Path) -> None:
    SqliteEngine(tmp_path / "all", synchronous="off").migrate()
    with closing(sqlite3.connect(tmp_path / "all")) as db:
        of_sqlite = {
            # A column without a type takes any number: JSON on PostgreSQL.
            (table, column, _TYPES.get(kind, "json"), bool(is_set), key)
            for table, column, kind, is_set, key in db.execute(_COLUMNS_OF_SQLITE)
        }
        indexes = set(db.execute(_INDEXES_OF_SQLITE))
    name = server().new_database(template="template0")
    engine = PostgresqlEngine(server().target(name))
    engine.migrate()
    with server().target(name).connect() as connection:
        of_postgresql: set[tuple[Any, ...]] = {
            row for row in connection.execute(_COLUMNS_OF_POSTGRESQL) if row[0] not in _OWN
        }
        found = {row for row in connection.execute(_INDEXES_OF_POSTGRESQL) if row[1] not in _OWN}
    server().drop(name)
    assert of_postgresql ^ of_sqlite == set()
    assert found ^ indexes == set()


def test_many_rows_take_one_statement(store: EngineConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over PostgreSQL each statement is a trip to the server."""
    executed, run, many = list[str](), type(store)._run, range(1, 101)  # type: ignore[attr-defined]

    def noting(self: Any, sql: str, *arguments: Any, **more: Any) -> Any:
        executed.append(sql)
        return run(self, sql, *arguments, **more)

    is_there = isinstance(store, PostgresqlConnection)
    store.execute("SET session_replication_role = replica" if is_there else "PRAGMA foreign_keys = OFF")
    states = [RuleState(RuleKey(key), 1, key, None, failing=False, memory='{"a":"\\u0000ü"}') for key in many]
    rules = RuleStore(store)
    for state in states[:50]:
        rules.begin_state(state)
    rules.begin_state(replace(states[60], revision=2))
    entries = [AuditRecord(key, "event", f"actor {key}\0", "", "object", "done") for key in many]
    rows = [MessageRow(Position(n), DeviceKey(1), Milliseconds(5), Milliseconds(6), 1, "{}") for n in many]
    store.insert_many("message", MessageRow.__struct_fields__, rows)
    of_rollup = [RollupRow(DeviceKey(1), key, "minute", 0, 1, 0, None, None, None, None, None, None) for key in many]
    rollups = RollupStore(store)
    rollups.put_all(of_rollup)
    index = LogIndex(store, "message")
    index.add([Entry(DeviceKey(1), key, key, True, 1, str(key)) for key in many], Position(100))
    keys = [row["key"] for row in store.execute("SELECT key FROM message_entry ORDER BY key")]
    merged = [Merged(last, [other], 1, 2, 1, 2, "[1,2]") for other, last in zip(keys[::2], keys[1::2], strict=True)]
    tasks, accounts, authorizations = TaskStore(store), AccountStore(store), AuthorizationStore(store)
    problems = [RuleProblem(RuleKey(1), "field", f"text {n}\0", Milliseconds(n), Milliseconds(n), n) for n in many]
    problems += [replace(one, rule=RuleKey(2)) for one in problems[:5]]
    grants = [GrantRecord(UserKey(n), ApplicationKey(1), [None, DeviceTypeKey(n)][n % 2], n > 9, False) for n in many]
    users = [UserKey(key) for key in many]
    monkeypatch.setattr(type(store), "_run", noting)
    rules.put_states([replace(state, triggered=7, last_on=Milliseconds(8)) for state in states])
    found = [
        rules.rules_with([RuleKey(key) for key in many]),
        MessageStore(store).messages_at([Position(key) for key in many]),
        MessageStore(store).actions_at([Position(key) for key in many]),
        rollups.at([(DeviceKey(1), key, "minute", 0) for key in many]),
        rollups.with_any([DeviceKey(key) for key in many]),
        list(rollups.add_fields([f"a.{key}\0" for key in many])),
        SnapshotStore(store).of_all([DeviceKey(key) for key in many]),
        ConnectorStore(store).sub_devices(UserKey(1), DeviceTypeKey(1), [f"eid {key}" for key in many]),
        DeviceManagementStore(store).registered_on([DeviceKey(key) for key in many]),
        RetentionStore(store).delete_rollups(DeviceKey(1), many, "minute", 1),
        index.merge(merged),
        tasks.tasks(many),
        DeviceStore(store).by_ids([f"did {key}" for key in many]),
        index.devices(DeviceKey(0), step=Position(0), limit=100),
        accounts.users_with(users),
        DeviceTypeStore(store).with_keys([DeviceTypeKey(key) for key in many]),
        authorizations.holders_of(many),
        authorizations.families_for(ApplicationKey(1), users),
        accounts.remove_tokens_of(ApplicationKey(1), users),
        TrialStore(store).remove_tokens_of_devices(users, ApplicationKey(1)),
    ]
    rules.set_failing([RuleKey(key) for key in many[:50]])
    rules.note_problems(problems)  # two statements
    accounts.add_grants(grants)
    accounts.remove_grants_of(users[90:], ApplicationKey(1))
    authorizations.end_families(many)  # two statements
    tasks.set_fetched(dict.fromkeys(many, 1))
    tasks.set_fetched_from(dict.fromkeys(many, "a"))
    AuditStore(store).add_all(entries[:50])
    # With a look at the types of the columns of seven tables, and the deletion of entries that were merged.
    assert len(executed) <= len(found) + 4 + 7 + 7 + 1, executed
    monkeypatch.undo()
    assert [len(one) if isinstance(one, list | dict) else one for one in found] == [
        0,
        100,
        0,
        100,
        1,
        100,
        0,
        0,
        0,
        100,
        50,
        0,
        0,
        1,
        0,
        0,
        0,
        0,
        0,
        0,
    ]
    granted = accounts.grants_of_users(ApplicationKey(1), users)
    assert [len(granted[user]) for user in users] == [1] * 90 + [0] * 10
    assert granted[UserKey(20)] == (grants[19],)
    accounts.add_grant(replace(grants[19], read=False, write=True))
    assert accounts.grants(ApplicationKey(1), UserKey(20)) == [replace(grants[19], write=True)]
    rules.note_problems([replace(problems[99], last_on=Milliseconds(200), times=3)])
    noted = rules.problems(RuleKey(1))
    assert [one.text for one in noted] == [one.text for one in problems[99:79:-1]]
    assert (noted[0].first_on, noted[0].last_on, noted[0].times) == (100, 200, 103)
    assert len(rules.problems(RuleKey(2))) == 5
    assert rules.state(RuleKey(50)) == replace(states[49], triggered=7, last_on=Milliseconds(8), failing=True)
    assert rules.state(RuleKey(51)) is None
    assert rules.state(RuleKey(61)) == replace(states[60], revision=2)
    audit, wanted = AuditStore(store), AuditFilter(since_ms=0, until_ms=1_000, limit=200)
    for entry in entries[50:]:
        audit.add(entry)
    assert audit.find(wanted) == entries
    audit.remove([row["key"] for row in store.execute("SELECT key FROM audit_entry WHERE at_ms <= 99")])
    assert audit.find(wanted) == entries[99:]
