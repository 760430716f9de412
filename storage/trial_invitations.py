"""Invitations to trials. The caller holds the transaction."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from config.mail import folded_address
from storage.keys import Milliseconds
from storage.sql import Store, record_values, replacing


class TrialInvitationRecord(msgspec.Struct, frozen=True):
    """`status` is sent, accepted or revoked. `code_hash` is the SHA-256 of the code in the mail while it is open."""

    key: int
    id: str
    trial: int
    email: str
    role: str
    status: str
    sent_on: Milliseconds
    expires_on: Milliseconds
    accepted_on: Milliseconds | None = None
    revoked_on: Milliseconds | None = None
    code_hash: bytes | None = None


_INVITATION: Final = TrialInvitationRecord.__struct_fields__
#: An invitation has one of these states; `:now` decides about one that is sent.
_STATE: Final = {
    "sent": " AND status = 'sent' AND expires_on > :now",
    "expired": " AND status = 'sent' AND expires_on <= :now",
    "accepted": " AND status = 'accepted'",
    "revoked": " AND status = 'revoked'",
}


class TrialInvitationStore(Store):
    def put(self, invitation: TrialInvitationRecord) -> None:
        """Add an invitation, or change the state and the code of the one with its id."""
        values = record_values(invitation, _INVITATION[1:]) | {"email_key": folded_address(invitation.email)}
        changed = replacing(("status", "accepted_on", "revoked_on", "code_hash"))
        self._insert("trial_invitation", values, f"ON CONFLICT (id) DO UPDATE SET {changed}")

    def by_id(self, id_: str) -> TrialInvitationRecord | None:
        return self._one("id = :value", {"value": id_})

    def by_code(self, code_hash: bytes) -> TrialInvitationRecord | None:
        return self._one("code_hash = :value", {"value": code_hash})

    def open(self, trial: int, email: str, role: str, *, now_ms: int) -> TrialInvitationRecord | None:
        return self._one(
            f"trial = :trial AND email_key = :email AND role = :role{_STATE['sent']}",
            {"trial": trial, "email": folded_address(email), "role": role, "now": now_ms},
        )

    def count_open(self, trial: int, *, now_ms: int) -> int:
        return self._number_of(
            f" FROM trial_invitation WHERE trial = :trial{_STATE['sent']}", {"trial": trial, "now": now_ms}
        )

    def forget_old(self, trial: int, *, but: int, now_ms: int) -> None:
        """Remove the oldest invitations that are not open any more, as far as the trial has more than `but`."""
        self._db.execute(
            "DELETE FROM trial_invitation WHERE trial = :trial AND (status <> 'sent' OR expires_on <= :now)"
            " AND key <= coalesce((SELECT key FROM trial_invitation WHERE trial = :trial ORDER BY key DESC LIMIT 1"
            " OFFSET :but), 0)",
            {"trial": trial, "but": but, "now": now_ms},
        )

    def remove(self, id_: str) -> None:
        self._db.execute("DELETE FROM trial_invitation WHERE id = :id", {"id": id_})

    def remove_open(self, trial: int, *, now_ms: int) -> None:
        self._db.execute(
            f"DELETE FROM trial_invitation WHERE trial = :trial{_STATE['sent']}",  # noqa: S608 - constants
            {"trial": trial, "now": now_ms},
        )

    def page(
        self, trial: int, status: str | None, *, now_ms: int, offset: int, limit: int
    ) -> tuple[list[TrialInvitationRecord], int]:
        """A page of the trial's invitations, oldest first, and the number of all."""
        where = " FROM trial_invitation WHERE trial = :trial" + ("" if status is None else _STATE[status])
        given = {"trial": trial, "now": now_ms, "offset": offset, "limit": limit}
        rows = self._db.execute(f"SELECT *{where} ORDER BY key LIMIT :limit OFFSET :offset", given)
        return [_invitation(row) for row in rows], self._number_of(where, given)

    def _one(self, condition: str, parameters: Mapping[str, object]) -> TrialInvitationRecord | None:
        row = self._db.execute(f"SELECT * FROM trial_invitation WHERE {condition}", parameters).one()  # noqa: S608 - constants
        return _invitation(row) if row else None


def _invitation(row: Mapping[str, Any]) -> TrialInvitationRecord:
    return TrialInvitationRecord(**{name: row[name] for name in _INVITATION})
