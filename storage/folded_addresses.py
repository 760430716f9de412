"""Writes the form in which addresses are compared into the rows of an older store (schema step 0043)."""

from typing import Final, Protocol

from config.mail import folded_address

_OF_INVITATIONS: Final = ("invitation", "device_share", "trial_invitation")


class _Rows(Protocol):
    def fetchall(self) -> list[tuple[object, ...]]: ...


class _Connection(Protocol):
    def execute(self, statement: str, parameters: tuple[object, ...] = ..., /) -> _Rows: ...


def fold_addresses(db: _Connection) -> None:
    """Once, in the transaction of the step. Accounts whose address has the form of another's get none."""
    taken = set()
    # The first of those that are the same: who proved the address first, else who came first.
    order = "email_verified_on IS NULL, email_verified_on, created_on, key"
    for key, email in db.execute(f"SELECT key, email FROM user ORDER BY {order}").fetchall():  # noqa: S608 - constants
        folded = folded_address(str(email))
        if folded not in taken:
            taken.add(folded)
            db.execute("UPDATE user SET email_key = ? WHERE key = ?", (folded, key))
    for table in _OF_INVITATIONS:
        for (email,) in db.execute(f"SELECT DISTINCT email FROM {table}").fetchall():  # noqa: S608 - constants
            folded = folded_address(str(email))
            db.execute(f"UPDATE {table} SET email_key = ? WHERE email = ?", (folded, email))  # noqa: S608 - constants
