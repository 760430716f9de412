"""The rows of an application that is deleted. The caller holds the transaction."""

from collections.abc import Mapping
from typing import Final

from storage.keys import ApplicationKey, UserKey
from storage.records import ApplicationRecord
from storage.sql import Store, sure

#: Tables with rows of an application, in an order in which they can be removed.
OWN_ROWS: Final = (
    "access_grant",
    "authorization_code",
    "device_code",
    "token",
    "token_family",
    "application_properties",
    "ended_consent",
    "upgrade_token",
    "alarm",
    "data_reader",
)
#: Objects that capabilities remove, because they hold them in memory or in files, and which rows count: a model of a
#: rule is part of the rule, and a subscription that ended has a log.
OBJECTS: Final[Mapping[str, str]] = {
    "rule": "",
    "scene": "",
    "model": " AND rule IS NULL",
    "subscription": " AND removed_on IS NULL",
    "export": "",
}
#: Rows that stay: they belong to devices, trials and users, and only say which application it was. An import that goes
#: on ends with its next step (broker/my_data/imports.py).
KEPT: Final = ("device_token", "registration", "table_import", "trial", "trial_member")
#: Rows that have the application's id instead of its key.
BY_ID: Final = ("connector_state",)


class ApplicationEndStore(Store):
    def users(self, application: ApplicationKey) -> list[UserKey]:
        """The users who granted it something."""
        rows = self._db.execute(
            "SELECT DISTINCT user FROM access_grant WHERE application = :application ORDER BY user",
            {"application": application},
        )
        return [UserKey(row["user"]) for row in rows]

    def count(self, table: str, application: ApplicationKey) -> int:
        """The rows of a table of `OWN_ROWS` or `OBJECTS`."""
        row = self._db.execute(
            f"SELECT count(*) AS n FROM {table} WHERE application = :application{OBJECTS.get(table, '')}",  # noqa: S608
            {"application": application},
        ).one()
        return int(sure(row)["n"])

    def token_hashes(self, application: ApplicationKey) -> list[bytes]:
        rows = self._db.execute("SELECT hash FROM token WHERE application = :application", {"application": application})
        return [row["hash"] for row in rows]

    def end(self, application: ApplicationRecord, *, secret: bytes, now_ms: int) -> None:
        """Hide the application from all queries and delete its `OWN_ROWS`. `secret` replaces its own."""
        given = {"application": application.key, "id": application.id}
        for table in OWN_ROWS:
            self._db.execute(f"DELETE FROM {table} WHERE application = :application", given)  # noqa: S608 - constants
        for table in BY_ID:
            self._db.execute(f"DELETE FROM {table} WHERE application = :id", given)  # noqa: S608 - constants
        self._db.execute(
            "UPDATE application SET deleted_on = :now, secret = :secret, methods = '[]', redirect_uris = '[]',"
            " permissions = '[]', any_loopback_port = 0, manages_organization = 0 WHERE key = :application",
            {"application": application.key, "secret": secret, "now": now_ms},
        )
