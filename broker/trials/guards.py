"""What every change of a trial begins and ends with: the trial goes on, and the change is in the audit log."""

from broker.conditional import tag_of
from broker.errors import Conflict, NotFound
from broker.trace.audit import AuditEvent, note
from broker.trials.roles import STOPPED
from storage.database import Transaction
from storage.trials import TrialRecord


def present(tx: Transaction, trial: TrialRecord) -> TrialRecord:
    """The trial as it is now. Raises NotFound: it was deleted meanwhile."""
    current = tx.trials.trial(trial.key)
    if current is None or current.id != trial.id:  # the store may use the key of a deleted trial again
        raise NotFound
    return current


def going(tx: Transaction, trial: TrialRecord) -> TrialRecord:
    """The trial as it is now. Raises NotFound: it was deleted meanwhile; Conflict: it is stopped."""
    current = present(tx, trial)
    if current.ended_on is not None:
        raise Conflict(STOPPED)
    return current


def trial_tag(trial: TrialRecord) -> str:
    """Of what a call can change of a trial."""
    return tag_of(trial.name, trial.description, trial.ended_on)


def note_trial(tx: Transaction, event: AuditEvent, trial: TrialRecord, now_ms: int, **details: str | None) -> None:
    note(tx, event, f"trial {trial.id}", now_ms=now_ms, actor="", **details)
