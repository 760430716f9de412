"""A forward for its operator: `trunkline forward list`, `/operator` and the doctor show it."""

import msgspec


class ForwardStatus(msgspec.Struct, frozen=True):
    """Of one entry. `problem`: sentences; empty while all is well.

    `behind`: rows of the log that are not sent; `behind_seconds`: how long ago the oldest of them came. `deletes_on`:
    when retention would begin to delete what is not sent, in ms; None: nothing is deleted, or all is sent. `lost`: rows
    that it has deleted before, at most.
    """

    name: str
    to: str
    state: str  # sends | waits | elsewhere
    problem: str
    sent: int
    actions: int
    refused_actions: int
    failures: int
    behind: int
    behind_seconds: float
    deletes_on: int | None
    lost: int
    sent_on: int | None
    clock_ahead_seconds: float
