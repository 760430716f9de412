"""The database in PostgreSQL that holds the store: how to reach it, and what operators are told when they cannot."""

import os
import pwd
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import psycopg
from psycopg import conninfo

from storage.engines.postgresql_names import resolved
from storage.engines.postgresql_refusals import refusal_codes
from storage.sql import StoreAwayError, StoreBusyError, StoreError, StoreUnreachableError

Connection = psycopg.Connection[tuple[Any, ...]]

CONNECT_SECONDS: Final = 5.0
#: A server that is gone is noticed in seconds, also when nothing is sent to it. The address may say otherwise.
_DEFAULTS: Final = {
    "keepalives_idle": "2",
    "keepalives_interval": "1",
    "keepalives_count": "3",
    "tcp_user_timeout": "5000",
}
#: Answers to a connection that is refused, and what to do. A server of another language is shown as it is.
_HELP: Final = (
    (re.compile(r"password authentication failed|no password supplied"), "is the password right?"),
    (re.compile(r"database .* does not exist"), "make it: {create}"),
    (
        re.compile(r"role .* does not exist"),
        "make the role, and a database of its own: createuser --pwprompt {user}, then {create}",
    ),
    (re.compile(r"no pg_hba\.conf entry|authentication failed"), "the server's pg_hba.conf does not let it in"),
    (re.compile(r"too many clients|remaining connection slots"), "raise max_connections of the server"),
    (re.compile(r"too many connections for role"), "raise its limit: ALTER ROLE {user} CONNECTION LIMIT -1"),
    (
        re.compile(r"too many connections for database"),
        "raise its limit: ALTER DATABASE {database} CONNECTION LIMIT -1",
    ),
    (re.compile(r"permission denied for database"), "GRANT CONNECT ON DATABASE {database} TO {user}"),
    (re.compile(r"is not permitted to log in"), "ALTER ROLE {user} LOGIN"),
    (
        re.compile(r"is not currently accepting connections"),
        "ALTER DATABASE {database} ALLOW_CONNECTIONS true",
    ),
    (re.compile(r"invalid response|expected authentication request"), "something else than PostgreSQL has this port"),
    (re.compile(r"failed to resolve|could not translate"), "is the name of the server right?"),
    (re.compile(r"session is read-only|hot standby mode"), "the server is the copy of another one: promote it"),
    (re.compile(r"Connection refused|No such file|timeout|unreachable"), "is the server running?"),
)
#: Settings of a session, whatever the role, the database or the server say: each changes what statements mean, how
#: long they may take, or what they answer. Its names are found in `public`, and before that among the server's own.
_SESSION: Final = {
    "quote_all_identifiers": "off",
    "search_path": "public, pg_temp",
    "default_transaction_isolation": "'read committed'",
    "default_transaction_deferrable": "off",
    "statement_timeout": "0",
    "idle_session_timeout": "0",
    "row_security": "off",  # an error instead of rows that are not seen
    "standard_conforming_strings": "on",
    "transform_null_equals": "off",
    "array_nulls": "on",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "datestyle": "iso, mdy",
    "intervalstyle": "postgres",
    "timezone": "'UTC'",
    "client_min_messages": "warning",
}
_FIRST_WITH_TRANSACTION_TIMEOUT: Final = 170_000
_LOCKED: Final = "another session holds a lock that this one waits for (pg_locks)"
#: Codes of a server that stops, starts, has become the copy of another one, or cuts a session off.
LOST: Final = ("08", "57P", "25006", "25P03")
#: Two spaces are behind the server's word for how bad an error is, in every language, and in no text of the library.
_SAID_BY_SERVER: Final = re.compile(r": \S+:  ")
#: Codes of a server that starts or stops, or has no room for one more connection.
_REFUSED_LATER: Final = ("57P", "53")
#: Answers of a pooler, which has one code for all and speaks English, or of a server, that take connections later.
_LATER: Final = re.compile(
    r"system is (starting up|shutting down|in recovery mode)|not (yet )?accepting connections|too many (clients|connec)"
    r"|connection slots|terminating connection|server_login_retry|cannot connect to server|connect failed"
)
#: Texts of the library when somebody has to correct something.
_NEVER: Final = re.compile(
    r"no password supplied|certificate|key file|not support SSL|SSL error: (?!unexpected eof)|invalid response"
    r"|expected authentication request|authentication method"
)


#: Codes whose details name processes, states of the server and objects of the schema, and no values of rows: lack of
#: room, locks, objects that others depend on, a server that takes connections later.
_DETAILED: Final = ("53", "40P01", "55", "2BP01", "57P03")
#: Errors about a value, whose message quotes it. Each language has its own marks.
_OF_VALUE: Final = "22"
_QUOTED: Final = re.compile(r"""["'»«„“”‘’‚‹›「].*["'»«„“”‘’‚‹›」]""", re.DOTALL)


def server_message(error: psycopg.Error) -> str:
    """The text of an error without values of rows, in one line, with the server's code."""
    if not (code := error.sqlstate) or not (text := error.diag.message_primary):
        return " ".join(str(error).split())
    if code.startswith(_OF_VALUE):
        text = _QUOTED.sub('"…"', text)
    detail = error.diag.message_detail if code.startswith(_DETAILED) else None
    return f"{' '.join(' '.join(filter(None, (text, detail and f'({detail})'))).split())} (SQLSTATE {code})"


def session_text(process: object, role: object, name: object) -> str:
    """A session of the server, as operators find it in pg_stat_activity."""
    return f"process {process} of role {role}{f' ({name})' if name else ''}"


def is_away(error: psycopg.Error) -> bool:
    """Whether the server may work later, without anybody's correction. The library has no code for a connection that
    could not be made, or broke: it has the text only."""
    if error.sqlstate:
        return error.sqlstate.startswith(LOST)
    if not isinstance(error, psycopg.OperationalError) and type(error) is not psycopg.DatabaseError:
        return False
    lines = str(error).splitlines()
    return not any(_NEVER.search(line) or (_SAID_BY_SERVER.search(line) and not _LATER.search(line)) for line in lines)


class Target(msgspec.Struct, frozen=True):
    """`url` as libpq takes it (PostgreSQL manual, 34.1.1.2). The password is in it, in `password_file`, or where libpq
    looks for one (PGPASSFILE, ~/.pgpass). `synchronous`: whether a commit waits for the disk."""

    url: str
    password_file: Path | None = None
    synchronous: bool = True

    def connect(
        self,
        *,
        read_only: bool = False,
        name: str = "trunkline",
        seconds: float = CONNECT_SECONDS,
        lock_seconds: float = CONNECT_SECONDS,
    ) -> Connection:
        """A connection in autocommit mode, with settings of its own. It acts as the role that signs in.

        Args:
            read_only: whether it refuses to write.
            name: as the server shows it.
            seconds: how long each server of the address has to take the connection, unless the address says it, and
                then to answer. The library takes no less than two. The look-up of their names has as long.
            lock_seconds: how long a statement waits for a lock.

        Raises:
            StoreAwayError: the server does not answer.
            StoreUnreachableError: it refuses the connection; the text says what to do.
            StoreError: the address or the password's file cannot be used.
        """
        info = self._conninfo(name, seconds)
        try:
            connection = psycopg.connect(info, autocommit=True)
        except psycopg.OperationalError as error:
            if not is_away(error) and _is_later(info):
                raise StoreAwayError(self._explained(error)) from error
            raise self._unreachable(error) from error
        except psycopg.Error as error:
            raise StoreError(f"{self}: {self.without_secret(server_message(error))}") from error
        try:
            # Not as options of the connection, which poolers refuse.
            with self.answered_within(seconds, connection):
                connection.execute(self._settings(connection, read_only, lock_seconds).encode())
        except psycopg.Error as error:
            connection.close()
            raise self._unreachable(error) from error
        except StoreAwayError:
            connection.close()
            raise
        return connection

    def _settings(self, connection: Connection, read_only: bool, lock_seconds: float) -> str:
        settings = {
            **_SESSION,
            "synchronous_commit": "on" if self.synchronous else "off",
            "default_transaction_read_only": "on" if read_only else "off",
            "idle_in_transaction_session_timeout": "0" if read_only else "10000",
            "lock_timeout": str(round(lock_seconds * 1000)),
        }
        if connection.info.server_version >= _FIRST_WITH_TRANSACTION_TIMEOUT:
            settings["transaction_timeout"] = "0"
        return (
            "SET ROLE NONE; "
            + "".join(f"SET {name} = {value}; " for name, value in settings.items())
            + "SELECT set_config('lc_messages', 'C', FALSE) WHERE has_parameter_privilege('lc_messages', 'SET')"
        )

    @contextmanager
    def answered_within(self, seconds: float, connection: Connection) -> Iterator[None]:
        """Break the connection when the block takes longer: the library waits for an answer for ever.

        Raises StoreAwayError: it has taken longer.
        """
        has_ended = threading.Event()
        with self.other_socket(connection) as copy:

            def end() -> None:
                has_ended.set()
                with suppress(OSError):
                    copy.shutdown(socket.SHUT_RDWR)

            timer = threading.Timer(seconds, end)
            timer.daemon = True
            timer.start()
            try:
                yield
            except psycopg.Error as error:
                if has_ended.is_set():
                    raise StoreAwayError(f"{self}: the server has taken a connection, and does not answer") from error
                raise
            finally:
                timer.cancel()
                timer.join()

    def other_socket(self, connection: Connection) -> socket.socket:
        """The socket of a connection under another number: the library closes its own one, whose number another
        connection may get. Raises StoreAwayError: there is no free descriptor."""
        try:
            return socket.socket(fileno=os.dup(connection.fileno()))
        except OSError as error:
            raise StoreAwayError(f"{self}: {error.strerror or error}") from error

    def _unreachable(self, error: psycopg.Error) -> StoreUnreachableError:
        return (StoreAwayError if is_away(error) else StoreUnreachableError)(self._explained(error))

    def _conninfo(self, name: str, seconds: float) -> str:
        given = self._parsed()
        if self.password_file is not None:
            try:
                given["password"] = self.password_file.read_text(encoding="utf-8").rstrip("\r\n")
            except (OSError, UnicodeDecodeError) as error:
                raise StoreError(f"storage.password_file: {self.password_file}: cannot be read") from error
        hosts = str(given.get("host") or os.environ.get("PGHOST") or "")
        try:
            given = resolved(given, hosts, seconds)
        except OSError as error:
            raise StoreAwayError(self._with_help(str(error))) from error
        own = {**_DEFAULTS, "connect_timeout": str(max(int(seconds), 2))}
        # Sessions are known by their names: a commit in doubt is looked for when its former session has ended.
        return conninfo.make_conninfo(**{**own, **given, "client_encoding": "UTF8", "application_name": name})

    def _parsed(self) -> dict[str, Any]:
        try:
            return conninfo.conninfo_to_dict(self.url)
        except psycopg.Error as error:  # its text quotes parts of the address
            raise StoreError(
                "storage.url: PostgreSQL's library cannot read this address: a password with @, :, / or % is better in"
                " storage.password_file (or write %40, %3A, %2F, %25), and every option must be one of libpq"
            ) from error

    def _explained(self, error: psycopg.Error) -> str:
        return self._with_help(self.without_secret(server_message(error)))

    def _with_help(self, text: str) -> str:
        help_ = next((found for pattern, found in _HELP if pattern.search(text)), "")
        user, database = self.names()
        help_ = help_.format(create=self.how_to_create(), user=user, database=database)
        return f"{self}: {text}{f' ({help_})' if help_ else ''}"

    def names(self) -> tuple[str, str]:
        """Of the role and the database, as libpq finds them, for commands that somebody is to give."""
        given = self._parsed()
        user = str(given.get("user") or os.environ.get("PGUSER") or _user_of_system())
        return user, str(given.get("dbname") or os.environ.get("PGDATABASE") or user)

    def how_to_create(self, name: str = "") -> str:
        """The command for the database of the address, or for one of another name."""
        user, database = self.names()
        database = name or database
        return f"createdb --template template0 --encoding UTF8 --locale C --owner {user} {database}"

    def without_secret(self, text: str) -> str:
        """The text without the passwords of the address, however they are written there."""
        given = self._parsed()
        for secret in filter(None, (given.get("password"), given.get("sslpassword"))):
            text = re.sub("".join(map(_spellings, secret)), "…", text)
        return text

    def __str__(self) -> str:
        """The address as operators see it: without the password."""
        given = self._parsed()
        user = f"{given['user']}@" if given.get("user") else ""
        hosts = str(given.get("host") or os.environ.get("PGHOST") or "").split(",")
        ports = str(given.get("port") or "").split(",")
        ports += [ports[-1]] * (len(hosts) - len(ports))
        where = ",".join(f"{host}:{port}" if port else host for host, port in zip(hosts, ports, strict=False))
        return f"postgresql://{user}{where}/{given.get('dbname') or ''}"


def _is_later(info: str) -> bool:
    """Whether a server refuses everybody now, whatever its language is."""
    return any(code.startswith(_REFUSED_LATER) for code in refusal_codes(conninfo.conninfo_to_dict(info)))


def _user_of_system() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return "trunkline"


def _spellings(character: str) -> str:
    """A pattern for a character in an address: as it is, or as the hexadecimal digits of its bytes."""
    return f"(?:{re.escape(character)}|(?i:{''.join(f'%{byte:02x}' for byte in character.encode())}))"


@contextmanager
def explained(target: Target) -> Iterator[None]:
    """Errors of statements as StoreError that names the database; StoreAwayError when the connection has ended.

    The library's error is not their cause: it has the server's details, and so values of rows, and causes are logged.
    """
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as error:
        raise StoreError(
            f"{target}: the role lacks rights ({target.without_secret(server_message(error))}): let it own the"
            " database, and all that is in the schema public"
        ) from None
    except psycopg.errors.LockNotAvailable:
        raise StoreBusyError(f"{target}: {_LOCKED}") from None
    except psycopg.Error as error:
        kind = StoreAwayError if is_away(error) else StoreError
        raise kind(f"{target}: {target.without_secret(server_message(error))}") from None
