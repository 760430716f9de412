"""Changes that are made only if the caller has seen what they replace (reference 1.5; RFC 9110, 13.1.1).

An object's tag is a digest of its changeable members. The task of a request says which tags it expects
(`expecting`); the transaction of the change compares (`require_unchanged`), so no change comes between the two. A
transaction runs in the context of the task that asked for it (`storage/database.py: Database.write`).
"""

import hashlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

import msgspec

from broker.errors import DomainError

#: Stands for any tag: the object exists.
ANY: Final = "*"
_TAG_CHARACTERS: Final = 32
_expected: Final[ContextVar[Collection[str] | None]] = ContextVar("expected_tags", default=None)


@dataclass(eq=False)
class ChangedMeanwhile(DomainError):
    """The object is not the one that the caller has seen. Nothing was changed."""

    status = 412
    template = "If-Match: changed meanwhile"


@contextmanager
def expecting(tags: Collection[str]) -> Iterator[None]:
    """While the block lasts, what this task changes must have one of these tags."""
    token = _expected.set(tags)
    try:
        yield
    finally:
        _expected.reset(token)


def require_unchanged(tag: str) -> None:
    """Check the tag of an object in the transaction that changes it. Raises ChangedMeanwhile."""
    expected = _expected.get()
    if expected is not None and tag not in expected and ANY not in expected:
        raise ChangedMeanwhile


def tag_of(*parts: object) -> str:
    """The tag of an object, from its changeable members in any form that JSON has."""
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:_TAG_CHARACTERS]
