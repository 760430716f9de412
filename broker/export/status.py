"""The states of an export and their order (reference 10)."""

from enum import StrEnum


class ExportStatus(StrEnum):
    RECEIVED = "Received"
    IN_PROGRESS = "InProgress"
    SUCCESS = "Success"
    FAILURE = "Failure"
    SERVED = "Served"
    EXPIRED = "Expired"


_NEXT = {
    ExportStatus.RECEIVED: {ExportStatus.IN_PROGRESS},
    ExportStatus.IN_PROGRESS: {ExportStatus.SUCCESS, ExportStatus.FAILURE},
    ExportStatus.SUCCESS: {ExportStatus.SERVED, ExportStatus.EXPIRED},
    ExportStatus.SERVED: {ExportStatus.EXPIRED},
    ExportStatus.FAILURE: set(),
    ExportStatus.EXPIRED: set(),
}

#: States with a file to download.
WITH_RESULT = (ExportStatus.SUCCESS, ExportStatus.SERVED)
#: States with work left for the worker, in their order: an export under way continues first after a restart.
TO_DO = (ExportStatus.IN_PROGRESS, ExportStatus.RECEIVED)


def may_follow(status: str, after: str) -> bool:
    return ExportStatus(status) in _NEXT[ExportStatus(after)]
