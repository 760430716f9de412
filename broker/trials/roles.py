"""The words of trials, and the checks that every change of a trial begins and ends with."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from broker.conditional import tag_of
from broker.errors import Conflict, NotFound, TryLater
from broker.trace.audit import AuditEvent, note
from storage.transaction import Transaction
from storage.trial_invitations import TrialInvitationRecord
from storage.trials import TrialRecord

STOPPED: Final = "Trial is stopped"
LAST_ADMINISTRATOR: Final = "The last administrator cannot be removed"
ALREADY_INVITED: Final = "An invitation of this kind to this address is open already"


class TrialRole(StrEnum):
    """The role of a user in a trial, and the type of an invitation."""

    ADMINISTRATOR = "administrator"
    PARTICIPANT = "participant"


class InvitationStatus(StrEnum):
    SENT = "sent"
    ACCEPTED = "accepted"
    REVOKED = "revoked"
    EXPIRED = "expired"

    @classmethod
    def of(cls, invitation: TrialInvitationRecord, now_ms: int) -> "InvitationStatus":
        if invitation.status == cls.SENT and invitation.expires_on <= now_ms:
            return cls.EXPIRED
        return cls(invitation.status)


@dataclass(eq=False)
class TooManyTrials(TryLater):
    """The user created as many trials as a day allows."""

    template = "Too many trials today. Try again in {retry_seconds} seconds"


def present(tx: Transaction, trial: TrialRecord) -> TrialRecord:
    """The trial as it is now. Raises NotFound: another call has deleted it."""
    current = tx.trials.trial(trial.key)
    if current is None or current.id != trial.id:  # the store may use the key of a deleted trial again
        raise NotFound
    return current


def going(tx: Transaction, trial: TrialRecord) -> TrialRecord:
    """The trial as it is now. Raises NotFound: another call has deleted it; Conflict: it is stopped."""
    current = present(tx, trial)
    if current.ended_on is not None:
        raise Conflict(STOPPED)
    return current


def trial_tag(trial: TrialRecord) -> str:
    """The tag of the changeable members of a trial."""
    return tag_of(trial.name, trial.description, trial.ended_on)


def note_trial(tx: Transaction, event: AuditEvent, trial: TrialRecord, now_ms: int, **details: str | None) -> None:
    note(tx, event, f"trial {trial.id}", now_ms=now_ms, actor="", **details)
