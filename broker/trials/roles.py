"""The words of trials: roles, the states of an invitation, and the texts of refusals."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from broker.errors import TryLater
from storage.trial_invitations import TrialInvitationRecord

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
